"""Simulated times against a fixed point, closed forms and drawings; causes; speed."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise, product
from random import Random
from time import process_time

import numpy as np
import pytest
from drawn import equal, random_cases, random_schedule, read

from microp.schedule import Action, Op, Schedule, builders, validate
from microp.schedule.builders import chimera, dualpipe, gpipe, one_f_one_b
from microp.simulator import LINK_MODELS, Costs, critical_path, for_stages, replay, simulate, step_times, unit_shares
from microp.simulator.link_model import LinkModel, Rendezvous, SenderBusy, SerialLink
from microp.trace import Span, ends_at, makespan, reductions

RULES = pytest.mark.parametrize("transfer", LINK_MODELS.values(), ids=LINK_MODELS)


class SomeDelay(LinkModel):
    """The rule of a pure delay, by the code for rules in general."""


class FixedPoint:
    """What the times must be, by repeating what each rule says until nothing changes.

    Nothing is shared with the simulator but the schedule's own rule and the numbers.
    """

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.schedule, self.costs, self.rule = schedule, costs, type(costs.transfer)
        self.rank = {action: rank for rank, action in schedule}
        self.end = dict.fromkeys(self.rank, 0)
        self.arrival = dict.fromkeys(self.rank, 0)  # of the message that the action sends
        self.freed = dict.fromkeys(self.rank, 0)
        self.asked = dict.fromkeys(self.rank, 0)  # when the rank had nothing else to do before the action
        while self._improve():
            pass

    def takes(self, action: Action):
        return self.whole(action) * (self.costs.shares[action.microbatch] if self.costs.shares else 1)

    def whole(self, action: Action):
        costs, stage = self.costs, action.stage
        weight = costs.weight[stage] if costs.weight else 0
        if action.op is Op.F:
            return costs.forward[stage]
        if action.op is Op.W:
            return weight
        full = costs.full[stage] if costs.full else costs.backward[stage] + weight
        return (costs.backward[stage] if action.op is Op.I else full) + self.extra(action, costs.recompute)

    def extra(self, action: Action, values):
        recomputed = action.op in (Op.B, Op.I) and action.microbatch not in self.costs.spared
        return values[action.stage] if recomputed and values else 0

    def remote(self, action: Action) -> Action | None:
        return next((p for p in self.schedule.parents(action) if self.rank[p] != self.rank[action]), None)

    def hop(self, one: Action, other: Action):
        link, latency = max(one.stage, other.stage), self.costs.latency
        if isinstance(latency, tuple):
            latency = latency[link]
        return latency + Fraction(self.costs.boundary[link], self.costs.bandwidth) if self.costs.boundary else latency

    def _improve(self) -> bool:
        before = dict(self.end), dict(self.arrival), dict(self.freed)
        children = {self.remote(action): action for action in self.rank}
        for row in self.schedule.ranks:
            free = 0
            link: dict[int, object] = {}
            for action in row:
                source = self.remote(action)
                self.asked[action] = ready = free
                if source is not None:
                    arrival = self.arrival[source]
                    if self.rule is Rendezvous:
                        arrival = max(self.end[source], free) + self.hop(source, action)
                    ready = max(free, arrival)
                self.end[action] = ready + self.takes(action)
                free = self.end[action]
                if action in children:
                    child = children[action]
                    peer, hop = self.rank[child], self.hop(action, child)
                    begin = max(free, link.get(peer, 0)) if self.rule is SerialLink else free
                    link[peer] = self.arrival[action] = begin + hop
                    free += hop if self.rule is SenderBusy else 0
                self.freed[action] = free
        return before != (self.end, self.arrival, self.freed)


@RULES
def test_times_are_those_of_the_fixed_point(transfer):
    for schedule, costs in random_cases(1, 60, transfer):
        spans, expected = simulate(schedule, costs), FixedPoint(schedule, costs)
        assert {span.action: span.end for span in spans} == expected.end
        assert {span.action: span.wait_start for span in spans} == expected.asked
        assert all(span.end - span.start == expected.takes(span.action) for span in spans)
        assert [(span.rank, span.action) for span in spans] == list(schedule)


@RULES
def test_the_critical_path_is_as_long_as_the_step(transfer):
    for schedule, costs in random_cases(6, 60, transfer):
        spans = simulate(schedule, costs)
        path = critical_path(spans)
        assert path[0].start == 0
        assert path[-1].end - path[0].start == makespan(spans)
        for gap in gaps(schedule, costs, path):
            assert gap


def gaps(schedule: Schedule, costs: Costs, path: list[Span]) -> Iterator[bool]:
    """Whether each step of the path is explained: by nothing between, or by the rule's hops."""
    times = FixedPoint(schedule, costs)
    for span, later in pairwise(path):
        message = times.remote(later.action)
        if span.rank == later.rank:
            asked = times.freed[span.action]
            wait = times.hop(message, later.action) if message and isinstance(costs.transfer, Rendezvous) else 0
            yield later.start == asked + wait
        else:
            row = schedule.ranks[span.rank]
            queue = row[row.index(span.action) : row.index(message) + 1]
            sent = {source: child for child in times.rank if (source := times.remote(child)) in queue}
            hops = [times.hop(*pair) for pair in sent.items() if times.rank[pair[1]] == later.rank]
            yield len(hops) == 1 or isinstance(costs.transfer, SerialLink)
            yield later.start == span.end + sum(hops)


@pytest.mark.parametrize("small", [0, 100_000], ids=["arrays", "lists"])
@pytest.mark.parametrize("unit", [1, Fraction(1, 3), 0.1, 10**18], ids=["int", "Fraction", "float", "huge"])
def test_a_pure_delay_has_the_times_and_causes_of_the_rules_in_general(unit, small, monkeypatch):
    """Also where an action and a message end together, and for columns of every type, in lists and in arrays."""
    monkeypatch.setattr("microp.simulator.simulation.SMALL", small)
    random = Random(7)
    for _ in range(15):
        schedule = random_schedule(random)
        times = [tuple(random.randint(0, 2) * unit for _ in range(schedule.stages)) for _ in range(3)]
        hop = random.randint(0, 2) * unit
        quick, general = (
            simulate(schedule, Costs(*times, latency=hop, transfer=rule)) for rule in (LinkModel(), SomeDelay())
        )
        assert list(quick) == list(general)
        assert quick.cause.tolist() == general.cause.tolist()
        assert quick.start.dtype == general.start.dtype


def test_floats_are_what_the_same_sums_give_and_integers_beyond_64_bits_stay_exact():
    schedule, costs = one_f_one_b(3, 5), equal(3, 0.1, 0.2, 0.05)
    assert {span.action: span.end for span in simulate(schedule, costs)} == FixedPoint(schedule, costs).end
    assert makespan(simulate(gpipe(2, 3), equal(2, 10**20, 10**20 + 1))) == 4 * (2 * 10**20 + 1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("0B0 0F0 0F1 0B1",), "it deadlocks: 0B0 waits for 0F0, which comes after 0B0"),
        (("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"), "it deadlocks: 0B0 waits for 1B0"),
        (("0F0 0B0 0F7 0B7",), "0F7 and 0B7 are out of range"),
        (("0F0 0F1", "0B0 0B1"), "0B0 is on rank 1, but rank 0 holds stage 0"),
    ],
)
def test_what_cannot_end_is_refused(rows, message):
    schedule = read(*rows, chunks=2)
    with pytest.raises(ValueError, match=message):
        simulate(schedule, equal(schedule.stages, 1, 1))


@pytest.mark.parametrize(
    "rows",
    [("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"), ("0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1W0 1F1 1I1 1W1")],
    ids=["whole", "divided"],
)
def test_a_schedule_that_lacks_or_repeats_an_action_is_refused(rows):
    """Also the last rank's last B and the first stage's, which no other action needs; repeated on either rank."""
    costs = for_stages(2, forward=1, backward=1, weight=1)
    for action in " ".join(rows).split():
        for changed, said in (
            ([row.replace(action, "") for row in rows], "missing"),
            ([row.replace(action, f"{action} {action}") for row in rows], "listed more than once"),
            ([f"{rows[0]} {action}", rows[1]], "listed more than once"),
            ([rows[0], f"{rows[1]} {action}"], "listed more than once"),
        ):
            with pytest.raises(ValueError, match=f"schedule 'drawn': {action} is {said}"):
                simulate(read(*changed, chunks=2), costs)
    with pytest.raises(ValueError, match=r"costs.forward has 3 values for 4 stages: give one per stage, or one for al"):
        simulate(gpipe(4, 2), equal(3, 1, 1))


def test_many_costs_at_once_give_the_steps_of_each():
    random = Random(8)
    for schedule in (*(random_schedule(random) for _ in range(40)), chimera(4, 6), dualpipe(4, 8)):
        table = np.array([[[random.randint(1, 9) for _ in range(3)] for _ in range(schedule.stages)] for _ in range(6)])
        names = ("forward", "backward", "weight", "full", "overhead", "reduction")
        steps = step_times(schedule, Costs(**dict(zip(names, map(tuple, table), strict=True)), latency=tuple(table[0])))
        for number, step in enumerate(steps):
            one = {name: tuple(stages[:, number].tolist()) for name, stages in zip(names, table, strict=True)}
            spans = simulate(schedule, Costs(**one, latency=one["forward"]))
            if schedule.copies > 1:
                starts = {sum.stage: sum.start for sum in reductions(schedule, spans, (0,) * schedule.stages)}
                last = [max(span.end for span in spans if span.rank == rank) for rank in range(4)]
                assert starts == {stage: max(last[stage % 4], last[3 - stage % 4]) for stage in range(8)}
            assert step == ends_at(spans, reductions(schedule, spans, one["reduction"]))


def test_time_grows_with_the_number_of_actions():
    def seconds(chunks: int) -> float:
        start = process_time()
        simulate(validate(one_f_one_b(64, chunks), 64), equal(64, 3, 5, 1))
        return process_time() - start

    few, many = (min(seconds(chunks) for _ in range(3)) for chunks in (128, 512))
    assert many < 14 * few  # 4 times the actions; the rest is for a busy machine, and 16 would be the square


@pytest.mark.parametrize("build", [builders.gpipe, builders.one_f_one_b, builders.zb_h1, builders.interleaved])
def test_a_long_microbatch_is_priced(build):
    for ranks, lengths in product((1, 2, 3), ([1, 1, 4, 1], [3, 1, 1, 2, 1])):
        schedule = build(ranks, len(lengths))
        times = [(n,) * schedule.stages for n in (12, 24, 12)]
        costs = Costs(*times, **unit_shares(schedule, per_microbatch=lengths))
        assert costs.shares == tuple(lengths)
        expected = max(FixedPoint(schedule, costs).end.values())
        assert makespan(spans := simulate(schedule, costs)) == expected
        if lengths == [1, 1, 4, 1]:  # most are alike, so the others are told from them
            assert makespan(replay(schedule, spans)) == expected


def test_later_slices_take_longer():
    schedule = builders.seq_1f1b(3, 2, slices=3)
    shares = unit_shares(schedule, per_microbatch=[1, 2], per_slice=[1, 2, 3])
    assert shares["shares"] == tuple(Fraction(n, 6) for n in (1, 2, 3, 2, 4, 6))
    assert shares["sizes"] == tuple(Fraction(n, 3) for n in (1, 1, 1, 2, 2, 2))
    costs = Costs((12,) * 3, (36,) * 3, **shares)
    assert makespan(simulate(schedule, costs)) == max(FixedPoint(schedule, costs).end.values())


def test_a_hop_carries_the_bytes_of_its_unit():
    schedule = builders.gpipe(2, 2)
    costs = Costs((1, 1), (1, 1), boundary=(8, 8), bandwidth=1, **unit_shares(schedule, per_microbatch=[1, 3]))
    spans = {str(span.action): span for span in simulate(schedule, costs)}
    assert spans["1F0"].start - spans["0F0"].end == 8
    assert spans["1F1"].start - spans["0F1"].end == 24
    for given in ({"per_microbatch": [1]}, {"per_slice": [1, 1]}):
        with pytest.raises(ValueError, match=r"costs\.per_(microbatch|slice) has \d values for \d .*: give one for"):
            unit_shares(schedule, **given)
