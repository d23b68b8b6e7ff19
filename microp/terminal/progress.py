"""Shows how far a run or a sweep is, as progress bars.

::

    2/6 1f1b-m8-k2-0c9a4b1e  ━━━━━━━━━╸━━━━  14/26 steps
    sweep                    ━━━━╸━━━━━━━━━  40/156       0:00:21 left

The time that is left of a sweep is an estimate from predictions and from the points that have ended: see `time_left`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from microp.terminal.console import err
from microp.terminal.time_left import TimeLeft

POLL_S = 0.25  # between two looks at a rank's rows; long, because the ranks need the cores


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
            while not ended.wait(POLL_S):
                done = rows.read_bytes().count(b"\n") if rows.exists() else 0
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
