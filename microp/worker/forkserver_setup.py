"""Prepares the process from which ranks are forked, before it loads torch, so that it shows the user nothing.

::

    started with Ctrl-C held back ─► this module ─► torch is loaded ─► ranks are forked
                                     Ctrl-C ends the process, without a traceback

Standard error becomes a file without a name, which the launcher reads if a rank fails before it has a log; a rank that
is ended while it starts would else print a traceback.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys

_FORKSERVER = "from multiprocessing.forkserver import main"  # how the server's program begins


def end_by_interrupt() -> None:
    """Let Ctrl-C end this process at once, without a traceback and with a code that the launcher understands."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _redirect() -> None:
    descriptor = os.memfd_create("early-output", os.MFD_CLOEXEC)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if "".join(sys.orig_argv[-1:]).startswith(_FORKSERVER):
    end_by_interrupt()
    atexit.register(gc.freeze)  # as in `run_command`: it ends in a second less
    if hasattr(os, "memfd_create"):
        _redirect()
