"""A schedule: the actions of a pipeline, in the order in which each rank runs them. It has no times.

::

    rank 0   0F0 0F1 0B0 0B1        an action is <stage><op><microbatch>
    rank 1   1F0 1F1 1B0 1B1        a rank runs its row from left to right

    0F0 ──► 1F0        the dependency rule, `Schedule.parents`, stated here and nowhere else:
     │       │           F(s,m) needs F(s-1,m)
     ▼       ▼           B(s,m) or I(s,m) needs F(s,m), and B(s+1,m) or I(s+1,m)
    0B0 ◄── 1B0          W(s,m) needs I(s,m)

B is the full backward. It can be divided into I, the gradient of the input, and W, that of the
weights, which nothing waits for. A stage whose layers are all frozen has an I and no W; see
`without_weight_gradients`.

::

    slices=2     microbatch 0 is the units 0 and 1, microbatch 1 the units 2 and 3, ...: u = m slices + slice
    0F0 ─► 0F1       F(s,u) needs F(s,u-1) of the same microbatch: keys and values of the tokens before
    0B0 ◄─ 0B1       B(s,u) or I(s,u) needs that of u+1: the gradients of these keys and values

A schedule without slices has one unit per microbatch, so that an action's `microbatch` is its unit.

::

    copies=2     stages 0 1 | 2 3 of 4: the stages 2 and 3 have the layers of 0 and 1, and run the other microbatches
    0F0 ─► 1F0       0F0 and 2F1 take the batch's inputs, the rules hold within a copy
    2F1 ─► 3F1       the copies' gradients are summed after the last action

::

    (0F7;7B3)        a pair: a forward and the backward after it in the row, as one action with a time of its own,
                     which takes the inputs of both when it starts and gives the outputs of both when it ends

Where a pair has no time of its own, on a CPU that computes, its forward and its backward run one after the other.

Communication is derived: a parent on another rank is a receive, a child on another rank
is a send.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple


class Op(StrEnum):
    """The operations of a stage on a microbatch, with the letters of torch's CSV."""

    F = "F"  # forward: activation in, activation (on the last stage the loss) out
    B = "B"  # full backward: gradient in, gradient out, and the weights' gradients
    I = "I"  # noqa: E741 - input gradient: the part of B that the stage before waits for
    W = "W"  # weight gradient: the rest of B


_F, _B, _I, _W = Op  # to look up a name of an enumeration takes longer, and `parents` is called millions of times


class Action(NamedTuple):
    """One op on one (stage, microbatch); `str(action)` is `"1F0"`, as torch's CSV spells it.

    In a schedule with slices `microbatch` is the unit: microbatch m's slice j has the number m slices + j.
    """

    op: Op
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.op}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Return the action that a text such as `"1F0"` names.

        Raises:
            ValueError: the text is not an action.
        """
        match = re.fullmatch(r"(\d{1,9})([FBIW])(\d{1,9})", text)
        if match is None:
            raise ValueError(f"{text!r} is not an action: write <stage><F|B|I|W><microbatch>, such as 1F0")
        return cls(Op(match[2]), int(match[1]), int(match[3]))


@dataclass(frozen=True)
class Schedule:
    """The order of the actions on every rank.

    Attributes:
        name: its name in tables and run folders.
        chunks: M, the number of microbatches of a step.
        ranks: for each rank, its actions in the order in which it runs them.
        slices: the number of units along the sequence that a microbatch is divided into.
        copies: how often the model is there; the first of its copies runs the first microbatches, and so on.
        pairs: the forwards that are a pair with the action after them in their row, a B or an I.

    Raises:
        ValueError: there is no rank, `chunks`, `slices` or `copies` is below 1, or `copies` does not divide `chunks`.
    """

    name: str
    chunks: int
    ranks: tuple[tuple[Action, ...], ...]
    slices: int = 1
    copies: int = 1
    pairs: frozenset[Action] = frozenset()

    def __post_init__(self) -> None:
        if self.chunks < 1 or not self.ranks:
            raise ValueError(
                f"schedule {self.name!r} has chunks={self.chunks} and ranks={len(self.ranks)}: both must be at least 1"
            )
        if self.slices < 1:
            raise ValueError(f"schedule.slices={self.slices} is below 1: use at least 1")
        if self.copies < 1 or self.chunks % self.copies:
            raise ValueError(
                f"schedule {self.name!r} has {self.copies} copies of the model, which chunks={self.chunks} are not "
                f"divided by: use a multiple of {max(self.copies, 1)}"
            )

    @property
    def units(self) -> int:
        """The number of units of a step: slices of microbatches, or the microbatches if they are not divided."""
        return self.chunks * self.slices

    def __iter__(self) -> Iterator[tuple[int, Action]]:
        """Iterate over all (rank, action) pairs, rank by rank."""
        return ((rank, action) for rank, row in enumerate(self.ranks) for action in row)

    @cached_property
    def partners(self) -> dict[Action, Action]:
        """The pairs: forward -> the action after it in its row."""
        rows = (pairwise(row) for row in self.ranks) if self.pairs else ()
        return {action: after for row in rows for action, after in row if action in self.pairs}

    @property
    def apart(self) -> Schedule:
        """The same order without pairs: their forwards and backwards run one after the other."""
        return replace(self, pairs=frozenset()) if self.pairs else self

    def without_weight_gradients(self, stages: Collection[int]) -> Schedule:
        """Return the order in which these stages train nothing: each of their backwards is an I, and they have no W.

        ::

            rank 1   F0 I0 F1 I1 W0 W1  ─► F0 I0 F1 I1

        Raises:
            ValueError: there is no such stage.
        """
        if unknown := set(stages) - set(range(self.stages)):
            raise ValueError(f"there is no stage {min(unknown)}: stages go from 0 to {self.stages - 1}")

        def kept(row: Sequence[Action]) -> list[Action]:
            named = [action._replace(op=_I) if action.op is _B and action.stage in stages else action for action in row]
            return [action for action in named if action.op is not _W or action.stage not in stages]

        return replace(self, name=f"{self.name}_frozen", ranks=rows(map(kept, self.ranks)))

    @cached_property
    def placement(self) -> dict[int, int]:
        """The rank of each stage: stage -> the first rank that has an action of it."""
        places: dict[int, int] = {}
        for rank, row in enumerate(self.ranks):
            for stage in dict.fromkeys(map(itemgetter(1), row)):
                places.setdefault(stage, rank)
        return dict(sorted(places.items()))

    @cached_property
    def stages(self) -> int:
        """The number of stages, the highest index plus one."""
        return max(self.placement, default=-1) + 1

    @cached_property
    def depth(self) -> int:
        """The number of stages of one copy of the model."""
        return max(1, self.stages // self.copies)

    @cached_property
    def ends(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The stages that take the batch's inputs, and those that make losses: one of each per copy."""
        firsts = tuple(range(0, self.stages, self.depth))
        return firsts, tuple(first + self.depth - 1 for first in firsts)

    def copy_of(self, microbatch: int) -> int:
        """Return the copy that runs a microbatch, or a unit."""
        return microbatch * self.copies // self.units

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages that `rank` holds, in the model's order."""
        return tuple(stage for stage, place in self.placement.items() if place == rank)

    def holders(self, stage: int) -> list[int]:
        """Return the ranks that hold the layers of `stage`, in the order of the copies."""
        return [self.placement[copy] for copy in range(stage % self.depth, self.stages, self.depth)]

    def parents(self, action: Action) -> tuple[Action, ...]:
        """Return the actions that must have ended before `action` can start: the one dependency rule."""
        op, stage, microbatch = action
        if op is _F:
            before = (Action(_F, stage, microbatch - 1),) if microbatch % self.slices else ()
            return (Action(_F, stage - 1, microbatch), *before) if stage % self.depth else before
        if op is _W:
            return (Action(_I, stage, microbatch),)
        forward = Action(_F, stage, microbatch)
        after = (self.back(stage, microbatch + 1),) if (microbatch + 1) % self.slices else ()
        if (stage + 1) % self.depth == 0:
            return (forward, *after)
        return (forward, self.back(stage + 1, microbatch), *after)

    def waits_for(self, action: Action) -> tuple[Action, ...]:
        """Return the parents of `action`, and those of its partner if it is the forward of a pair."""
        partner = self.partners.get(action)
        return self.parents(action) + (self.parents(partner) if partner else ())

    def back(self, stage: int, microbatch: int) -> Action:
        """Return the action that makes the gradient of a stage's input: its I, or its B."""
        return self.input_gradients.get((stage, microbatch)) or Action(_B, stage, microbatch)

    def source(self, action: Action) -> Action | None:
        """Return the parent that passes a tensor to `action`: the one on another stage, or None.

        A parent on the same stage passes no tensor: the stage itself keeps the result.
        """
        for parent in self.parents(action):
            if parent.stage != action.stage:
                return parent
        return None

    @cached_property
    def input_gradients(self) -> dict[tuple[int, int], Action]:
        """The divided backwards: (stage, microbatch) -> its I; empty if every backward is a B."""
        return {action[1:]: action for row in self.ranks for action in row if action[0] is _I}

    @cached_property
    def last_gradients(self) -> dict[int, Action]:
        """The last action that adds to a stage's weights' gradients: stage -> a B or a W; none if it trains nothing."""
        return {action[1]: action for row in self.ranks for action in row if action[0] is _B or action[0] is _W}

    @cached_property
    def consumers(self) -> dict[Action, Action]:
        """The consumer of each tensor: action -> the action that takes its tensor; the inverse of `source`."""
        pairs = ((self.source(action), action) for _, action in self)
        return {source: action for source, action in pairs if source is not None}


def rows(ranks: Iterable[Iterable[Action]]) -> tuple[tuple[Action, ...], ...]:
    """Return a builder's rows as tuples."""
    return tuple(tuple(row) for row in ranks)


def overlapped(ranks: Iterable[Sequence[Action]], apart: Sequence[int] = ()) -> frozenset[Action]:
    """Return `Schedule.pairs`: every forward that a full backward follows, but the first of each rank in `apart`."""
    pairs: list[Action] = []
    for rank, row in enumerate(ranks):
        found = [action for action, after in pairwise(row) if action.op is _F and after.op is _B]
        pairs += found[rank in apart :]
    return frozenset(pairs)


def weight_groups(row: Sequence[Action]) -> dict[Action, tuple[int, ...]]:
    """Return W -> the microbatches it computes, for consecutive W of one stage: the last takes all, the others none.

    ::

        row          B0   W0   B1   B2   W1   W2
        together                         ()   (1, 2)
    """
    groups: dict[Action, tuple[int, ...]] = {}
    for (op, _), run in groupby(row, key=itemgetter(0, 1)):
        together = list(run)
        if op is _W and len(together) > 1:
            groups |= dict.fromkeys(together, ())
            groups[together[-1]] = tuple(action.microbatch for action in together)
    return groups
