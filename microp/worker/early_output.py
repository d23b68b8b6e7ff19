"""Keeps what a rank prints on standard error before it has a log, instead of showing it to the user.

The process from which ranks are forked imports this module first. Standard error is then a file without a name, which
the launcher reads if a rank fails so early; a rank that is ended while it starts would else print a traceback.
"""

from __future__ import annotations

import os
import sys

_FORKSERVER = "from multiprocessing.forkserver import main"  # how the server's program begins


def _redirect() -> None:
    descriptor = os.memfd_create("early-output", os.MFD_CLOEXEC)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if hasattr(os, "memfd_create") and sys.orig_argv[-1].startswith(_FORKSERVER):
    _redirect()
