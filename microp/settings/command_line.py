"""What commands have in common: a parser with one line for each mistake, and standard streams that cannot fail.

::

    standard output on a full disk ──► the command goes on, a line at its end says so, exit code 1 instead of 0
    standard output of `| head`    ──► the command goes on, silently
"""

from __future__ import annotations

import argparse
import atexit
import gc
import io
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

_STREAMS = {"stdin": "r", "stdout": "w", "stderr": "w"}  # in the order of their descriptors
_INTERRUPTED = 130


def open_streams() -> None:
    """Let standard streams take whatever is printed.

    What the caller has closed (`>&-`) is opened on the null device, else the next file that is opened takes its place.
    A character that the locale's encoding lacks is printed as a question mark.
    """
    for number, (name, mode) in enumerate(_STREAMS.items()):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free
            os.set_inheritable(null, null == number)  # for the ranks
            setattr(sys, name, os.fdopen(null, mode))
        if mode == "w" and isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def run_command(command: Callable[[], Any]) -> NoReturn:
    """Run a command and exit with the number that it returns, 0 if it returns something else, 130 after Ctrl-C.

    What cannot be printed does not end it, because what it records is worth more than its lines.
    """
    atexit.register(gc.freeze)  # else Python looks for cycles in all of torch as it ends: a third of a second
    open_streams()
    files = [file for name in ("stdout", "stderr") if (file := _unfailing(name))]
    try:
        code = command()
        sys.exit(code if isinstance(code, int) else 0)
    except KeyboardInterrupt:
        end = SystemExit(_INTERRUPTED)
    except SystemExit as asked:
        end = asked
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    problems = [text for file in files if (text := file.problem())]
    for text in problems:
        print(f"error: {text}", file=sys.stderr)
    raise SystemExit(end.code or 1) if problems else end


class _Unfailing(io.FileIO):
    """The file of a standard stream; from its first error on, what is written is dropped.

    Args:
        descriptor: of the file, which stays open.
        name: what messages call it.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._called = name
        self._error: OSError | None = None

    def write(self, data: Any) -> int:
        while self._error is None:
            try:
                if (count := super().write(data)) is not None:
                    return count
                select.select([], [self], [])  # somebody has made it non-blocking, and its reader is slow
            except OSError as error:
                self._error = error
        return memoryview(data).nbytes

    def problem(self) -> str:
        """Return why it could not be written; empty if it could, or if its reader, such as `head`, had seen enough."""
        if self._error is None or isinstance(self._error, BrokenPipeError):
            return ""
        path = ""
        with suppress(OSError):
            path = str(Path(f"/proc/self/fd/{self.fileno()}").readlink())
        file = f" ({path})" if path.startswith("/") else ""
        return (
            f"{self._called}{file} cannot be written ({self._error.strerror}): what was printed there is lost, "
            "what was recorded is kept; send it to a terminal, or to a file that has room"
        )


def _unfailing(name: str) -> _Unfailing | None:
    """Replace a standard stream by one that cannot fail; None if it is no file of this process, as in a notebook."""
    stream = getattr(sys, name)
    if stream is not getattr(sys, f"__{name}__") or not isinstance(stream, io.TextIOWrapper):
        return None
    file = _Unfailing(stream.fileno(), {"stdout": "standard output", "stderr": "standard error"}[name])
    by_line = stream.line_buffering or stream.write_through
    made = io.TextIOWrapper(io.BufferedWriter(file), stream.encoding, stream.errors, line_buffering=by_line)
    setattr(sys, name, made)
    return file


class CommandParser(argparse.ArgumentParser):
    """A parser whose `error` prints one line and exits with code 2."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the command line; nothing has been started."""
        self.exit(2, f"error: {message}\n")
