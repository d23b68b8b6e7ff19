"""Lets a command end with one line when it is asked to, and tells that from what a user's own function raises.

::

    SIGINT (Ctrl-C), SIGTERM, SIGHUP, SIGQUIT ──► KeyboardInterrupt ──► one line, exit code 130
    a function raises KeyboardInterrupt ────────► no signal has come: the function has failed
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from microp.settings import is_joined

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_watching: list[bool] = []  # one for each `watched` context that is open: whether a signal has come


@contextmanager
def watched() -> Iterator[None]:
    """Let the signals that ask this process to end raise KeyboardInterrupt in this context.

    What is ignored, as SIGHUP after `nohup`, still is. A rank of torchrun leaves them as they are: it could not end
    while it waits in torch's C++ code.
    """
    if is_joined() or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    _watching.append(False)
    for number, handler in before.items():
        if handler in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _watching.pop()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    _watching[-1] = True
    raise KeyboardInterrupt


def signal_came() -> bool:
    """Return whether this command has been asked to end, also if the KeyboardInterrupt was lost on its way.

    Python drops an exception that is raised in a destructor or in a callback from C, and code that a KeyboardInterrupt
    leaves half done may raise another error as it cleans up.
    """
    return bool(_watching) and _watching[-1]


def is_foreign(error: BaseException) -> bool:
    """Return whether a KeyboardInterrupt, or another exception that ends Python, came from no signal."""
    return not isinstance(error, KeyboardInterrupt) or (bool(_watching) and not signal_came())
