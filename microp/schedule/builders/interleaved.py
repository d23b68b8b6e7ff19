"""1F1B over looped stages: several stages per rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

from microp.schedule.builders.phases import defer_weights, looped_1f1b, looped_stages, rounds_of
from microp.schedule.schedule import Action, Op, Schedule, overlapped, rows


class Warmup(StrEnum):
    """How many forwards a rank starts with for each rank after it."""

    double = "double"  # Megatron's: a hop of up to half a microbatch's time is hidden
    single = "single"  # fewer activations; every hop delays a round


def interleaved(
    ranks: int,
    chunks: int,
    stages_per_rank: int = 2,
    group: int | None = None,
    extra_warmup: int = 0,
    warmup: Warmup = Warmup.double,
    overlap: bool = False,
) -> Schedule:
    """Return 1F1B over looped stages: rank r holds stages r, K+r, 2K+r, ...

    ::

        rank 0  0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1   . 2B2   . 2B3 0B2 0B3        warmup 4
        rank 1    . 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3   .        warmup 2

    The bubble is (K-1)/v microbatches for v times the messages. The warmup of rank r is 2(K-1-r) + (v-1)G forwards, for
    rounds of G microbatches (`rounds_of`), and at most one more of its vM (stage, microbatch) pairs is in flight
    (Narayanan et al., arXiv 2104.04473, section 2.2, there for chunks divisible by ranks). With `single` it is
    K-1-r + (v-1)G, which holds K microbatches at G = K, as 1F1B does. With `overlap` a forward and the backward after
    it are a pair, as in Megatron's combined 1F1B; none may wait for itself, which takes an extra forward. A last round
    below K, which a `group` can leave, makes the step longer, and some such orders deadlock.

    Raises:
        ValueError: `stages_per_rank` is below 1, `group` below `ranks`, or `extra_warmup` below 0, or 1 for `overlap`.
    """
    if extra_warmup < overlap:
        beside = " beside schedule.overlap=true" * overlap
        raise ValueError(f"schedule.extra_warmup={extra_warmup} is below {overlap:d}{beside}: use {overlap:d} or more")
    each = 2 if warmup == Warmup.double else 1
    more = [each * (ranks - 1 - rank) + extra_warmup for rank in range(ranks)]
    stages = [looped_stages(rank, ranks, stages_per_rank) for rank in range(ranks)]
    every = zip(stages, more, strict=True)
    order = rows(looped_1f1b(held, rounds_of(ranks, chunks, group), lead) for held, lead in every)
    schedule = Schedule("interleaved", chunks, order)
    if not overlap:
        return schedule
    steady = stages_per_rank * chunks - (stages_per_rank - 1) * rounds_of(ranks, chunks, group)[0]
    without = [rank for rank in range(ranks) if more[rank] >= steady]  # ranks that begin with all their forwards
    return replace(schedule, pairs=overlapped(order, apart=without))


def zb_interleaved(ranks: int, chunks: int, stages_per_rank: int = 2) -> Schedule:
    """Return ZB1P: interleaved 1F1B with divided backwards, half the warmup, and W later by r on rank r.

    ::

        rank 0  0F0 0F1 2F0 2F1   . 2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 2I3 2W3 0I2 0W2 0I3 0W3
        rank 1    . 1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1I2 3W3 1I3 1W2 1W3

    The bubble is (K-1)(F+I-W)/v with v stages per rank. The rounds of G microbatches are those of
    `interleaved`. Activations are held to W: at most K + (v-1)G of the vM (stage, microbatch) pairs
    on every rank, which is K microbatches where K divides M (the loops of Narayanan et al., arXiv
    2104.04473, with the split of Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241;
    torch calls it InterleavedZeroBubble).

    Args:
        stages_per_rank: the number of stages that a rank holds.

    Raises:
        ValueError: `stages_per_rank` is below 1.
    """

    def row(rank: int) -> Iterator[Action]:
        stages = looped_stages(rank, ranks, stages_per_rank)
        return defer_weights(looped_1f1b(stages, rounds_of(ranks, chunks), warmup=ranks - 1 - rank), lag=rank)

    return Schedule("zb_interleaved", chunks, rows(row(rank) for rank in range(ranks)))


def gis(ranks: int, chunks: int, stages_per_rank: int = 2, group: int | None = None) -> Schedule:
    """Return GIS, interleaved in groups of G microbatches with divided backwards, ceil(K/2) <= G <= K.

    ::

        rank 0  0F0   . 2F0 0F1   . 2I0 2W0 2F1 0I0 0W0 0F2 2I1 2W1 2F2 0I1 0W1   . 2I2 2W2 0I2 0W2
        rank 1    . 1F0   . 3F0 3I0 3W0 1F1 1I0 1W0 3F1 3I1 3W1 1F2 1I1 1W1 3F2 3I2 3W2 1I2 1W2   .

    It is the order of a block in which F, I and W take one slot each and a group has 3Gv slots: W follows its
    I. Activations are held to W: G(v-1) + K of the vM (stage, microbatch) pairs, so that a smaller group
    holds less and has a larger bubble. G = K holds as much as `zb_interleaved`, and is no faster (Wan et al.,
    PipeOffload, arXiv 2503.01328, there GIS for G = K and GIS-H for G = K/2).

    Args:
        stages_per_rank: the number of stages that a rank holds.
        group: G; None: ceil(K/2), the least.

    Raises:
        ValueError: `stages_per_rank` is below 1, or `group` is not from ceil(K/2) to K.
    """
    least = -(-ranks // 2)
    size = least if group is None else group
    if not least <= size <= ranks:
        raise ValueError(f"schedule.group={group} is not from {least} to {ranks}, half of ranks to ranks: use {least}")

    def row(rank: int) -> list[Action]:
        stages, slots = looped_stages(rank, ranks, stages_per_rank), {}
        back = 3 * size * (stages_per_rank - 1) + rank + 1 + 3 * (ranks - 1 - rank)
        for microbatch in range(chunks):
            turn, place = divmod(microbatch, size)
            begin = 3 * size * stages_per_rank * turn + 3 * place
            for loop, stage in enumerate(stages):
                input_gradient = begin + back + 3 * size * (stages_per_rank - 1 - loop)
                slots[Action(Op.F, stage, microbatch)] = begin + rank + 3 * size * loop
                slots[Action(Op.I, stage, microbatch)] = input_gradient
                slots[Action(Op.W, stage, microbatch)] = input_gradient + 1
        return sorted(slots, key=slots.__getitem__)

    return Schedule("gis", chunks, rows(row(rank) for rank in range(ranks)))
