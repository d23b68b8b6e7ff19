"""Counts what the ranks of an order hold at each moment, as events of their actions.

::

    rank 0   F0 F1 B0 W0 ...      a moment: what is held after an action, or needed during it, counted per stage
                   ╰─ 1 kept, 1 pending, gradients, ...

A rank runs its row in order, so what it holds at each moment does not depend on any time. Beside activations, the
transport holds memory: a mailbox keeps its place when a received tensor has left it, a place is taken from when a
receive is posted, and a tensor that was sent stays until its receiver has used it; see `Holds`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from microp.schedule import (
    Action,
    Op,
    Schedule,
    Taken,
    completed_sends,
    mailboxes_taken,
    receives_to_post,
    remote_links,
)
from microp.settings import Holds

COLUMNS = 16  # of counts and of bytes
KEPT, WHOLE, PENDING, GRADIENTS, REBUILT, IN_FORWARD, IN_BACKWARD, IN_FULL, IN_WEIGHT = range(9)
COMING_INPUTS, COMING_GRADIENTS, SENT_OUTPUTS, SENT_GRADIENTS = range(9, 13)
OWN_SEND, FIRST_BACKWARD, FIRST_WEIGHT = range(13, COLUMNS)
Floats = NDArray[np.float64]
Events = list[tuple[int, int, int, int, int]]


class Moments:
    """What the ranks of a schedule hold at each moment, for any sizes of microbatches.

    Args:
        schedule: a valid order.
        holds: what the transport holds; see `Workload`.
    """

    def __init__(self, schedule: Schedule, holds: Holds) -> None:
        taken = mailboxes_taken(schedule) if holds.mailboxes else {}
        self._chunks = schedule.chunks
        self._rows = [_Row(schedule, rank, taken, holds.messages) for rank in range(len(schedule.ranks))]

    def counts(self, spared: Sequence[int], rows: Sequence[int]) -> list[Floats]:
        """Return for each rank an array of counts by (moment, stage of the rank, column), of microbatches of mean size.

        Args:
            spared: the microbatches that are not recomputed while others are.
            rows: the rows of each microbatch.
        """
        shares = np.append(np.array(rows, float) * len(rows) / sum(rows), 1.0)  # the last one: gradients of weights
        is_spared = np.isin(np.arange(self._chunks + 1), spared)
        return [row.counts(is_spared, shares) for row in self._rows]


class _Row:
    """The changes of what one rank holds with each action, and what it needs during it, as events.

    An event is the index of the action, the stage's place on the rank, the column, the microbatch, and 1 or -1.
    """

    def __init__(self, schedule: Schedule, rank: int, taken: Mapping[Action, Taken], has_messages: bool) -> None:
        self._schedule, self._rank, self._row = schedule, rank, schedule.ranks[rank]
        self._place = {stage: position for position, stage in enumerate(schedule.stages_of(rank))}
        self._shape = len(self._row), len(self._place), COLUMNS
        changes: Events = []
        needs: Events = []
        self._activations(changes, needs)
        first = self._mailboxes(taken, changes, needs) if taken else None
        if has_messages:
            self._receives(first, changes, needs)
            self._sends(changes, needs)
        self._changes, self._needs = _columns(changes), _columns(needs)

    def _activations(self, changes: Events, needs: Events) -> None:
        """Add what actions keep, release and need."""
        split = self._schedule.split
        with_gradients = set()
        for turn, action in enumerate(self._row):
            at, stage, microbatch = self._place[action.stage], action.stage, action.microbatch
            divided = (stage, microbatch) in split
            if action.op is Op.F:
                changes.append((turn, at, KEPT, microbatch, 1))
                needs += [(turn, at, each, microbatch, 1) for each in (KEPT, IN_FORWARD)]
                continue
            if action.op is Op.B:
                changes.append((turn, at, KEPT, microbatch, -1))
                if divided:
                    changes.append((turn, at, PENDING, microbatch, 1))
                extra = IN_BACKWARD if divided or not split else IN_FULL
                needs += [(turn, at, each, microbatch, 1) for each in (REBUILT, extra)]
            else:
                changes.append((turn, at, PENDING, microbatch, -1))
                needs.append((turn, at, IN_WEIGHT, microbatch, 1))
            if (action.op is Op.W or not divided) and stage not in with_gradients:
                with_gradients.add(stage)
                changes.append((turn, at, GRADIENTS, self._schedule.chunks, 1))
                column = FIRST_WEIGHT if action.op is Op.W else FIRST_BACKWARD
                needs.append((turn, at, column, self._schedule.chunks, 1))

    def _mailboxes(self, taken: Mapping[Action, Taken], changes: Events, needs: Events) -> Collection[Action]:
        """Add the mailboxes that a tensor has left; return the actions that are the first to use theirs."""
        first: dict[tuple[int, int], Action] = {}  # mailbox -> the action whose input was in it first
        for turn, action in enumerate(self._row):
            if action not in taken:
                continue
            mailbox, until = taken[action]
            if mailbox in first:
                coming = self._coming(first[mailbox])
                changes.append((turn, *coming, -1))
                needs.append((turn, *coming, -1))
            changes.append((until, *self._coming(first.setdefault(mailbox, action)), 1))
        return set(first.values())

    def _receives(self, first: Collection[Action] | None, changes: Events, needs: Events) -> None:
        """Add the places of tensors to come; of mailboxes only for the actions that are the first to use theirs."""
        turns = {action: turn for turn, action in enumerate(self._row)}
        for action, posted in receives_to_post(self._schedule, self._rank).items():
            for taker in (self._schedule.consumers[made] for made in posted):
                if first is None or taker in first:
                    for events in (changes, needs):
                        events.append((turns[action], *self._coming(taker), 1))
                        events.append((turns[taker], *self._coming(taker), -1))

    def _sends(self, changes: Events, needs: Events) -> None:
        """Add the tensors that were sent, until it is known that their receivers have used them.

        An output that lives on in its own backward is a need of that backward; a first backward's needs contain it.
        """
        links, completed = remote_links(self._schedule), completed_sends(self._schedule, self._rank)
        firsts = {(turn, column) for turn, _, column, _, _ in needs}
        for turn, action in enumerate(self._row):
            changes += [(turn, self._place[e.stage], _sent(e), e.microbatch, -1) for e in completed[action]]
            at, is_first = self._place[action.stage], (turn, FIRST_BACKWARD) in firsts
            if action.op is Op.B and not is_first and action._replace(op=Op.F) in completed[action]:
                needs.append((turn, at, OWN_SEND, action.microbatch, 1))
            if action in links:
                changes.append((turn, self._place[action.stage], _sent(action), action.microbatch, 1))

    def _coming(self, taker: Action) -> tuple[int, int, int]:
        """Return the stage's place, the column and the microbatch of what an action receives."""
        column = COMING_INPUTS if taker.op is Op.F else COMING_GRADIENTS
        return self._place[taker.stage], column, taker.microbatch

    def counts(self, is_spared: NDArray[np.bool_], shares: Floats) -> Floats:
        """Return the counts after each action, and then those during each action."""
        held = np.cumsum(self._summed(self._changes, is_spared, shares), axis=0)
        during = self._summed(self._needs, is_spared, shares)
        during[1:] += held[:-1]
        return np.concatenate([held, during])

    def _summed(self, events: NDArray[np.int64], is_spared: NDArray[np.bool_], shares: Floats) -> Floats:
        turn, place, column, microbatch, sign = events
        spared = is_spared[microbatch]
        column = np.where(spared & (column == KEPT), WHOLE, column)
        size = sign * shares[microbatch] * ~(spared & ((column == REBUILT) | (column == IN_FORWARD)))
        cell = (turn * self._shape[1] + place) * COLUMNS + column
        summed: Floats = np.bincount(cell, size, minlength=prod(self._shape)).astype(np.float64)
        return summed.reshape(self._shape)


def _columns(events: list[tuple[int, int, int, int, int]]) -> NDArray[np.int64]:
    return np.array(events, np.int64).reshape(-1, 5).T


def _sent(action: Action) -> int:
    """Return the column of what an action sends."""
    return SENT_OUTPUTS if action.op is Op.F else SENT_GRADIENTS
