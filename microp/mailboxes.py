"""How many mailboxes a link needs, and which tensor goes through which.

::

    rank 0   F0 ──► slot 0      F1 ──► slot 1      B0 ◄── (rank 1 has used slot 0)
             F2 ──► slot 0      ...

A tensor lies in its mailbox until the receiver's last action on its (stage, microbatch):
autograd keeps what came in until then. The sender may write the mailbox again as soon as it
has used something that the receiver sent after that action; no lock is needed, the
schedule's own messages say so. What the sender cannot know to be free gets a mailbox of its
own. Between steps everything is free: ranks meet at a barrier.
"""

from __future__ import annotations

from collections import defaultdict

from microp.schedule import Action, Schedule

Link = tuple[int, int]


def remote_links(schedule: Schedule) -> dict[Action, Link]:
    """Each action whose tensor leaves its rank -> (its rank, the consumer's)."""
    links = {}
    for action, consumer in schedule.consumers.items():
        src, dest = schedule.placement[action.stage], schedule.placement[consumer.stage]
        if src != dest:
            links[action] = (src, dest)
    return links


def assign_slots(schedule: Schedule) -> dict[Action, int]:
    """Each action whose tensor leaves its rank -> its mailbox's number on that link."""
    links = remote_links(schedule)
    last_use = _last_uses(schedule)
    place = {action: index for row in schedule.ranks for index, action in enumerate(row)}
    slots: dict[Action, int] = {}
    for rank, row in enumerate(schedule.ranks):
        known: dict[int, int] = {}  # peer -> up to which place of its row it is known to have come
        occupied: dict[Link, dict[int, int]] = defaultdict(dict)  # link -> slot -> place of its last use
        for action in row:
            source = schedule.source(action)
            if source in links:
                peer = links[source][0]
                known[peer] = max(known.get(peer, -1), place[source])
            if action in links:
                peer = links[action][1]
                taken = occupied[rank, peer]
                free = (slot for slot, use in taken.items() if use <= known.get(peer, -1))
                slot = slots[action] = next(free, len(taken))
                taken[slot] = last_use[schedule.consumers[action]]
    return slots


def _last_uses(schedule: Schedule) -> dict[Action, int]:
    """action -> the place in its rank's row of the last action on the same (stage, microbatch)."""
    last = {(a.stage, a.microbatch): place for row in schedule.ranks for place, a in enumerate(row)}
    return {action: last[action.stage, action.microbatch] for _, action in schedule}
