"""The problem that a search for orders solves, and the fast judge of an order: the price of `simulate` in one loop.

::

    rank 0   F0 F1 F2 . I0 W0 I1 W1 B2          a rank's row is one merge of its lanes
             F0 F1 F2                           lane F of stage 0: microbatches come in order
                        I0    I1                lane I
                           W0    W1             lane W
                                    B2          lane B: the full backward, in the place of I2 and W2

Microbatches that take the same times can be relabelled without loss: the j-th F, I and W of a stage are those of
microbatch j. What is left to choose is, on each rank, how its lanes are merged. Microbatches that take other times
(`Costs.shares`, `Costs.spared`) are another kind, and keep their order only among themselves; so are the slices of a
microbatch, of which the first is a kind, the second another one, and so on. An action is a number here:
`lane * units + unit`, with the lanes F of all stages first, then I, then W, then B. The units of a second copy of the
model are counted from 0 again.

A link model decides who spends the time of a hop: the sender's rank after the action, the link, or the receiver's rank
before the action. The overhead is spent after the action, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from microp.schedule import Action, Op, Schedule
from microp.simulator import Costs

OPS = Op.F, Op.I, Op.W  # of the lanes; B, the full backward, takes the place of an I and a W
Rows = list[list[int]]
NONE = -1


class Link(NamedTuple):
    """Who spends the time of a hop."""

    sender: int  # its share in which the sender's rank is busy after the action
    way: int  # the share between the sending and the arrival
    receiver: int  # the share in which the receiver's rank is busy before its action
    queues: bool  # whether messages of one direction travel one after the other


class Timing(NamedTuple):
    """How long everything takes."""

    takes: list[Any]  # for each action, how long its rank is busy until its end, with the receipt of its tensor
    hops: list[Any]  # for each F, I and W, how long the tensor that it takes is on its way; B is like I
    after: list[Any]  # for each F, I and W, how long its rank is busy after its end; B is like I


@dataclass(frozen=True)
class Problem:
    """Costs, a placement of stages on ranks, and a cap, for which an order is to be found.

    Raises:
        ValueError: no order keeps within the cap; the message says how much is needed at least.
    """

    placement: tuple[int, ...]  # for each stage its rank
    chunks: int
    costs: Costs  # per stage and hop
    cap: int | None = None  # the most (stage, microbatch) pairs, or slices, that a rank holds from F to W; None: any
    slices: int = 1  # as in `Schedule`, like the copies
    copies: int = 1
    typed: Schedule | None = None  # with the keys that were asked for; it stands for the named one of its name

    def __post_init__(self) -> None:
        copies = [range(first, first + self.depth) for first in range(0, self.stages, self.depth)]
        needs = [max(sum(s in copy for s in own) for copy in copies) * self.slices for own in self.held]
        if self.cap is not None and max(needs) > self.cap:
            rank = needs.index(max(needs))
            raise ValueError(
                f"no order holds so little: rank {rank} has to hold {max(needs)}, one microbatch on each of its "
                f"{len(self.held[rank]) // self.copies} stages: give {max(needs)} or more"
            )

    @cached_property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.placement)

    @cached_property
    def depth(self) -> int:
        """The number of stages of one copy of the model."""
        return self.stages // self.copies

    @cached_property
    def units(self) -> int:
        """The number of units that run through a stage: microbatches of its copy, or slices of them."""
        return self.chunks * self.slices // self.copies

    @cached_property
    def ranks(self) -> int:
        """The number of ranks."""
        return max(self.placement) + 1

    @cached_property
    def held(self) -> list[list[int]]:
        """For each rank its stages."""
        return [[s for s, rank in enumerate(self.placement) if rank == own] for own in range(self.ranks)]

    @cached_property
    def lane_rank(self) -> list[int]:
        """For each lane of F, I and W its rank."""
        return [*self.placement] * 3

    @cached_property
    def lanes(self) -> list[list[int]]:
        """For each rank its lanes."""
        return [[lane for lane, rank in enumerate(self.lane_rank) if rank == own] for own in range(self.ranks)]

    @cached_property
    def takers(self) -> list[int]:
        """For each lane the lane that takes its tensor, or `NONE`."""
        found = [NONE] * len(self.sources)
        for lane, source in enumerate(self.sources):
            if source != NONE:
                found[source] = lane
        return found

    @cached_property
    def count(self) -> int:
        """The number of actions if every backward is divided, which is the number of the first B."""
        return 3 * self.stages * self.units

    @cached_property
    def kinds(self) -> list[int]:
        """For each unit the number of its kind: its slice, and what all slices of its microbatch take in all copies."""
        costs, numbers, every = self.costs, dict[Any, int](), self.units * self.copies
        spared = costs.spared if any(costs.recompute) else ()
        own = tuple(
            zip([unit in spared for unit in range(every)], *filter(None, (costs.shares, costs.sizes)), strict=True)
        )
        whole = [
            tuple(own[first : first + self.slices] for first in range(unit - unit % self.slices, every, self.units))
            for unit in range(self.units)
        ]
        return [numbers.setdefault((unit % self.slices, kind), len(numbers)) for unit, kind in enumerate(whole)]

    @cached_property
    def joins(self) -> list[bool]:
        """For each stage whether a full backward takes less of its rank's time than I and W, with the overheads."""
        takes, pairs = self.timing.takes, self.stages * self.units
        return [
            any(
                takes[number + 2 * pairs] < takes[number] + takes[number + pairs] + overhead
                for number in range(first, first + self.units)
            )
            for first, overhead in zip(range(pairs, 2 * pairs, self.units), self.overhead, strict=True)
        ]

    @cached_property
    def overhead(self) -> tuple[Any, ...]:
        """For each stage the engine's own time after an action."""
        return self.costs.overhead or (0,) * self.stages

    @cached_property
    def link(self) -> Link:
        """Who spends the time of a hop, as the costs' link model has it."""
        transfer = self.costs.transfer
        (sender, _), (way, _) = transfer.send((0, NONE), (0, NONE), 1)
        there, _ = transfer.receive((0, NONE), (way, NONE), 1)
        return Link(sender, way, there - way, queues=transfer.send((0, NONE), (1, NONE), 1)[1][0] > way)

    @cached_property
    def timing(self) -> Timing:
        """How long everything takes."""
        link, hops, pairs = self.link, self._hop_times, self.stages * self.units
        own = [self.costs.of(self.action(number)) for number in range(self.count + pairs)]
        takers = [
            (lane, taker * self.units + unit) for lane, taker in enumerate(self.takers) for unit in range(self.units)
        ]
        return Timing(
            [time + link.receiver * hop for time, hop in zip(own, (*hops, *hops[pairs : 2 * pairs]), strict=True)],
            [link.way * hop for hop in hops],
            [
                self.overhead[lane % self.stages] + (0 if taker < 0 else link.sender * hops[taker])
                for lane, taker in takers
            ],
        )

    @cached_property
    def links(self) -> list[int]:
        """For each lane of F, I and W the direction of the link on which its tensor queues, or `NONE`."""
        found, numbers = [], dict[tuple[int, int], int]()
        for lane, taker in enumerate(self.takers):
            ends = self.lane_rank[lane], self.lane_rank[taker]
            away = self.link.queues and taker != NONE and ends[0] != ends[1]
            found.append(numbers.setdefault(ends, len(numbers)) if away else NONE)
        return found

    @cached_property
    def sources(self) -> list[int]:
        """For each lane the lane whose tensor it takes, or `NONE`."""
        forwards = [stage - 1 if stage % self.depth else NONE for stage in range(self.stages)]
        backwards = [lane + 1 if (lane + 1) % self.depth else NONE for lane in range(self.stages, 2 * self.stages)]
        return [*forwards, *backwards, *[NONE] * self.stages]

    @cached_property
    def _hop_times(self) -> list[Any]:
        """For each F, I and W the time of the hop of the tensor that it takes."""
        found = []
        for number in range(self.count):
            lane = number // self.units
            source = self.sources[lane]
            near = source == NONE or self.lane_rank[source] == self.lane_rank[lane]
            stage, unit = max(lane % self.stages, source % self.stages), self.action(number).microbatch
            found.append(0 if near else self.costs.hop(stage, unit))
        return found

    @cached_property
    def changes(self) -> list[int]:
        """For each lane, that of B too, by how much its actions change what the rank holds."""
        return [change for change in (1, 0, -1, -1) for _ in range(self.stages)]

    def schedule(self, rows: Iterable[Sequence[int]], name: str = "found") -> Schedule:
        """Return rows of numbers as a schedule."""
        ranks = tuple(tuple(map(self.action, row)) for row in rows)
        return Schedule(name, self.chunks, ranks, self.slices, self.copies)

    def action(self, number: int) -> Action:
        """Return the action that a number stands for."""
        lane, unit = divmod(number, self.units)
        stage = lane % self.stages
        op = Op.B if number >= self.count else OPS[lane // self.stages]
        return Action(op, stage, stage // self.depth * self.units + unit)

    def place(self, number: int) -> int:
        """Return the number of the action whose place an action takes: of the I for a B, else its own."""
        return number if number < self.count else number - 2 * self.stages * self.units

    def turn(self, lane: int, unit: int) -> int:
        """Return the place of a unit in a lane, or the unit at a place: in I and W the last slice comes first."""
        return unit if lane < self.stages else unit + self.slices - 1 - 2 * (unit % self.slices)

    def beside(self, number: int) -> int:
        """Return what an F needs of the slice before it, or an I of the slice after it; `NONE` if nothing."""
        lane, unit = divmod(number, self.units)
        if lane >= 2 * self.stages or self.turn(lane, unit) % self.slices == 0:
            return NONE
        return number - 1 if lane < self.stages else number + 1

    def rows_of(self, schedule: Schedule) -> Rows:
        """Return a schedule as rows of numbers."""
        lane_of = {op: at * self.stages for at, op in enumerate((*OPS, Op.B))}
        return [
            [(lane_of[op] + stage) * self.units + unit % self.units for op, stage, unit in row]
            for row in schedule.ranks
        ]

    def normal(self, rows: Rows) -> Rows:
        """Return an order that takes no longer, in the form that is searched.

        Each lane has the units of a kind in order, and a full backward is divided where that saves time.
        """
        return [self._normal(row) for row in rows]

    def _normal(self, row: Sequence[int]) -> list[int]:
        found: list[int] = []
        seen: Counter[tuple[bool, int, int]] = Counter()
        divided = defaultdict[tuple[int, int], list[int]](list)  # the units that wait for their W
        for number in row:
            lane, unit = divmod(number, self.units)
            (op, stage), kind = divmod(lane, self.stages), self.kinds[unit]
            if op == 2:
                label = divided[stage, kind].pop(0)
            else:
                label = self._of_kind[kind][seen[op > 0, stage, kind]]
                seen[op > 0, stage, kind] += 1
                if op == 1:
                    divided[stage, kind].append(label)
            moved = lane * self.units + label
            is_divided = op == 3 and not self.joins[stage]
            found += [self.place(moved), self.place(moved) + self.stages * self.units] if is_divided else [moved]
        return found

    @cached_property
    def _of_kind(self) -> dict[int, list[int]]:
        return {kind: [unit for unit, own in enumerate(self.kinds) if own == kind] for kind in set(self.kinds)}

    def peak(self, row: Sequence[int]) -> int:
        """Return the most that a rank holds while it runs a row."""
        held = peak = 0
        for number in row:
            held += self.changes[number // self.units]
            peak = max(peak, held)
        return peak

    def fits(self, row: Sequence[int]) -> bool:
        """Return whether a row keeps within the cap."""
        return self.cap is None or self.peak(row) <= self.cap

    def keeps(self, schedule: Schedule) -> bool:
        """Return whether an order keeps within the cap."""
        return all(map(self.fits, self.rows_of(schedule)))


def ends_of(problem: Problem, rows: Sequence[Sequence[int]], timing: Timing | None = None) -> list[Any] | None:
    """Return the end of every action, a B's also as that of its I, or None if the rows deadlock."""
    takes, hops, after = timing or problem.timing
    units, sources, takers, links = problem.units, problem.sources, problem.takers, problem.links
    count, queues, shift = problem.count, problem.link.queues, 2 * problem.stages * problem.units
    ends: list[Any] = [None] * len(takes)
    sent: list[Any] = [None] * len(takes) if queues else ends  # when the tensor is on its way
    idle: list[Any] = [0] * (max(links) + 1)
    free: list[Any] = [0] * len(rows)
    reached = [0] * len(rows)
    waiting: dict[int, int] = {}
    runnable = list(range(len(rows)))
    while runnable:
        rank = runnable.pop()
        row, now = rows[rank], free[rank]
        for place in range(reached[rank], len(row)):
            number = row[place]
            own = number if number < count else number - shift
            lane = own // units
            source = sources[lane]
            if source >= 0:
                sender = own + (source - lane) * units
                there = sent[sender]
                if there is None:
                    waiting[sender] = rank
                    reached[rank], free[rank] = place, now
                    break
                there += hops[own]
                if there > now:
                    now = there
            now += takes[number]
            ends[number] = ends[own] = now
            if queues:
                link = links[lane]
                sent[own] = now if link == NONE else max(now, idle[link])
                if link != NONE:
                    idle[link] = sent[own] + hops[own + (takers[lane] - lane) * units]
            if own in waiting:
                runnable.append(waiting.pop(own))
            now += after[own]
    return None if waiting else ends


def makespan_of(problem: Problem, rows: Sequence[Sequence[int]]) -> Any | None:
    """Return the time from 0 to the last end, or None if the rows deadlock."""
    ends = ends_of(problem, rows)
    return None if ends is None else max(ends[row[-1]] for row in rows)
