"""Carries packets between two network namespaces, each after a delay: a slow link where the kernel has no `tc netem`.

::

    h0   link0 (tun) ──► this process, delay_ms ──► (tun) link1   h1      and back

    python relay.py NAMESPACE0 link0 NAMESPACE1 link1 DELAY_MS       prints `ready` when both ends exist
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from pathlib import Path

_NETWORK = 0x40000000  # CLONE_NEWNET
_ATTACH, _PACKETS_ONLY = 0x400454CA, 0x1001  # TUNSETIFF; IFF_TUN | IFF_NO_PI
_LONGEST = 1 << 16


def open_end(namespace: str, interface: str) -> int:
    """Make an interface in a network namespace, and return the descriptor through which its packets pass."""
    with Path("/var/run/netns", namespace).open() as its:
        if ctypes.CDLL(None, use_errno=True).setns(its.fileno(), _NETWORK) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _ATTACH, struct.pack("16sH22x", interface.encode(), _PACKETS_ONLY))
    return end


def carry(ends: list[int], delay_s: float) -> None:
    """Carry packets for ever; all are delayed alike, so they leave in the order in which they came."""
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    under_way: deque[tuple[float, int, bytes]] = deque()
    while True:
        rest = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for end in select.select(ends, [], [], rest)[0]:
            under_way.append((time.monotonic() + delay_s, other[end], os.read(end, _LONGEST)))
        while under_way and under_way[0][0] <= time.monotonic():
            _, end, packet = under_way.popleft()
            try:
                os.write(end, packet)
            except OSError:  # that end is down: the packet is lost
                continue


if __name__ == "__main__":
    *names, delay_ms = sys.argv[1:]
    both = [open_end(*names[:2]), open_end(*names[2:])]
    print("ready", flush=True)
    carry(both, float(delay_ms) / 1e3)
