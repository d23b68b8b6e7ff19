"""Ranks that hold the same weights begin with the same numbers, or the run is refused."""

from __future__ import annotations

import re

import own_model
import pytest

from microp.schedule.builders import gpipe
from microp.worker import RankError, run_threads


@pytest.mark.parametrize(
    ("keys", "ranks", "replicas", "said"),
    [
        ({}, 1, 2, "replica 1 (rank 1) began with another bias of layer 1 than replica 0"),
        ({}, 2, 3, "replica 1 (rank 2) began with another bias of layer 1 than replica 0"),
        ({"buffer": True}, 1, 2, "replica 1 (rank 1) began with another table of layer 1 than replica 0"),
        ({"tied": True}, 3, 1, "rank 2 began with another weight of layer 2 than the weight of layer 0"),
        ({"tied": True}, 1, 1, None),
        ({}, 3, 1, None),
    ],
)
def test_a_model_function_that_is_not_deterministic_is_refused_where_it_matters(keys, ranks, replicas, said, tmp_path):
    settings = own_model.settings_of(own_model.unseeded, **keys)
    job = own_model.own_job(settings, schedule=gpipe(ranks, 3), replicas=replicas, backend="threads")
    if said is None:
        run_threads(job, tmp_path)
        return
    with pytest.raises(RankError, match=f"{re.escape(said)}.*torch's generator, which is seeded"):
        run_threads(job, tmp_path)


@pytest.mark.parametrize("function", [own_model.by_numpy, own_model.tied_layers, own_model.normed])
def test_a_deterministic_one_is_not(function, tmp_path):
    job = own_model.own_job(own_model.settings_of(function), replicas=2, backend="threads", batch_size=18)
    run_threads(job, tmp_path)
