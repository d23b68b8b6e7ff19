"""Makes spans of what ranks did: steps told apart, waits taken off, each action once.

::

    Forward 3   │ gloo:recv ▒▒▒▒│████████│ gloo:send │      a range may contain its receive and its send:
                                └── F3 ──┘                  the action is what lies between

The clocks of the ranks are left as they are: `clocks` aligns them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from microp.foreign.names import Mark, TraceError
from microp.foreign.reading import Lane, Range, listed
from microp.schedule import Action, Op, Schedule, remote_source, validate

SLACK = 1_000  # nanoseconds by which ranges may overlap: files round to a microsecond
NAMED = 3  # actions that a message names
Key = tuple[str, int | None, int | None]


class Timed(NamedTuple):
    """An action of a rank: when its range began, when it started and ended, and whether its receive was seen."""

    action: Action
    opened: int
    start: int
    end: int
    received: bool


class RankStep(NamedTuple):
    """What one rank did in one step, on its clock, in nanoseconds.

    Attributes:
        actions: in the order of time.
        began: when its step began.
        ended: when its optimizer had ended, or else its last action.
        optimizer: the time of the optimizer.
    """

    actions: list[Timed]
    began: int
    ended: int
    optimizer: int


class Steps(NamedTuple):
    """The whole steps of a trace.

    Attributes:
        schedule: the order of the last step, without a name of its own.
        steps: number of the step -> what each rank did.
        lanes: of each rank.
        notes: what was left out, and what the times are.
    """

    schedule: Schedule
    steps: dict[int, list[RankStep]]
    lanes: list[Lane]
    notes: list[str]


def make_steps(lanes: Sequence[Lane]) -> Steps:
    """Return the whole steps of the lanes, of one rank each.

    Raises:
        TraceError: no step is whole, or ranks are missing.
    """
    lanes, notes = _in_order(lanes)
    # 1. the steps that all ranks have
    ranks = [_steps_of(lane) for lane in lanes]
    counts, common = [len(steps) for steps in ranks], sorted(set.intersection(*map(set, ranks)))
    if len(set(counts)) > 1:
        said = f"steps by rank: {', '.join(map(str, counts[:16]))}"
        if not all(lane.of("step") or lane.ranges[0].step is not None for lane in lanes):
            raise TraceError(f"{said}: which belong together is not known; give whole traces, or profile with step()")
        notes.append(f"{said}: the {len(common)} that all ranks have are read")
    # 2. those of them that are whole
    faults: dict[int, str] = {}
    for rank, lane in enumerate(lanes):
        every = dict.fromkeys(each.action for step in common for each in ranks[rank][step].actions)
        for step in common:
            seen = Counter(each.action for each in ranks[rank][step].actions)
            if odd := [action for action in every if seen[action] != 1]:
                what = "lacks" if not seen[odd[0]] else "has twice"
                names = ", ".join(map(str, odd[:NAMED])) + (f" and {len(odd) - NAMED} more" if odd[NAMED:] else "")
                faults.setdefault(step, f"step {step}: {lane.file}, rank {rank}, {what} {names}")
    whole = [step for step in common if step not in faults]
    if not whole:
        raise TraceError(f"no step is whole: {next(iter(faults.values()), 'the ranks have none in common')}")
    notes += [f"left out: {fault}" for fault in faults.values()]
    # 3. their order
    orders = [tuple(tuple(each.action for each in steps[step].actions) for steps in ranks) for step in whole]
    schedule = Schedule("foreign", 1 + max(action.microbatch for row in orders[-1] for action in row), orders[-1])
    _check(schedule, lanes)
    if len(set(orders)) > 1:
        notes.append(f"the {len(orders)} steps ran {len(set(orders))} orders: the last one is drawn and replayed")
    made = {step: [steps[step] for steps in ranks] for step in whole}
    return Steps(schedule, made, list(lanes), [*notes, *_about_receives(schedule, made, lanes)])


def _in_order(lanes: Sequence[Lane]) -> tuple[list[Lane], list[str]]:
    """Return the lanes in the pipeline's order, with a stage for each action; refuse them if ranks may be missing."""
    if all(each.mark.stage is not None for lane in lanes for each in lane.of("action")):
        return sorted(lanes, key=lambda lane: min(each.mark.stage or 0 for each in lane.of("action"))), []
    ranks, world, notes = [lane.rank for lane in lanes], max(lane.world or 0 for lane in lanes), []
    apart = {after - before for before, after in pairwise(ranks)} or {1}
    if apart != {1} or ranks[0] or world not in (0, len(lanes)):
        given = f"ranks {', '.join(map(str, ranks[:8]))}{f' of {world}' if world else ''}"
        if len(apart) > 1 or len(lanes) == 1 or not world or world % len(lanes):
            raise TraceError(
                f"{given} are in {listed(lane.file for lane in lanes)}, and the actions' names have no stage: give the "
                "traces of all ranks of one pipeline"
            )
        notes.append(f"{given} are read as the stages of one pipeline, because the actions' names have no stage")
    for stage, lane in enumerate(lanes):
        lane.ranges = [
            each._replace(mark=each.mark._replace(stage=stage)) if each.mark.stage is None else each
            for each in lane.ranges
        ]
    return list(lanes), notes


def _check(schedule: Schedule, lanes: Sequence[Lane]) -> None:
    """Refuse an order that is not one of a whole pipeline, with the file of the rank that it is about."""
    try:
        validate(schedule)
    except ValueError as error:
        problem = str(error).partition("\n")[0].partition(": ")[2]
        named = next(
            (word for word in problem.replace(",", "").split() if word[0].isdigit() and word[-1].isdigit()), ""
        )
        stage = int(named[0]) if named[:1].isdigit() and not named.isdigit() else None
        rank = schedule.placement.get(stage) if stage is not None else None
        where = f"{lanes[rank].file}, rank {rank}" if rank is not None else listed(lane.file for lane in lanes)
        raise TraceError(f"{where}: {problem}; give the whole traces of all ranks of one pipeline") from error


def _about_receives(
    schedule: Schedule, steps: Mapping[int, Sequence[RankStep]], lanes: Sequence[Lane]
) -> Iterable[str]:
    """Say what the times of the actions are, and where a wait may be in them."""
    if any(len(lane.kernels) for lane in lanes):
        yield "the time of an action is that of its GPU kernels, from the first one's begin to the last one's end"
    for rank, lane in enumerate(lanes):
        needed = [
            each.received
            for ranks in steps.values()
            for each in ranks[rank].actions
            if remote_source(schedule, rank, each.action) is not None
        ]
        if any(needed) and not all(needed):
            yield (
                f"{lane.file}, rank {rank}: {len(needed) - sum(needed)} of {len(needed)} receives were not found: the "
                "actions that needed them may contain a wait"
            )


# --- one rank ------------------------------------------------------------------------------------------


def _steps_of(lane: Lane) -> dict[int, RankStep]:
    """Return what a rank did by step: within the profiler's steps, or else from one optimizer or repetition on."""
    numbered = sorted(_timed(lane), key=lambda item: item[2].opened)
    windows, optimizers = lane.of("step"), lane.of("optimizer")
    begins, updates = [each.start for each in windows], [each.start for each in optimizers]
    found: dict[int, list[Timed]] = defaultdict(list)
    counts: dict[tuple[int, str, int], int] = Counter()
    seen: set[tuple[int, Action]] = set()
    repeated = 0
    for step, mark, timed in numbered:
        number = step
        if windows:
            at = bisect_right(begins, timed.opened) - 1
            if at < 0 or timed.opened >= windows[at].end:
                continue  # outside of the steps
            number = windows[at].mark.microbatch
        elif number is None and updates:
            number = bisect_right(updates, timed.opened)
        action = timed.action
        if mark.microbatch is None:
            kind = (number or 0, mark.op, action.stage)
            action = action._replace(microbatch=counts[kind])
            counts[kind] += 1
        if number is None:
            repeated += (repeated, action) in seen
            number = repeated
            seen.add((number, action))
        found[number].append(timed._replace(action=action))
    steps, order = {}, sorted(found)
    for place, number in enumerate(order):
        actions = found[number]
        window = next((each for each in windows if each.mark.microbatch == number), None)
        last = max(each.end for each in actions)
        after = found[order[place + 1]][0].opened if place + 1 < len(order) else None
        until = window.end if window else after
        own = [each for each in optimizers if last - SLACK <= each.start and (until is None or each.start < until)]
        began = window.start if window else actions[0].opened
        ended = max([last, *(each.end for each in own)])
        steps[number] = RankStep(actions, began, ended, sum(each.end - each.start for each in own))
    return steps


def _timed(lane: Lane) -> list[tuple[int | None, Mark, Timed]]:
    """Return the step, if the file tells it, the mark and the times of each action, without its waits."""
    ranges = _alone(lane)
    posts, sends = lane.of("post"), [each.start for each in lane.of("send")]
    begins, posted = [each.start for each in ranges], [each.start for each in posts]
    # 1. the receives of each range: those that began in it, or in a range that posts them for its action
    inside: dict[int, int] = {}  # index of a range -> the end of its receive
    waited: dict[Key, deque[int]] = defaultdict(deque)
    for receive in lane.of("receive"):
        at = bisect_right(posted, receive.start) - 1
        if at >= 0 and receive.start <= posts[at].end:
            waited[posts[at].mark[1:4]].append(receive.end)
        elif (at := bisect_right(begins, receive.start) - 1) >= 0 and receive.start < ranges[at].end:
            inside[at] = max(receive.end, inside.get(at, 0))

    def arrived(mark: Mark, until: int) -> int:
        """Return when the receive of an action ended, which then counts for no other; 0 if none had ended by then."""
        ends, last = waited[mark.op.replace("I", "B"), mark.stage, mark.microbatch], 0
        while ends and ends[0] <= until:
            last = ends.popleft()
        return last

    # 2. what is left of each range
    found, shares = list[tuple[int | None, Mark, Timed]](), _shares(ranges)
    for at, (opened, end, mark, step) in enumerate(ranges):
        came = max(arrived(mark, end), inside.get(at, 0))
        received = 0 < came <= end
        start = max(opened, came) if received else opened
        if (after := bisect_right(sends, start)) < len(sends) and sends[after] < end:
            end = _between(lane, start, sends[after])[1]
        if start > opened:
            start = _between(lane, start, end)[0]
        start, end = _of_kernels(lane, ranges[at]) or (start, end)
        pieces = [(mark, start, end, received)]
        if mark.second is not None:  # two actions: the backward begins with its first operator, or after a usual share
            other = arrived(mark.second, end)
            share = shares[mark.op, mark.stage, mark.second.op, mark.second.stage]
            middle = start + round(share * (end - start))
            backwards = lane.operators[2]
            if (first := int(backwards.searchsorted(start))) < len(backwards) and backwards[first] < end:
                other = int(backwards[first])
                middle = _between(lane, start, other)[1]
            pieces = [(mark, start, middle, received), (mark.second, max(middle, other), end, other > 0)]
        for one, start, end, received in pieces:
            action = Action(Op(one.op), one.stage or 0, one.microbatch or 0)
            found.append((step, one, Timed(action, opened, start, end, received)))
    return found


def _alone(lane: Lane) -> list[Range]:
    """Return the ranges of actions, none inside another; where an action's range contains it again, the inner one."""
    kept: list[Range] = []
    for each in lane.of("action"):
        if kept and each.start < kept[-1].end - SLACK:
            outer = kept.pop()
            if each.end > outer.end + SLACK or each.mark not in (outer.mark._replace(second=None), outer.mark.second):
                raise TraceError(
                    f"{lane.file}, rank {lane.rank}: {each.mark.text} begins before {outer.mark.text} has ended, and a "
                    "rank runs one action at a time: give one lane per rank, with a range per action"
                )
        kept.append(each)
    return kept


def _between(lane: Lane, start: int, end: int) -> tuple[int, int]:
    """Return the first begin and the last end of the operators between two times, or these if there are none.

    Where a message cuts a range, its record can be late: a busy machine wakes the rank only later.
    """
    begins, ends, _ = lane.operators
    first, last = int(begins.searchsorted(start)), int(ends.searchsorted(end, "right")) - 1
    if first >= len(begins) or last < 0 or not start <= begins[first] <= ends[last] <= end:
        return start, end
    return int(begins[first]), int(ends[last])


class _Shares(dict[tuple[str, int | None, str, int | None], float]):
    """The part of a pair's time that its first action takes, by the lengths of both where they are alone."""

    def __init__(self, lengths: Mapping[tuple[str, int | None], list[int]]) -> None:
        super().__init__()
        self._lengths = lengths

    def __missing__(self, key: tuple[str, int | None, str, int | None]) -> float:
        first, second = self._lengths.get(key[:2]), self._lengths.get(key[2:])
        # a forward takes about half as long as a full backward
        self[key] = median(first) / (median(first) + median(second)) if first and second and any(first) else 1 / 3
        return self[key]


def _shares(ranges: Sequence[Range]) -> _Shares:
    lengths: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    for each in ranges:
        if each.mark.second is None:
            lengths[each.mark.op, each.mark.stage].append(each.end - each.start)
    return _Shares(lengths)


def _of_kernels(lane: Lane, each: Range) -> tuple[int, int] | None:
    """Return the first begin and the last end of the kernels that a range launched; None if it launched none."""
    first, last = lane.kernels[:, 0].searchsorted((each.start, each.end))
    part = lane.kernels[first:last]
    return (int(part[:, 1].min()), int(part[:, 2].max())) if len(part) else None
