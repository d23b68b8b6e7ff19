"""Repeats a building block, which gives the slots of one microbatch's actions, and closes its gaps.

::

    slot       0  1  2  3  4  5  6  7  8  9 10 11        the block of `v_min` on 2 ranks
    rank 0    F0  .  . F1 B1  .  .  B0                   F0, B0: the rank's first stage
    rank 1     . F0 F1  .  . B1 B0  .                    F1, B1: its second
                        F0 of the next microbatch in slot 6, and so on

Every microbatch comes 6 slots after the one before it, which leaves room for F, B and W of two
stages. A rank holds activations for the length of the block, which determines the schedule's memory
(Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from operator import itemgetter
from sys import maxsize

from microp.schedule.schedule import Action, Op, Schedule, rows

INTERVAL = 6  # slots between two microbatches
NEVER = maxsize  # the slot of an action that has not run
_F, _B, _W = Op  # a name of an enumeration takes longer to look up
_OPS = (_F, _B)
_new = tuple.__new__  # of an action takes a third of the time of `Action(...)`


def v_half(ranks: int, chunks: int) -> Schedule:
    """Return the repeated building block whose forwards go down the V at half speed.

    ::

        rank 0  0F0 0F1   .   .   . 5F0 5B0 0F2 5W0 5F1 5B1 5W1 0B0 0W0   . 5F2 5B2 0B1 5W2 0W1   . 0B2 0W2
        rank 1    . 1F0 1F1   . 4F0   .   . 4B0 4F1 4W0 1F2 1B0 4B1 1W0 4F2 4W1 1B1 4B2 1W1 4W2 1B2 1W2   .
        rank 2    .   . 2F0 3F0 2F1 3F1   .   . 3B0 2B0 3W0 2F2 2W0 3F2 3B1 2B1 3W1 2W1 3B2 2B2 3W2 2W2   .

    Activations are held to W: K/2 + 1 microbatches on every rank, (K+1)/2 if K is odd. If M >= 2K
    the bubble is 3K-7 slots, 3K-4 if K is odd (K >= 3, every F, B and W of a stage takes one slot).
    Rank r holds stages r and 2K-1-r (Qi et al., Pipeline Parallelism with Controllable Memory,
    arXiv 2405.15362).
    """
    gap = 3 if ranks % 2 == 0 else 0
    block = [
        (2 * rank, 3 * ranks - 2 - rank, 3 * ranks + gap + 2 * rank - 1, 6 * ranks + gap - 2 - rank)
        for rank in range(ranks)
    ]
    return squeeze(repeat("v_half", block, chunks), limit=2 * (ranks // 2 + 1))


def v_min(ranks: int, chunks: int) -> Schedule:
    """Return the shortest building block, repeated: F goes down and up the V, then B does.

    ::

        rank 0  0F0   .   . 3F0 3B0 0F1 3W0 0B0 0W0 3F1 3B1 0F2 3W1 0B1 0W1 3F2 3B2 3W2   . 0B2 0W2
        rank 1    . 1F0 2F0   .   . 2B0 1B0 1F1 2F1 2W0 1W0 2B1 1B1 1F2 2F2 2W1 1W1 2B2 1B2 2W2 1W2

    Activations are held to W: at most ceil((K-1)/3) + 1 microbatches. If M >= 2K the bubble is
    4K-5 slots, 4K-7 if 3 divides K (K >= 2, every F, B and W of a stage takes one slot). Rank r
    holds stages r and 2K-1-r (Qi et al., Pipeline Parallelism with Controllable Memory,
    arXiv 2405.15362).
    """
    gap = 2 if ranks % 3 == 0 else 0
    block = [(rank, 2 * ranks - 1 - rank, 2 * ranks + gap + rank, 4 * ranks + gap - 1 - rank) for rank in range(ranks)]
    return squeeze(repeat("v_min", block, chunks), limit=2 * ((ranks + 1) // 3 + 1))


def repeat(name: str, block: Sequence[tuple[int, int, int, int]], chunks: int) -> Schedule:
    """Return a schedule with the F and B of all microbatches, in the order of the block's slots.

    Args:
        block: for each rank r, the slots of microbatch 0: F of stage r, F and B of stage 2K-1-r, B of stage r.
    """

    def row(rank: int, starts: tuple[int, int, int, int]) -> Iterable[Action]:
        first, second = rank, 2 * len(block) - 1 - rank
        lanes = zip(starts, ((Op.F, first), (Op.F, second), (Op.B, second), (Op.B, first)), strict=True)
        slots = [
            (start + INTERVAL * microbatch, _new(Action, (op, stage, microbatch)))
            for start, (op, stage) in lanes
            for microbatch in range(chunks)
        ]
        return map(itemgetter(1), sorted(slots))

    return Schedule(name, chunks, rows(row(rank, starts) for rank, starts in enumerate(block)))


def squeeze(repeated: Schedule, limit: int) -> Schedule:
    """Return the repeated block without its gaps and with every W: each action as early as possible, one slot long.

    In each slot a rank takes the next action in the block's order. If that has to wait, the same op
    of the rank's other stage may overtake it. If no such action can start, the slot goes to the
    weight gradient that has waited longest.

    Args:
        limit: the most (stage, microbatch) pairs that a rank may hold, each from its F to its W; a
            forward beyond the limit waits.
    """
    stages = range(2 * len(repeated.ranks))
    ran = [[[NEVER] * repeated.chunks for _ in stages] for _ in _OPS]
    parents = [[repeated.parents(Action(op, stage, 0)) for stage in stages] for op in _OPS]
    needs = [[[ran[_OPS.index(need.op)][need.stage] for need in each] for each in own] for own in parents]
    done: list[list[Action]] = [[] for _ in repeated.ranks]
    fillers = [_fill(list(row), limit, ran, needs, own) for row, own in zip(repeated.ranks, done, strict=True)]
    while fillers:
        started = [next(filler, None) for filler in fillers]
        assert True in started or None in started, f"{repeated.name}: no rank can continue, each may hold {limit} pairs"
        if None in started:
            fillers = [filler for filler, each in zip(fillers, started, strict=True) if each is not None]
    return Schedule(repeated.name, repeated.chunks, rows(done))


def _fill(
    todo: list[Action],
    room: int,
    ran: list[list[list[int]]],
    needs: list[list[list[list[int]]]],
    done: list[Action],
) -> Generator[bool]:
    """Fill one slot of a rank's row per turn; yield whether an action could start.

    Args:
        todo: the row in the block's order.
        room: the number of pairs that the rank may hold.
        ran: for F and B, for each stage and microbatch the slot in which it ran, or `NEVER`; shared by all ranks.
        needs: for F and B, for each stage the lists of `ran` of its parents.
        done: gets the actions as they run.
    """
    weights: deque[Action] = deque()
    slot = 0
    while todo or weights:
        started, waits = False, None  # `waits`: the stage of the next action, if that cannot start yet
        next_op = todo[0][0] if todo else None
        is_backward = next_op is _B
        of_stages = needs[is_backward]
        for action in todo if is_backward or room else ():
            op, stage, microbatch = action
            if op is not next_op:
                break
            if stage == waits:
                continue
            for slots in of_stages[stage]:
                if slots[microbatch] >= slot:
                    break
            else:
                started = True
                break
            if waits is not None:
                break
            waits = stage
        if started:
            todo.remove(action)
            done.append(action)
            ran[is_backward][stage][microbatch] = slot
            if is_backward:
                weights.append(_new(Action, (_W, stage, microbatch)))
            else:
                room -= 1
        elif weights:
            started = True
            done.append(weights.popleft())
            room += 1
        yield started
        slot += 1
