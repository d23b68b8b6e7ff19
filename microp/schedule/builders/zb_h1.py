"""ZB-H1: a smaller bubble in the memory of 1F1B."""

from __future__ import annotations

from collections.abc import Iterator

from microp.schedule.builders.phases import defer_weights, three_phases
from microp.schedule.schedule import Action, Op, Schedule, rows


def zb_h1(ranks: int, chunks: int) -> Schedule:
    """Return 1F1B with split backwards; rank r runs W r microbatches later, in what was the drain's bubble.

    ::

        rank 0  F0 F1 F2  .  . B0 W0 F3 B1 W1 B2 W2 B3 W3        W at once
        rank 1   . F0 F1  . B0 F2 B1 W0 F3 B2 W1 B3 W2 W3        W one B later
        rank 2   .  . F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3        W two Bs later

    The bubble is (K-1)(F+B-W), a third of 1F1B's if F = B = W. Activations are held to W:
    min(K, M) microbatches on every rank, as on the first rank of 1F1B (Qi et al., Zero Bubble
    Pipeline Parallelism, arXiv 2401.10241, section 2).
    """

    def row(rank: int) -> Iterator[Action]:
        forwards = [Action(Op.F, rank, microbatch) for microbatch in range(chunks)]
        backwards = [Action(Op.B, rank, microbatch) for microbatch in range(chunks)]
        return defer_weights(three_phases(forwards, backwards, warmup=1 * (ranks - 1 - rank)), lag=1 * rank)

    return Schedule("zb_h1", chunks, rows(row(rank) for rank in range(ranks)))
