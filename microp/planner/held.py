"""Computes the memory of ranks from the order alone, quickly enough to weigh many partitions.

::

    moments of a rank       counts by (moment, stage, column)  ─┐
    layers of its stages    bytes by (stage, column)           ─┴─► peak = max over the moments of (counts x bytes)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from microp.planner.moments import (
    COLUMNS,
    COMING_GRADIENTS,
    COMING_INPUTS,
    FIRST_BACKWARD,
    FIRST_WEIGHT,
    GRADIENTS,
    IN_BACKWARD,
    IN_FORWARD,
    IN_FULL,
    IN_WEIGHT,
    KEPT,
    OWN_SEND,
    PENDING,
    REBUILT,
    SENT_GRADIENTS,
    SENT_OUTPUTS,
    WHOLE,
    Floats,
    Moments,
)
from microp.schedule import Schedule
from microp.settings import HOLDS_NOTHING, Checkpointing, Holds
from microp.simulator import LayerMemory, Moved, StageMemory, compose_memory, extra_memory

_IN_A_BACKWARD = [REBUILT, IN_BACKWARD, IN_FULL, IN_WEIGHT, OWN_SEND, FIRST_BACKWARD, FIRST_WEIGHT]


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
        holds: see there.
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
        holds: Holds = HOLDS_NOTHING,
    ) -> None:
        self._states, self._holds, self._rows = states, holds, sum(rows) / len(rows)
        self._state = 1 + states + holds.buckets  # tensors per weight
        self._schedule, self._layers, self._checkpointing = schedule, list(layers), checkpointing
        spared = checkpointing.spared(schedule.chunks)
        self._moments = Moments(schedule, self._holds).counts(spared, rows) if known is None else known
        numbers = {layer: number for number, layer in enumerate(dict.fromkeys(self._layers))}
        self._kinds = [*(numbers[layer] for layer in self._layers), -1]  # no layer follows the last one
        self._of_kinds: dict[tuple[int, ...], tuple[float, Floats]] = {}  # of a stage and of the layer after it
        ends = {schedule.placement[0], schedule.placement[schedule.stages - 1]}
        self.batch = [batch if rank in ends else 0 for rank in range(len(schedule.ranks))]

    def peaks(self, sizes: Sequence[int]) -> list[float]:
        """Return each rank's most bytes: weights, optimizer, buckets, the batch, gradients and activations."""
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
            Part("the optimizer's state", self._states * weights),
            Part("buckets of gradients", self._holds.buckets * weights),
            Part("activations", sums[KEPT] + sums[WHOLE], round(counts[KEPT] + counts[WHOLE])),
            Part("kept for W", sums[PENDING], round(counts[PENDING])),
            Part("in a backward", sums[_IN_A_BACKWARD].sum()),
            Part("in a forward", sums[IN_FORWARD]),
            Part("places for received tensors", sums[COMING_INPUTS] + sums[COMING_GRADIENTS]),
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
            layers, rows, policy = self._layers[first:end], self._rows, self._checkpointing
            entering, leaving = self._entering(first), self._entering(end)
            kept_too = 0 if policy.segments else layers[-1].shared.at(rows)  # the output, by the last layer
            moved = Moved(leaving, self._holds.mailboxes, kept_too if self._holds.messages else 0)
            memory = compose_memory(layers, rows, policy, self._schedule.chunks, moved._replace(sent=0))
            sent = (max(0, leaving - kept_too), entering) if self._holds.messages else (0, 0)
            extra = extra_memory(layers, rows, policy, moved, bool(self._schedule.split))
            columns = np.concatenate([bytes_of(memory)[0], [entering, leaving, *sent, *extra]])
            self._of_kinds[kinds] = self._state * memory.gradients[0], columns
        return self._of_kinds[kinds]

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
