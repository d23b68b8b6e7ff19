"""Records what a rank has to record when it is told to end, also while it waits for a message in torch's C++ code.

torchrun sends SIGTERM to the ranks of a host as soon as one of them has ended.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

GRACE_S = 5.0  # in which a rank that fails too records that itself; torchrun kills after 30 s


@contextmanager
def when_terminated(record: Callable[[], None]) -> Iterator[Callable[[], object]]:
    """In this context SIGTERM lets a thread call `record` and end the process, unless the context ends soon.

    Yields:
        a function to call before the caller records an end itself; it does not return if the thread records one.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    over, recording = threading.Event(), threading.Lock()

    def watch() -> None:
        while signal.SIGTERM not in (came := os.read(reading, 64)):
            if not came:  # the other end was closed
                os.close(reading)
                return
        if not over.wait(GRACE_S) and recording.acquire(blocking=False):
            with suppress(Exception):
                record()
            os._exit(1)

    threading.Thread(target=watch, name="termination", daemon=True).start()
    descriptor, handler = signal.set_wakeup_fd(writing, warn_on_full_buffer=False), signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield recording.acquire
    finally:
        over.set()
        signal.signal(signal.SIGTERM, handler)
        signal.set_wakeup_fd(descriptor)
        os.close(writing)
