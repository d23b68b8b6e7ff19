"""Units that differ: microbatches of other lengths, and slices that attend to more."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product

import pytest

from microp.schedule import Action, Op
from microp.schedule import builders as schedules
from microp.simulator import Costs, replay, simulate, unit_shares
from microp.trace import makespan

BASE = {Op.F: 12, Op.B: 36, Op.I: 24, Op.W: 12}


def costs_of(schedule, latency=0, **shares) -> Costs:
    of = [(n,) * schedule.stages for n in (12, 24, 12)]
    return Costs(*of, latency=latency, **unit_shares(schedule, **shares))


def by_hand(schedule, time) -> int:
    """The makespan by longest paths over parents and rows, without the simulator."""
    ends: dict[Action, int] = {}
    before = {b: a for row in schedule.ranks for a, b in pairwise(row)}

    def end(action: Action):
        if action not in ends:
            needs = [*schedule.parents(action), *([before[action]] if action in before else [])]
            ends[action] = max(map(end, needs), default=0) + time(action)
        return ends[action]

    return max(end(action) for _, action in schedule)


@pytest.mark.parametrize("build", [schedules.gpipe, schedules.one_f_one_b, schedules.zb_h1, schedules.interleaved])
def test_a_long_microbatch_is_priced(build):
    for ranks, lengths in product((1, 2, 3), ([1, 1, 4, 1], [3, 1, 1, 2, 1])):
        schedule = build(ranks, len(lengths))
        costs = costs_of(schedule, per_microbatch=lengths)
        expected = by_hand(schedule, lambda a, lengths=lengths: BASE[a.op] * lengths[a.microbatch])
        assert makespan(spans := simulate(schedule, costs)) == expected
        if lengths == [1, 1, 4, 1]:  # most are alike, so the others are told from them
            assert makespan(replay(schedule, spans)) == expected


def test_later_slices_take_longer():
    schedule = schedules.seq_1f1b(3, 2, slices=3)
    shares = unit_shares(schedule, per_microbatch=[1, 2], per_slice=[1, 2, 3])
    assert shares["shares"] == tuple(Fraction(n, 6) for n in (1, 2, 3, 2, 4, 6))
    assert shares["sizes"] == tuple(Fraction(n, 3) for n in (1, 1, 1, 2, 2, 2))
    expected = by_hand(schedule, lambda a: {Op.F: 12, Op.B: 36}[a.op] * shares["shares"][a.microbatch])
    assert makespan(simulate(schedule, costs_of(schedule, per_microbatch=[1, 2], per_slice=[1, 2, 3]))) == expected


def test_a_hop_carries_the_bytes_of_its_unit():
    schedule = schedules.gpipe(2, 2)
    costs = Costs((1, 1), (1, 1), boundary=(8, 8), bandwidth=1, **unit_shares(schedule, per_microbatch=[1, 3]))
    spans = {str(span.action): span for span in simulate(schedule, costs)}
    assert spans["1F0"].start - spans["0F0"].end == 8
    assert spans["1F1"].start - spans["0F1"].end == 24
    for given in ({"per_microbatch": [1]}, {"per_slice": [1, 1]}):
        with pytest.raises(
            ValueError, match=r"costs\.per_(microbatch|slice) has \d values for \d .*: give one for each"
        ):
            unit_shares(schedule, **given)
