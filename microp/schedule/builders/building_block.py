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

from collections.abc import Collection, Iterable, Sequence

from microp.schedule.schedule import Action, Op, Schedule, rows

INTERVAL = 6  # slots between two microbatches


def repeat(name: str, block: Sequence[tuple[int, int, int, int]], chunks: int) -> Schedule:
    """Return a schedule with the F and B of all microbatches, in the order of the block's slots.

    Args:
        name: the schedule's name.
        block: for each rank r, the slots of microbatch 0: F of stage r, F and B of stage 2K-1-r, B of stage r.
        chunks: the number of microbatches.
    """

    def row(rank: int, starts: tuple[int, int, int, int]) -> Iterable[Action]:
        first, second = rank, 2 * len(block) - 1 - rank
        lanes = zip(starts, ((Op.F, first), (Op.F, second), (Op.B, second), (Op.B, first)), strict=True)
        slots = {
            Action(op, stage, microbatch): start + INTERVAL * microbatch
            for start, (op, stage) in lanes
            for microbatch in range(chunks)
        }
        return sorted(slots, key=lambda action: slots[action])

    return Schedule(name, chunks, rows(row(rank, starts) for rank, starts in enumerate(block)))


def squeeze(repeated: Schedule, limit: int) -> Schedule:
    """Return the repeated block without its gaps and with every W: each action as early as possible, one slot long.

    In each slot a rank takes the next action in the block's order. If that has to wait, the same op
    of the rank's other stage may overtake it. If no such action can start, the slot goes to the
    weight gradient that has waited longest.

    Args:
        repeated: the result of `repeat`.
        limit: the most (stage, microbatch) pairs that a rank may hold, each from its F to its W; a
            forward beyond the limit waits.
    """
    lines = [_Line(row) for row in repeated.ranks]
    ended: set[Action] = set()
    while any(line.todo or line.weights for line in lines):
        slot = [line.step(repeated, ended, limit) for line in lines]
        assert any(slot), f"{repeated.name}: no rank can continue while it holds at most {limit} pairs"
        ended.update(action for action in slot if action)
    return Schedule(repeated.name, repeated.chunks, rows(line.done for line in lines))


class _Line:
    """One rank's row while it is squeezed: actions to do, weight gradients that wait for a slot, actions done."""

    def __init__(self, row: Iterable[Action]) -> None:
        self.todo = list(row)
        self.weights: list[Action] = []
        self.done: list[Action] = []
        self.held = 0

    def step(self, repeated: Schedule, ended: Collection[Action], limit: int) -> Action | None:
        """Fill one slot and return its action, or None if no action could start."""
        action = self._first_ready(repeated, ended, limit)
        if action:
            self.todo.remove(action)
        elif self.weights:
            action = self.weights.pop(0)
        else:
            return None
        if action.op is Op.B:
            self.weights.append(action._replace(op=Op.W))
        self.held += {Op.F: 1, Op.B: 0, Op.W: -1}[action.op]
        self.done.append(action)
        return action

    def _first_ready(self, repeated: Schedule, ended: Collection[Action], limit: int) -> Action | None:
        waiting: set[int] = set()  # stages whose next microbatch cannot start yet
        for action in self.todo:
            if action.op is not self.todo[0].op or len(waiting) == 2:
                return None
            if action.stage not in waiting:
                ready = all(parent in ended for parent in repeated.parents(action))
                if ready and (action.op is Op.B or self.held < limit):
                    return action
                waiting.add(action.stage)
        return None
