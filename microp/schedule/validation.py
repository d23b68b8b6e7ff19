"""Checks that every rank can run its row of a schedule to the end, or names the actions that stop it.

::

    missing, repeated, out of range, misplaced, copies together? ─► deadlocked? ─► more held than allowed?

    schedule 'mine': it deadlocks: 0B0 waits for 1B0, which comes after 1F1 on rank 1, which
    waits for 0F1, which comes after 0B0 on rank 0
      rank 0  0F0 [0B0][0F1] 0B1
      rank 1  1F0 [1F1][1B0] 1B1

Why these checks are enough. Transfers follow from `Schedule.source`: only F(s+1,m) takes the tensor of
F(s,m), and only the B or I of (s-1,m) takes that of (s,m). If every F and every B or I occurs exactly once,
on its stage's rank, each tensor that is sent has one receiver, and each receive has one sender: they match **by tag**.
They also match **in the order of each link** (from one rank to one other), without tags, because the
engine posts the receives of a link in the order in which its sender's row makes the tensors
(`receives_to_post`), whatever the order of their use: the n-th posted is the n-th sent.

A rank can then be stopped only by waiting. Posting and sending do not block (`isend_tensor` and
`irecv_tensor` of every transport only start a transfer), and an action's receives are posted before it
waits. So an action waits only for its parents and the action before it in its row: on a link that
keeps the order, the tensors sent before its own come from earlier actions of the same row, and their
receives are posted earlier. The engine waits for a send only when an answer shows that it has
arrived, or after the last action, when its receiver can run up to its use. `find_cycle` therefore
plays the schedule: each rank continues as long as the parents of its next action have run. The order
in which ranks take turns makes no difference, since an action that has run stops no other. If every
row is played to its end, every real run ends too; if not, no real run can end.

The proof takes links as independent. It does not cover a transport that blocks one link until another
has moved (all of a rank's transfers in one queue).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import NamedTuple

from microp.schedule.schedule import Action, Op, Schedule

NAMED = 3  # actions of a kind that a message names at most
HOPS = 8  # steps of a cycle that a message describes at most, and ranks that it draws
NEAR = 4  # actions that are drawn on each side of what is marked


class _Problem(NamedTuple):
    """A fault as text, and the actions that show it."""

    text: str
    marked: Collection[Action]


def validate(schedule: Schedule, activation_limit: int | None = None) -> Schedule:
    """Return the schedule if every rank can run its row to the end; the module's docstring has the proof.

    The cost is linear in the number of actions, however large their indices are.

    Args:
        activation_limit: the most (stage, microbatch) pairs that a rank may hold at once. A pair is
            held from its F to its B or W, or to its I if its stage has no W. None allows any number.

    Raises:
        ValueError: an action is missing, repeated, out of range or misplaced, or actions wait for
            each other in a cycle (see `find_cycle`), or a forward exceeds the limit. The first line
            names the actions; the lines below it show them in their rows.
    """
    problems = [*_miscounted(schedule), *_misplaced(schedule)]
    problems = problems or [*_doubled(schedule)] or [*_unpaired(schedule)] or [*_deadlocked(schedule)]
    if activation_limit is not None:
        problems = problems or [*_held_beyond(schedule, activation_limit)]
    if problems:
        sentence = "; ".join(problem.text for problem in problems)
        drawn = islice(_drawn(schedule, set().union(*(problem.marked for problem in problems))), HOPS)
        raise ValueError("\n  ".join([f"schedule {schedule.name!r}: {sentence}", *drawn]))
    return schedule


def _drawn(schedule: Schedule, marked: Collection[Action]) -> Iterator[str]:
    """Yield the rows with marked actions, which are in brackets, near the first of them."""
    for rank, row in enumerate(schedule.ranks):
        if places := [place for place, action in enumerate(row) if action in marked]:
            begin, end = max(0, places[0] - NEAR), min(places[-1], places[0] + 2 * NEAR) + NEAR + 1
            cells = "".join(f"[{action}]" if action in marked else f" {action} " for action in row[begin:end])
            yield f"rank {rank} {' …' * (begin > 0)}{cells}{'…' * (end < len(row))}".rstrip()


# --- each action once, on its stage's rank ---------------------------------------------------------


def _miscounted(schedule: Schedule) -> Iterator[_Problem]:
    """Yield a problem unless each (stage, microbatch) has one F, and one B or one I and one W, all in range.

    A stage that has neither a B nor a W trains nothing, and has an I for each of its microbatches.
    """
    seen: set[Action] = set()
    strange, repeated = [], []
    copy_of = schedule.copy_of
    if schedule.stages % schedule.copies:
        yield _Problem(f"{schedule.stages} stages are not {schedule.copies} copies of a model", [])
        return
    for _, action in schedule:
        if not 0 <= action.microbatch < schedule.units or action.stage // schedule.depth != copy_of(action.microbatch):
            strange.append(action)
        elif action in seen:
            repeated.append(action)
        else:
            seen.add(action)
    if strange:
        kind = "microbatches" if schedule.slices == 1 else f"units, {schedule.slices} of each microbatch,"
        stages = f"stages go from 0, {schedule.depth} in each copy" if schedule.copies > 1 else "stages go from 0"
        ranges = f"{stages}, {kind} from 0 to {schedule.units - 1}"
        yield _Problem(f"{_are(strange)} out of range ({ranges})", strange[:NAMED])
    if repeated:
        yield _Problem(f"{_are(repeated)} listed more than once", repeated[:NAMED])
    gap = next((stage for stage in range(schedule.stages) if stage not in schedule.placement), None)
    if gap is None:
        yield from _missing(schedule, seen)
    else:
        highest = [action for action in seen if action.stage == schedule.stages - 1]
        yield _Problem(f"stage {gap} has no action, but stage {schedule.stages - 1} has", highest)


def _missing(schedule: Schedule, seen: Collection[Action]) -> Iterator[_Problem]:
    """Yield a problem unless each pair has an F, and a B or both I and W, in `seen`, the actions in range.

    An I is enough on a stage that has neither a B nor a W.
    """
    forwards, full, inputs, weights = ({action[1:] for action in seen if action.op is op} for op in Op)
    divided = inputs | weights
    trains = {stage for stage, _ in full | weights}
    frozen = {stage for stage, _ in inputs} - trains
    halves = {pair for pair in divided - full if pair[0] in trains}
    for stage, microbatch in sorted(full & divided)[:1]:
        whole, part = (Action(op, stage, microbatch) for op in (Op.B, Op.I if (stage, microbatch) in inputs else Op.W))
        remedy = f"write {whole._replace(op=Op.I)} for {whole}, or leave {part} out"
        yield _Problem(f"{whole} is the full backward, but there is {part} too: {remedy}", [whole, part])
    count = 2 * schedule.depth * schedule.units - len(forwards) - len(full | divided) + len(halves & (inputs ^ weights))
    if count == 0:
        return
    pairs = (
        (stage, microbatch)
        for stage in range(schedule.stages)
        for microbatch in range(schedule.units)
        if stage // schedule.depth == schedule.copy_of(microbatch)
    )
    due = (
        Action(op, *pair)
        for pair in pairs
        for op in (Op.F, *((Op.I, Op.W) if pair in halves else (Op.I if pair[0] in frozen else Op.B,)))
    )
    # Stops after the first few: a typo such as chunks=2000000000 must not make this slow.
    lost = list(islice((action for action in due if action not in seen), NAMED))
    lost_pairs = {action[1:] for action in lost}
    affected = [a for a in seen if a[1:] in lost_pairs or not set(schedule.parents(a)).isdisjoint(lost)]
    yield _Problem(f"{_are(lost, count)} missing", affected)


def _misplaced(schedule: Schedule) -> Iterator[_Problem]:
    """Yield a problem unless all actions of a stage are on one rank and every rank has actions."""
    counts = Counter((action.stage, rank) for rank, action in schedule)
    holders: dict[int, int] = {}  # stage -> the rank with most of its actions: a typo moves only a few
    for (stage, rank), count in counts.items():
        if stage not in holders or count > counts[stage, holders[stage]]:
            holders[stage] = rank
    if len(counts) > len(holders):
        moved = [(rank, action) for rank, action in schedule if holders[action.stage] != rank]
        rank, first = moved[0]
        more = f", and {len(moved) - 1} more are not on their stage's rank" if len(moved) > 1 else ""
        yield _Problem(
            f"{first} is on rank {rank}, but rank {holders[first.stage]} holds stage {first.stage}{more}",
            [action for _, action in moved[:NAMED]],
        )
    idle = [rank for rank, row in enumerate(schedule.ranks) if not row]
    if idle:
        yield _Problem(f"rank {idle[0]} has nothing to do: use fewer ranks", [])


def _doubled(schedule: Schedule) -> Iterator[_Problem]:
    """Yield a problem unless the copies of each stage are on different ranks, which sum their gradients."""
    for stage in range(schedule.depth, schedule.stages):
        if (rank := schedule.placement[stage]) in schedule.holders(stage)[: stage // schedule.depth]:
            both = f"rank {rank} holds stage {stage} and another copy of it"
            yield _Problem(f"{both}: place the copies of a stage on different ranks", [])
            return


def _are(actions: Sequence[Action], count: int | None = None) -> str:
    """Return `0F0 is`, or `0F0, 0F1, 0F2 and 5 more are`; `count` is the total if not all are given."""
    more = (len(actions) if count is None else count) - min(len(actions), NAMED)
    names = [*map(str, actions[:NAMED]), *([f"{more} more"] if more else [])]
    if len(names) == 1:
        return f"{names[0]} is"
    return f"{', '.join(names[:-1])} and {names[-1]} are"


# --- pairs -----------------------------------------------------------------------------------------


def _unpaired(schedule: Schedule) -> Iterator[_Problem]:
    """Yield a problem unless each pair is a forward and a backward after it that does not need this forward."""
    for action in sorted(schedule.pairs):
        partner = schedule.partners.get(action)
        if partner is None or action.op is not Op.F or partner.op not in (Op.B, Op.I):
            after = f"{partner} comes after {action}" if partner else f"nothing comes after {action}"
            yield _Problem(f"a pair is a forward and the backward after it, but {after}", [action])
            return
        if action in schedule.parents(partner):
            why = f"waits for itself, since {partner} needs {action}: pair actions of different microbatches"
            yield _Problem(f"the pair ({action};{partner}) {why}", [action, partner])
            return


# --- no deadlock -----------------------------------------------------------------------------------


def _deadlocked(schedule: Schedule) -> Iterator[_Problem]:
    cycle = find_cycle(schedule)
    if not cycle:
        return
    steps = []
    for action, need in islice(pairwise(cycle), HOPS):
        if need in schedule.waits_for(action):
            steps.append(f"waits for {need}")
        else:
            steps.append(f"comes after {need} on rank {schedule.placement[need.stage]}")
    more = f", and so on in a cycle of {len(cycle) - 1} actions" if len(cycle) - 1 > HOPS else ""
    yield _Problem(f"it deadlocks: {cycle[0]} {', which '.join(steps)}{more}", cycle)


def find_cycle(schedule: Schedule) -> list[Action]:
    """Return actions that wait for each other in a cycle (first = last), two of a rank; empty if all rows end.

    ::

        rank 0   0F0 │ 0B0 0F1 0B1       each rank runs until its next action waits for one that never
        rank 1   1F0 │ 1F1 1B0 1B1       ends; the actions to the right of the bar never run

        0B0 waits for 1B0, which comes after 1F1, which waits for 0F1, which comes after 0B0

    An action waits for its parents, a pair for those of both, and for every action before it in its row. The
    schedule must be complete, with each action on its stage's rank. The cost is linear in the number of actions.
    """
    # 1. Each rank runs until its next action waits for one that has not run.
    done: set[Action] = set()
    reached = [0] * len(schedule.ranks)
    waiting: dict[Action, list[int]] = {}  # an action that has not run -> the ranks that wait for it
    free = list(range(len(schedule.ranks)))
    while free:
        rank = free.pop()
        row = schedule.ranks[rank]
        for place in range(reached[rank], len(row)):
            missing = [parent for parent in schedule.waits_for(row[place]) if parent not in done]
            if missing:
                waiting.setdefault(missing[0], []).append(rank)
                break
            done.add(row[place])
            reached[rank] += 1
            free += waiting.pop(row[place], ())
    if not waiting:
        return []
    # 2. What a rank's next action waits for is, or comes after, the next action of its own rank, and so on:
    #    the path ends when it comes to a rank for the second time.
    needs = {rank: need for need, ranks in waiting.items() for rank in ranks}
    rank = min(needs)
    path: list[Action] = []
    came: dict[int, int] = {}  # rank -> the index of its next action in the path
    while rank not in came:
        came[rank] = len(path)
        path += [schedule.ranks[rank][reached[rank]], needs[rank]]
        rank = schedule.placement[needs[rank].stage]
    cycle = [*path[came[rank] :], path[came[rank]]]
    return [cycle[0], *(action for before, action in pairwise(cycle) if action != before)]


# --- memory ------------------------------------------------------------------------------------------


def _held_beyond(schedule: Schedule, limit: int) -> Iterator[_Problem]:
    held = [_held(row, schedule.last_gradients) for row in schedule.ranks]
    most = max(map(max, held))
    if most <= limit:
        return
    rank = next(rank for rank, numbers in enumerate(held) if max(numbers) > limit)
    first = next(action for action, number in zip(schedule.ranks[rank], held[rank], strict=True) if number > limit)
    yield _Problem(
        f"{first} is the first that makes rank {rank} hold more than activation_limit={limit} "
        f"(stage, microbatch) pairs: allow {most} or more, or use a schedule that holds less",
        [first],
    )


def _held(row: Sequence[Action], trains: Collection[int]) -> list[int]:
    """Return, after each action of a row, the number of pairs from F to B or W; without one, to I."""
    ends = [action.op in (Op.B, Op.W if action.stage in trains else Op.I) for action in row]
    return list(accumulate((action.op is Op.F) - end for action, end in zip(row, ends, strict=True)))
