"""A schedule and its costs as columns: what each action waits for and what it takes.

::

    position     0    1    2    3    4    5    6    7       rank by rank
    action      0F0  0F1  0B0  0B1  1F0  1B0  1F1  1B1
    before       -    -    0    1    -    4    -    6       the last parent on its own rank
    source       -    -    5    7    0    -    1    -       the parent on another rank: a message

All of it follows from `Schedule.parents` and `Costs`, a column at a time.
"""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple

import numpy as np

from microp.costs import Costs
from microp.schedule import Action, Op, Schedule
from microp.trace import Actions, Column

NONE = -1  # in a column of positions or ranks: there is none


class Kind(NamedTuple):
    """What actions of one op and stage share, if they are alike in W and in recomputation."""

    takes: Any
    lead: Any  # so much of it can be done before its message is there
    hop_in: Any  # its message's hop
    peer: int  # the rank that gets its own tensor, if that is another
    hop_out: Any  # that tensor's hop


class Program(NamedTuple):
    """Columns, an entry an action.

    Attributes:
        actions: what is done.
        before: the position of its last parent on its own rank, or `NONE`.
        source: the position of its parent on another rank, or `NONE`.
        kind: the index of what it takes in `kinds`.
        kinds: the table that `kind` points into.
    """

    actions: Actions
    before: Column
    source: Column
    kind: Column
    kinds: list[Kind]


def compile_program(schedule: Schedule, costs: Costs) -> Program:
    """The columns of a schedule.

    Raises:
        ValueError: an action is missing, or a rank has one before what it needs; or the
            costs are of another number of stages.
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
    return Program(actions, before, source, _kind_column(schedule, costs, actions), _kinds(schedule, costs))


def parent_positions(schedule: Schedule, actions: Actions) -> list[Column]:
    """`Schedule.parents` of all actions at once: the positions of first and of second parents, or `NONE`.

    The rule is asked once for each (op, stage), since a parent has its child's microbatch.

    Raises:
        ValueError: a microbatch is out of range, or a parent is not in the schedule.
    """
    if actions.microbatch.max(initial=0) >= schedule.chunks:
        raise ValueError(f"schedule {schedule.name!r} has microbatches beyond chunks={schedule.chunks}")
    lanes = _lanes(schedule)
    index = {lane: number for number, lane in enumerate(lanes)}
    parents = [[index[parent] for parent in schedule.parents(lane)] for lane in lanes]
    lane = _lane_column(schedule, actions)
    position = np.full((len(lanes), schedule.chunks), NONE, np.int32)
    position[lane, actions.microbatch] = np.arange(len(actions))
    columns = []
    for which in range(max(map(len, parents))):
        wanted = np.array([own[which] if which < len(own) else NONE for own in parents], np.int32)[lane]
        found = np.where(wanted == NONE, NONE, position[wanted, actions.microbatch])
        for child in np.flatnonzero((wanted != NONE) & (found == NONE))[:1]:
            missing = lanes[wanted[child]]._replace(microbatch=actions.microbatch[child])
            raise ValueError(f"schedule {schedule.name!r} lacks {missing}, which {actions.at(child)} needs")
        columns.append(found)
    return columns


def _lanes(schedule: Schedule) -> list[Action]:
    """Every op of every stage, on microbatch 0."""
    return [Action(op, stage, 0) for op in Op for stage in range(schedule.stages)]


def _lane_column(schedule: Schedule, actions: Actions) -> Column:
    """For each action the index of its lane."""
    return actions.op.astype(np.int32) * schedule.stages + actions.stage


def _kinds(schedule: Schedule, costs: Costs) -> list[Kind]:
    """In the order of `_kind_column`: by lane, then whole or split backward, then recomputed or spared."""
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
            costs.of(action := lane._replace(microbatch=microbatch), split),
            costs.lead(action),
            hops_in.get(lane, 0),
            peers.get(lane, NONE),
            hops_out.get(lane, 0),
        )
        for lane in _lanes(schedule)
        for split in (False, True)
        for microbatch in (recomputed, spared)
    ]


def _kind_column(schedule: Schedule, costs: Costs, actions: Actions) -> Column:
    """For each action the index of its kind."""
    spared = np.isin(actions.microbatch, costs.spared)
    return (_lane_column(schedule, actions) * 2 + actions.is_split()) * 2 + spared
