"""Reads off a schedule what each link carries: the mailboxes of tensors, and when receives and sends begin and end.

::

    rank 0   F0 ──► slot 0      F1 ──► slot 1      B0 ◄── (rank 1 has used slot 0)
             F2 ──► slot 0      ...

    row          F0   F1   F2   B0   W0   B1   B2   W1   W2
    posts        at F0: the receives of B0 and B1; at B0: the receive of B2
    completed    at B0: the send of F0, as the peer has used it

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
AHEAD = 2  # receives that are posted beyond the one that is waited for


def remote_source(schedule: Schedule, rank: int, action: Action) -> Action | None:
    """Return the action on another rank whose tensor `action` takes, or None."""
    source = schedule.source(action)
    return source if source is not None and schedule.placement[source.stage] != rank else None


def remote_links(schedule: Schedule) -> dict[Action, Link]:
    """Return action -> (its rank, its consumer's rank), for each action whose tensor leaves its rank."""
    links = {}
    for action, consumer in schedule.consumers.items():
        src, dest = schedule.placement[action.stage], schedule.placement[consumer.stage]
        if src != dest:
            links[action] = (src, dest)
    return links


# --- mailboxes ---------------------------------------------------------------------------------------


def assign_slots(schedule: Schedule) -> dict[Action, int]:
    """Return action -> the number of its mailbox on its link, for each action whose tensor leaves its rank."""
    links, place = remote_links(schedule), _places(schedule)
    last_use = {action[1:]: index for action, index in place.items()}
    slots: dict[Action, int] = {}
    for rank, row in enumerate(schedule.ranks):
        known: dict[int, int] = {}  # peer -> the index in its row up to which it has certainly run
        sends = defaultdict[int, list[tuple[Action, int, int]]](list)  # peer -> what goes to it, last use, known
        for action in row:
            if source := remote_source(schedule, rank, action):
                peer, _ = links[source]
                known[peer] = max(known.get(peer, -1), place[source])
            if action in links:
                _, peer = links[action]
                sends[peer].append((action, last_use[schedule.consumers[action][1:]], known.get(peer, -1)))
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


# --- receives ahead, and sends that have completed -----------------------------------------------------


def receives_to_post(schedule: Schedule, rank: int) -> dict[Action, tuple[Action, ...]]:
    """Return action -> the tensors whose receives are posted just before it, for each action of `rank`.

    The receive of the n-th remote input is posted at the latest before the use of the (n - `AHEAD`)-th.
    On one link receives are posted in the order of the peer's sends, which a transport
    without tags relies on.
    """
    row = schedule.ranks[rank]
    needs = [(place, source) for place, action in enumerate(row) if (source := remote_source(schedule, rank, action))]
    wanted = {source for _, source in needs}
    sends = {
        peer: [action for action in schedule.ranks[peer] if action in wanted]
        for peer in {schedule.placement[source.stage] for source in wanted}
    }
    plan: dict[Action, tuple[Action, ...]] = dict.fromkeys(row, ())
    for index, (_, source) in enumerate(needs):
        link = sends[schedule.placement[source.stage]]
        if source in link:
            upto = link.index(source) + 1
            before = row[needs[index - AHEAD][0]] if index >= AHEAD else row[0]
            plan[before] += tuple(link[:upto])
            del link[:upto]
    return plan


def completed_sends(schedule: Schedule, rank: int) -> dict[Action, tuple[Action, ...]]:
    """Return action -> the actions whose sends have completed once its input has arrived, for each of `rank`.

    A peer that sends a tensor has run every earlier action of its row, and so has used their inputs.
    """
    place = _places(schedule)
    under_way: dict[int, list[Action]] = defaultdict(list)  # peer -> the actions whose tensors go to it
    plan: dict[Action, tuple[Action, ...]] = dict.fromkeys(schedule.ranks[rank], ())
    for action in schedule.ranks[rank]:
        if source := remote_source(schedule, rank, action):
            peer, come_to = schedule.placement[source.stage], place[source]
            plan[action] = tuple(sent for sent in under_way[peer] if place[schedule.consumers[sent]] <= come_to)
            under_way[peer] = [sent for sent in under_way[peer] if place[schedule.consumers[sent]] > come_to]
        consumer = schedule.consumers.get(action)
        if consumer is not None and schedule.placement[consumer.stage] != rank:
            under_way[schedule.placement[consumer.stage]].append(action)
    return plan


def _places(schedule: Schedule) -> dict[Action, int]:
    """Return action -> its index in its rank's row."""
    return {action: index for row in schedule.ranks for index, action in enumerate(row)}
