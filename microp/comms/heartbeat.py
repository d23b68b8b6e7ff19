"""Shows where every rank of a host is in its step, to the other ranks and to the launcher.

::

    one line of 64 bytes per rank, in memory that all processes of the host map
    │ pid │ step │ place │ since │        place  2i: waits for the input of its action i    2i + 1: runs it
                                                 below 0: outside of the actions (`Place`)

A rank writes its line without a lock and without a call to the system, about 0.1 µs per write. The
memory has no name in any file system on Linux, so that nothing is left behind by a crash.
"""

from __future__ import annotations

import mmap
import os
import sys
from enum import IntEnum
from time import perf_counter_ns
from typing import NamedTuple

from microp.comms.hosts import Hosts
from microp.schedule import Action, Schedule

PID, STEP, PLACE, SINCE = range(4)
WORDS = 8  # 64-bit words per line: a cache line, so that ranks do not slow each other down


class Place(IntEnum):
    """What a rank does outside of its actions, with the words for it."""

    STARTING = -1, "its set-up"
    LOADING = -2, "loading its batch"
    BARRIER = -3, "a barrier"
    REDUCING = -4, "the sum over the replicas"
    OPTIMIZING = -5, "the optimizer"
    RECORDING = -6, "writing its rows"
    STEPPING = -7, "a step"
    ENDED = -8, "its end"
    CONNECTING = -9, "the connection to the other ranks"
    SENDING = -10, "its last sends"
    RUNTIME = -11, "torch's runtime"
    SAVING = -12, "saving the training"
    TYING = -13, "the sum of tied weights' gradients"
    RESUMING = -14, "loading the snapshot"
    COMPILING = -15, "compiling its layers"

    words: str

    def __new__(cls, value: int, words: str) -> Place:
        place = int.__new__(cls, value)
        place._value_, place.words = value, words
        return place


_MEETINGS = (Place.BARRIER, Place.REDUCING, Place.CONNECTING, Place.RUNTIME)  # left when the others have come


class Beat(NamedTuple):
    """One rank's line.

    `since` is when it began to run the action or came to the place, in nanoseconds of `perf_counter_ns`; while it waits
    for an input, that of the action before.
    """

    pid: int  # its process; 0 if it has not started
    step: int  # the step's index
    place: int  # twice the index of its action, plus 1 if it runs it; or a `Place`
    since: int

    def action(self, schedule: Schedule, rank: int) -> Action | None:
        """Return the action that the rank runs or waits to run; None outside of the actions."""
        return schedule.ranks[rank][self.place // 2] if self.place >= 0 else None

    @property
    def waits(self) -> bool:
        """Whether the rank waits for the input of an action."""
        return self.place >= 0 and self.place % 2 == 0

    def where(self, schedule: Schedule, rank: int) -> str:
        """Return the action or the place as words: `1B4`, `the optimizer`."""
        action = self.action(schedule, rank)
        return str(action) if action else next(place.words for place in Place if place == self.place)


class Heartbeats:
    """The lines of all `count` ranks of one launch.

    `path` is the memory that another process has made with `shared`; None for memory of this process and its threads.
    """

    def __init__(self, count: int, path: str | None = None) -> None:
        self.count, self.path = count, path
        self.hosts: Hosts | None = None  # if they are several; nothing is known of a rank on another host
        descriptor = -1 if path is None else os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._memory = mmap.mmap(descriptor, count * WORDS * 8)
        self._words = memoryview(self._memory).cast("q")
        self._descriptor = descriptor

    @classmethod
    def shared(cls, count: int) -> Heartbeats:
        """Make lines that other processes of this host can open by their `path`, which is None except on Linux."""
        if sys.platform != "linux":
            return cls(count)
        made = os.memfd_create("heartbeats", os.MFD_CLOEXEC)
        os.ftruncate(made, count * WORDS * 8)
        lines = cls(count, f"/proc/self/fd/{made}")
        os.close(made)
        lines.path = f"/proc/{os.getpid()}/fd/{lines._descriptor}"
        return lines

    def line(self, world_rank: int) -> memoryview:
        """Return the line of a rank, into which it writes; its words are PID, STEP, PLACE and SINCE."""
        return self._words[world_rank * WORDS : (world_rank + 1) * WORDS]

    def at(self, world_rank: int, place: int, step: int | None = None) -> None:
        """Write that a rank is at a place (`Beat.place`), in step `step` or still in the same step."""
        line = self.line(world_rank)
        line[PLACE], line[SINCE] = place, perf_counter_ns()
        if step is not None:
            line[STEP] = step

    def start(self, world_rank: int) -> None:
        """Write that this process is the rank, and is being set up."""
        self.line(world_rank)[PID] = os.getpid()
        self.at(world_rank, Place.STARTING)

    def read(self, world_rank: int) -> Beat:
        """Return what a rank wrote last."""
        return Beat(*self.line(world_rank)[:4])

    def rank_text(self, world_rank: int) -> str:
        """Return how messages name a rank: `rank 2`, of several hosts `rank 2 on h1`."""
        return self.hosts.rank_text(world_rank) if self.hosts else f"rank {world_rank}"

    def close(self) -> None:
        """Close the memory in this process; its lines must not be used any more."""
        self._words.release()
        self._memory.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)


def trail(heartbeats: Heartbeats, schedule: Schedule, world_rank: int) -> str:
    """Return what a rank does, and if it waits for another rank, what that one does, and so on.

    ::

        which waits for 0F3 from rank 0, which has been in 0F3 for 12.3 s

    The clauses follow the rank's name; they are empty if nothing is known of it.
    """
    text = ""
    for waiting in _chain(heartbeats, schedule, world_rank):
        beat, rank = heartbeats.read(waiting), waiting % len(schedule.ranks)
        if not beat.pid:
            break
        where, awaited = beat.where(schedule, rank), awaited_rank(heartbeats, schedule, waiting)
        if awaited is None:
            return f"{text}, which has been in {where} for {(perf_counter_ns() - beat.since) / 1e9:.1f} s"
        action = beat.action(schedule, rank)
        source = schedule.source(action) if action else None
        what = f"waits for {source} from" if source else f"is at {where} and waits for"
        text += f", which {what} {heartbeats.rank_text(awaited)}"
    return text


def awaited_rank(heartbeats: Heartbeats, schedule: Schedule, world_rank: int) -> int | None:
    """Return the rank for which a rank waits, counted over all pipelines; None if it waits for no other."""
    beat = heartbeats.read(world_rank)
    ranks = len(schedule.ranks)
    action = beat.action(schedule, world_rank % ranks)
    if action is not None:
        source = schedule.source(action) if beat.waits else None
        if source is None or schedule.placement[source.stage] == world_rank % ranks:
            return None
        return world_rank - world_rank % ranks + schedule.placement[source.stage]
    if beat.place not in _MEETINGS:
        return None
    others = {rank: heartbeats.read(rank) for rank in range(heartbeats.count)}
    late = [rank for rank, other in others.items() if (other.step, other.place) != (beat.step, beat.place)]
    here = [rank for rank in late if others[rank].pid or not heartbeats.hosts]  # of other hosts nothing is known
    return min(here or late, key=lambda rank: others[rank].since) if late else None


def last_awaited(heartbeats: Heartbeats, schedule: Schedule, world_rank: int) -> int:
    """Return the rank at which a trail ends: the one that waits for no other, or with which a circle closes."""
    return _chain(heartbeats, schedule, world_rank)[-1]


def _chain(heartbeats: Heartbeats, schedule: Schedule, world_rank: int) -> list[int]:
    """Return a rank, the rank for which it waits, the one for which that one waits, and so on."""
    ranks = [world_rank]
    while (other := awaited_rank(heartbeats, schedule, ranks[-1])) is not None and other not in ranks:
        ranks.append(other)
    return ranks
