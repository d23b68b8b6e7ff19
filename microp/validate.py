"""Proves that the ranks which run a schedule all come to their end, or says what stops them.

::

    missing, repeated, out of range, misplaced? ─► stuck in a circle? ─► more held than allowed?

    schedule 'mine': it deadlocks: 0B0 waits for 1B0, which stands behind 1F1 on rank 1, which
    waits for 0F1, which stands behind 0B0 on rank 0
      rank 0  0F0 [0B0][0F1] 0B1
      rank 1  1F0 [1F1][1B0] 1B1

Why this is enough. A transfer follows from `Schedule.source`: F(s,m) is taken by F(s+1,m) alone,
B(s,m) by B(s-1,m) alone. Where every F and B stands exactly once, on its stage's rank, each tensor
that is sent has one receiver, and each receive has one sender: they match **by tag**. They match
**in the order of each link** as well (a link: one rank to one other), without tags, because the
engine posts the receives of a link in the order in which its sender's row makes the tensors
(`engine.post_plan`), whatever the order of their use: the n-th that is posted is the n-th sent.

What can still stop a rank is waiting. Posting and sending block nobody (`isend_tensor` and
`irecv_tensor` of every transport only start), and what an action takes has been posted by then.
So it waits until the action before it in its row and its parents are
done, and for nothing more: on a link that keeps the order, what was sent before its tensor was
sent by earlier actions of the same row, and posted before it. A send is waited for only where an
answer shows that it has arrived, or after the last action, when its receiver can come to its use.
`find_cycle` therefore plays the schedule: each rank goes on as long as what its next action waits
for is done. Who goes first makes no difference, since nothing that is done stops another. If
every row is played to its end, so is every real run; if not, no run could have done it.

This takes links for independent: a transport that holds up one link until another has moved (all
of a rank's transfers in one queue) needs more than is proven here, and a transport without tags
whose receives are posted only where they are used needs `link_order_mismatches` to be empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

from microp.deadlock import find_cycle
from microp.excerpt import excerpt
from microp.schedule import Action, Op, Schedule

NAMED = 3  # so many actions of a kind are named
HOPS = 8  # so much of a circle is told in words


class _Problem(NamedTuple):
    """What is wrong, and the actions that show it."""

    text: str
    marked: Collection[Action]


def validate(schedule: Schedule, activation_limit: int | None = None) -> Schedule:
    """Return the schedule if ranks that run it will all come to their end; see above for the proof.

    The cost is linear in the number of actions, whatever numbers they bear.

    Args:
        schedule: any.
        activation_limit: the most (stage, microbatch) pairs that a rank may hold at once, each
            from its F to its W where it has one, else to its B; None allows any number.

    Raises:
        ValueError: on the first line what is missing, repeated, out of range or misplaced, or a
            circle of actions that wait for each other (see `find_cycle`), or the first forward
            beyond the limit; below it these actions in the rows around them.
    """
    problems = [*_miscounted(schedule), *_misplaced(schedule)]
    problems = problems or [*_deadlocked(schedule)]
    if activation_limit is not None:
        problems = problems or [*_held_beyond(schedule, activation_limit)]
    if problems:
        said = "; ".join(problem.text for problem in problems)
        drawn = excerpt(schedule, set().union(*(problem.marked for problem in problems)))
        raise ValueError("\n  ".join([f"schedule {schedule.name!r}: {said}", *drawn.splitlines()]))
    return schedule


# --- each action once, in its place ----------------------------------------------------------------


def _miscounted(schedule: Schedule) -> Iterator[_Problem]:
    """Each (stage, microbatch) has one F, one B and at most one W; none is out of range."""
    seen: set[Action] = set()
    strange, repeated = [], []
    for _, action in schedule:
        if action.stage < 0 or not 0 <= action.microbatch < schedule.chunks:
            strange.append(action)
        elif action in seen:
            repeated.append(action)
        else:
            seen.add(action)
    if strange:
        ranges = f"stages go from 0, microbatches from 0 to {schedule.chunks - 1}"
        yield _Problem(f"{_are(strange)} out of range ({ranges})", strange[:NAMED])
    if repeated:
        yield _Problem(f"{_are(repeated)} there more than once", repeated[:NAMED])
    gap = next((stage for stage in range(schedule.stages) if stage not in schedule.placement), None)
    if gap is None:
        yield from _missing(schedule, seen)
    else:
        highest = [action for action in seen if action.stage == schedule.stages - 1]
        yield _Problem(f"stage {gap} has no action, but stage {schedule.stages - 1} has", highest)


def _missing(schedule: Schedule, seen: Collection[Action]) -> Iterator[_Problem]:
    """The F and B that are not among `seen`, which has no strange ones."""
    count = 2 * schedule.stages * schedule.chunks - sum(action.op is not Op.W for action in seen)
    if count == 0:
        return
    pairs = ((stage, microbatch) for stage in range(schedule.stages) for microbatch in range(schedule.chunks))
    due = (Action(op, *pair) for pair in pairs for op in (Op.F, Op.B))
    # Ends with the third: chunks=2000000000 above ten actions is not looked through.
    lost = list(islice((action for action in due if action not in seen), NAMED))
    alone = {action[1:] for action in lost}
    bereft = [a for a in seen if a[1:] in alone or not set(schedule.parents(a)).isdisjoint(lost)]
    yield _Problem(f"{_are(lost, count)} missing", bereft)


def _misplaced(schedule: Schedule) -> Iterator[_Problem]:
    """All actions of a stage are on one rank; every rank has some."""
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


def _are(actions: Sequence[Action], count: int | None = None) -> str:
    """`0F0 is`, `0F0, 0F1, 0F2 and 5 more are`; there are `count`, or as many as are given."""
    more = (len(actions) if count is None else count) - min(len(actions), NAMED)
    names = [*map(str, actions[:NAMED]), *([f"{more} more"] if more else [])]
    if len(names) == 1:
        return f"{names[0]} is"
    return f"{', '.join(names[:-1])} and {names[-1]} are"


# --- nobody waits for ever -------------------------------------------------------------------------


def _deadlocked(schedule: Schedule) -> Iterator[_Problem]:
    circle = find_cycle(schedule)
    if not circle:
        return
    told = []
    for action, need in islice(pairwise(circle), HOPS):
        if need in schedule.parents(action):
            told.append(f"waits for {need}")
        else:
            told.append(f"stands behind {need} on rank {schedule.placement[need.stage]}")
    more = f", and so on in a circle of {len(circle) - 1} actions" if len(circle) - 1 > HOPS else ""
    yield _Problem(f"it deadlocks: {circle[0]} {', which '.join(told)}{more}", circle)


# --- memory, and transports that are stricter than ours ----------------------------------------------


def _held(schedule: Schedule, row: Sequence[Action]) -> Iterator[int]:
    """After each action of a row, the (stage, microbatch) pairs between their F and their W (or whole B)."""
    now = 0
    for action in row:
        if action.op is Op.F:
            now += 1
        elif action.op is Op.W or action[1:] not in schedule.split:
            now -= 1
        yield now


def _held_beyond(schedule: Schedule, limit: int) -> Iterator[_Problem]:
    peaks = [max(_held(schedule, row)) for row in schedule.ranks]
    if max(peaks) <= limit:
        return
    rank = next(rank for rank, peak in enumerate(peaks) if peak > limit)
    row = schedule.ranks[rank]
    first = next(action for action, held in zip(row, _held(schedule, row), strict=True) if held > limit)
    yield _Problem(
        f"{first} is the first that makes rank {rank} hold more than activation_limit={limit} "
        f"(stage, microbatch) pairs: allow {max(peaks)} or more, or use a schedule that holds less",
        [first],
    )


class Overtaking(NamedTuple):
    """Two tensors of one link that are used in the other order than they are sent.

    Attributes:
        src, dest: the link's ranks.
        sent_first, used_first: the actions that make them.
    """

    src: int
    dest: int
    sent_first: Action
    used_first: Action


def link_order_mismatches(schedule: Schedule) -> list[Overtaking]:
    """Where a rank uses what comes over a link in another order than it is sent.

    ::

        rank 0   0F0 0F1 ...       0F1 overtakes 0F0: a rank that posts a receive only where it
        rank 1   1F1 1F0 ...       uses the tensor gets 0F0 for 0F1 if the transport has no tags

    Our engine runs such a schedule all the same (see above). A transport without tags whose
    receives are posted at their use runs a valid schedule if and only if this is empty. Where
    sends wait for their receiver as well, this is necessary and not enough.

    Args:
        schedule: a valid one.

    Returns:
        Every two tensors of a link that are used one right after the other in the wrong order;
        empty if and only if every link is used in the order in which it is sent.
    """
    sent = {action: place for row in schedule.ranks for place, action in enumerate(row)}
    found = []
    for dest, row in enumerate(schedule.ranks):
        latest: dict[int, Action] = {}  # src -> what came from there last
        for action in row:
            source = schedule.source(action)
            if source is None or (src := schedule.placement[source.stage]) == dest:
                continue
            before = latest.get(src)
            if before is not None and sent[source] < sent[before]:
                found.append(Overtaking(src, dest, sent_first=source, used_first=before))
            latest[src] = source
    return found
