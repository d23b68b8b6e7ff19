"""Computes the memory of ranks from the order alone, quickly enough to weigh many partitions.

::

    rank 0   F0 F1 B0 W0 ...      a moment: what is held after an action, or needed during it, counted per stage
                   ╰─ 1 kept, 1 pending, gradients, ...
    peak of a rank = max over its moments of (counts x bytes)

A rank runs its row in order, so what it holds at each moment does not depend on any time. Beside activations, a
mailbox that a received tensor has left keeps its memory, and over some transports a tensor that was sent stays until
its receiver has used it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from microp.schedule import Action, Op, Schedule, Taken, completed_sends, mailboxes_taken, remote_links
from microp.settings import Checkpointing
from microp.simulator import LayerMemory, StageMemory, compose_memory

COLUMNS = 13  # of counts and of bytes
KEPT, WHOLE, PENDING, GRADIENTS, REBUILT, IN_FORWARD, IN_BACKWARD, IN_FULL, IN_WEIGHT = range(9)
EMPTY_INPUTS, EMPTY_GRADIENTS, SENT_OUTPUTS, SENT_GRADIENTS = range(9, COLUMNS)
Floats = NDArray[np.float64]


class Part(NamedTuple):
    """A part of a rank's memory at its peak.

    Attributes:
        name: what holds it.
        size: in bytes.
        number: of microbatches, on all stages of the rank; 0 if it is not a number of them.
    """

    name: str
    size: float
    number: int = 0


def moments(schedule: Schedule, spared: Sequence[int], rows: Sequence[int]) -> list[Floats]:
    """Return for each rank an array of counts by (moment, stage of the rank, column), in microbatches of mean size.

    Args:
        schedule: a valid order.
        spared: the microbatches that are not recomputed while others are.
        rows: the rows of each microbatch.
    """
    taken, shares = mailboxes_taken(schedule), [len(rows) * each / sum(rows) for each in rows]
    return [_moments_of(schedule, rank, frozenset(spared), shares, taken) for rank in range(len(schedule.ranks))]


def _moments_of(
    schedule: Schedule, rank: int, spared: frozenset[int], shares: Sequence[float], taken: Mapping[Action, Taken]
) -> Floats:
    place = {stage: position for position, stage in enumerate(schedule.stages_of(rank))}
    row, split = schedule.ranks[rank], schedule.split
    changes = np.zeros((len(row) + 1, len(place), COLUMNS))
    needs = np.zeros((len(row), len(place), COLUMNS))
    with_gradients = set()
    completed, sends = completed_sends(schedule, rank), remote_links(schedule)
    first_in: dict[tuple[int, int], tuple[int, int, float]] = {}  # mailbox -> stage, column, size of its first tensor
    for turn, action in enumerate(row):
        at, stage, microbatch = place[action.stage], action.stage, action.microbatch
        kept = WHOLE if microbatch in spared else KEPT
        divided = (stage, microbatch) in split
        change, need, share = changes[turn + 1, at], needs[turn, at], shares[microbatch]
        if action in taken:
            mailbox, until = taken[action]
            if mailbox in first_in:
                *of, size = first_in[mailbox]
                changes[(turn + 1, *of)] -= size
                needs[(turn, *of)] -= size
            else:
                of, size = [at, EMPTY_INPUTS if action.op is Op.F else EMPTY_GRADIENTS], share
                first_in[mailbox] = at, of[1], size
            changes[(until + 1, *of)] += size
        for sent in completed[action]:
            changes[turn + 1, place[sent.stage], _sent(sent)] -= shares[sent.microbatch]
        if action in sends:
            change[_sent(action)] += share
        if action.op is Op.F:
            change[kept] += share
            need[kept], need[IN_FORWARD] = share, share * (kept == KEPT)
            continue
        if action.op is Op.B:
            change[kept] -= share
            change[PENDING] += divided * share
            need[IN_BACKWARD if divided or not split else IN_FULL] = share
            need[REBUILT] = (kept == KEPT) * share
        else:
            change[PENDING] -= share
            need[IN_WEIGHT] = share
        if (action.op is Op.W or not divided) and stage not in with_gradients:
            with_gradients.add(stage)
            change[GRADIENTS] += 1
    held = np.cumsum(changes, axis=0)
    return np.concatenate([held[1:], held[:-1] + needs])


def _sent(action: Action) -> int:
    """Return the column of what an action sends."""
    return SENT_OUTPUTS if action.op is Op.F else SENT_GRADIENTS


def _largest(counts: Floats) -> Floats:
    """Return the moments that no other one covers in every count."""
    rows = np.unique(counts.reshape(len(counts), -1), axis=0)
    kept: list[Any] = []
    for row in rows[np.argsort(-rows.sum(axis=1), kind="stable")]:
        if not kept or not (np.array(kept) >= row).all(axis=1).any():
            kept.append(row)
    return np.array(kept).reshape(-1, *counts.shape[1:])


def bytes_of(memory: StageMemory) -> Floats:
    """Return an array of bytes by (stage, column), for the counts of `moments` without mailboxes and sends."""
    stages = range(len(memory.activation))
    zeros = (0.0,) * len(stages)
    return np.array(
        [
            [memory.kept(stage) for stage in stages],
            memory.activation,
            memory.pending or zeros,
            memory.gradients or zeros,
            [memory.rebuilt(stage) for stage in stages],
            memory.in_forward or zeros,
            memory.in_backward or zeros,
            memory.in_full or zeros,
            memory.in_weight or zeros,
        ],
        np.float64,
    ).T


class Ranks:
    """The memory of a schedule's ranks for any partition of the same layers.

    Args:
        schedule: a valid order.
        layers: the memory of each layer.
        rows: the rows of each microbatch.
        checkpointing: what is recomputed.
        batch: the bytes of the text of the batch, which the ranks of the first and of the last stage hold.
        known: the schedule's `moments`, if they are known.
        states: as in `Workload`, also the next one.
        keeps_sent: see there.
    """

    def __init__(
        self,
        schedule: Schedule,
        layers: Sequence[LayerMemory],
        rows: Sequence[int],
        checkpointing: Checkpointing,
        batch: float = 0,
        known: Sequence[Floats] | None = None,
        states: int = 2,
        keeps_sent: bool = False,
    ) -> None:
        self._state, self._keeps_sent, self._rows = 1 + states, keeps_sent, sum(rows) / len(rows)
        self._schedule, self._layers, self._checkpointing = schedule, list(layers), checkpointing
        self._moments = moments(schedule, checkpointing.spared(schedule.chunks), rows) if known is None else known
        ends = {schedule.placement[0], schedule.placement[schedule.stages - 1]}
        self.batch = [batch if rank in ends else 0 for rank in range(len(schedule.ranks))]

    def peaks(self, sizes: Sequence[int]) -> list[float]:
        """Return each rank's most bytes: weights, the optimizer's state, the batch, gradients and activations."""
        state, table = self._state_and_bytes(sizes)
        peaks = []
        for rank, counts in enumerate(self._moments):
            stages = list(self._schedule.stages_of(rank))
            held = float((counts * table[stages]).sum(axis=(1, 2)).max())
            peaks.append(held + sum(state[stage] for stage in stages) + self.batch[rank])
        return peaks

    def parts(self, sizes: Sequence[int], rank: int) -> list[Part]:
        """Return what fills a rank's memory at its peak; the parts add up to it."""
        state, table = self._state_and_bytes(sizes)
        stages = list(self._schedule.stages_of(rank))
        held = self._moments[rank] * table[stages]
        worst = int(held.sum(axis=(1, 2)).argmax())
        counts, sums = self._moments[rank][worst].sum(axis=0), held[worst].sum(axis=0)
        weights = sum(state[stage] for stage in stages) / self._state
        return [
            Part("weights", weights),
            Part("gradients", sums[GRADIENTS]),
            Part("the optimizer's state", (self._state - 1) * weights),
            Part("activations", sums[KEPT] + sums[WHOLE], round(counts[KEPT] + counts[WHOLE])),
            Part("kept for W", sums[PENDING], round(counts[PENDING])),
            Part("in a backward", sums[REBUILT] + sums[IN_BACKWARD] + sums[IN_FULL] + sums[IN_WEIGHT]),
            Part("in a forward", sums[IN_FORWARD]),
            Part("empty mailboxes", sums[EMPTY_INPUTS] + sums[EMPTY_GRADIENTS]),
            Part("sent tensors that are kept", sums[SENT_OUTPUTS] + sums[SENT_GRADIENTS]),
            Part("the batch", self.batch[rank]),
        ]

    def held(self) -> list[Floats]:
        """Return for each stage its bytes by (first layer, end, moment of its rank), as in `cuts.Room`."""
        state, table = self._of_intervals()
        found: list[Floats] = []
        largest = [_largest(counts) for counts in self._moments]
        for stage in range(self._schedule.stages):
            rank = self._schedule.placement[stage]
            counts = largest[rank][:, self._schedule.stages_of(rank).index(stage)]
            found.append(table @ counts.T + state[..., None])
        return found

    def _state_and_bytes(self, sizes: Sequence[int]) -> tuple[list[float], Floats]:
        memory = compose_memory(self._layers, sizes, self._rows, self._checkpointing, self._schedule.chunks)
        ends = list(accumulate(sizes))
        moved = [self._moved(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        return [self._state * weights for weights in memory.gradients], np.hstack([bytes_of(memory), moved])

    def _moved(self, first: int, end: int) -> list[float]:
        """Return the bytes of what comes from and goes to other ranks: the last columns of a stage of these layers."""
        entering, leaving = self._entering(first), self._entering(end)
        if not self._keeps_sent:
            return [entering, leaving, 0, 0]
        kept_anyway = 0 if self._checkpointing.segments else self._layers[end - 1].shared.at(self._rows)
        return [entering, leaving, max(0, leaving - kept_anyway), entering]

    def _entering(self, layer: int) -> float:
        """Return the bytes of the tensor that enters a layer; 0 after the last one, which makes the loss."""
        return self._layers[layer].boundary.at(self._rows) if layer < len(self._layers) else 0

    def _of_intervals(self) -> tuple[Floats, Floats]:
        """Return the state by (first, end), and the bytes of each column by (first, end, column)."""
        count = len(self._layers)
        known: dict[tuple[Any, ...], tuple[float, Floats]] = {}
        numbers = {layer: number for number, layer in enumerate(dict.fromkeys(self._layers))}
        kinds = [numbers[layer] for layer in self._layers]
        state, table = np.zeros((count + 1, count + 1)), np.zeros((count + 1, count + 1, COLUMNS))
        for first in range(count):
            for end in range(first + 1, count + 1):
                kind = tuple(kinds[first:end]), *kinds[end : end + 1]  # with the layer that its output enters
                if kind not in known:
                    layers, chunks = self._layers[first:end], self._schedule.chunks
                    memory = compose_memory(layers, (end - first,), self._rows, self._checkpointing, chunks)
                    columns = [*bytes_of(memory)[0], *self._moved(first, end)]
                    known[kind] = self._state * memory.gradients[0], np.array(columns)
                state[first, end], table[first, end] = known[kind]
        return state, table
