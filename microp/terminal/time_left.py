"""Estimates how long the points of a sweep still take.

::

    predicted     its steps' predicted time + what finished predicted points took beyond theirs (to start, to end)
    not           its steps x the time per step of the finished points, else of the point that runs
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from statistics import mean


class TimeLeft:
    """The times of points that run one after the other.

    Args:
        steps: the number of steps of each point.
        seconds: the predicted time of each point's steps, None for one that is not known; may be shorter.
    """

    def __init__(self, steps: Sequence[int], seconds: Sequence[float | None] = ()) -> None:
        self._points = list(zip_longest(steps, seconds))
        self._ended = 0
        self._beyond: list[float] = []  # of finished points with a prediction, seconds
        self._took: list[tuple[float, int]] = []  # of finished points: seconds, steps

    def add(self, steps: int, seconds: float | None = None) -> None:
        """Add a point at the end."""
        self._points.append((steps, seconds))

    def end(self, took: float | None) -> None:
        """The next point has ended after `took` seconds; None if it was not run here."""
        if took is not None and self._ended < len(self._points):
            steps, predicted = self._points[self._ended]
            self._took.append((took, steps))
            if predicted is not None:
                self._beyond.append(took - predicted)
        self._ended += 1

    def seconds(self, elapsed: float = 0.0, done: int = 0) -> float | None:
        """Return the seconds that are left; None if nothing is known.

        Args:
            elapsed: the seconds that the running point has taken until now.
            done: the steps that it has made.
        """
        found = 0.0
        for number, (steps, predicted) in enumerate(self._points[self._ended :]):
            point = self._point(steps, predicted, elapsed, done)
            if point is None:
                return None
            found += max(0.0, point - elapsed) if number == 0 else point
        return found

    def _point(self, steps: int, predicted: float | None, elapsed: float, done: int) -> float | None:
        if predicted is not None:
            return max(0.0, predicted + (mean(self._beyond) if self._beyond else 0.0))
        if self._took:
            return steps * sum(took for took, _ in self._took) / max(1, sum(count for _, count in self._took))
        return steps * elapsed / done if done else None
