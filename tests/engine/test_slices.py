"""Slices of a sequence train as the whole sequence does: float64, to 1e-12, for orders x shapes x checkpointing."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import pytest
from conftest import CHECKPOINTING, gpt, small_job
from one_process import assert_near, by_one_process, by_processes, by_threads

import microp
from microp.schedule import Schedule, rows, skewed, uniform
from microp.schedule.builders import seq_1f1b
from microp.schedule.builders.phases import defer_weights

SHAPES = [  # ranks, chunks, slices, stages per rank: below, at and above what fills the pipeline
    (1, 1, 2, 1),
    (1, 3, 4, 2),
    (2, 1, 2, 1),
    (2, 2, 4, 1),
    (2, 3, 3, 2),
    (3, 1, 4, 1),
    (3, 4, 2, 1),
    (3, 2, 6, 2),
    (4, 5, 2, 1),
    (4, 3, 3, 2),
]


def sliced_gpt(layers: int, tied: bool = False):
    return replace(gpt("float64", dropout=0.0), layers=layers, context=12, tied=tied)


def divided(schedule: Schedule) -> Schedule:
    """The same order with an I for every B, and a W two Is later."""
    return replace(schedule, name="divided", ranks=rows(defer_weights(row, lag=2) for row in schedule.ranks))


@pytest.mark.parametrize("order", ["full", "divided"])
def test_slices_are_the_whole_sequence(order):
    modes, cuts = cycle(CHECKPOINTING), cycle((uniform, skewed))
    for ranks, chunks, slices, stages_per_rank in SHAPES:
        schedule = seq_1f1b(ranks, chunks, slices, stages_per_rank)
        schedule = divided(schedule) if order == "divided" else schedule
        model = sliced_gpt(schedule.stages + 1, tied=chunks % 2 == 0)
        job = small_job(
            schedule=schedule,
            partition=next(cuts)(model.layers, schedule.stages),
            checkpointing=CHECKPOINTING[next(modes)],
            model=model,
            batch_size=7,
            backend="threads",
        )
        assert_near(by_threads(job), by_one_process(job))


def test_on_processes(tmp_path):
    jobs = []
    for mode in CHECKPOINTING:
        schedule, model = seq_1f1b(2, 3, 4), sliced_gpt(3)
        partition = uniform(model.layers, schedule.stages)
        jobs.append(
            small_job(
                schedule=schedule, partition=partition, checkpointing=CHECKPOINTING[mode], model=model, batch_size=7
            )
        )
    for job, trained in zip(jobs, by_processes(jobs, tmp_path), strict=True):
        assert_near(trained, by_one_process(job))


@pytest.mark.parametrize("checkpointing", ["never", "always", "segments"])
def test_the_memory_of_slices_is_predicted(checkpointing, tmp_path):
    """Keys and values that are kept, their gradients on the way back, and the mask; another slice holds more."""
    words = ["model=gpt", "model.layers=6", "model.context=32", "schedule=seq_1f1b", "schedule.slices=4", "chunks=3"]
    words += [f"checkpointing={checkpointing}", "batch_size=12", "comms=threads", "steps=2", "tracking=disabled"]
    summary = microp.measure(*words, f"output_dir={tmp_path}").summary
    assert summary["predicted"]["peak_memory_mib"] == pytest.approx(summary["peak_memory_mib"], rel=0.005)
    assert summary["in_flight_peak"] == [1.25, 1.0]
