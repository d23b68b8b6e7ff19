"""1F1B over slices of microbatches along the sequence."""

from __future__ import annotations

from collections.abc import Iterator

from microp.schedule.builders.phases import looped_stages, three_phases
from microp.schedule.schedule import Action, Op, Schedule, rows


def seq_1f1b(ranks: int, chunks: int, slices: int = 2, stages_per_rank: int = 1, eager: bool = False) -> Schedule:
    """Return 1F1B over the slices of each microbatch: unit u is slice u mod s of microbatch u // s.

    ::

        rank 0  F0 F1 F2  . B1 F3 B0 F4 B3 F5 B2  . B5 B4        warmup 2
        rank 1   . F0 F1 B1 F2 B0 F3 B3 F4 B2 F5 B5 B4  .        warmup 1

    A microbatch's forwards go along the sequence, because a slice attends to the keys and values of those before
    it; its backwards come back, because they need the gradients of these. With M microbatches of s slices the bubble
    is that of Ms microbatches, (K-1)/(Ms+K-1) of the step, and at most K-r-1+s of the units of rank r are in flight:
    (K-1+s)/s microbatches where 1F1B holds K (Sun et al., Seq1F1B, arXiv 2406.03488).

    With v stages per rank, ceil(K/s) microbatches make a round, G units, which goes through all stages of a rank
    before the next one; the bubble is (K-1)/(Msv+K-1), and (v-1)G + K-r-1+s units are in flight (Sun et al., MEPipe,
    EuroSys 2025, there SVPP).

    Args:
        slices: s, the number of slices of each microbatch; 1 is 1F1B.
        stages_per_rank: the number of stages that a rank holds.
        eager: K-1-r more forwards in the warmup of rank r, which hide a hop of up to half a slice's time, as
            `eager_1f1b` does.

    Raises:
        ValueError: `slices` or `stages_per_rank` is below 1, or `eager` with several stages a rank, where it deadlocks.
    """
    if eager and stages_per_rank > 1:
        raise ValueError("schedule.eager=true is for one stage a rank: use schedule.stages_per_rank=1")
    Schedule("seq_1f1b", chunks, ((),) * ranks, slices)  # refuses numbers that are none
    group = -(-ranks // slices)

    def row(rank: int) -> Iterator[Action]:
        stages = looped_stages(rank, ranks, stages_per_rank)
        rounds = [range(begin, min(begin + group, chunks)) for begin in range(0, chunks, group)]
        turns = [
            (turn, slices * microbatch) for round_ in rounds for turn in range(len(stages)) for microbatch in round_
        ]
        forwards = [Action(Op.F, stages[turn], first + at) for turn, first in turns for at in range(slices)]
        backwards = [
            Action(Op.B, stages[-1 - turn], first + at) for turn, first in turns for at in reversed(range(slices))
        ]
        warmup = (len(stages) - 1) * slices * len(rounds[0]) + slices - 1 + (1 + eager) * (ranks - 1 - rank)
        return three_phases(forwards, backwards, warmup)

    return Schedule("seq_1f1b", chunks, rows(map(row, range(ranks))), slices)
