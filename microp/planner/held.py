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
from math import prod
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


class Moments:
    """What the ranks of a schedule hold at each moment, for any sizes of microbatches.

    Args:
        schedule: a valid order.
        keeps_sent: whether what was sent is counted; see `Workload`.
    """

    def __init__(self, schedule: Schedule, keeps_sent: bool) -> None:
        taken, links = mailboxes_taken(schedule), remote_links(schedule) if keeps_sent else {}
        self._chunks = schedule.chunks
        self._rows = [_Row(schedule, rank, taken, links) for rank in range(len(schedule.ranks))]

    def counts(self, spared: Sequence[int], rows: Sequence[int]) -> list[Floats]:
        """Return for each rank an array of counts by (moment, stage of the rank, column), of microbatches of mean size.

        Args:
            spared: the microbatches that are not recomputed while others are.
            rows: the rows of each microbatch.
        """
        shares = np.append(np.array(rows, float) * len(rows) / sum(rows), 1.0)  # the last one: gradients of weights
        is_spared = np.isin(np.arange(self._chunks + 1), spared)
        return [row.counts(is_spared, shares) for row in self._rows]


class _Row:
    """The changes of what one rank holds with each action, and what it needs during it, as events.

    An event is the index of the action, the stage's place on the rank, the column, the microbatch, and 1 or -1.
    """

    def __init__(
        self, schedule: Schedule, rank: int, taken: Mapping[Action, Taken], links: Mapping[Action, Any]
    ) -> None:
        place = {stage: position for position, stage in enumerate(schedule.stages_of(rank))}
        row, split = schedule.ranks[rank], schedule.split
        self._shape = len(row), len(place), COLUMNS
        changes: list[tuple[int, int, int, int, int]] = []
        needs: list[tuple[int, int, int, int, int]] = []
        with_gradients = set()
        completed = completed_sends(schedule, rank) if links else {}
        first_in: dict[tuple[int, int], tuple[int, int, int]] = {}  # mailbox -> place, column, microbatch of its first
        for turn, action in enumerate(row):
            at, stage, microbatch = place[action.stage], action.stage, action.microbatch
            divided = (stage, microbatch) in split
            if action in taken:
                mailbox, until = taken[action]
                if mailbox in first_in:
                    changes.append((turn, *first_in[mailbox], -1))
                    needs.append((turn, *first_in[mailbox], -1))
                else:
                    first_in[mailbox] = at, EMPTY_INPUTS if action.op is Op.F else EMPTY_GRADIENTS, microbatch
                changes.append((until, *first_in[mailbox], 1))
            for each in completed.get(action, ()):
                changes.append((turn, place[each.stage], _sent(each), each.microbatch, -1))
            if action in links:
                changes.append((turn, at, _sent(action), microbatch, 1))
            if action.op is Op.F:
                changes.append((turn, at, KEPT, microbatch, 1))
                needs += [(turn, at, column, microbatch, 1) for column in (KEPT, IN_FORWARD)]
                continue
            if action.op is Op.B:
                changes.append((turn, at, KEPT, microbatch, -1))
                if divided:
                    changes.append((turn, at, PENDING, microbatch, 1))
                extra = IN_BACKWARD if divided or not split else IN_FULL
                needs += [(turn, at, column, microbatch, 1) for column in (REBUILT, extra)]
            else:
                changes.append((turn, at, PENDING, microbatch, -1))
                needs.append((turn, at, IN_WEIGHT, microbatch, 1))
            if (action.op is Op.W or not divided) and stage not in with_gradients:
                with_gradients.add(stage)
                changes.append((turn, at, GRADIENTS, schedule.chunks, 1))
        self._changes, self._needs = _columns(changes), _columns(needs)

    def counts(self, is_spared: NDArray[np.bool_], shares: Floats) -> Floats:
        """Return the counts after each action, and then those during each action."""
        held = np.cumsum(self._summed(self._changes, is_spared, shares), axis=0)
        during = self._summed(self._needs, is_spared, shares)
        during[1:] += held[:-1]
        return np.concatenate([held, during])

    def _summed(self, events: NDArray[np.int64], is_spared: NDArray[np.bool_], shares: Floats) -> Floats:
        turn, place, column, microbatch, sign = events
        spared = is_spared[microbatch]
        column = np.where(spared & (column == KEPT), WHOLE, column)
        size = sign * shares[microbatch] * ~(spared & ((column == REBUILT) | (column == IN_FORWARD)))
        cell = (turn * self._shape[1] + place) * COLUMNS + column
        summed: Floats = np.bincount(cell, size, minlength=prod(self._shape)).astype(np.float64)
        return summed.reshape(self._shape)


def _columns(events: list[tuple[int, int, int, int, int]]) -> NDArray[np.int64]:
    return np.array(events, np.int64).reshape(-1, 5).T


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
    """Return an array of bytes by (stage, column), for the counts of `Moments` without mailboxes and sends."""
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
        known: the counts of the schedule's `Moments`, if they are known.
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
        spared = checkpointing.spared(schedule.chunks)
        self._moments = Moments(schedule, keeps_sent).counts(spared, rows) if known is None else known
        numbers = {layer: number for number, layer in enumerate(dict.fromkeys(self._layers))}
        self._kinds = [*(numbers[layer] for layer in self._layers), -1]  # no layer follows the last one
        self._of_kinds: dict[tuple[int, ...], tuple[float, Floats]] = {}  # of a stage and of the layer after it
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
        """Return each stage's state, and its bytes by (stage, column)."""
        assert sum(sizes) == len(self._layers)
        stages = [self._of_stage(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]
        return [state for state, _ in stages], np.array([columns for _, columns in stages])

    def _of_stage(self, first: int, end: int) -> tuple[float, Floats]:
        """Return the state of a stage with the layers from `first` to `end` - 1, and its bytes by column."""
        kinds = tuple(self._kinds[first : end + 1])  # with the layer that its output enters
        if kinds not in self._of_kinds:
            layers, chunks = self._layers[first:end], self._schedule.chunks
            memory = compose_memory(layers, (end - first,), self._rows, self._checkpointing, chunks)
            columns = np.append(bytes_of(memory)[0], self._moved(first, end))
            self._of_kinds[kinds] = self._state * memory.gradients[0], columns
        return self._of_kinds[kinds]

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
        state, table = np.zeros((count + 1, count + 1)), np.zeros((count + 1, count + 1, COLUMNS))
        for first in range(count):
            for end in range(first + 1, count + 1):
                state[first, end], table[first, end] = self._of_stage(first, end)
        return state, table
