"""Pairs of a forward and a backward that are one action with a time of its own."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from microp.schedule import Action, Op, Schedule, from_text, validate
from microp.schedule.builders import dualpipe, dualpipe_v, interleaved
from microp.simulator import LINK_MODELS, Costs, calibrate, critical_path, for_stages, replay, simulate
from microp.trace import makespan

PAIRED = [
    dualpipe(4, 10),
    dualpipe_v(3, 7),
    interleaved(4, 8, 2, extra_warmup=1, overlap=True),
    interleaved(3, 7, 3, extra_warmup=2, overlap=True),
    interleaved(3, 6, 2, extra_warmup=1, warmup="single", overlap=True),  # two ranks wait for one pair
]
each_schedule = pytest.mark.parametrize("schedule", PAIRED, ids=lambda schedule: schedule.name)


def uneven(schedule: Schedule, random: Random) -> Costs:
    """Other times on every stage, and hops."""
    times = [(random.randint(4, 9), random.randint(4, 9), random.randint(4, 9)) for _ in range(schedule.stages)]
    forward, backward, weight = zip(*times, strict=True)
    pair = (random.randint(16, 18),) * schedule.stages
    if not schedule.input_gradients:
        backward, weight = map(sum, zip(backward, weight, strict=True)), ()
    full = tuple(random.randint(14, 16) for _ in range(schedule.stages))
    return Costs(forward, tuple(backward), weight, latency=random.randint(0, 3), full=full, pair=pair)


@each_schedule
def test_a_pair_takes_both_inputs_first_and_gives_both_outputs_last(schedule: Schedule) -> None:
    costs = uneven(validate(schedule), Random(1))
    spans = {span.action: span for span in simulate(schedule, costs)}
    assert len(schedule.pairs) > 3
    for forward, backward in schedule.partners.items():
        first, second = spans[forward], spans[backward]
        assert first.end == second.start
        assert second.end - first.start == costs.pair[0]
        assert (first.end - first.start) * costs.of(backward) == (second.end - second.start) * costs.of(forward)
    ends = {action: spans[schedule.partners.get(action, action)].end for action in spans}
    seconds = set(schedule.partners.values())
    for action, span in spans.items():
        if action in seconds:
            continue
        there = [0]
        for taker in (action, schedule.partners.get(action)):
            source = schedule.source(taker) if taker else None
            if source is not None:
                is_near = spans[source].rank == span.rank
                there.append(ends[source] + (0 if is_near else costs.latency))
        row = schedule.ranks[span.rank]
        place = row.index(action)
        free = ends[row[place - 1]] if place else 0
        assert (span.wait_start, span.start) == (free, max(free, *there))


@each_schedule
def test_a_replay_gives_the_same_spans(schedule: Schedule) -> None:
    stages = schedule.stages
    for latency in (0, 2):  # equal stages, as a replay knows one time for all actions of a stage that are alike
        weight = (3,) * stages if schedule.input_gradients else ()
        costs = Costs((4,) * stages, (5,) * stages, weight, latency=latency, pair=(9,) * stages)
        spans = simulate(schedule, costs)
        assert makespan(replay(schedule, spans)) == makespan(spans)
        assert max(calibrate(schedule, spans).latency) == latency


@each_schedule
def test_the_critical_path_goes_through_pairs(schedule: Schedule) -> None:
    path = critical_path(simulate(schedule, uneven(schedule, Random(2))))
    assert path[0].start == 0
    assert all(before.end <= after.start for before, after in pairwise(path))
    assert set(schedule.partners.values()) & {span.action for span in path}


def test_without_a_time_of_its_own_a_pair_is_its_two_actions() -> None:
    for schedule in PAIRED:
        costs = replace(uneven(schedule, Random(3)), pair=())
        assert list(simulate(schedule, costs)) == list(simulate(schedule.apart, costs))


@pytest.mark.parametrize(("pair", "words"), [(4, "takes 4: .* from 5,"), (11, "to 10, both")])
def test_a_time_that_a_pair_cannot_take_is_refused(pair: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        for_stages(8, forward=5, backward=5, pair=pair)


@pytest.mark.parametrize(("pair", "takes"), [((8, 14), 11), ((6, 30), 12), ((4, 4), 10), ((6, 14), 10)])
def test_a_pair_of_two_stages_takes_their_mean_within_its_bounds(pair: tuple[int, int], takes: int) -> None:
    """A forward of 2 and a backward of 10."""
    costs = Costs((2, 5), (4, 10), pair=pair)
    parts = costs.halves(Action(Op.F, 0, 1), Action(Op.B, 1, 0))
    assert sum(parts) == takes
    assert parts[0] * 5 == parts[1]


def test_what_has_no_time_of_a_pair_is_refused() -> None:
    for given in ({"shares": (1, 2)}, {"transfer": LINK_MODELS["rendezvous"]}):
        with pytest.raises(ValueError, match="the time of a pair is not known"):
            Costs((1,), (1,), pair=(1,), **given)


def test_text_of_a_pair() -> None:
    text = "# microp schedule mine chunks=2 ranks=1\n0F0 (0F1;0B0) 0B1\n"
    assert [str(action) for action in from_text(text).pairs] == ["0F1"]
    with pytest.raises(ValueError, match="line 2, column 5: '0X1' is not an action"):
        from_text(text.replace("0F1", "0X1"))
