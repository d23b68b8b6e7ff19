"""1F1B, one forward, one backward, and what more warmup, weight gradients of their own and slices make of it."""

from __future__ import annotations

from collections.abc import Iterator

from microp.schedule.builders.phases import defer_weights, looped_1f1b, looped_stages, three_phases
from microp.schedule.schedule import Action, Op, Schedule, rows


def one_f_one_b(ranks: int, chunks: int) -> Schedule:
    """Return 1F1B: warmup with forwards, then a forward and a backward in turn, then cooldown with backwards.

    ::

        rank 0   F0 F1  .  B0 F2 B1 F3 B2  . B3        warmup 1
        rank 1    . F0 B0  F1 B1 F2 B2 F3 B3  .        warmup 0

    It is as fast as GPipe if transfers take no time, but at most K - r microbatches are in
    flight on rank r (PipeDream-Flush: Narayanan et al., arXiv 2006.09503, section 3.3).
    """
    return Schedule("1f1b", chunks, rows(_row(rank, chunks, warmup=ranks - 1 - rank) for rank in range(ranks)))


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
    return Schedule(
        "eager_1f1b", chunks, rows(_row(rank, chunks, warmup=2 * (ranks - 1 - rank)) for rank in range(ranks))
    )


def zb_h1(ranks: int, chunks: int) -> Schedule:
    """Return 1F1B with divided backwards; rank r runs W r microbatches later, in what was the drain's bubble.

    ::

        rank 0  F0 F1 F2  .  . I0 W0 F3 I1 W1 I2 W2 I3 W3        W at once
        rank 1   . F0 F1  . I0 F2 I1 W0 F3 I2 W1 I3 W2 W3        W one I later
        rank 2   .  . F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3        W two Is later

    The bubble is (K-1)(F+I-W), a third of 1F1B's if F = I = W. Activations are held to W:
    min(K, M) microbatches on every rank, as on the first rank of 1F1B (Qi et al., Zero Bubble
    Pipeline Parallelism, arXiv 2401.10241, section 2).
    """
    return Schedule(
        "zb_h1",
        chunks,
        rows(defer_weights(_row(rank, chunks, warmup=ranks - 1 - rank), lag=rank) for rank in range(ranks)),
    )


def zb_h2(ranks: int, chunks: int) -> Schedule:
    """Return ZB-H1 with twice the warmup and W twice as late, so that the fill has no bubble either.

    ::

        rank 0  F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4  .  .
        rank 1   . F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4  .
        rank 2   .  . F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4

    No rank waits between its first and its last action if F = I = W and M >= 2K-1. The ranks start
    and end at different times, which is a bubble only if steps may not overlap. Activations are
    held to W: min(2K-1, M) microbatches on every rank (Qi et al., Zero Bubble Pipeline
    Parallelism, arXiv 2401.10241, section 2).
    """
    return Schedule(
        "zb_h2",
        chunks,
        rows(defer_weights(_row(rank, chunks, warmup=2 * (ranks - 1 - rank)), lag=2 * rank) for rank in range(ranks)),
    )


def seq_1f1b(ranks: int, chunks: int, slices: int = 2, stages_per_rank: int = 1, eager: bool = False) -> Schedule:
    """Return 1F1B over the slices of each microbatch: unit u is slice u mod s of microbatch u // s.

    ::

        rank 0  F0 F1 F2  . B1 F3 B0 F4 B3 F5 B2  . B5 B4        warmup 2
        rank 1   . F0 F1 B1 F2 B0 F3 B3 F4 B2 F5 B5 B4  .        warmup 1

    A microbatch's forwards go along the sequence, because a slice attends to the keys and values of those before
    it; its backwards come back. The bubble is that of Ms microbatches, (K-1)/(Ms+K-1) of the step, and K-r-1+s units
    of rank r are in flight: (K-1+s)/s microbatches where 1F1B holds K (Sun et al., Seq1F1B, arXiv 2406.03488); `eager`
    has K-1-r forwards more, as `eager_1f1b`. With v stages per rank, ceil(K/s) microbatches make a round, G units,
    which goes through all of them before the next one; the bubble is (K-1)/(Msv+K-1), and (v-1)G + K-r-1+s units are
    in flight (Sun et al., MEPipe, EuroSys 2025, there SVPP).

    Raises:
        ValueError: `slices` or `stages_per_rank` is below 1, or `eager` with several stages a rank, where it deadlocks.
    """
    if eager and stages_per_rank > 1:
        raise ValueError("schedule.eager=true is for one stage a rank: use schedule.stages_per_rank=1")
    Schedule("seq_1f1b", chunks, ((),) * ranks, slices)  # refuses numbers that are none
    group = -(-ranks // slices)
    rounds = [min(group, chunks - begun) for begun in range(0, chunks, group)]

    def row(rank: int) -> Iterator[Action]:
        stages = looped_stages(rank, ranks, stages_per_rank)
        return looped_1f1b(stages, rounds, slices - 1 + (1 + eager) * (ranks - 1 - rank), slices)

    return Schedule("seq_1f1b", chunks, rows(map(row, range(ranks))), slices)


def _row(rank: int, chunks: int, warmup: int) -> Iterator[Action]:
    forwards = [Action(Op.F, rank, microbatch) for microbatch in range(chunks)]
    backwards = [Action(Op.B, rank, microbatch) for microbatch in range(chunks)]
    return three_phases(forwards, backwards, warmup)
