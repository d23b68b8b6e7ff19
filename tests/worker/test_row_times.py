"""Stages are timed at many numbers of rows, without a pipeline."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import gpt, mlp, small_job
from threads import in_threads

from microp.schedule.builders import gpipe
from microp.worker import record_rows


@pytest.mark.parametrize("model", [mlp(), gpt(dropout=0.0)], ids=["mlp", "gpt"])
def test_every_rank_times_each_op(tmp_path, model):
    job = small_job(schedule=gpipe(2, 1), model=model)
    kept = in_threads(2, lambda comms: record_rows([1, 2, 9], 0.6, job, comms, 0, tmp_path))
    for rank, rows in enumerate(kept):
        assert rows == [1, 2, 9][: len(rows)]
        with np.load(tmp_path / f"rows.rank{rank}.npz") as file:
            assert file["rows"].tolist() == rows
            for op in ("forward", "full", "backward", "weight"):
                assert file[op].shape == (len(rows),)
                assert (file[op] > 0).all()


def test_numbers_that_take_too_long_are_left_out(tmp_path):
    job = small_job(schedule=gpipe(2, 1))
    kept = in_threads(2, lambda comms: record_rows([3, 4, 5], 0.0, job, comms, 0, tmp_path))
    assert kept == [[3], [3]]
