"""Turns a schedule and its costs into columns: what each action waits for, and how long it takes.

::

    position     0    1    2    3    4    5    6    7       rank by rank
    action      0F0  0F1  0B0  0B1  1F0  1B0  1F1  1B1
    before       -    -    0    1    -    4    -    6       the last parent on its own rank
    source       -    -    5    7    0    -    1    -       the parent on another rank: a message

All columns follow from `Schedule.parents` and `Costs`. Each is computed for all actions at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn
from weakref import finalize

import numpy as np

from microp.schedule import Action, Op, Schedule, remote_source, validate
from microp.simulator.costs import Costs, at
from microp.trace import Actions, B, Column, F, I, W

_LANES = (0, 1, 1, 2)  # of F, B, I and W: what holds for a B holds for an I
NONE = -1  # stands for no position, no rank or no link
SMALL = 100_000  # actions; of more, an object per number would take too much memory


class Kinds(NamedTuple):
    """The times of actions by kind: one op and stage, all recomputed or all not."""

    takes: list[Any]  # the time of the action itself
    hop_in: list[Any]  # the hop of the tensor that it receives
    peer: list[int]  # the other rank that receives its tensor, or `NONE`
    hop_out: list[Any]  # the hop of that tensor
    after: list[Any]  # the engine's own time after the action


class Lowered(NamedTuple):
    """A schedule and its costs as columns, with one entry per action."""

    actions: Actions
    source: Column  # the position of the action's parent on another rank, or `NONE`
    kind: Column  # the index of the action's times in the lists of `kinds`
    kinds: Kinds


def lower(schedule: Schedule, costs: Costs) -> Lowered:
    """Return the columns of a schedule.

    Raises:
        ValueError: an action is missing, or comes before a parent on its own rank, or the
            costs are for another number of stages.
    """
    costs.check(schedule.stages)
    order = order_of(schedule)
    firsts, classes = _classes(schedule.units, costs)
    kind = order.kind * len(firsts)
    if len(firsts) > 1:
        kind += np.array(classes, np.int32)[order.actions.microbatch]
    return Lowered(order.actions, order.source, kind, _kinds(order.lanes, costs, firsts))


def with_pairs(lowered: Lowered, schedule: Schedule, costs: Costs | None) -> tuple[Lowered, dict[int, Any]]:
    """Return the columns with every pair as one action, and the position of its forward -> the forward's part of it.

    A pair takes the time that the costs have for it, or without costs those of its two actions.

    ::

        position    7    8                    7      8
        action     1F3  3B0     becomes      1F3    3B0        F takes no time, B that of the pair; who takes the
        takes       2    4                    0      5         tensor of F waits for B
    """
    kind, source, kinds = lowered.kind.copy(), lowered.source.copy(), Kinds(*map(list, lowered.kinds))
    parts: dict[int, Any] = {}
    numbers: dict[tuple[int, int], int] = {}
    for position in np.flatnonzero(lowered.actions.op == F).tolist():
        action = lowered.actions.at(position)
        if action not in schedule.pairs:
            continue
        both = lowered.kind[position], lowered.kind[position + 1]
        first, second = (
            costs.halves(action, schedule.partners[action]) if costs else (kinds.takes[of_kind] for of_kind in both)
        )
        if both not in numbers:
            numbers[both] = len(kinds.takes)
            for values in kinds:
                values += [values[of_kind] for of_kind in both]
            kinds.takes[-2:], kinds.after[-2] = [0, first + second], 0
        kind[[position, position + 1]] = numbers[both], numbers[both] + 1
        parts[position] = first
    source[np.isin(source, [*parts])] += 1
    return lowered._replace(source=source, kind=kind, kinds=kinds), parts


def with_times(lowered: Lowered, takes: Mapping[Action, Any], hops: Mapping[Action, Any]) -> Lowered:
    """Return the columns with a time of its own for every action, and for the hops of the inputs of some."""
    kinds = Kinds(*([values[kind] for kind in lowered.kind.tolist()] for values in lowered.kinds))
    actions = [lowered.actions.at(position) for position in range(len(lowered.actions))]
    of_actions = [takes[action] for action in actions]
    hop_in = [hops.get(action, usual) for action, usual in zip(actions, kinds.hop_in, strict=True)]
    kind = np.arange(len(actions), dtype=np.int32)
    return lowered._replace(kind=kind, kinds=kinds._replace(takes=of_actions, hop_in=hop_in))


class _Lane(NamedTuple):
    """The F, the backwards (B or I) or the W of one stage; the messages are between two ranks."""

    action: Action  # the one on microbatch 0
    hop_in: int  # the link of the tensor that they receive, as the higher of its two stages, or `NONE`
    peer: int  # the rank that receives their tensor, or `NONE`
    hop_out: int  # the link of that tensor, or `NONE`


class Order(NamedTuple):
    """The part of `Lowered` that does not depend on costs; `kind` is without the differences of microbatches."""

    actions: Actions
    source: Column
    kind: Column
    lanes: list[_Lane]


_ORDERS: dict[int, Order] = {}  # by the schedule's id: a search prices a schedule again and again


def order_of(schedule: Schedule) -> Order:
    """Return the order's columns; they are kept as long as the schedule is."""
    key = id(schedule)
    if key not in _ORDERS:
        _ORDERS[key] = _read_order(schedule)
        finalize(schedule, _ORDERS.pop, key)
    return _ORDERS[key]


def _read_order(schedule: Schedule) -> Order:
    actions = Actions.of(schedule.ranks)
    if min(map(len, schedule.ranks)) == 0:
        refuse(schedule)
    before = np.full(len(actions), NONE, np.int32)
    source = before.copy()
    for parent in parent_positions(schedule, actions):
        away = (parent != NONE) & (actions.rank[parent] != actions.rank)
        np.copyto(source, parent, where=away)
        np.maximum(before, parent, out=before, where=~away)
    if (before >= np.arange(len(actions))).any():
        refuse(schedule)
    kind = _lane_column(schedule, actions) * 2 + (actions.op == I)
    return Order(actions, source, kind, _lanes_with_links(schedule))


def parent_positions(schedule: Schedule, actions: Actions) -> list[Column]:
    """Return `Schedule.parents` of all actions: columns of the positions of first, second, ... parents, or `NONE`.

    The rule is evaluated once per (op, stage, slice), since a parent has its child's microbatch.

    Raises:
        ValueError: an action is missing, repeated, out of range or not on its stage's rank.
    """
    least = min(actions.microbatch.min(initial=0), actions.stage.min(initial=0))
    if least < 0 or actions.microbatch.max(initial=0) >= schedule.units:
        refuse(schedule)
    lanes, slices = _lanes(schedule), range(schedule.slices)
    parents = [schedule.parents(lane._replace(microbatch=at)) for at in slices for lane in lanes]
    lane = _lane_column(schedule, actions)
    position = np.full((len(lanes) + 1, schedule.units), NONE, np.int32)  # the last row stands for no parent
    position[lane, actions.microbatch] = np.arange(len(actions))
    forwards_and_backwards, weights = np.split(position[:-1], [2 * schedule.stages])
    divided = np.zeros(weights.shape, bool)
    divided[actions.stage[actions.op == I], actions.microbatch[actions.op == I]] = True
    divided &= np.isin(np.arange(schedule.stages), actions.stage[(actions.op == B) | (actions.op == W)])[:, None]
    copies = np.arange(schedule.units) * schedule.copies // schedule.units
    due = np.arange(schedule.stages)[:, None] // schedule.depth == copies
    is_lacking = ((forwards_and_backwards != NONE) != np.tile(due, (2, 1))).any() or (
        (weights != NONE) != divided
    ).any()
    if is_lacking or len(actions) > np.count_nonzero(position != NONE):
        refuse(schedule)
    if (np.array([*schedule.placement.values()])[actions.stage] != actions.rank).any():
        refuse(schedule)
    columns = []
    rule = actions.microbatch % len(slices) * len(lanes) + lane  # the index in `parents`
    at_slice = [slice_ for slice_ in slices for _ in lanes]
    for which in range(max(map(len, parents))):
        some = [needs[which] if which < len(needs) else None for needs in parents]
        wanted = np.array([NONE if need is None else _lane(schedule, need) for need in some], np.int32)
        later = np.array(
            [0 if need is None else need.microbatch - own for need, own in zip(some, at_slice, strict=True)], np.int32
        )
        columns.append(position[wanted[rule], actions.microbatch + later[rule]])
    return columns


def refuse(schedule: Schedule) -> NoReturn:
    """Raise ValueError with what `validate` says of a schedule that cannot be simulated."""
    validate(schedule)
    raise AssertionError(f"schedule {schedule.name!r} is valid")


def _lanes(schedule: Schedule) -> list[Action]:
    """Return the lanes: F, B and W of every stage on microbatch 0; an I is in the lane of B."""
    return [Action(op, stage, 0) for op in (Op.F, Op.B, Op.W) for stage in range(schedule.stages)]


def _lane(schedule: Schedule, action: Action) -> int:
    """Return the index of an action's lane."""
    return _LANES[tuple(Op).index(action.op)] * schedule.stages + action.stage


def _lane_column(schedule: Schedule, actions: Actions) -> Column:
    """Return, for each action, the index of its lane."""
    return np.array(_LANES, np.int32)[actions.op] * schedule.stages + actions.stage


def _lanes_with_links(schedule: Schedule) -> list[_Lane]:
    rank_of, lanes = schedule.placement, _lanes(schedule)
    sources = [remote_source(schedule, rank_of[lane.stage], lane) for lane in lanes]
    takers = {_lane(schedule, source): lane for lane, source in zip(lanes, sources, strict=True) if source is not None}

    def link(lane: Action, other: Action | None) -> int:
        return NONE if other is None else max(lane.stage, other.stage)

    return [
        _Lane(
            action=lane,
            hop_in=link(lane, source),
            peer=rank_of[takers[number].stage] if number in takers else NONE,
            hop_out=link(lane, takers.get(number)),
        )
        for number, (lane, source) in enumerate(zip(lanes, sources, strict=True))
    ]


def _classes(units: int, costs: Costs) -> tuple[list[int], list[int]]:
    """Return the first microbatch of each kind, and each one's kind: those that are spared, or have other shares."""
    if not (costs.spared or costs.shares or costs.sizes):
        return [0], []
    spared = frozenset(costs.spared)
    columns = [[unit in spared for unit in range(units)], costs.shares, costs.sizes]
    numbers: dict[Any, int] = {}
    classes = [numbers.setdefault(kind, len(numbers)) for kind in zip(*filter(len, columns), strict=True)]
    return [classes.index(number) for number in numbers.values()], classes


def _kinds(lanes: list[_Lane], costs: Costs, firsts: list[int]) -> Kinds:
    """Return the kinds in the order of the column: by lane, then B or I, then the kind of microbatch."""
    hops = {(NONE, first): 0 for first in firsts}
    hops |= {
        (link, first): costs.hop(link, first) for link in {lane.hop_in for lane in lanes} - {NONE} for first in firsts
    }
    table = []
    for action, hop_in, peer, hop_out in lanes:
        for op in (Op.B, Op.I) if action.op is Op.B else (action.op, action.op):
            for first in firsts:
                takes = costs.of(Action(op, action.stage, first))
                table.append((takes, hops[hop_in, first], peer, hops[hop_out, first], at(costs.overhead, action.stage)))
    return Kinds(*map(list, zip(*table, strict=True)))
