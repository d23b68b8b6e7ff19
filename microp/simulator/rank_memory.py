"""The memory of ranks, from the order alone, quickly enough to weigh many partitions.

::

    rank 0   F0 F1 B0 W0 ...      a moment: what is held after an action, or needed during it, counted per stage
                   ╰─ 1 kept, 1 pending, gradients, ...

    counts of a rank        by (moment, stage, field of `StageBytes`)  ─┐
    layers of its stages    bytes by (stage, field)                    ─┴─► peak = max over the moments of their product

With slices of the sequence each slice has its own fields, one slice's behind the other's.

A rank runs its row in order, so what it holds at each moment does not depend on any time. The tensors between stages
count apart from what stages keep. They may lie in the memory of the transport: a mailbox stays from its first tensor
on, a place is taken from when a receive is posted, and a tensor that was sent stays until its receiver has used it;
see `Holds`. A tensor between two stages of one rank is kept by both, and counts once.

::

    mailbox         ├──────────────────────────────►      an input that comes from another rank
    no mailbox         ├─ F ─┬───────────┬────┤           while F runs, and as long as the stage keeps it for B and W
    the same rank   ├──┴─ F ─┴───────────┴────┤           from the F that made it on
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from microp.job import Workload
from microp.schedule import Schedule, completed_sends, receives_to_post, take_slots
from microp.settings import Holds
from microp.simulator.lowered import NONE, order_of
from microp.simulator.stage_memory import LayerMemory, StageBytes, stage_bytes
from microp.trace import Actions, B, Column, F, I, W

Floats = NDArray[np.float64]
FIELDS = StageBytes._fields
KEPT, WHOLE, PENDING, GRADIENTS, REBUILT, IN_FORWARD, IN_BACKWARD, IN_FULL = range(8)
TAPED_FORWARD, TAPED_BACKWARD, TAPED_FULL, IN_WEIGHT = range(8, 12)
INPUT, INPUT_KEPT, INPUT_WHOLE, INPUT_PENDING, GRADIENT, GRADIENT_PENDING = range(12, 18)
SENT_OUTPUT, SENT_WHOLE, SENT_GRADIENT, BOTH, BOTH_PENDING = range(18, 23)
OWN_SEND, OWN_KEPT, FIRST_BACKWARD, FIRST_WEIGHT, RETURNED = range(23, len(FIELDS))
SUMMED = 2  # tensors of a layer's gradients while they are summed over copies, beside the other copy's: as one, the sum
_IN_A_BACKWARD = [REBUILT, IN_BACKWARD, IN_FULL, TAPED_BACKWARD, TAPED_FULL, IN_WEIGHT]
_IN_A_BACKWARD += [OWN_SEND, OWN_KEPT, FIRST_BACKWARD, FIRST_WEIGHT]


class Part(NamedTuple):
    """A part of a rank's memory at its peak."""

    name: str
    size: float  # in bytes
    number: int = 0  # of microbatches, on all stages of the rank; 0 if it is not a number of them


class Ranks:
    """The memory of a schedule's ranks for any partition of the same layers.

    Args:
        workload: what is run, by a valid order; its own layers do not count.
        layers: the memory of each layer.
        batch: the bytes of the batch's inputs, on the rank of the first stage, and of its targets, on the last's.
        known: the `counts` of other `Ranks` with the same schedule, rows, recomputed microbatches and transport.

    Attributes:
        counts: for each rank the counts by (moment, stage of the rank, slice and field), each moment once.
    """

    def __init__(
        self,
        workload: Workload,
        layers: Sequence[LayerMemory],
        batch: tuple[float, float] = (0, 0),
        known: Sequence[Floats] | None = None,
    ) -> None:
        schedule, _, rows, checkpointing, states, holds = workload
        self._states, self._holds, self._rows = states, holds, sum(rows) / len(rows)
        self._state = 1 + states + holds.buckets  # tensors per weight
        self._schedule, self._layers, self._checkpointing = schedule, [*layers] * schedule.copies, checkpointing
        self._depth = len(layers)  # of a copy
        self._slices = schedule.slices
        if known is None:
            spared = checkpointing.spared(schedule.units) if checkpointing.segments else range(schedule.units)
            every = held_counts(schedule, holds, spared, rows)
            known = list(map(_distinct, every))
        self.counts = known
        numbers = {layer: number for number, layer in enumerate(dict.fromkeys(self._layers))}
        self._kinds = [*(numbers[layer] for layer in self._layers), -1]  # no layer follows the last one
        self._of_kinds: dict[
            tuple[int, ...], tuple[float, tuple[float, ...]]
        ] = {}  # of a stage and of the layer after it
        self._stages = [list(schedule.stages_of(rank)) for rank in range(len(schedule.ranks))]
        self._known: dict[tuple[Any, ...], float] = {}  # a rank and the kinds of its stages -> its most bytes
        self.batch = [0.0] * len(schedule.ranks)
        for stages, size in zip(schedule.ends, batch, strict=True):
            for stage in stages:
                self.batch[schedule.placement[stage]] += size

    def peaks(self, sizes: Sequence[int]) -> list[float]:
        """Return each rank's most bytes: weights, optimizer, buckets, the batch, gradients and activations."""
        ends, peaks = list(accumulate(sizes)), []
        for rank, stages in enumerate(self._stages):
            key = rank, *(self._kinds_of(ends[stage] - sizes[stage], ends[stage]) for stage in stages)
            if key not in self._known:
                self._known[key] = self._peak(rank, sizes)
            peaks.append(self._known[key])
        return peaks

    def _peak(self, rank: int, sizes: Sequence[int]) -> float:
        state, table = self._state_and_bytes(sizes)
        stages = self._stages[rank]
        held = float((self.counts[rank] * table[stages]).sum(axis=(1, 2)).max())
        if self._schedule.copies > 1:
            held = max(held, sum(self._at_sums(sizes, rank, table)))
        return held + sum(state[stage] for stage in stages) + self.batch[rank] + self._common(sizes, stages)

    def parts(self, sizes: Sequence[int], rank: int) -> list[Part]:
        """Return what fills a rank's memory at its peak; the parts add up to it."""
        _, table = self._state_and_bytes(sizes)
        stages = self._stages[rank]
        held = self.counts[rank] * table[stages]
        worst = int(held.sum(axis=(1, 2)).argmax())
        counts, sums = (
            each[worst].sum(axis=0).reshape(-1, len(FIELDS)).sum(axis=0) for each in (self.counts[rank], held)
        )
        at_sums = self._at_sums(sizes, rank, table) if self._schedule.copies > 1 else (0.0, 0.0, 0.0)
        summed = at_sums[-1]
        if sum(at_sums) > held[worst].sum():  # the peak comes after the last action
            counts, sums = np.zeros(len(FIELDS)), np.zeros(len(FIELDS))
            sums[[GRADIENTS, INPUT]] = at_sums[:2]
        else:
            summed = 0.0
        ends = list(accumulate(sizes))
        layers = [layer for stage in stages for layer in self._layers[ends[stage] - sizes[stage] : ends[stage]]]
        weights = sum(layer.weights for layer in layers)
        return [
            Part("weights", weights + sum(layer.frozen.fixed for layer in layers)),
            Part("gradients", sums[GRADIENTS]),
            Part("the optimizer's state", self._states * weights),
            Part("buckets of gradients", self._holds.buckets * weights),
            Part("activations", sums[KEPT] + sums[WHOLE], round(counts[KEPT] + counts[WHOLE])),
            Part("kept for W", sums[PENDING], round(counts[PENDING])),
            *([Part("kept for slices", sums[RETURNED] + self._common(sizes, stages))] if self._slices > 1 else []),
            Part("in a backward", sums[_IN_A_BACKWARD].sum()),
            Part("in a forward", sums[IN_FORWARD] + sums[TAPED_FORWARD]),
            Part("received tensors", sums[INPUT : GRADIENT_PENDING + 1].sum() + sums[BOTH] + sums[BOTH_PENDING]),
            Part("sent tensors", sums[SENT_OUTPUT : SENT_GRADIENT + 1].sum()),
            *([Part("the sum of a layer's copies", summed)] if summed else []),
            Part("the batch", self.batch[rank]),
        ]

    def _at_sums(self, sizes: Sequence[int], rank: int, table: Floats) -> tuple[float, float, float]:
        """Return a rank's gradients, its mailboxes, and what the sum of a layer's over two copies needs beside them."""
        ends, stages, boxes = list(accumulate(sizes)), self._stages[rank], 0.0
        weights = [layer.weights for at in stages for layer in self._layers[ends[at] - sizes[at] : ends[at]]]
        if self._holds.mailboxes:  # they never become fewer; the sums have two, in turn
            boxes = float((self.counts[rank] * table[stages])[..., [INPUT, GRADIENT]].sum(axis=(1, 2)).max())
        received = max(weights[::2]) + max(weights[1::2], default=0) if self._holds.mailboxes else max(weights)
        return sum(weights), boxes, received + SUMMED * max(weights)

    def _state_and_bytes(self, sizes: Sequence[int]) -> tuple[list[float], Floats]:
        """Return each stage's state, and its bytes by (stage, field)."""
        assert sum(sizes) == len(self._layers)
        stages = [self._of_stage(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]
        return [state for state, _ in stages], np.array([columns for _, columns in stages])

    def _common(self, sizes: Sequence[int], stages: Sequence[int]) -> float:
        """Return the bytes that the layers of some stages have in common."""
        ends = list(accumulate(sizes))
        layers = (layer for stage in stages for layer in self._layers[ends[stage] - sizes[stage] : ends[stage]])
        return max((layer.common for layer in layers), default=0)

    def _kinds_of(self, first: int, end: int) -> tuple[int, ...]:
        """Return the kinds of a stage's layers, and that of the layer that its output enters."""
        return *self._kinds[first:end], self._kinds[end] if end % self._depth else -1

    def _of_stage(self, first: int, end: int) -> tuple[float, tuple[float, ...]]:
        """Return the state of a stage with the layers from `first` to `end` - 1, and its bytes, slice by slice."""
        leaves, kinds = end % self._depth != 0, self._kinds_of(first, end)
        if kinds not in self._of_kinds:
            layers, divides = self._layers[first:end], bool(self._schedule.input_gradients)
            ends = [*layers, *self._layers[end : end + leaves]]
            slices = [ends, *([layer.later[at] for layer in ends] for at in range(self._slices - 1))]
            every = [
                stage_bytes(
                    each[: len(layers)],
                    self._rows,
                    self._checkpointing,
                    each[-1] if leaves else None,
                    self._holds,
                    divides,
                )
                for each in slices
            ]
            frozen = sum(layer.frozen.fixed for layer in layers)
            self._of_kinds[kinds] = self._state * every[0].gradients + frozen, tuple(chain.from_iterable(every))
        return self._of_kinds[kinds]


def held_counts(schedule: Schedule, holds: Holds, spared: Collection[int], rows: Sequence[int]) -> Iterator[Floats]:
    """Yield for each rank the counts by (moment, stage of the rank, field of `StageBytes`).

    A microbatch counts by its rows, with a mean of 1. The moments are those after each action, and then those during
    each action. `spared` are the microbatches that are not recomputed.
    """
    order = order_of(schedule)
    opens = _open_mailboxes(schedule, order.actions, order.source) if holds.mailboxes else None
    shares = np.array(rows, float) * len(rows) / sum(rows)
    is_spared = np.isin(np.arange(schedule.units), list(spared))
    for rank in range(len(schedule.ranks)):
        counts = _RankCounts(schedule, rank, order.actions, shares, is_spared)
        counts.add_activations()
        counts.add_inputs(holds)
        if holds.mailboxes or holds.messages:
            _add_places(counts, opens, holds)
        if holds.messages:
            _add_sends(counts)
        held = np.cumsum(counts.changes, axis=0)
        counts.needs[1:] += held[:-1]
        yield np.concatenate([held, counts.needs])


def _distinct(counts: Floats) -> Floats:
    """Return each moment once: a steady phase has few different ones, and the ranks of a long step many moments."""
    rows = counts.reshape(len(counts), -1)
    moments = dict.fromkeys(rows.view(f"V{rows.strides[0]}").ravel().tolist())
    return np.frombuffer(b"".join(moments)).reshape(-1, *counts.shape[1:])


class _RankCounts:
    """What changes on one rank with each action, and what the action needs, by (action, stage of the rank, field)."""

    def __init__(self, schedule: Schedule, rank: int, actions: Actions, shares: Floats, is_spared: Column) -> None:
        self.schedule, self.rank, self.row = schedule, rank, schedule.ranks[rank]
        first = int(actions.first[rank])
        self.part = slice(first, first + len(self.row))  # the rank's actions among those of all ranks
        self.op, self.stage, self.microbatch = (
            column[self.part] for column in (actions.op, actions.stage, actions.microbatch)
        )
        self._stages = np.array(schedule.stages_of(rank))
        self._place, self._share = np.searchsorted(self._stages, self.stage), shares[self.microbatch]
        self.is_spared = is_spared[self.microbatch]  # of each action, whether its microbatch is not recomputed
        self._fields = self.microbatch % schedule.slices * len(FIELDS)  # where those of the action's slice begin
        shape = len(self.row), len(self._stages), schedule.slices * len(FIELDS)
        self.changes, self.needs = np.zeros(shape), np.zeros(shape)
        self._turns = np.full((4, len(self._stages), schedule.units), NONE)
        self._turns[self.op, self._place, self.microbatch] = np.arange(len(self.row))

    def add(self, to: Floats, at: Column, of: Column, field: Any, sign: int = 1) -> None:
        """Add to `changes` or `needs` at some actions, for the stages and microbatches `of` some, by their indices."""
        np.add.at(to, (at, self._place[of], self._fields[of] + field), sign * self._share[of])

    def _turn(self, of: Column, ops: Sequence[int], step: int = 0) -> Column:
        """Return the index of the action of these ops, `step` stages after some actions, on their microbatch.

        It is `NONE` if there is none on the rank.
        """
        stage = self.stage[of] + step
        place = np.minimum(np.searchsorted(self._stages, stage), len(self._stages) - 1)
        turn = np.max([self._turns[op, place, self.microbatch[of]] for op in ops], axis=0)
        is_here = (self._stages[place] == stage) & (
            stage // self.schedule.depth == self.stage[of] // self.schedule.depth
        )
        return np.where(is_here, turn, NONE)

    def add_activations(self) -> None:
        """Add what actions keep, release and need."""
        changes, needs, kept = self.changes, self.needs, np.where(self.is_spared, WHOLE, KEPT)
        forward, weight = (np.flatnonzero(self.op == op) for op in (F, W))
        makes = np.flatnonzero((self.op == W) | (self.op == B))
        self._divided = np.flatnonzero((self.op == I) & np.isin(self.stage, self.stage[makes]))
        backward = np.flatnonzero((self.op == B) | (self.op == I))
        recomputed = backward[~self.is_spared[backward]]
        for to in (changes, needs):
            self.add(to, forward, forward, kept[forward])
        self.add(needs, forward, forward, np.where(self.is_spared[forward], TAPED_FORWARD, IN_FORWARD))
        self.add(changes, backward, backward, kept[backward], -1)
        self.add(changes, self._divided, self._divided, PENDING)
        if self.schedule.slices > 1:
            self.add(changes, backward, backward, RETURNED)
        self.add(needs, recomputed, recomputed, REBUILT)
        extra = np.where((self.op[backward] == I) | (not self.schedule.input_gradients), IN_BACKWARD, IN_FULL)
        extra += self.is_spared[backward] * (TAPED_BACKWARD - IN_BACKWARD)
        self.add(needs, backward, backward, extra)
        self.add(changes, weight, weight, PENDING, -1)
        self.add(needs, weight, weight, IN_WEIGHT)
        # of each stage the first B or W, which makes the gradients of its weights
        self.firsts = makes[np.unique(self.stage[makes], return_index=True)[1]]
        slices = self._fields[self.firsts]
        changes[self.firsts, self._place[self.firsts], slices + GRADIENTS] = 1
        fields = np.where(self.op[self.firsts] == W, FIRST_WEIGHT, FIRST_BACKWARD)
        needs[self.firsts, self._place[self.firsts], slices + fields] = 1

    def add_inputs(self, holds: Holds) -> None:
        """Add the tensors that actions take, but for those in mailboxes and in places for what is to come."""
        changes, needs, depth = self.changes, self.needs, self.schedule.depth
        is_backward = (self.op == B) | (self.op == I)
        forward = np.flatnonzero((self.op == F) & (self.stage % depth > 0))
        inner = np.flatnonzero(is_backward & (self.stage % depth > 0))
        backward = np.flatnonzero(is_backward & (self.stage % depth < depth - 1))
        # 1. the input of F and the gradient of B, while they are made and used; one of this rank since it was made
        for takers, ops, step, field in ((forward, [F], -1, INPUT), (backward, [B, I], 1, GRADIENT)):
            made = self._turn(takers, ops, step)
            near, made = takers[made != NONE], made[made != NONE]
            if field == INPUT:
                output = np.where(self.is_spared[made], SENT_WHOLE, SENT_OUTPUT)
                self.add(changes, made, made, output)
                self.add(changes, near, made, output, -1)
            else:
                self.add(changes, made, near, GRADIENT)
                self.add(changes, near, near, GRADIENT, -1)
            if not holds.mailboxes and not holds.messages:
                far = np.setdiff1d(takers, near)
                self.add(needs, far, far, field)
        # 2. what is kept of them for B and for W; not twice what the stage that made it keeps too
        kept = np.where(self.is_spared, INPUT_WHOLE, INPUT_KEPT)
        self._keep(forward, [B, I], kept, -1, [F], holds)
        with_input, with_gradient = (np.intersect1d(self._divided, some) for some in (inner, backward))
        pending = np.full(len(self.op), INPUT_PENDING), np.full(len(self.op), GRADIENT_PENDING)
        self._keep(with_input, [W], pending[0], -1, [F], holds)
        self._keep(with_gradient, [W], pending[1], 1, [B, I], holds)

    def _keep(
        self, takers: Column, until: Sequence[int], fields: Column, step: int, makers: Sequence[int], holds: Holds
    ) -> None:
        """Add what is kept of the inputs of some actions until others, but for those in mailboxes."""
        made = self._turn(takers, makers, step)
        some = (made != NONE) | (not holds.mailboxes)
        takers, made, ends = takers[some], made[some], self._turn(takers[some], until)
        self.add(self.changes, takers, takers, fields[takers])
        self.add(self.changes, ends, takers, fields[takers], -1)
        if step < 0:
            both = (made != NONE) & self.is_spared[takers]
            field, frees = BOTH if B in until else BOTH_PENDING, self._turn(takers, [B, I], -1)
            self.add(self.changes, takers[both], made[both], field, -1)
            self.add(self.changes, np.minimum(ends, frees)[both], made[both], field)
            if field == BOTH_PENDING:
                during = both & (frees < ends)
                self.add(self.needs, frees[during], made[during], OWN_KEPT)


def _open_mailboxes(schedule: Schedule, actions: Actions, source: Column) -> NDArray[np.bool_]:
    """Return for each action whether its input is the first in its mailbox, as `assign_slots` gives them out."""
    local = np.arange(len(actions)) - actions.first[actions.rank]  # the index in the rank's row
    last = np.zeros((schedule.stages, schedule.units), np.int64)
    last[actions.stage, actions.microbatch] = local  # the last action on a (stage, microbatch) is kept
    until, opens = last[actions.stage, actions.microbatch], np.zeros(len(actions), bool)
    takers, ranks = np.flatnonzero(source != NONE), len(schedule.ranks)
    links = actions.rank[source[takers]].astype(np.int64) * ranks + actions.rank[takers]
    takers = takers[np.argsort(links, kind="stable")]  # by link, in the order in which they are received
    names, begins = np.unique(np.sort(links), return_index=True)
    of_link = dict(zip(names.tolist(), np.split(takers, begins[1:]), strict=False))  # one rank has no links
    for link, received in of_link.items():
        taken = received[np.argsort(source[received])]  # in the order in which they are sent
        back = of_link.get(link % ranks * ranks + link // ranks, np.zeros(0, np.int64))
        # What the sender has received from the receiver tells how far that has certainly come.
        known = np.append(NONE, np.maximum.accumulate(local[source[back]]))
        heard = known[np.searchsorted(back, source[taken], side="right")]
        slots = take_slots(until[taken].tolist(), heard.tolist())
        opens[taken[np.unique(slots, return_index=True)[1]]] = True
    return opens


def _add_places(counts: _RankCounts, opens: NDArray[np.bool_] | None, holds: Holds) -> None:
    """Add the places of tensors to come; with mailboxes only for the first tensors in them, after which they stay."""
    posts = takers = np.arange(len(counts.row))
    if holds.messages:  # a place is there from when the receive is posted
        turns = {action: turn for turn, action in enumerate(counts.row)}
        places = [
            (turns[action], turns[counts.schedule.consumers[made]])
            for action, posted in receives_to_post(counts.schedule, counts.rank).items()
            for made in posted
        ]
        posts, takers = np.array(places, np.int64).reshape(-1, 2).T
    if opens is not None:
        is_first = opens[counts.part][takers]
        posts, takers = posts[is_first], takers[is_first]
    field = np.where(counts.op[takers] == F, INPUT, GRADIENT)
    for to in (counts.changes, counts.needs):
        counts.add(to, posts, takers, field)
    if opens is None:
        counts.add(counts.changes, takers, takers, field, -1)


def _add_sends(counts: _RankCounts) -> None:
    """Add the tensors that were sent, until it is known that their receivers have used them.

    An output that lives on in its own backward is a need of that backward; a first backward's needs contain it.
    """
    schedule, turns = counts.schedule, {action: turn for turn, action in enumerate(counts.row)}
    completed = completed_sends(schedule, counts.rank)
    done = [(turns[action], turns[made]) for action, every in completed.items() for made in every]
    used, sent = np.array(done, np.int64).reshape(-1, 2).T
    takers = [schedule.consumers.get(action) for action in counts.row]
    away = [taker is not None and schedule.placement[taker.stage] != counts.rank for taker in takers]
    sends = np.flatnonzero(away)
    fields = np.where(counts.op != F, SENT_GRADIENT, np.where(counts.is_spared, SENT_WHOLE, SENT_OUTPUT))
    counts.add(counts.changes, sends, sends, fields[sends])
    counts.add(counts.changes, used, sent, fields[sent], -1)
    same = (counts.op[used] != F) & (counts.op[sent] == F) & (counts.stage[used] == counts.stage[sent])
    same &= (counts.microbatch[used] == counts.microbatch[sent]) & ~np.isin(used, counts.firsts)
    same &= counts.is_spared[used]
    counts.add(counts.needs, used[same], used[same], OWN_SEND)
