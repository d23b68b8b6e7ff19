"""Shows how far a run or a sweep is, as progress bars.

::

    2/6 1f1b-m8-k2-0c9a4b1e  ━━━━━━━━━╸━━━━  14/26 steps
    sweep                    ━━━━╸━━━━━━━━━  40/156       0:00:21 left

The time that is left of a sweep is an estimate::

    predicted     its steps' predicted time + what finished predicted points took beyond theirs (to start, to end)
    not           its steps x the time per step of the finished points, else of the point that runs
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from statistics import mean

from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from microp.terminal.console import err

POLL_S = 0.25  # between two looks at a rank's rows; long, because the ranks need the cores


class TimeLeft:
    """The times of points that run one after the other.

    Of each point it has the number of steps and their predicted time, None if it is not known.
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
        """Return the seconds that are left, if the running point has made `done` steps; None if nothing is known."""
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


class _Remaining(TimeRemainingColumn):
    """The time that is left: a sweep's own estimate, for a point what its steps have taken."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Return the time as text."""
        if "left" not in task.fields:
            return super().render(task)
        left = task.fields["left"]
        if left is None:
            return Text("-:--:--", style="progress.remaining")
        minutes, seconds = divmod(int(left), 60)
        hours, minutes = divmod(minutes, 60)
        return Text(f"{hours:d}:{minutes:02d}:{seconds:02d}", style="progress.remaining")


class Board:
    """The progress bars of a sweep and of the point that runs."""

    def __init__(self) -> None:
        self.is_open = False
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            _Remaining(),
            console=err,
            refresh_per_second=2,
            transient=True,
        )
        self._points = self._started = self._steps = 0
        self._left = TimeLeft([])

    def open(self, steps: Sequence[int], seconds: Sequence[float | None] = ()) -> None:
        """Start the bars for points with these numbers of steps, and predicted times of these steps if known."""
        self.is_open = True
        self._left = TimeLeft(steps, seconds)
        self._points, self._started, self._steps = len(steps), 0, 0
        self._sweep = self._progress.add_task(
            "all points", total=sum(steps), visible=len(steps) > 1, left=self._left.seconds()
        )
        if err.is_terminal:
            self._progress.start()

    def add(self, steps: int) -> None:
        """Add a point that was not known when the bars were started."""
        self._points += 1
        self._left.add(steps)
        total = self._progress.tasks[self._progress.task_ids.index(self._sweep)].total or 0
        self._progress.update(self._sweep, total=total + steps, visible=self._points > 1)

    def skip(self, steps: int) -> None:
        """Count a point of those that were to be run as done, because another process has run it."""
        if self.is_open:
            self._started += 1
            self._steps += steps
            self._left.end(None)
            self._progress.update(self._sweep, completed=self._steps)

    @contextmanager
    def point(self, name: str, steps: int, rows: Path) -> Iterator[None]:
        """Show the progress of one run, read from the file `rows` that rank 0 writes."""
        if not self.is_open:  # a Hydra launcher runs this point in another process
            yield
            return
        self._started += 1
        label = f"{self._started}/{self._points} {name}" if self._points > 1 else name
        task = self._progress.add_task(label, total=steps)
        before, began = self._steps, time.monotonic()
        ended = threading.Event()

        def follow() -> None:
            place = done = 0
            while not ended.wait(POLL_S):
                with suppress(OSError), rows.open("rb") as file:  # it may not be there yet, or not any more
                    file.seek(place)
                    new = file.read()
                    place, done = place + len(new), done + new.count(b"\n")
                self._progress.update(task, completed=done)
                left = self._left.seconds(time.monotonic() - began, done)
                self._progress.update(self._sweep, completed=before + done, left=left)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._progress.remove_task(task)
            self._steps = before + steps
            self._left.end(time.monotonic() - began)
            self._progress.update(self._sweep, completed=self._steps, left=self._left.seconds())
            if not err.is_terminal:
                err.print(label, soft_wrap=True)

    def close(self) -> None:
        """Remove the bars."""
        if not self.is_open:
            return
        if self._progress.live.is_started:
            self._progress.stop()
        self._progress.remove_task(self._sweep)
        self.is_open = False
