"""Closed forms of named schedules: makespan, largest span and peaks, without a simulation.

K ranks, M chunks, v stages per rank, s slices; f, b, w: the times of a forward, an input gradient and a weight
gradient of one stage; x = b + w, t = f + x, T = v t; c: one hop (asynchronous latency); P: the time of a pair. If every
microbatch is recomputed, b contains that.

The makespans of a step (the same for `_lifo`) stand as a table, with the conditions under which they are exact, in
README.md of `microp.schedule`.

`_LARGEST_SPANS` has the largest span of a rank, from its first start to its last end, where it is not the makespan.
`_IN_FLIGHT` and `_HELD` have the peaks of rank r in (stage, microbatch) pairs, which depend only on the order: a pair
is in flight from F to B or I, and held from F to B or W. G: the microbatches of the first round.

Sources: arXiv 1811.06965 (GPipe), 2104.04473 (interleaved), 2211.05953 (breadth-first),
2401.10241 (zero bubble), 2405.15362 (V), 2412.19437 (DualPipe), 2503.01328 (GIS), 2405.18047 (2BP).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from operator import add, itemgetter
from typing import Any

from microp.schedule import Op, Schedule
from microp.simulator.costs import Costs, even_shares
from microp.trace import idle_fraction


class _Shape:
    """The letters of the tables that need no costs: a schedule's K, M and v, and a rank r."""

    def __init__(self, schedule: Schedule, rank: int = 0) -> None:
        self.K, self.M, self.r = len(schedule.ranks), schedule.chunks, rank
        self.v, self.s = schedule.depth // self.K, schedule.slices
        forwards = [action for action in schedule.ranks[0] if action.op is Op.F]
        self.rounds = [len(list(round_)) for stage, round_ in groupby(forwards, itemgetter(1)) if stage == 0]
        self.G = self.rounds[0]
        self.a = -(-self.K // self.s)  # microbatches of a round of slices
        self._schedule = schedule

    def lead(self, rank: int) -> int:
        """Return the forwards of a rank before its first backward."""
        return next(place for place, action in enumerate(self._schedule.ranks[rank]) if action.op is not Op.F)

    @property
    def full(self) -> bool:
        """Whether no round after the first has fewer microbatches than there are ranks."""
        return min(self.rounds[1:], default=self.K) >= self.K


class _Case(_Shape):
    """A schedule with its costs, in the letters of the tables: the times of stage 0, and lists with every stage's."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        super().__init__(schedule)
        weights = costs.weight or (0,) * len(costs.forward)
        self.forwards, self.backwards = costs.forward, tuple(map(add, costs.backward, weights))
        self.total = sum(self.forwards) + sum(self.backwards)
        unit = costs.share(0)
        self.f, self.b, self.w = costs.forward[0] * unit, costs.backward[0] * unit, weights[0] * unit
        self.c = costs.latency
        self.x = self.b + self.w
        self.t = self.f + self.x
        self.T = self.v * self.t
        pairs = costs.pair if schedule.pairs else ()
        self.P = pairs[0] if pairs else self.t
        self.n = max(sum(action in schedule.pairs for action in row) for row in schedule.ranks)  # of a rank
        self.equal = all(len(set(times)) == 1 for times in (costs.forward, costs.backward, weights, pairs or (0,)))
        near = self.equal and self.c == 0  # a hop costs nothing
        self.near, self.paired = near and not pairs, near and bool(pairs)
        self.unit = self.near and self.f == self.b == self.w
        self.short_w = self.near and self.w <= min(self.f, self.b)


_Form = tuple[Callable[[_Case], bool], Callable[[_Case], Any]]  # (is it exact?, its value)


# --- formulas that need more than a line, or are used more than once -------------------------------


def _heaviest(s: _Case) -> tuple[int, int]:
    """Return the index of the stage with the longest forward, and the index of another stage."""
    heavy = s.forwards.index(max(s.forwards))
    return heavy, 1 if heavy == 0 else 0


def _is_one_heavier(s: _Case) -> bool:
    """Return whether `_one_heavier` is exact.

    All stages but one must be alike, F and B of that one longer by the same factor, M >= K, and c = 0.
    """
    heavy, light = _heaviest(s)
    others = {times for stage, times in enumerate(zip(s.forwards, s.backwards, strict=True)) if stage != heavy}
    alike = s.forwards[heavy] * s.backwards[light] == s.backwards[heavy] * s.forwards[light]
    return s.c == 0 and s.M >= s.K and len(others) == 1 and alike


def _one_heavier(s: _Case) -> Any:
    heavy, light = _heaviest(s)
    f, x, t = s.forwards[heavy], s.backwards[heavy], s.forwards[light] + s.backwards[light]
    after = s.K - 1 - heavy
    return heavy * t + s.M * (f + x) + max(0, after * (t - f)) + max(0, after * (t - x))


def _breadth_first(s: _Case) -> Any:
    c = s.c if s.K > 1 else 0  # on one rank there is no hop from stage to stage
    turn = max(s.M * s.f, s.K * (s.f + c)) + max(s.M * s.x, s.K * (s.x + c))
    return (s.v - 1) * turn + (s.M + s.K - 1) * s.t + 2 * (s.K - 1) * c


def _filled(s: _Case) -> Any:
    """Return the makespan if weight gradients fill the drain."""
    return s.M * s.T + (s.K - 1) * (s.f + s.b - s.w)


def _skewed(s: _Case) -> Any:
    """Return the makespan if no rank waits and rank r starts r forwards later than rank 0."""
    return s.M * s.T + (s.K - 1) * s.f


def _double(s: _Case) -> bool:
    """Return whether rounds have K microbatches, and the warmup two forwards for each rank after."""
    return s.M % s.K == 0 and s.G == s.K and (s.K == 1 or _is_eager(s))


def _is_eager(s: _Shape) -> bool:
    """Return whether a rank's warmup has two forwards for each rank after it."""
    return s.K > 1 and s.lead(s.K - 2) == s.lead(s.K - 1) + 2


def _v_min(s: _Shape) -> int:
    most = 2 * ((s.K + 1) // 3 + 1)
    if s.K % 3 != 2 or s.r % 3 != 0:
        return most
    return most - (1 if s.r == 0 else 2)


def _interleaved(s: _Shape) -> int:
    last = s.lead(s.K - 1)  # (v-1) G, the slices of a microbatch, and what the extra warmup adds
    each = s.lead(s.K - 2) - last if s.K > 1 else 0  # 2 for each rank after this one, or 1 with a single warmup
    return min(each * (s.K - 1 - s.r) + last, s.v * s.M * s.s)


def _sliced(s: _Case) -> Any:
    turns = 0 if _is_eager(s) else (s.M - 1) * s.s * (s.K - 1) // s.K
    return (s.M * s.s * s.v + s.K - 1) * s.t + 2 * s.c * ((s.K - 1) + turns)


def _gis(s: _Case) -> Any:
    return s.M * s.T + (s.K - 1) * (s.f + s.b) + (s.v - 1) * ((s.K - s.G) * s.f + max(0, s.K * s.b - s.G * s.x))


def _paired(s: _Case, times: int) -> Any:
    return s.M * s.T + times * (s.P + s.f - 2 * s.w) - s.n * (s.t - s.P)


# --- the tables ------------------------------------------------------------------------------------


_MAKESPANS: dict[str, list[_Form]] = {
    "naive": [(lambda _: True, lambda s: s.M * (s.total + 2 * (s.K - 1) * s.c))],
    "gpipe": [
        (
            lambda s: s.equal or s.c == 0,
            lambda s: s.total + (s.M - 1) * (max(s.forwards) + max(s.backwards)) + 2 * (s.K - 1) * s.c,
        )
    ],
    "1f1b": [
        (lambda s: s.equal, lambda s: (s.M + s.K - 1) * s.t + 2 * s.c * ((s.K - 1) + (s.M - 1) * (s.K - 1) // s.K)),
        (_is_one_heavier, _one_heavier),
    ],
    "eager_1f1b": [(lambda s: s.equal and 2 * s.c <= s.t, lambda s: (s.M + s.K - 1) * s.t + 2 * (s.K - 1) * s.c)],
    "interleaved": [
        (lambda s: s.near and s.M >= s.K and s.full, lambda s: s.M * s.T + (s.K - 1) * s.t),
        (lambda s: s.near and s.M < s.K, lambda s: (s.v * s.K + s.M - 1) * s.t),
        (lambda s: s.paired and _double(s), lambda s: s.M * s.T + (s.K - 1) * s.t - s.n * (s.t - s.P)),
    ],
    "breadth_first": [(lambda s: s.equal, _breadth_first)],
    "zb_h1": [(lambda s: s.short_w and s.M >= s.K, _filled)],
    "zb_h2": [(lambda s: s.unit and s.M >= 2 * s.K - 1, _skewed)],
    "zb_interleaved": [(lambda s: s.short_w and s.M >= s.K, _filled)],
    "zb_v": [(lambda s: s.unit and s.M >= 2 * s.K - 1, _skewed)],
    "dualpipe_v": [
        (lambda s: s.near and s.w <= s.b <= s.f <= s.x, _filled),
        (lambda s: s.paired and s.w <= s.b <= s.f <= s.x, lambda s: _paired(s, s.K - 1)),
    ],
    "v_half": [
        (
            lambda s: s.unit and s.K >= 3 and s.M >= 2 * s.K,
            lambda s: s.M * s.T + (3 * s.K - (4 if s.K % 2 else 7)) * s.f,
        )
    ],
    "v_min": [
        (
            lambda s: s.unit and s.K >= 2 and s.M >= 2 * s.K,
            lambda s: s.M * s.T + (4 * s.K - (5 if s.K % 3 else 7)) * s.f,
        )
    ],
    "1f1b_v": [
        (
            lambda s: s.near and s.K >= 2 and s.M >= s.K and s.x == 2 * s.f,
            lambda s: s.M * s.T + (6 * s.K - (7, 6, 5)[s.K % 3]) * s.f,
        )
    ],
    "gis": [(lambda s: s.short_w and s.M % s.G == 0 and s.v > 1 and s.G * s.t >= s.K * max(s.f, s.b), _gis)],
    "seq_1f1b": [
        (
            lambda s: (s.near and s.M % s.a == 0) or (s.equal and s.v == 1 and (2 * s.c <= s.t or not _is_eager(s))),
            _sliced,
        )
    ],
    "dualpipe": [
        (
            lambda s: s.near and s.w <= s.b <= s.f <= s.x,
            lambda s: s.M * s.t + (s.K // 2 - 1) * (s.f + s.b - s.w),
        ),
        (lambda s: s.paired and s.w <= s.b <= s.f <= s.x, lambda s: _paired(s, s.K // 2 - 1)),
    ],
    "chimera": [(lambda s: s.near and s.f == s.x and s.M % s.K == 0, lambda s: s.M * s.t + (s.K - 2) * s.f)],
}

_LARGEST_SPANS: dict[str, list[_Form]] = {
    "zb_h2": [(lambda s: s.short_w and s.M >= 2 * s.K - 1, lambda s: s.M * s.T + (s.K - 1) * (s.f + s.b - 2 * s.w))],
    "zb_v": [(lambda s: s.unit and s.M >= 2 * s.K - 1, lambda s: s.M * s.T)],
}

_Peak = tuple[Callable[[_Shape], bool], Callable[[_Shape], int]]  # (is it exact?, (stage, microbatch) pairs)

_IN_FLIGHT: dict[str, _Peak] = {
    "naive": (lambda _: True, lambda _: 1),
    "gpipe": (lambda _: True, lambda s: s.M),
    "1f1b": (lambda _: True, lambda s: min(s.K - s.r, s.M)),
    "eager_1f1b": (lambda _: True, lambda s: min(2 * (s.K - s.r) - 1, s.M)),
    "interleaved": (lambda _: True, _interleaved),
    "breadth_first": (lambda _: True, lambda s: s.v * s.M),
    "zb_h1": (lambda _: True, lambda s: min(s.K - s.r, s.M)),
    "zb_h2": (lambda _: True, lambda s: min(2 * (s.K - s.r) - 1, s.M)),
    "zb_interleaved": (lambda _: True, lambda s: min(s.K - s.r + (s.v - 1) * s.G, s.v * s.M)),
    "zb_v": (lambda s: s.M >= 2 * s.K - 1, lambda s: 2 * s.K),
    "dualpipe_v": (lambda _: True, lambda s: 2 * s.K + 1),
    "dualpipe": (lambda _: True, lambda s: s.K + 1),
    "v_half": (lambda s: s.M >= 2 * s.K, lambda s: 2 * (s.K // 2 + 1)),
    "1f1b_v": (lambda s: s.M >= 2 * s.K, lambda s: 2 * ((2 * s.K + 3) // 3) - (s.r % 3 == (s.K + 1) % 3)),
    "chimera": (lambda s: s.M >= 2 * s.K, lambda s: s.K),
    "seq_1f1b": (lambda _: True, _interleaved),
    "gis": (lambda s: s.v > 1 and s.M % s.G == 0, lambda s: min(s.G * (s.v - 1) + s.K - s.r, s.v * s.M)),
}

_HELD: dict[str, _Peak] = _IN_FLIGHT | {
    "zb_h1": (lambda _: True, lambda s: min(s.K, s.M)),
    "zb_h2": (lambda _: True, lambda s: min(2 * s.K - 1, s.M)),
    "zb_interleaved": (lambda _: True, lambda s: min(s.K + (s.v - 1) * s.G, s.v * s.M)),
    "v_min": (lambda s: s.M >= 2 * s.K, _v_min),
}


def has_form(name: str) -> bool:
    """Return whether there are formulas for schedules of this name."""
    return any(_base(name)[0] in table for table in (_MAKESPANS, _LARGEST_SPANS, _HELD))


def _base(name: str) -> tuple[str, bool]:
    """Return the name by which a schedule's formulas are known, and whether it is that one's 2BP."""
    known = name.removesuffix("_lifo")
    divided = known.removeprefix("two_bp")
    return (known, False) if divided == known else (divided.removeprefix("_") or "1f1b", True)


# --- the values ------------------------------------------------------------------------------------


def makespan(schedule: Schedule, costs: Costs) -> Any | None:
    """Return the time from the first start to the last end of a step, in the costs' unit; None if no form is exact."""
    return _look_up(_MAKESPANS, schedule, costs)


def bubble(schedule: Schedule, costs: Costs) -> Any | None:
    """Return idle over total time, GPipe's definition: 1 - busy / (ranks x makespan); None if no form is exact."""
    total, costs = makespan(schedule, costs), _with_recomputation(costs)
    if not total:
        return None
    own = schedule.chunks // schedule.copies  # microbatches of a stage
    work = [own * (costs.forward[stage] + costs.full_backward(stage)) for stage in range(schedule.stages)]
    busy = [sum(work[stage] for stage in schedule.stages_of(rank)) for rank in range(len(schedule.ranks))]
    for forward, backward in schedule.partners.items() if costs.pair else ():
        apart = costs.forward[forward.stage] + costs.full_backward(backward.stage)
        busy[schedule.placement[forward.stage]] -= apart - costs.pair[forward.stage]
    return idle_fraction(busy, total)


def largest_span(schedule: Schedule, costs: Costs) -> Any | None:
    """Return the longest time of a rank from its first start to its last end; None if no form is exact.

    In the costs' unit. It is the cost in Zero Bubble's definition of the bubble, (cost - M T) / cost.
    """
    return _look_up(_LARGEST_SPANS, schedule, costs)


def in_flight_peak(schedule: Schedule) -> list[Fraction] | None:
    """Return, for each rank, the most microbatches forwarded and not yet backwarded; None if no form is exact.

    In microbatches of the rank: a microbatch on one of its v stages counts 1/v, one of its s slices 1/(v s).
    """
    return _peaks(_IN_FLIGHT, schedule)


def held_peak(schedule: Schedule) -> list[Fraction] | None:
    """Return, for each rank, the most microbatches whose activations it holds; None if no form is exact.

    They are held from F to B or W. In microbatches of the rank, as `in_flight_peak`.
    """
    return _peaks(_HELD, schedule)


def _with_recomputation(costs: Costs) -> Costs:
    """Return the costs with the recomputation as a part of each backward, if all microbatches have one."""
    if not costs.recompute or costs.spared or costs.pair:
        return costs
    full = tuple(map(add, costs.full, costs.recompute)) if costs.full else ()
    return replace(costs, backward=tuple(map(add, costs.backward, costs.recompute)), full=full, recompute=())


def _look_up(table: dict[str, list[_Form]], schedule: Schedule, costs: Costs) -> Any | None:
    costs = _with_recomputation(costs)
    plain = Costs(
        costs.forward, costs.backward, costs.weight, costs.latency, pair=costs.pair, shares=even_shares(schedule)
    )
    # The forms know only an asynchronous latency, no recomputation of some microbatches and no bandwidth.
    if isinstance(costs.latency, tuple) or replace(costs, reduction=()) != plain:
        return None
    name, is_two_bp = _base(schedule.name)
    case = _Case(schedule, replace(costs, weight=()) if is_two_bp else costs)
    found = next((value(case) for exact, value in table.get(name, []) if exact(case)), None)
    if found is None or not is_two_bp:
        return found
    late = _Case(schedule, costs)  # each rank's W follow its last I
    return found + late.M * late.s * late.v * late.w if late.equal else None


def _peaks(table: dict[str, _Peak], schedule: Schedule) -> list[Fraction] | None:
    shapes = [_Shape(schedule, rank) for rank in range(len(schedule.ranks))]
    name, is_two_bp = _base(schedule.name)
    exact, pairs = table.get(name, (lambda _: False, lambda _: 0))
    if is_two_bp and table is _HELD and name in table:
        exact, pairs = (lambda _: True), (lambda s: s.v * s.M * s.s)
    return [Fraction(pairs(shape), shape.v * shape.s) for shape in shapes] if exact(shapes[0]) else None
