"""Bytes of activations: the law of memory, and a bookkeeper with a dictionary."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from costs_helper import equal
from drawn import read_spans
from random_schedules import random_costs, random_schedule

from microp.schedule import Op, Schedule
from microp.schedule.builders import gpipe, naive, one_f_one_b
from microp.simulator import StageMemory, activation_peak, simulate
from microp.trace import in_flight_peak

A, BOUNDARY = 720, 10


@pytest.mark.parametrize("builder", [naive, gpipe, one_f_one_b])
@pytest.mark.parametrize("segments", [0, 1, 2, 5])
def test_the_law_of_memory(builder, segments):
    spans = simulate(builder(4, 6), equal(4, 1, 2))
    stage_memory = StageMemory((A,) * 4, (BOUNDARY,) * 4, segments=(segments,) * 4)
    law = {
        rank: held * segments * BOUNDARY + A // segments if segments else held * A
        for rank, held in in_flight_peak(spans).items()
    }
    assert activation_peak(spans, stage_memory) == law


def test_except_last_saves_only_where_the_last_comes_back_first():
    stage_memory = StageMemory((A,), (BOUNDARY,), segments=(1,), spared=(2,))
    first_in_first_out = read_spans("F0 F1 F2 B0 B1 B2")
    last_in_first_out = read_spans("F0 F1 F2 B2 B1 B0")
    assert activation_peak(first_in_first_out, stage_memory) == {0: 2 * BOUNDARY + A + A}
    assert activation_peak(last_in_first_out, stage_memory) == {0: 2 * BOUNDARY + A}


def test_what_waits_for_w_is_held():
    stage_memory = StageMemory((A,), pending=(100,))
    assert activation_peak(read_spans("F0 B0 F1 B1 F2 B2 W0 W1 W2"), stage_memory) == {0: A + 2 * 100}
    assert activation_peak(read_spans("F0 B0 W0 F1 B1 W1"), stage_memory) == {0: A}
    assert activation_peak(read_spans("F0 B0 F1 B1"), stage_memory) == {0: A}  # a full backward keeps nothing


def test_gradients_stay_once_they_are_made():
    stage_memory = StageMemory((A,), gradients=(50,), in_backward=(7,), in_weight=(3,))
    assert activation_peak(read_spans("F0 F1 B0 B1"), stage_memory) == {0: 2 * A + 7}  # the first backward finds none
    assert activation_peak(read_spans("F0 B0 F1 B1"), stage_memory) == {0: A + 50 + 7}
    assert activation_peak(read_spans("F0 B0 W0"), stage_memory) == {0: A + 7}
    assert activation_peak(read_spans("F0 B0 W0 F1 B1 W1"), stage_memory) == {0: A + 50 + 7}


def bookkeeper(schedule: Schedule, stage_memory: StageMemory) -> dict[int, int | Fraction]:
    """Peaks from what lies on a rank's shelf, by (stage, microbatch, what for)."""
    peaks = {}
    split = {(action.stage, action.microbatch) for _, action in schedule if action.op is Op.W}
    for rank, row in enumerate(schedule.ranks):
        shelf: dict[tuple[int, int, Op], int | Fraction] = {}
        peak: int | Fraction = 0
        for op, stage, microbatch in row:
            activation, segments = stage_memory.activation[stage], stage_memory.segments[stage]
            recomputed = segments > 0 and microbatch not in stage_memory.spared
            if op is Op.F:
                shelf[stage, microbatch, Op.B] = segments * stage_memory.boundary[stage] if recomputed else activation
            if op is Op.B:
                extra = (Fraction(activation, segments) if recomputed else 0) + stage_memory.in_backward[stage]
                peak = max(peak, sum(shelf.values()) + extra)
                del shelf[stage, microbatch, Op.B]
                if (stage, microbatch) in split:
                    shelf[stage, microbatch, Op.W] = stage_memory.pending[stage]
            if op is Op.W:
                peak = max(peak, sum(shelf.values()) + stage_memory.in_weight[stage])
                del shelf[stage, microbatch, Op.W]
            if op is Op.W or (op is Op.B and (stage, microbatch) not in split):
                shelf[stage, 0, Op.F] = stage_memory.gradients[stage]  # the same ones from then on
            peak = max(peak, sum(shelf.values()))
        peaks[rank] = peak
    return peaks


def test_any_schedule_any_footprint():
    random = Random(7)
    for _ in range(80):
        schedule = random_schedule(random)

        def values(most: int, stages: int = schedule.stages) -> tuple[int, ...]:
            return tuple(random.randint(0, most) for _ in range(stages))

        stage_memory = StageMemory(
            activation=values(99),
            boundary=values(9),
            pending=values(50),
            in_backward=values(40),
            in_weight=values(30),
            gradients=values(60),
            segments=values(3),
            spared=values(4, 2),
        )
        spans = simulate(schedule, random_costs(random, schedule))
        assert activation_peak(spans, stage_memory) == bookkeeper(schedule, stage_memory)


def test_refusals_name_the_key():
    with pytest.raises(ValueError, match=r"stage_memory.boundary has 2 values for 3 stages"):
        StageMemory((1, 1, 1), (1, 1))
    with pytest.raises(ValueError, match=r"stage_memory.pending\[1\]=-4 is negative"):
        StageMemory((1, 1), pending=(1, -4))
    with pytest.raises(ValueError, match=r"stage_memory.spared has -1: microbatches go from 0"):
        StageMemory((1, 1), spared=(-1,))
    with pytest.raises(ValueError, match=r"stage_memory.activation has 1 value for 2 stages"):
        activation_peak(simulate(gpipe(2, 2), equal(2, 1, 1)), StageMemory((1,)))
