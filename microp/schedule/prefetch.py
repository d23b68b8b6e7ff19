"""Reads off a rank's row when to post receives, when sends have completed, and which W run together.

::

    row          F0   F1   F2   B0   W0   B1   B2   W1   W2
    posts        at F0: the receives of B0 and B1; at B0: the receive of B2
    completed    at B0: the send of F0, as the peer has used it
    W together                                      W1 ∙ W2
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby

from microp.schedule.schedule import Action, Op, Schedule

AHEAD = 2  # receives that are posted beyond the one that is waited for


def receives_to_post(schedule: Schedule, rank: int) -> dict[Action, tuple[Action, ...]]:
    """Return action -> the tensors whose receives are posted just before it, for each action of `rank`.

    The receive of the n-th remote input is posted at the latest before the use of the (n - `AHEAD`)-th.
    On one link receives are posted in the order of the peer's sends, which a transport
    without tags relies on.
    """
    row = schedule.ranks[rank]
    needs = [(place, source) for place, action in enumerate(row) if (source := remote_source(schedule, rank, action))]
    sends: dict[int, list[Action]] = {}
    wanted = {source for _, source in needs}
    for peer in {schedule.placement[source.stage] for source in wanted}:
        sends[peer] = [action for action in schedule.ranks[peer] if action in wanted]
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
    place = {action: index for row in schedule.ranks for index, action in enumerate(row)}
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


def remote_source(schedule: Schedule, rank: int, action: Action) -> Action | None:
    """Return the action on another rank whose tensor `action` takes, or None."""
    source = schedule.source(action)
    return source if source is not None and schedule.placement[source.stage] != rank else None


def weight_groups(row: Sequence[Action]) -> dict[Action, tuple[int, ...]]:
    """Return W -> the microbatches it computes, for consecutive W of one stage: the last takes all, the others none."""
    groups: dict[Action, tuple[int, ...]] = {}
    for (op, _), run in groupby(row, key=lambda action: (action.op, action.stage)):
        together = list(run)
        if op is Op.W and len(together) > 1:
            groups |= dict.fromkeys(together, ())
            groups[together[-1]] = tuple(action.microbatch for action in together)
    return groups
