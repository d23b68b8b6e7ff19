"""1F1B: one forward, one backward."""

from __future__ import annotations

from collections.abc import Iterator

from microp.schedule.builders.phases import three_phases
from microp.schedule.schedule import Action, Op, Schedule, rows


def one_f_one_b(ranks: int, chunks: int) -> Schedule:
    """Return 1F1B: warmup with forwards, then a forward and a backward in turn, then cooldown with backwards.

    ::

        rank 0   F0 F1  .  B0 F2 B1 F3 B2  . B3        warmup 1
        rank 1    . F0 B0  F1 B1 F2 B2 F3 B3  .        warmup 0

    It is as fast as GPipe if transfers take no time, but at most K - r microbatches are in
    flight on rank r (PipeDream-Flush: Narayanan et al., arXiv 2006.09503, section 3.3).
    """

    def row(rank: int) -> Iterator[Action]:
        forwards = [Action(Op.F, rank, microbatch) for microbatch in range(chunks)]
        backwards = [Action(Op.B, rank, microbatch) for microbatch in range(chunks)]
        return three_phases(forwards, backwards, warmup=ranks - 1 - rank)

    return Schedule("1f1b", chunks, rows(row(rank) for rank in range(ranks)))
