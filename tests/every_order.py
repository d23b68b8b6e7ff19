"""Tries every order of a small problem: the reference of the search for orders, which shares no code with it.

::

    each rank's row grows by any action that it may run next, until the step is too long
                     0F0 ─┬─ 0F1 ── ...
                          ├─ 0I0 ── ...      divided, 0W0 comes at any later place
                          └─ 0B0 ── ...      full
    a rank whose next action waits for a message stands still until that is sent

The times are those of `Costs` and of its link model. Of two ways to the same actions the one that is later in every
respect is left out, and of microbatches that are alike stage 0 takes the lowest number first.
"""

from collections.abc import Iterator
from operator import le
from typing import Any, NamedTuple

from microp.schedule import Action, Op, Schedule
from microp.simulator import Costs

Step = tuple[Action, bool]  # an action, and whether its backward is divided: a B is an I then


class Rows(NamedTuple):
    steps: tuple[tuple[Step, ...], ...]  # for each rank its actions
    free: tuple[Any, ...]  # for each rank when it can begin the next one
    left: tuple[Any, ...]  # for each rank the least time of the actions that have not run
    held: tuple[int, ...]  # for each rank the number of pairs that it holds
    waits: tuple[Step | None, ...]  # for each rank its last action, if that has not run because it waits for a message
    mail: dict[Action, Any]  # sender of a message that is not received -> when it arrives
    idle: dict[tuple[int, int], Any]  # ranks of a link -> when its last message arrives
    last: Any  # the last end


class Orders:
    """All orders of a problem, in which a rank holds at most `cap` (stage, unit) pairs."""

    def __init__(
        self, placement: tuple[int, ...], chunks: int, costs: Costs, cap: int | None, slices: int = 1, copies: int = 1
    ) -> None:
        self.placement, self.chunks, self.costs, self.cap = placement, chunks, costs, cap
        self.slices, self.copies = slices, copies
        self.stages, self.ranks = len(placement), max(placement) + 1
        self.depth, units = self.stages // copies, chunks * slices // copies
        pairs = [(stage, stage // self.depth * units + unit) for stage in range(self.stages) for unit in range(units)]
        self._takes = {
            (action, split): costs.of(_named(action, split))
            for action in (Action(op, *pair) for pair in pairs for op in (Op.F, Op.B, Op.W))
            for split in (False, True)
        }
        self._least = {pair: self._least_backward(*pair) for pair in pairs}
        self._pairs = [[pair for pair in pairs if placement[pair[0]] == rank] for rank in range(self.ranks)]
        self._seen: dict[Any, list[list[Any]]] = {}

    def faster_than(self, limit: Any) -> Schedule | None:
        """Return an order that takes less than the limit, or None if there is none."""
        left = tuple(sum(self._takes[Action(Op.F, *p), True] + self._least[p] for p in own) for own in self._pairs)
        self._seen = {}
        zeros = (0,) * self.ranks
        return self._search(Rows(((),) * self.ranks, zeros, left, zeros, (None,) * self.ranks, {}, {}, 0), limit)

    def _least_backward(self, stage: int, microbatch: int) -> Any:
        b, w = Action(Op.B, stage, microbatch), Action(Op.W, stage, microbatch)
        return min(self._takes[b, False], self._takes[b, True] + self._takes[w, True])

    def _search(self, rows: Rows, limit: Any) -> Schedule | None:
        nothing = 1e-9  # of floats, whose sums are not exact
        late = any(left > nothing and free + left >= limit for free, left in zip(rows.free, rows.left, strict=True))
        if late or rows.last >= limit:
            return None
        able = [(free, rank) for rank, free in enumerate(rows.free) if rows.waits[rank] is None]
        for _, rank in sorted(able):
            if steps := [*self._next(rows, rank)]:
                break
        else:
            done = not any(rows.waits) and not any(self._missing(rows))
            return self._schedule(rows) if done else None
        if self._is_known(rows):
            return None
        for step in steps:
            longer = rows._replace(steps=_with(rows.steps, rank, (*rows.steps[rank], step)))
            if (found := self._search(self._run(longer, rank, step), limit)) is not None:
                return found
        return None

    def _missing(self, rows: Rows) -> Iterator[bool]:
        for rank, own in enumerate(self._pairs):
            row = dict(rows.steps[rank])
            for pair in own:
                b, w = Action(Op.B, *pair), Action(Op.W, *pair)
                yield b not in row or (row[b] and w not in row)

    def _schedule(self, rows: Rows) -> Schedule:
        ranks = tuple(tuple(_named(*step) for step in row) for row in rows.steps)
        return Schedule("every", self.chunks, ranks, self.slices, self.copies)

    def _next(self, rows: Rows, rank: int) -> Iterator[Step]:
        row = dict(rows.steps[rank])
        for stage, microbatch in self._pairs[rank]:
            f, b, w = (Action(op, stage, microbatch) for op in (Op.F, Op.B, Op.W))
            if f not in row:
                has_room = self.cap is None or rows.held[rank] < self.cap
                before = microbatch % self.slices == 0 or f._replace(microbatch=microbatch - 1) in row
                if has_room and before and self._is_first(row, f) and self._is_there(row, f, stage - 1):
                    yield f, False
            elif b not in row:
                after = (microbatch + 1) % self.slices == 0 or b._replace(microbatch=microbatch + 1) in row
                if after and self._is_there(row, b, stage + 1):
                    yield from ((b, True), (b, False))
            elif row[b] and w not in row:
                yield w, True

    def _is_first(self, row: dict[Action, bool], forward: Action) -> bool:
        """Return whether no lower microbatch that is alike waits for its first forward."""
        slices, unit = self.slices, forward.microbatch
        lower = range(unit % slices, unit, slices) if forward.stage == 0 else ()
        alike = (m for m in lower if self._kind(m) == self._kind(forward.microbatch))
        return all(forward._replace(microbatch=m) in row for m in alike)

    def _kind(self, unit: int) -> list[Any]:
        first, costs = unit - unit % self.slices, self.costs
        units = range(first, first + self.slices)
        spared = [any(costs.recompute) and each in costs.spared for each in units]
        return [spared, *([values[each] for each in units] for values in (costs.shares, costs.sizes) if values)]

    def _is_there(self, row: dict[Action, bool], action: Action, stage: int) -> bool:
        """Return whether the tensor of another stage has been made, if that is on the same rank."""
        here = self._is_stage(action, stage) and self.placement[stage] == self.placement[action.stage]
        return not here or action._replace(stage=stage) in row

    def _is_stage(self, action: Action, stage: int) -> bool:
        return stage // self.depth == action.stage // self.depth

    def _run(self, rows: Rows, rank: int, step: Step) -> Rows:
        """Run a rank's last action and what has waited for it; or let it wait for its message."""
        action, split = step
        op, *pair = action
        costs, transfer, mail, idle = self.costs, self.costs.transfer, rows.mail, rows.idle
        start, takes = rows.free[rank], self._takes[step]
        source, taker = (self._peer(action, by) for by in ((-1, 1) if op is Op.F else (1, -1)))
        if source is not None:
            if source not in mail:
                return rows._replace(waits=_with(rows.waits, rank, step))
            hop = costs.hop(max(source.stage, action.stage), action.microbatch)
            start = max(start, transfer.receive((start, 0), (mail[source], 0), hop)[0])
            mail = {sender: there for sender, there in mail.items() if sender != source}
        end = free = start + takes
        if taker is not None:
            link = rank, self.placement[taker.stage]
            hop = costs.hop(max(taker.stage, action.stage), action.microbatch)
            (free, _), (there, _) = transfer.send((end, 0), (idle.get(link, 0), 0), hop)
            mail, idle = {**mail, action: there}, {**idle, link: there}
        free += costs.overhead[action.stage] if costs.overhead else 0
        least = takes if op is not Op.B else self._least[tuple(pair)]
        if op is Op.B and split:
            least -= self._takes[Action(Op.W, *pair), True]
        holds = 1 if op is Op.F else -1 if op is Op.W or not split else 0
        rows = Rows(
            rows.steps,
            _with(rows.free, rank, free),
            _with(rows.left, rank, rows.left[rank] - least),
            _with(rows.held, rank, rows.held[rank] + holds),
            _with(rows.waits, rank, None),
            mail,
            idle,
            max(rows.last, end),
        )
        waiter = None if taker is None else rows.waits[link[1]]
        return self._run(rows, link[1], waiter) if waiter is not None and waiter[0] == taker else rows

    def _peer(self, action: Action, by: int) -> Action | None:
        """Return the action of the next or the previous stage, if that is on another rank."""
        stage = action.stage + by
        away = action.op is not Op.W and self._is_stage(action, stage)
        return action._replace(stage=stage) if away and self.placement[stage] != self.placement[action.stage] else None

    def _is_known(self, rows: Rows) -> bool:
        """Return whether the same actions have run, and everything no later."""
        key = tuple(map(frozenset, rows.steps)), rows.waits
        times = [*rows.free, rows.last]
        times += [max(there, rows.free[self._to(sender)]) for sender, there in sorted(rows.mail.items())]
        times += [max(there, rows.free[link[0]]) for link, there in sorted(rows.idle.items())]
        known = self._seen.setdefault(key, [])
        if any(all(map(le, each, times)) for each in known):
            return True
        known.append(times)
        return False

    def _to(self, sender: Action) -> int:
        return self.placement[sender.stage + (1 if sender.op is Op.F else -1)]


def _named(action: Action, split: bool) -> Action:
    return action._replace(op=Op.I) if split and action.op is Op.B else action


def _with(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])
