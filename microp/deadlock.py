"""Plays a schedule, and finds the smallest circle of actions that wait for each other.

::

    rank 0   0F0 │ 0B0 0F1 0B1       each rank goes on as long as what its next action waits for is
    rank 1   1F0 │ 1F1 1B0 1B1       done; what is behind the bar is never done

    0B0 waits for 1B0, which stands behind 1F1, which waits for 0F1, which stands behind 0B0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from microp.schedule import Action, Schedule

LOOKS = 200_000  # so many actions are looked at for a smaller circle than the first one found


def find_cycle(schedule: Schedule) -> list[Action]:
    """The smallest circle of actions that wait for each other (first = last); empty if all can be run.

    An action waits for its parents, and for every action before it in its row. The schedule is
    complete and each action where its stage is. Time and memory are linear in the number of
    actions: where the stuck part is large, only circles through some of its actions are compared.
    """
    jam = _Jam(schedule, _play(schedule))
    if not jam.places:
        return []
    best = jam.first_circle()
    for start in chain(best[:-1], jam.places):
        if len(best) == 3 or jam.looks > LOOKS:  # no circle is smaller; it would take too long
            break
        best = jam.circle_through(start, len(best)) or best
    return best


def _play(schedule: Schedule) -> list[int]:
    """How far each rank comes if it goes on whenever it can: the number of actions that it does."""
    done: set[Action] = set()
    reached = [0] * len(schedule.ranks)
    waiting: dict[Action, list[int]] = {}  # an action that is not done -> the ranks that wait for it
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
    """The actions that are never run.

    Attributes:
        places: each of them -> its rank, and its place in the row.
        looks: how many actions the search has looked at.
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

    def first_circle(self) -> list[Action]:
        """From a rank's head to what it needs, which stands behind (or is) the head of its rank, and so on."""
        rank, _ = next(iter(self.places.values()))
        path: list[Action] = []
        came: dict[int, int] = {}  # rank -> where its head is in the path
        while rank not in came:
            came[rank] = len(path)
            head = self._schedule.ranks[rank][self._heads[rank]]
            need = self._needs(head)[0]
            path += [head, need]
            rank, _ = self.places[need]
        circle = [*path[came[rank] :], path[came[rank]]]
        return [circle[0], *(action for before, action in pairwise(circle) if action != before)]

    def circle_through(self, start: Action, most: int) -> list[Action]:
        """The smallest circle in which `start` needs a parent and stands before what needs it.

        ::

            rank 0   … start … a          start ─ parents ─ what stands before them ─ their parents
            rank 1   … b … c              ─ ... ─ a, which stands behind start

        Breadth first. Every smallest circle has such an action; it is empty if there is none with
        fewer than `most` entries.
        """
        home, own = self.places[start]
        came = dict.fromkeys(self._needs(start), start)  # an action -> the one that waits for it
        layer = list(came)
        passed: dict[int, int] = {}  # rank -> the place up to which its row has been added
        self.looks += 1
        for _ in range(3, most):  # entries of the circle: start, what the layers add, start again
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
        """What the layer's actions wait for and was not found yet; each row is gone through once in all."""
        for action in layer:
            rank, place = self.places[action]
            first = passed.get(rank, self._heads[rank])
            passed[rank] = max(first, place)
            for need in (*self._schedule.ranks[rank][first:place], *self._needs(action)):
                if need not in came:
                    came[need] = action
                    yield need


def _path(came: dict[Action, Action], start: Action, end: Action) -> list[Action]:
    """From `start` to `end`, and back to it."""
    path = [start, end]
    while path[-1] != start:
        path.append(came[path[-1]])
    return path[::-1]
