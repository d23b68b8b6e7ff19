"""Finds the smallest cycle of actions that wait for each other.

::

    rank 0   0F0 │ 0B0 0F1 0B1       each rank runs until its next action waits for one that never
    rank 1   1F0 │ 1F1 1B0 1B1       ends; the actions to the right of the bar never run

    0B0 waits for 1B0, which comes after 1F1, which waits for 0F1, which comes after 0B0

(`graphlib` names some cycle; an error message needs the smallest one.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from microp.schedule.schedule import Action, Schedule

LOOKS = 200_000  # the search for a cycle smaller than the first one ends after visiting this number of actions


def find_cycle(schedule: Schedule) -> list[Action]:
    """Return the smallest cycle of actions that wait for each other (first = last); empty if there is none.

    An action waits for its parents, and for every action before it in its row. The schedule must be
    complete, with each action on its stage's rank. Time and memory are linear in the number of
    actions: if many actions are stuck, only cycles through some of them are compared.
    """
    jam = _Jam(schedule, _play(schedule))
    if not jam.places:
        return []
    best = jam.first_cycle()
    for start in chain(best[:-1], jam.places):
        if len(best) == 3 or jam.looks > LOOKS:  # no cycle is smaller, or the search takes too long
            break
        best = jam.cycle_through(start, len(best)) or best
    return best


def _play(schedule: Schedule) -> list[int]:
    """Return the number of actions that each rank runs if every rank continues as long as it can."""
    done: set[Action] = set()
    reached = [0] * len(schedule.ranks)
    waiting: dict[Action, list[int]] = {}  # an action that has not run -> the ranks that wait for it
    free = list(range(len(schedule.ranks)))
    while free:
        rank = free.pop()
        row = schedule.ranks[rank]
        for place in range(reached[rank], len(row)):
            action = row[place]
            missing = [parent for parent in schedule.parents(action) if parent not in done]
            if missing:
                waiting.setdefault(missing[0], []).append(rank)
                break
            done.add(action)
            reached[rank] += 1
            if action in waiting:
                free += waiting.pop(action)
    return reached


class _Jam:
    """The actions that never run.

    Attributes:
        places: each of these actions -> its rank, and its index in the rank's row.
        looks: the number of actions that the search has visited.
    """

    def __init__(self, schedule: Schedule, reached: Sequence[int]) -> None:
        self._schedule, self._heads = schedule, reached
        self.looks = 0
        self.places = {
            row[place]: (rank, place)
            for rank, row in enumerate(schedule.ranks)
            for place in range(reached[rank], len(row))
        }

    def _needs(self, action: Action) -> list[Action]:
        return [parent for parent in self._schedule.parents(action) if parent in self.places]

    def first_cycle(self) -> list[Action]:
        """Return a cycle through the ranks' heads, which are their first stuck actions.

        A head needs a parent, and the parent is, or comes after, the head of its own rank. The path
        from head to parent to head ends when it comes to a rank for the second time.
        """
        rank, _ = next(iter(self.places.values()))
        path: list[Action] = []
        came: dict[int, int] = {}  # rank -> the index of its head in the path
        while rank not in came:
            came[rank] = len(path)
            head = self._schedule.ranks[rank][self._heads[rank]]
            need = self._needs(head)[0]
            path += [head, need]
            rank, _ = self.places[need]
        cycle = [*path[came[rank] :], path[came[rank]]]
        return [cycle[0], *(action for before, action in pairwise(cycle) if action != before)]

    def cycle_through(self, start: Action, most: int) -> list[Action]:
        """Return the smallest cycle that leaves `start` for a parent and comes back by a later action of its row.

        ::

            rank 0   … start … a          start ─ its parents ─ the actions before them ─ their parents
            rank 1   … b … c              ─ ... ─ a, which comes after start

        The search is breadth first. Every smallest cycle has such a start. The result is empty if no
        such cycle has fewer than `most` entries.
        """
        home, own = self.places[start]
        came = dict.fromkeys(self._needs(start), start)  # an action -> the one that waits for it
        layer = list(came)
        passed: dict[int, int] = {}  # rank -> the index up to which its row has been added
        self.looks += 1
        for _ in range(3, most):  # entries of the cycle: start, one per layer, start again
            self.looks += len(layer)
            for action in layer:
                rank, place = self.places[action]
                if rank == home and place > own:
                    return _path(came, start, action)
            layer = list(self._next_layer(layer, passed, came))
        return []

    def _next_layer(
        self, layer: Sequence[Action], passed: dict[int, int], came: dict[Action, Action]
    ) -> Iterator[Action]:
        """Yield the actions that the layer waits for and that are new; the whole search reads each row once."""
        for action in layer:
            rank, place = self.places[action]
            first = passed.get(rank, self._heads[rank])
            passed[rank] = max(first, place)
            for need in (*self._schedule.ranks[rank][first:place], *self._needs(action)):
                if need not in came:
                    came[need] = action
                    yield need


def _path(came: dict[Action, Action], start: Action, end: Action) -> list[Action]:
    """Return the cycle from `start` to `end` and back to `start`."""
    path = [start, end]
    while path[-1] != start:
        path.append(came[path[-1]])
    return path[::-1]
