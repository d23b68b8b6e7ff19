"""Eager 1F1B: one forward, one backward, with room for transfers."""

from __future__ import annotations

from collections.abc import Iterator

from microp.schedule.builders.phases import three_phases
from microp.schedule.schedule import Action, Op, Schedule, rows


def eager_1f1b(ranks: int, chunks: int) -> Schedule:
    """Return 1F1B with twice the warmup, so that computation hides every transfer in the steady phase.

    ::

        rank 0  F0 F1 F2 F3  . B0  . B1  . B2  . B3        warmup 4
        rank 1   . F0 F1 F2 B0 F3 B1  . B2  . B3  .        warmup 2
        rank 2   .  . F0 B0 F1 B1 F2 B2 F3 B3  .  .        warmup 0

    It is as fast as 1F1B if transfers take no time. A hop of up to half a microbatch's time delays
    the step only twice per rank, in fill and drain, and not in every microbatch. At most
    2(K-r) - 1 microbatches are in flight on rank r (Zhuang et al., On Optimizing the Communication
    of Model Parallelism, arXiv 2211.05322, section 4).
    """

    def row(rank: int) -> Iterator[Action]:
        forwards = [Action(Op.F, rank, microbatch) for microbatch in range(chunks)]
        backwards = [Action(Op.B, rank, microbatch) for microbatch in range(chunks)]
        return three_phases(forwards, backwards, warmup=2 * (ranks - 1 - rank))

    return Schedule("eager_1f1b", chunks, rows(row(rank) for rank in range(ranks)))
