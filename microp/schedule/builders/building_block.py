"""Repeats a building block, which gives the slots of one microbatch's actions, and closes its gaps.

::

    slot       0  1  2  3  4  5  6  7  8  9 10 11        the block of `v_min` on 2 ranks
    rank 0    F0  .  . F1 I1  .  .  I0                   F0, I0: the rank's first stage
    rank 1     . F0 F1  .  . I1 I0  .                    F1, I1: its second
                        F0 of the next microbatch in slot 6, and so on

Every microbatch comes 6 slots after the one before it, which leaves room for F, I and W of two
stages. A rank holds activations for the length of the block, which determines the schedule's memory
(Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile

from microp.schedule.schedule import Action, Op, Schedule, rows

INTERVAL = 6  # slots between two microbatches


def v_half(ranks: int, chunks: int) -> Schedule:
    """Return the repeated building block whose forwards go down the V at half speed.

    ::

        rank 0  0F0 0F1   .   .   . 5F0 5I0 0F2 5W0 5F1 5I1 5W1 0I0 0W0   . 5F2 5I2 0I1 5W2 0W1   . 0I2 0W2
        rank 1    . 1F0 1F1   . 4F0   .   . 4I0 4F1 4W0 1F2 1I0 4I1 1W0 4F2 4W1 1I1 4I2 1W1 4W2 1I2 1W2   .
        rank 2    .   . 2F0 3F0 2F1 3F1   .   . 3I0 2I0 3W0 2F2 2W0 3F2 3I1 2I1 3W1 2W1 3I2 2I2 3W2 2W2   .

    Activations are held to W: K/2 + 1 microbatches on every rank, (K+1)/2 if K is odd. If M >= 2K
    the bubble is 3K-7 slots, 3K-4 if K is odd (K >= 3, every F, I and W of a stage takes one slot).
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
    """Return the shortest building block, repeated: F goes down and up the V, then I does.

    ::

        rank 0  0F0   .   . 3F0 3I0 0F1 3W0 0I0 0W0 3F1 3I1 0F2 3W1 0I1 0W1 3F2 3I2 3W2   . 0I2 0W2
        rank 1    . 1F0 2F0   .   . 2I0 1I0 1F1 2F1 2W0 1W0 2I1 1I1 1F2 2F2 2W1 1W1 2I2 1I2 2W2 1W2

    Activations are held to W: at most ceil((K-1)/3) + 1 microbatches. If M >= 2K the bubble is
    4K-5 slots, 4K-7 if 3 divides K (K >= 2, every F, I and W of a stage takes one slot). Rank r
    holds stages r and 2K-1-r (Qi et al., Pipeline Parallelism with Controllable Memory,
    arXiv 2405.15362).
    """
    gap = 2 if ranks % 3 == 0 else 0
    block = [(rank, 2 * ranks - 1 - rank, 2 * ranks + gap + rank, 4 * ranks + gap - 1 - rank) for rank in range(ranks)]
    return squeeze(repeat("v_min", block, chunks), limit=2 * ((ranks + 1) // 3 + 1))


def one_f_one_b_v(ranks: int, chunks: int) -> Schedule:
    """Return 1F1B-V: a V whose backwards are not divided, with about two thirds of 1F1B's memory.

    ::

        rank 0  0F0   .   . 3F0 3B0 0F1   .   . 3F1 3B1 0F2 0B0   . 3F2 3B2 0B1   . 0B2
        rank 1    . 1F0 2F0   .   .   . 1F1 2F1 2B0 1B0   . 1F2 2F2 2B1 1B1 2B2 1B2   .

    A block of two forwards and two full backwards (here one slot, in the block two) is repeated every 6 slots, for what
    cannot divide B: compiled layers, `sync=torch_ddp`. The largest peak is floor((2K+3)/3) microbatches, and with
    x = 2f and M >= K the bubble is 6K - 7, 6K - 6 or 6K - 5 forwards, if K leaves 0, 1 or 2 when divided by 3;
    that of 1F1B is 6(K-1). Rank r holds stages r and 2K-1-r (Qi et al., Pipeline Parallelism with Controllable
    Memory, arXiv 2405.15362; the original reorders warmup and cooldown, which makes its bubble smaller).
    """
    begin, phase = 2 * ranks + 1 + (0 if ranks % 3 else 3), (3 - (ranks + 2) % 3) % 3

    def backward(place: int) -> int:
        return begin + 2 * place + 3 * ((phase + place) // 3)

    block = [(rank + 1, 2 * ranks - rank, backward(rank), backward(2 * ranks - 1 - rank)) for rank in range(ranks)]
    return squeeze(repeat("1f1b_v", block, chunks, Op.B), limit=2 * ((2 * ranks + 3) // 3))


def repeat(name: str, block: Sequence[tuple[int, int, int, int]], chunks: int, back: Op = Op.I) -> Schedule:
    """Return a schedule with the F and I, or B, of all microbatches, in the order of the block's slots.

    Args:
        block: for each rank r, the slots of microbatch 0: F of stage r, F and I of stage 2K-1-r, I of stage r.
        back: I, or B.
    """

    def row(rank: int, starts: tuple[int, int, int, int]) -> list[Action]:
        first, second = rank, 2 * len(block) - 1 - rank
        lanes = zip(starts, ((Op.F, first), (Op.F, second), (back, second), (back, first)), strict=True)
        slots = {
            Action(op, stage, microbatch): start + INTERVAL * microbatch
            for start, (op, stage) in lanes
            for microbatch in range(chunks)
        }
        return sorted(slots, key=slots.__getitem__)

    return Schedule(name, chunks, rows(row(rank, starts) for rank, starts in enumerate(block)))


def squeeze(repeated: Schedule, limit: int) -> Schedule:
    """Return the repeated block without its gaps and with every W: each action as early as possible, one slot long.

    In each slot a rank takes the next action in the block's order. If that has to wait, the same op
    of the rank's other stage may overtake it. If no such action can start, the slot goes to the
    weight gradient that has waited longest. A backward that is not divided takes two slots and has no W.

    Args:
        limit: the most (stage, microbatch) pairs that a rank may hold, each from its F to its W, or B; a
            forward beyond the limit waits.
    """
    todo = [deque(row) for row in repeated.ranks]
    weights: list[deque[Action]] = [deque() for _ in todo]
    done: list[list[Action]] = [[] for _ in todo]
    room = [limit] * len(todo)
    ends: dict[Action, int] = {}  # the slots in which actions have ended
    free, slot = [0] * len(todo), 0  # when ranks are free

    def is_ready(action: Action) -> bool:
        return all(ends.get(parent, slot + 1) <= slot for parent in repeated.parents(action))

    while any(todo) or any(weights):
        for rank, row in enumerate(todo):
            if free[rank] > slot:
                continue
            action = _next(row, is_ready, room[rank])
            if action is not None:
                row.remove(action)
                room[rank] += {Op.F: -1, Op.B: 1, Op.I: 0}[action.op]
                if action.op is Op.I:
                    weights[rank].append(action._replace(op=Op.W))
            elif weights[rank]:
                action = weights[rank].popleft()
                room[rank] += 1
            if action is not None:
                done[rank].append(action)
                ends[action] = free[rank] = slot + 1 + (action.op is Op.B)
        slot += 1
        assert max(free) >= slot, f"{repeated.name}: no rank can continue, each may hold {limit} pairs"
    return Schedule(repeated.name, repeated.chunks, rows(done))


def _next(todo: deque[Action], is_ready: Callable[[Action], bool], room: int) -> Action | None:
    """Return the first action, or if that has to wait the next one of its op and of the other stage, or None."""
    if not todo or (todo[0].op is Op.F and not room):
        return None
    first = todo[0]
    if is_ready(first):
        return first
    same_op = takewhile(lambda action: action.op is first.op, todo)
    other = next((action for action in same_op if action.stage != first.stage), None)
    return other if other is not None and is_ready(other) else None
