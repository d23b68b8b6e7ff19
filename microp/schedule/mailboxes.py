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
from collections.abc import Sequence
from heapq import heappop, heappush

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
    links = remote_links(schedule)
    source_of = {consumer: action for action, consumer in schedule.consumers.items()}
    place = {action: index for row in schedule.ranks for index, action in enumerate(row)}
    last_use = {(a.stage, a.microbatch): index for row in schedule.ranks for index, a in enumerate(row)}
    slots: dict[Action, int] = {}
    for row in schedule.ranks:
        known: dict[int, int] = {}  # peer -> the index in its row up to which it has certainly run
        sends = defaultdict[int, list[tuple[Action, int, int]]](list)  # peer -> what goes to it, last use, known
        for action in row:
            source = source_of.get(action)
            if source is not None and source in links:
                peer = links[source][0]
                known[peer] = max(known.get(peer, -1), place[source])
            if action in links:
                peer, consumer = links[action][1], schedule.consumers[action]
                until = last_use[consumer.stage, consumer.microbatch]
                sends[peer].append((action, until, known.get(peer, -1)))
        for sent in sends.values():
            actions, untils, knowns = zip(*sent, strict=True)
            slots.update(zip(actions, take_slots(untils, knowns), strict=True))
    return slots


def take_slots(untils: Sequence[int], knowns: Sequence[int]) -> list[int]:
    """Return the mailbox of each tensor of a link, in the order of sending: the first free one, or a new one.

    Args:
        untils: for each tensor, the index in the receiver's row of its last use.
        knowns: for each tensor, the index up to which the receiver has certainly run when it is sent.
    """
    ends = sorted(range(len(untils)), key=untils.__getitem__)
    free: list[int] = []  # a heap
    slots: list[int] = []
    done = count = 0
    for known in knowns:
        while untils[ends[done]] <= known:  # of a tensor that was sent, and of this one it is false
            heappush(free, slots[ends[done]])
            done += 1
        if free:
            slots.append(heappop(free))
        else:
            slots.append(count)
            count += 1
    return slots
