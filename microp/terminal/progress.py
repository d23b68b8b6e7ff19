"""Shows how far a run or a sweep is, as progress bars.

::

    2/6 1f1b-m8-k2-0c9a4b1e  ━━━━━━━━━╸━━━━  14/26 steps
    all points               ━━━━╸━━━━━━━━━  1/6 points    0:00:21

A point weighs as much of the sweep's bar as it has steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from microp.results import Store
from microp.terminal.console import err, line

POLL_S = 0.25  # between two looks at a rank's rows; long, because the ranks need the cores
LINE_S = 10.0  # between two lines where there is no terminal
LATE = 0.99  # the share that is shown of what takes longer than it is to
ESTIMATE_S = 24 * 3600.0  # of the past, from which the time that is left is estimated


@contextmanager
def bar(what: str) -> Iterator[Callable[[float], None]]:
    """Show a bar with the time that is left, and give the function that is told the share that is done.

    Where there is no terminal, a line now and then.
    """
    if not err.is_terminal:
        said = monotonic()

        def tell(share: float) -> None:
            nonlocal said
            if monotonic() - said > LINE_S and share < 1:
                said = monotonic()
                line(f"{what}: {100 * share:.0f} %")

        yield tell
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=err, transient=True) as shown:
        task = shown.add_task(what, total=1.0)
        yield lambda share: shown.update(task, completed=share)


@contextmanager
def clock(what: str, seconds: float) -> Iterator[None]:
    """Show, as `bar` does, how much of the time that something is to take is over."""
    began = monotonic()
    with bar(what) as tell, _following(lambda: tell(min((monotonic() - began) / seconds, LATE))):
        yield


@contextmanager
def _following(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` now and then, in a thread of its own."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(POLL_S):
            look()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def read_store(outputs: Path, schedules: Collection[str] = ()) -> Store:
    """Return the runs and sweeps of a folder; a bar shows how many are read."""
    with bar("runs") as tell:
        return Store(outputs, schedules, tell)


class Board:
    """The progress bars of a sweep and of the point that runs."""

    def __init__(self) -> None:
        self.is_open = False
        self._place: Any = None  # in a notebook without ipywidgets: where its text is
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[done]}"),
            TimeRemainingColumn(),
            console=err,
            refresh_per_second=2,
            transient=True,
            speed_estimate_period=ESTIMATE_S,
        )

    def open(self, steps: Sequence[int]) -> None:
        """Start the bars for points with these numbers of steps."""
        self.is_open = True
        self._weights = list(steps)
        self._ended = 0  # points
        self._sweep = self._progress.add_task("all points", done="")
        self._show_sweep()
        if err.is_terminal or (err.is_jupyter and find_spec("ipywidgets")):  # without them rich warns at each step
            self._progress.start()
        elif err.is_jupyter:
            from IPython.display import display  # there, as a notebook runs this

            self._place = display({"text/plain": ""}, raw=True, display_id=True)

    def _show_sweep(self, share: float = 0.0) -> None:
        """Show the points that have ended, and a share of the one that runs."""
        number = len(self._weights)
        done = sum(self._weights[: self._ended]) + share * sum(self._weights[self._ended : self._ended + 1])
        text, total = f"{self._ended}/{number} points", sum(self._weights)
        self._progress.update(self._sweep, completed=done, total=total, done=text, visible=number > 1)

    def skip(self) -> None:
        """Count a point of those that were to be run as done, because another process has run it."""
        if self.is_open:
            self._weights[self._ended : self._ended + 1] = [0]
            self._ended += 1
            self._show_sweep()

    @contextmanager
    def point(self, name: str, steps: int, rows: Path) -> Iterator[None]:
        """Show the progress of one run, read from the file `rows` that rank 0 writes."""
        if not self.is_open:  # a Hydra launcher runs this point in another process
            yield
            return
        label = f"{self._ended + 1}/{len(self._weights)} {name}" if len(self._weights) > 1 else name
        task = self._progress.add_task(label, total=steps, done="")
        place = done = 0

        def look() -> None:
            nonlocal place, done
            with suppress(OSError), rows.open("rb") as file:  # it may not be there yet, or not any more
                file.seek(place)
                new = file.read()
                place, done = place + len(new), done + new.count(b"\n")
            self._progress.update(task, completed=done, done=f"{done}/{steps} steps")
            self._say(f"{label}: {done}/{steps} steps")
            self._show_sweep(done / steps)

        try:
            with _following(look):
                yield
        finally:
            self._progress.remove_task(task)
            self._ended += 1
            self._show_sweep()
            if not err.is_terminal:
                err.print(label, soft_wrap=True)

    def _say(self, text: str) -> None:
        if self._place is not None:
            self._place.update({"text/plain": text}, raw=True)

    def close(self) -> None:
        """Remove the bars."""
        if not self.is_open:
            return
        self._say("")
        if self._progress.live.is_started:
            self._progress.stop()
        self._progress.remove_task(self._sweep)
        self.is_open = False
