"""Computes one value for each of many items on all cores.

::

    this process   item 0   item 2   item 4 ...  ┐
    a fork of it   item 1   item 3   item 5 ...  ┴─► the values in the order of the items

A core always gets the same items, so that what a process remembers of earlier items is the same in every call.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")
FEWEST = 24  # items that are worth another process
MOST = 8  # processes


def on_cores(
    function: Callable[[Item], Value], items: Sequence[Item], tick: Callable[[float], object] = float
) -> list[Value]:
    """Return the function's value of each item.

    The function runs in forks of this process: it may use what is in memory, must not use torch's autograd, and what
    it leaves in memory is lost.

    Args:
        function: its values can be pickled.
        items: in the order of the values.
        tick: called with the share of the items that are done.

    Raises:
        Exception: what the function raised.
    """
    count = max(1, min(os.cpu_count() or 1, MOST, len(items) // FEWEST))
    children = [_start(function, items[turn::count]) for turn in range(1, count)]
    values: list[Any] = [None] * len(items)
    try:
        for place in range(0, len(items), count):
            tick(place / len(items))
            values[place] = function(items[place])
        for turn, (_, reading) in enumerate(children, 1):
            found, error = reading.recv()
            if error is not None:
                raise error
            values[turn::count] = found
    finally:
        for process, reading in children:
            process.kill()
            process.join()
            reading.close()
    return values


def _start(function: Callable[[Item], Value], items: Sequence[Item]) -> tuple[Any, Connection]:
    context = multiprocessing.get_context("fork")
    reading, writing = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(function, items, writing), daemon=True)
    process.start()
    writing.close()
    return process, reading


def _send(function: Callable[[Item], Value], items: Sequence[Item], writing: Connection) -> None:
    """Send the values, or the error; then end without flushing what the parent had not written yet."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the parent ends this process
        signal.signal(number, signal.SIG_IGN)
    try:
        result: tuple[list[Value], Exception | None] = [function(item) for item in items], None
    except Exception as error:
        result = [], error
    with suppress(OSError):  # the parent has ended
        writing.send(result)
    os._exit(0)
