"""ZB-H2: zero bubble in twice the memory of 1F1B."""

from __future__ import annotations

from collections.abc import Iterator

from microp.schedule.builders.phases import defer_weights, three_phases
from microp.schedule.schedule import Action, Op, Schedule, rows


def zb_h2(ranks: int, chunks: int) -> Schedule:
    """Return ZB-H1 with twice the warmup and W twice as late, so that the fill has no bubble either.

    ::

        rank 0  F0 F1 F2 F3 F4 B0 W0 B1 W1 B2 W2 B3 W3 B4 W4  .  .
        rank 1   . F0 F1 F2 B0 F3 B1 F4 B2 W0 B3 W1 B4 W2 W3 W4  .
        rank 2   .  . F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 W1 W2 W3 W4

    No rank waits between its first and its last action if F = B = W and M >= 2K-1. The ranks start
    and end at different times, which is a bubble only if steps may not overlap. Activations are
    held to W: min(2K-1, M) microbatches on every rank (Qi et al., Zero Bubble Pipeline
    Parallelism, arXiv 2401.10241, section 2).
    """

    def row(rank: int) -> Iterator[Action]:
        forwards = [Action(Op.F, rank, microbatch) for microbatch in range(chunks)]
        backwards = [Action(Op.B, rank, microbatch) for microbatch in range(chunks)]
        return defer_weights(three_phases(forwards, backwards, warmup=2 * (ranks - 1 - rank)), lag=2 * rank)

    return Schedule("zb_h2", chunks, rows(row(rank) for rank in range(ranks)))
