"""Turns a schedule and its costs into columns: what each action waits for, and how long it takes.

::

    position     0    1    2    3    4    5    6    7       rank by rank
    action      0F0  0F1  0B0  0B1  1F0  1B0  1F1  1B1
    before       -    -    0    1    -    4    -    6       the last parent on its own rank
    source       -    -    5    7    0    -    1    -       the parent on another rank: a message

All columns follow from `Schedule.parents` and `Costs`. Each is computed for all actions at once.
"""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple

import numpy as np

from microp.schedule import Action, Op, Schedule
from microp.simulator.costs import Costs
from microp.trace import Actions, Column

NONE = -1  # stands for no position, or no rank, in a column


class Kind(NamedTuple):
    """The times of actions of one op and stage that are all split or all not, and all recomputed or all not."""

    takes: Any  # the time of the action itself
    hop_in: Any  # the hop of the tensor that it receives
    peer: int  # the other rank that receives its tensor, or NONE
    hop_out: Any  # the hop of that tensor


class Lowered(NamedTuple):
    """A schedule and its costs as columns, with one entry per action.

    Attributes:
        actions: the actions.
        before: the position of the action's last parent on its own rank, or `NONE`.
        source: the position of the action's parent on another rank, or `NONE`.
        kind: the index of the action's times in `kinds`.
        kinds: the table that `kind` points into.
    """

    actions: Actions
    before: Column
    source: Column
    kind: Column
    kinds: list[Kind]


def lower(schedule: Schedule, costs: Costs) -> Lowered:
    """Return the columns of a schedule.

    Raises:
        ValueError: an action is missing, or comes before a parent on its own rank, or the
            costs are for another number of stages.
    """
    costs.check(schedule.stages)
    actions = Actions.of(schedule.ranks)
    before = np.full(len(actions), NONE, np.int32)
    source = before.copy()
    for parent in parent_positions(schedule, actions):
        away = (parent != NONE) & (actions.rank[parent] != actions.rank)
        source[away] = parent[away]
        before = np.where(away, before, np.maximum(before, parent))
    for position in np.flatnonzero(before >= np.arange(len(actions)))[:1]:
        needed, action = actions.at(before[position]), actions.at(position)
        raise ValueError(f"schedule {schedule.name!r} deadlocks: {needed} comes after {action}, which needs it")
    return Lowered(actions, before, source, _kind_column(schedule, costs, actions), _kinds(schedule, costs))


def parent_positions(schedule: Schedule, actions: Actions) -> list[Column]:
    """Return `Schedule.parents` of all actions: a column of first and one of second parents' positions, or `NONE`.

    The rule is evaluated once per (op, stage), since a parent has its child's microbatch.

    Raises:
        ValueError: a microbatch is out of range, or an action is missing or repeated.
    """
    if actions.microbatch.max(initial=0) >= schedule.chunks:
        raise ValueError(f"schedule {schedule.name!r} has microbatches beyond chunks={schedule.chunks}")
    if actions.microbatch.min(initial=0) < 0 or actions.stage.min(initial=0) < 0:
        raise ValueError(f"schedule {schedule.name!r} has a stage or a microbatch below 0")
    lanes = _lanes(schedule)
    index = {lane: number for number, lane in enumerate(lanes)}
    parents = [[index[parent] for parent in schedule.parents(lane)] for lane in lanes]
    lane = _lane_column(schedule, actions)
    position = np.full((len(lanes), schedule.chunks), NONE, np.int32)
    position[lane, actions.microbatch] = np.arange(len(actions))
    _check_complete(schedule, actions, lanes, position)
    columns = []
    for which in range(max(map(len, parents))):
        wanted = np.array([own[which] if which < len(own) else NONE for own in parents], np.int32)[lane]
        found = np.where(wanted == NONE, NONE, position[wanted, actions.microbatch])
        columns.append(found)
    return columns


def _check_complete(schedule: Schedule, actions: Actions, lanes: list[Action], position: Column) -> None:
    """Raise ValueError unless every F and B occurs exactly once on its stage's rank, and no W more than once."""
    idle = [rank for rank, row in enumerate(schedule.ranks) if not row]
    if idle:
        raise ValueError(f"schedule {schedule.name!r}: rank {idle[0]} has no actions: use fewer ranks")
    lost = np.argwhere(position[: 2 * schedule.stages] == NONE)  # the lanes of F and B come first
    for lane, microbatch in lost[:1]:
        missing = lanes[lane]._replace(microbatch=int(microbatch))
        raise ValueError(f"schedule {schedule.name!r} lacks {missing}: every stage needs an F and a B per microbatch")
    if len(actions) > np.count_nonzero(position != NONE):
        last = set(position[position != NONE].tolist())
        again = next(actions.at(place) for place in range(len(actions)) if place not in last)
        raise ValueError(f"schedule {schedule.name!r} has {again} more than once: keep only one of them")
    holders = np.array([schedule.placement.get(stage, NONE) for stage in range(schedule.stages)])
    for moved in np.flatnonzero(holders[actions.stage] != actions.rank)[:1]:
        action, rank = actions.at(moved), actions.rank[moved]
        raise ValueError(
            f"schedule {schedule.name!r}: {action} is on rank {rank}, but rank {schedule.placement[action.stage]} "
            f"holds stage {action.stage}"
        )


def _lanes(schedule: Schedule) -> list[Action]:
    """Return the lanes: an action on microbatch 0 for every op of every stage."""
    return [Action(op, stage, 0) for op in Op for stage in range(schedule.stages)]


def _lane_column(schedule: Schedule, actions: Actions) -> Column:
    """Return, for each action, the index of its lane."""
    return actions.op.astype(np.int32) * schedule.stages + actions.stage


def _kinds(schedule: Schedule, costs: Costs) -> list[Kind]:
    """Return the kinds in the order of `_kind_column`: by lane, then full or split, then recomputed or spared."""
    rank_of, hops_in, hops_out, peers = schedule.placement, {}, {}, {}
    for lane in _lanes(schedule):
        source = schedule.source(lane)
        if source is not None and rank_of[source.stage] != rank_of[lane.stage]:
            hops_in[lane] = hops_out[source] = costs.hop(max(source.stage, lane.stage))
            peers[source] = rank_of[lane.stage]
    recomputed = next(microbatch for microbatch in count() if microbatch not in costs.spared)
    spared = next(iter(costs.spared), recomputed)
    return [
        Kind(
            costs.of(lane._replace(microbatch=microbatch), split),
            hops_in.get(lane, 0),
            peers.get(lane, NONE),
            hops_out.get(lane, 0),
        )
        for lane in _lanes(schedule)
        for split in (False, True)
        for microbatch in (recomputed, spared)
    ]


def _kind_column(schedule: Schedule, costs: Costs, actions: Actions) -> Column:
    """Return, for each action, the index of its kind."""
    spared = np.isin(actions.microbatch, costs.spared)
    return (_lane_column(schedule, actions) * 2 + actions.is_split()) * 2 + spared
