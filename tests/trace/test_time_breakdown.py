"""Every nanosecond of a step is booked once, and as what it was."""

from collections.abc import Iterable
from random import Random

import pytest
from conftest import small_job
from drawn import random_schedule

from microp.records import read_rows, summarise
from microp.schedule import Action, Op, Schedule
from microp.schedule.builders import dualpipe, dualpipe_v, one_f_one_b
from microp.settings import EmulatedSettings
from microp.simulator import Costs, simulate
from microp.trace import KINDS, Span, StepClock, account
from microp.worker.threads import run_threads


def test_a_wait_is_the_peer_s_fault_until_its_end_and_the_link_s_after_it():
    """
    ::

                  0         10        20        30        40        50
        rank 0    hhFFFFFFFFtttt......................BBBBBBoooo        t: it looks for its gradient at 12
        rank 1    h...........FFFFFBBBBBBB                              on its way from 10 to 12, from 26 to 34
    """
    schedule = Schedule("pair", 1, tuple(tuple(map(Action.parse, row.split())) for row in ("0F0 0B0", "1F0 1B0")))
    times = {"0F0": (2, 2, 2, 10), "1F0": (1, 12, 12, 17), "1B0": (17, 17, 17, 26), "0B0": (12, 34, 34, 40)}
    spans = [Span(a.stage, *a, *times[str(a)]) for _, a in schedule]
    clocks = {0: StepClock(0, 45, optimizer=4, recompute=2), 1: StepClock(1, 30, optimizer=1, recompute=0)}
    found = account(schedule, spans, clocks)
    none = {"recompute": 0, "warmup": 0, "steady": 0, "reduction": 0}
    first = {"compute": 8 + 4, "recompute": 2, "optimizer": 4, "transfer": 34 - 26, "drain": 26 - 12}
    second = {"compute": 5 + 9, "optimizer": 1, "transfer": 12 - 10, "warmup": 10 - 1}
    # the host: before the forward, before it asks for its gradient, before its optimizer; rank 1 began later, and
    # something lay between its backward and its optimizer; it drains until the last rank has ended
    second |= {"drain": 45 - 30, "host": 1 + 3}
    assert found == {0: {**none, **first, "host": 2 + 2 + 1}, 1: {**none, **second}}


@pytest.mark.parametrize("build", [dualpipe, dualpipe_v])
def test_a_pair_waits_for_both_inputs_and_not_for_a_transfer(build):
    """Where messages take no time: its outputs leave at its end, also that of its forward."""
    schedule = build(4, 8)
    times = (2,) * schedule.stages
    spans = simulate(schedule, Costs(times, times, times, pair=(5,) * schedule.stages))
    clocks = dict.fromkeys(range(4), StepClock(0, max(span.end for span in spans), optimizer=0, recompute=0))
    assert {times["transfer"] for times in account(schedule, spans, clocks).values()} == {0}


def look(schedule: Schedule, spans: list[Span], clocks, rank: int, moment: int) -> str:
    """What `rank` does at `moment`."""
    own = [span for span in spans if span.rank == rank]
    ends = {span.action: span.end for span in spans}
    clock = clocks[rank]
    if moment >= clock.ended:
        return "drain"
    if clock.ended - clock.optimizer <= moment:
        return "optimizer"
    if any(span.start <= moment < span.end for span in own):
        return "compute"
    for span in own:
        source = schedule.source(span.action)
        if span.wait_start <= moment < span.start and source is not None:
            if schedule.placement[source.stage] == rank:
                return "host"
            if moment >= ends[source]:
                return "transfer"
            if all(other.op is not Op.F or other.start < span.start for other in own):
                return "drain"
            begun = any(other.op in (Op.B, Op.I) and other.start < span.start for other in own)
            return "steady" if begun else "warmup"
    return "host"


def observed(random: Random, schedule: Schedule, spans: list[Span]) -> tuple[list[Span], dict[int, StepClock]]:
    """Spans and clocks of ranks that also do other things, before, between and after their actions."""
    waiting, clocks = [], {}
    for rank in range(len(schedule.ranks)):
        own = [span for span in spans if span.rank == rank]
        began = free = own[0].start - random.randint(0, 4)
        for span in own:
            wait_start, free = random.randint(free, span.start), span.end
            waiting.append(span._replace(wait_start=wait_start, ready=random.randint(wait_start, span.start)))
        optimizer = random.randint(0, 3)
        backwards = sum(span.end - span.start for span in own if span.op in (Op.B, Op.I))
        recompute = random.randint(0, backwards)
        clocks[rank] = StepClock(began, free + random.randint(0, 3) + optimizer, optimizer, recompute)
    return waiting, clocks


def with_gaps(random: Random, spans: Iterable[Span]) -> list[Span]:
    """Three times as slow, with actions that begin up to two moments late."""
    return [span._replace(start=3 * span.start + random.randint(0, 2), end=3 * span.end) for span in spans]


def test_any_step_is_booked_moment_by_moment():
    random = Random(9)
    for _ in range(60):
        schedule = random_schedule(random)
        times = (tuple(random.randint(1, 7) for _ in range(schedule.stages)) for _ in range(3))
        spans = with_gaps(random, simulate(schedule, Costs(*times, latency=random.randint(0, 5))))
        spans, clocks = observed(random, schedule, spans)
        began, ended = min(c.began for c in clocks.values()), max(c.ended for c in clocks.values())
        for rank, times in account(schedule, random.sample(spans, len(spans)), clocks).items():
            assert list(times) == list(KINDS)
            assert sum(times.values()) == ended - began
            assert min(times.values()) >= 0
            expected = dict.fromkeys(KINDS, 0)
            for moment in range(began, ended):
                expected[look(schedule, spans, clocks, rank, moment)] += 1
            expected["compute"] -= clocks[rank].recompute
            expected["recompute"] += clocks[rank].recompute
            assert times == expected


def test_a_real_step_adds_up(tmp_path):
    device = EmulatedSettings("emulated", 1, 1.0, 2.0, None, None, 0.3, None, [])
    job = small_job("always", schedule=one_f_one_b(3, 5), device=device, backend="threads")
    run_threads(job, tmp_path)
    time_ms = summarise(job, tmp_path, "finished")["time_ms"]
    rows = [[row for row in read_rows(tmp_path, rank) if row["phase"] == "measured"][-1] for rank in range(3)]
    wall_ms = (max(row["ended_ns"] for row in rows) - min(row["began_ns"] for row in rows)) / 1e6
    for rank in range(3):
        times = {kind: values[rank] for kind, values in time_ms.items()}
        assert times.keys() == set(KINDS)
        assert sum(times.values()) == pytest.approx(wall_ms, rel=0.01)
        assert min(times.values()) >= 0
        assert times["compute"] >= 5 * 3
        assert times["recompute"] > 0
        assert times["warmup"] + times["drain"] > 0  # how much is the machine's: a late rank shortens its neighbour's
    assert time_ms["transfer"][0] + time_ms["transfer"][2] > 0
