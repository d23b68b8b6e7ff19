"""Assigns each tensor that leaves its rank to a mailbox of its link.

::

    rank 0   F0 ──► slot 0      F1 ──► slot 1      B0 ◄── (rank 1 has used slot 0)
             F2 ──► slot 0      ...

A tensor stays in its mailbox until the receiver's last action on its (stage, microbatch), because
autograd keeps the input until then. The sender may write to the mailbox again as soon as it has
used a tensor that the receiver sent after that action. The order of the messages guarantees this,
so no lock is needed. If the sender cannot know that a mailbox is free, the tensor gets a new one.
Between steps all mailboxes are free, because the ranks meet at a barrier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from microp.schedule.schedule import Action, Schedule

Link = tuple[int, int]


def remote_links(schedule: Schedule) -> dict[Action, Link]:
    """Return action -> (its rank, its consumer's rank), for each action whose tensor leaves its rank."""
    links = {}
    for action, consumer in schedule.consumers.items():
        src, dest = schedule.placement[action.stage], schedule.placement[consumer.stage]
        if src != dest:
            links[action] = (src, dest)
    return links


def assign_slots(schedule: Schedule) -> dict[Action, int]:
    """Return action -> the number of its mailbox on its link, for each action whose tensor leaves its rank."""
    return _assign(schedule, remote_links(schedule), _last_uses(schedule))


def _assign(schedule: Schedule, links: Mapping[Action, Link], last_use: Mapping[Action, int]) -> dict[Action, int]:
    source_of = {consumer: action for action, consumer in schedule.consumers.items()}
    place = {action: index for row in schedule.ranks for index, action in enumerate(row)}
    slots: dict[Action, int] = {}
    for row in schedule.ranks:
        known: dict[int, int] = {}  # peer -> the index in its row up to which it has certainly run
        links_of: dict[int, _Slots] = defaultdict(_Slots)  # peer -> the mailboxes of the link to it
        for action in row:
            source = source_of.get(action)
            if source is not None and source in links:
                peer = links[source][0]
                known[peer] = max(known.get(peer, -1), place[source])
            if action in links:
                peer = links[action][1]
                until = last_use[schedule.consumers[action]]
                slots[action] = links_of[peer].take(until, known.get(peer, -1))
    return slots


class _Slots:
    """The mailboxes of one link."""

    def __init__(self) -> None:
        self._count = 0
        self._free: list[int] = []  # a heap
        self._in_use: list[tuple[int, int]] = []  # a heap of (the index of the last use, slot)

    def take(self, until: int, known: int) -> int:
        """Return the first slot whose last use is at most at `known`, or a new one; its last use will be `until`."""
        while self._in_use and self._in_use[0][0] <= known:
            heappush(self._free, heappop(self._in_use)[1])
        if self._free:
            slot = heappop(self._free)
        else:
            slot, self._count = self._count, self._count + 1
        heappush(self._in_use, (until, slot))
        return slot


class Taken(NamedTuple):
    """The mailbox of an action's input.

    Attributes:
        mailbox: the sender's rank, and the number on the link.
        until: the index in the receiver's row of the action after which it is empty.
    """

    mailbox: tuple[int, int]
    until: int


def mailboxes_taken(schedule: Schedule) -> dict[Action, Taken]:
    """Return action -> the mailbox of its input, for each action whose input comes from another rank."""
    links, last_use = remote_links(schedule), _last_uses(schedule)
    slots = _assign(schedule, links, last_use)
    consumers = {sent: schedule.consumers[sent] for sent in slots}
    return {taker: Taken((links[sent][0], slots[sent]), last_use[taker]) for sent, taker in consumers.items()}


def _last_uses(schedule: Schedule) -> dict[Action, int]:
    """Return action -> the index in its rank's row of the last action on the same (stage, microbatch)."""
    last = {(a.stage, a.microbatch): place for row in schedule.ranks for place, a in enumerate(row)}
    return {action: last[action.stage, action.microbatch] for _, action in schedule}
