"""Computes the memory of ranks from the order alone, so that many partitions can be weighed quickly.

::

    rank 0   F0 F1 B0 W0 ...      a moment: what is held after an action, or needed during it, counted per stage
                   ╰─ 1 kept, 1 pending, gradients, ...
    peak of a rank = max over its moments of (counts x bytes)

A rank runs its row in order, so what it holds at each moment does not depend on any time. The peaks are those of
`activation_peak`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from microp.schedule import Op, Schedule
from microp.settings import Checkpointing
from microp.simulator import LayerMemory, StageMemory, compose_memory

KEPT, WHOLE, PENDING, GRADIENTS, REBUILT, IN_BACKWARD, IN_WEIGHT = range(7)  # the columns of counts and of bytes
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


def moments(schedule: Schedule, spared: Sequence[int]) -> list[NDArray[np.int64]]:
    """Return for each rank an array of counts by (moment, stage of the rank, column).

    Args:
        schedule: a valid order.
        spared: the microbatches that are not recomputed while others are.
    """
    return [_moments_of(schedule, rank, frozenset(spared)) for rank in range(len(schedule.ranks))]


def _moments_of(schedule: Schedule, rank: int, spared: frozenset[int]) -> NDArray[np.int64]:
    place = {stage: position for position, stage in enumerate(schedule.stages_of(rank))}
    row, split = schedule.ranks[rank], schedule.split
    changes = np.zeros((len(row) + 1, len(place), 7), np.int64)
    needs = np.zeros((len(row), len(place), 7), np.int64)
    with_gradients = set()
    for turn, action in enumerate(row):
        at, stage, microbatch = place[action.stage], action.stage, action.microbatch
        kept = WHOLE if microbatch in spared else KEPT
        divided = (stage, microbatch) in split
        change = changes[turn + 1, at]
        if action.op is Op.F:
            change[kept] += 1
            continue
        if action.op is Op.B:
            change[kept] -= 1
            change[PENDING] += divided
            needs[turn, at, IN_BACKWARD] = 1
            needs[turn, at, REBUILT] = kept == KEPT
        else:
            change[PENDING] -= 1
            needs[turn, at, IN_WEIGHT] = 1
        if (action.op is Op.W or not divided) and stage not in with_gradients:
            with_gradients.add(stage)
            change[GRADIENTS] += 1
    held = np.cumsum(changes, axis=0)
    return np.concatenate([held[1:], held[:-1] + needs])


def _largest(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the moments that no other one covers in every count."""
    rows = np.unique(counts.reshape(len(counts), -1), axis=0)
    kept: list[Any] = []
    for row in rows[np.argsort(-rows.sum(axis=1), kind="stable")]:
        if not kept or not (np.array(kept) >= row).all(axis=1).any():
            kept.append(row)
    return np.array(kept).reshape(-1, *counts.shape[1:])


def bytes_of(memory: StageMemory) -> Floats:
    """Return an array of bytes by (stage, column), for the counts of `moments`."""
    stages = range(len(memory.activation))
    zeros = (0.0,) * len(stages)
    return np.array(
        [
            [memory.kept(stage) for stage in stages],
            memory.activation,
            memory.pending or zeros,
            memory.gradients or zeros,
            [memory.rebuilt(stage) for stage in stages],
            memory.in_backward or zeros,
            memory.in_weight or zeros,
        ],
        np.float64,
    ).T


class Ranks:
    """The memory of a schedule's ranks for any partition of the same layers.

    Args:
        schedule: a valid order.
        layers: the memory of each layer.
        rows: the rows of a microbatch.
        checkpointing: what is recomputed.
        batch: the bytes of the text of the batch, which the ranks of the first and of the last stage hold.
        known: the schedule's `moments`, if they are known.
    """

    def __init__(
        self,
        schedule: Schedule,
        layers: Sequence[LayerMemory],
        rows: float,
        checkpointing: Checkpointing,
        batch: float = 0,
        known: Sequence[NDArray[np.int64]] | None = None,
        states: int = 2,
    ) -> None:
        self._state = 1 + states
        self._schedule, self._layers, self._rows, self._checkpointing = schedule, list(layers), rows, checkpointing
        self._moments = moments(schedule, checkpointing.spared(schedule.chunks)) if known is None else known
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
            Part("activations", sums[KEPT] + sums[WHOLE], int(counts[KEPT] + counts[WHOLE])),
            Part("kept for W", sums[PENDING], int(counts[PENDING])),
            Part("in a backward", sums[REBUILT] + sums[IN_BACKWARD] + sums[IN_WEIGHT]),
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
            found.append(table @ counts.T.astype(float) + state[..., None])
        return found

    def _state_and_bytes(self, sizes: Sequence[int]) -> tuple[list[float], Floats]:
        memory = compose_memory(self._layers, sizes, self._rows, self._checkpointing, self._schedule.chunks)
        return [self._state * weights for weights in memory.gradients], bytes_of(memory)

    def _of_intervals(self) -> tuple[Floats, Floats]:
        """Return the state by (first, end), and the bytes of each column by (first, end, column)."""
        count = len(self._layers)
        known: dict[tuple[int, ...], tuple[float, Floats]] = {}
        numbers = {layer: number for number, layer in enumerate(dict.fromkeys(self._layers))}
        kinds = [numbers[layer] for layer in self._layers]
        state, table = np.zeros((count + 1, count + 1)), np.zeros((count + 1, count + 1, 7))
        for first in range(count):
            for end in range(first + 1, count + 1):
                kind = tuple(kinds[first:end])
                if kind not in known:
                    layers, chunks = self._layers[first:end], self._schedule.chunks
                    memory = compose_memory(layers, (end - first,), self._rows, self._checkpointing, chunks)
                    known[kind] = self._state * memory.gradients[0], bytes_of(memory)[0]
                state[first, end], table[first, end] = known[kind]
        return state, table
