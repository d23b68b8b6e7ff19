"""Calls what a user has written, in the command's own process.

::

    os._exit, sys.exit ─────────────────┐
    KeyboardInterrupt without a signal ─┴─► ValueError
    does not return ──────────────────────► a note after `LONG_S`; Ctrl-C ends the command
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from microp.app.interrupts import is_foreign
from microp.settings import exit_raises
from microp.terminal import console

LONG_S = 20.0


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Call a user's functions and layers in this context.

    Args:
        what: what is called, for messages: `model.builder=mine.layers`.

    Raises:
        ValueError: it would have ended the process.
    """
    note = f"{what} has not returned for {LONG_S:g} s: the command waits for it, Ctrl-C ends both"
    patience = threading.Timer(LONG_S, console.note, [note])
    patience.daemon = True
    patience.start()
    try:
        with exit_raises():
            yield
    except BaseException as error:
        if isinstance(error, Exception) or not is_foreign(error):
            raise
        raise ValueError(f"{what} raised {type(error).__name__}: let it return, or raise an Exception") from error
    finally:
        patience.cancel()
