"""A loss that is not finite ends a run at its step, on every rank, and is a state of its own."""

from __future__ import annotations

import json
import math

import pytest
from conftest import small_job
from user import SMALL, microp, read

from microp.schedule.builders import one_f_one_b
from microp.store import read_errors, read_rows, summarise
from microp.store.recorder import to_json
from microp.worker import RankError, launch_ranks, run_threads


def constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


def strict(text: str):
    """JSON as everyone but Python reads it."""
    return json.loads(text, parse_constant=constant)


def test_numbers_that_are_not_finite_are_null_in_json():
    value = {"a": math.nan, "b": [1.5, math.inf, (-math.inf,)], "c": {"d": "nan", "e": None, "f": True}}
    assert strict(to_json(value)) == {"a": None, "b": [1.5, None, [None]], "c": {"d": "nan", "e": None, "f": True}}
    assert to_json({"a": [1.5]}) == json.dumps({"a": [1.5]})


@pytest.mark.parametrize(
    ("start", "changes"), [(run_threads, {"replicas": 2, "backend": "threads"}), (launch_ranks, {})]
)
def test_every_rank_keeps_its_row_of_that_step(start, changes, tmp_path):
    job = small_job(schedule=one_f_one_b(2, 4), steps=40, learning_rate=1e30, **changes)
    with pytest.raises(RankError, match=r"^loss is nan at step 1 \(rank 1") as refused:
        start(job, tmp_path, 1)
    diverged = [error for error in read_errors(tmp_path) if error["diverged"]]
    assert str(refused.value) == diverged[0]["message"]
    for error in diverged:
        replica = f" of replica {error['replica']}" if job.replicas > 1 else ""
        where = f"rank 1{replica}, measured step"
        assert error["message"] == f"loss is nan at step 1 ({where}): lower learning_rate=1e+30"
    for rank in range(job.processes):
        assert [row["step"] for row in read_rows(tmp_path, rank)] == [0, 1]
    for path in tmp_path.glob("*.json*"):
        for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            strict(line)
    assert read_rows(tmp_path, 1)[-1]["loss"] is None
    summary = summarise(job, tmp_path, "diverged")
    assert (summary["steps"], summary["loss"]) == (1, {"first": None, "last": None})


def test_as_typed(tmp_path):
    """One point of a sweep diverges, the other one finishes."""
    words = ["-m", "learning_rate=1e6,0.001", "model.layers=12", *SMALL[1:], "comms=threads", "tracking=disabled"]
    done = microp(*words, folder=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert "1 finished, 1 diverged" in done.stdout
    assert "loss is nan at step 1 (rank 1, measured step): lower learning_rate=1e+06" in done.stderr
    states = {read(path)["status"] for path in tmp_path.glob("outputs/runs/*/attempt-1/status.json")}
    assert states == {"finished", "diverged"}
    for path in tmp_path.glob("outputs/**/*.json"):
        strict(path.read_text())
    listed = microp(folder=tmp_path, program="microp.runs").stdout
    assert "1 finished, 1 diverged" in listed or "1 diverged, 1 finished" in listed
    assert "diverged: gpipe-m4-k2-" in listed
