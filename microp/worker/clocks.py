"""Compares the clocks of hosts by messages there and back.

::

    first rank of a host   asked ──┐              ┌──► answered    offset = its time - (asked + answered) / 2
    rank 0                         └──► its time ─┘                at most wrong by (answered - asked) / 2

The quickest of many messages counts. Two readings, before the steps and after them, give a line, because two clocks
do not run equally fast.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import NamedTuple

import torch

from microp.comms import Comms, Hosts

TURNS = 50


class Reading(NamedTuple):
    """What is added to a moment of a host's clock, to have it on the clock of rank 0's host."""

    at_ns: int  # when it was read, on the host's own clock
    offset_ns: int  # what is added
    residual_ns: int  # by how much the offset may be wrong at most


def read_clocks(everyone: Comms, hosts: Hosts) -> list[Reading]:
    """Return the reading of every host; all ranks of all pipelines call this at the same time."""
    own = Reading(perf_counter_ns(), 0, 0)
    for first in (hosts.ranks(host)[0] for host in range(1, len(hosts.names))):
        if everyone.rank == 0:
            _answer(everyone, first)
        elif everyone.rank == first:
            own = _ask(everyone)
    found = everyone.all_gather(own)
    return [Reading(*found[hosts.ranks(host)[0]]) for host in range(len(hosts.names))]


def _answer(everyone: Comms, asking: int) -> None:
    for _ in range(TURNS):
        everyone.recv_tensor([1], asking, dtype=torch.int64)
        everyone.send_tensor(torch.tensor([perf_counter_ns()]), asking)


def _ask(everyone: Comms) -> Reading:
    best: Reading | None = None
    for _ in range(TURNS):
        asked = perf_counter_ns()
        everyone.send_tensor(torch.tensor([asked]), 0)
        theirs = int(everyone.recv_tensor([1], 0, dtype=torch.int64).item())
        answered = perf_counter_ns()
        reading = Reading(answered, theirs - (asked + answered) // 2, (answered - asked + 1) // 2)
        if best is None or reading.residual_ns < best.residual_ns:
            best = reading
    assert best is not None
    return best


def drift_ns(before: Reading, after: Reading, moment_ns: int) -> int:
    """Return what the offset at a moment, on the clock to which `before` converts, is more than that of `before`."""
    since = moment_ns - before.offset_ns - before.at_ns
    return (after.offset_ns - before.offset_ns) * since // max(1, after.at_ns - before.at_ns)
