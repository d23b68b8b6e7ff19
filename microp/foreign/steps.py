"""Makes steps of what ranks did: steps told apart, waits taken off, each action once, on one clock.

::

    Forward 3   │ gloo:recv ▒▒▒▒│████████│ gloo:send │      a range may contain its receive and its send:
                                └── F3 ──┘                  the action is what lies between

    rank 0's clock   ··F0▐···········B0        o(1) - o(0) is at least as large that F0 of rank 1 starts after rank 0's,
    rank 1's clock   ····▐F0···B0▐···          and at most so large that B0 of rank 0 starts after rank 1's

Clocks are aligned by what must hold: no receive ends before its send began. The bounds of a step are closed under
addition (longest paths between the clocks), which also shows contradictions. If the clocks meet them as they are, they
are left so; else each is put in the middle of its bounds, which meets them all, because the lower and the upper ones
do. The residual is the most by which a clock may still be off. Each step is aligned by itself, so that drift does not
add up.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from inspect import signature
from itertools import pairwise, permutations
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from microp.foreign.reading import OPS, Lane, Mark, Range, TraceError
from microp.schedule import Action, Op, Schedule, remote_source, validate
from microp.schedule.builders import LOOPED, ORDERS, Drain
from microp.simulator import schedule_of
from microp.trace import Span, makespan

FOREIGN = "foreign"  # what microp did not make: an order, the engine, the model
EXIT = 100_000  # nanoseconds that the profiler may take between an action's end and the end of its range
MOST = 0.005  # of a step: a contradiction that is noise
SLACK = 1_000  # nanoseconds by which ranges may overlap: files round to a microsecond


class RankStep(NamedTuple):
    """What one rank did in one step, in nanoseconds: on the clock of its file until `align` has moved it."""

    spans: list[Span]  # in the order of time; until then, `wait_start` is when the action's range began
    began: int
    ended: int  # the end of its optimizer, or else of its last action
    optimizer: int  # how long that took


class Traced(NamedTuple):
    """The whole steps of a trace."""

    schedule: Schedule  # the order of the last step, with its name if it is one that microp builds
    lanes: list[Lane]  # of each rank
    notes: list[str]  # what was left out or changed, what the times are, and what can still be wrong
    steps: dict[int, list[RankStep]]  # number of the step -> what each rank did
    clocks: str = ""  # how well the clocks agree, as a sentence

    @property
    def spans(self) -> dict[int, list[Span]]:
        """The spans of each step, rank by rank."""
        return {step: [span for row in rows for span in row.spans] for step, rows in self.steps.items()}

    @property
    def middle(self) -> int:
        """The position of the step of middle length among those with the actions of the order."""
        actions = {action for _, action in self.schedule}
        every = list(self.spans.values())
        alike = [at for at, spans in enumerate(every) if {span.action for span in spans} == actions]
        return sorted(alike, key=lambda at: makespan(every[at]))[(len(alike) - 1) // 2]

    @property
    def device(self) -> str:
        """Where the actions ran: `cuda` or `cpu`."""
        return "cuda" if any(len(lane.kernels) for lane in self.lanes) else "cpu"


def make_steps(lanes: Sequence[Lane], notes: Sequence[str] = ()) -> Traced:
    """Return the whole steps of the lanes, on the ranks' own clocks; TraceError: none is whole, or ranks lack."""
    lanes, notes = _in_order(lanes, notes)
    # 1. the steps that all ranks have
    ranks = [_steps_of(lane) for lane in lanes]
    reach = [(min(row.began for row in rows.values()), max(row.ended for row in rows.values())) for rows in ranks]
    for (one, (_, end)), (other, (begin, _)) in permutations(zip(lanes, reach, strict=True), 2):
        if one.host == other.host != "" and end < begin:
            raise TraceError(f"{one.name} ends before {other.name} begins, on one clock: give the traces of one launch")
    common = sorted(set.intersection(*map(set, ranks)))
    if len({len(steps) for steps in ranks}) > 1:
        said = f"steps by rank: {', '.join(str(len(steps)) for steps in ranks[:16])}"
        if not all(lane.of("step") for lane in lanes):
            raise TraceError(f"{said}: which belong together is not known; give whole traces, or profile with step()")
        notes.append(f"{said}: the {len(common)} that all ranks have are read")
    # 2. those of them that are whole
    whole, faults, orders = dict[int, list[RankStep]](), list[str](), list[Schedule]()
    sizes = Counter(1 + max(span.microbatch for steps in ranks for span in steps[step].spans) for step in common)
    for step in common:
        rows = [steps[step] for steps in ranks]
        order = tuple(tuple(span.action for span in row.spans) for row in rows)
        copies = schedule_of([span for row in rows for span in row.spans], FOREIGN).copies
        schedule = Schedule(FOREIGN, sizes.most_common(1)[0][0], order, copies=copies)
        try:
            if all(span.end <= span.start for row in rows for span in row.spans):
                raise ValueError("step: no action takes any time")
            orders.append(validate(schedule))
            whole[step] = rows
        except ValueError as error:
            problem = str(error).partition("\n")[0].partition(": ")[2]
            stage = re.search(r"\d+(?=[FBIW]\d)", problem)
            lane = lanes[schedule.placement.get(int(stage[0]), 0) if stage else 0]
            faults.append(f"step {step}: {problem} ({lane.name})")
    if not whole:
        why = faults[0] if faults else "the ranks have none in common"
        raise TraceError(f"no step is whole: {why}: give the whole traces of all ranks of one pipeline")
    notes += [f"left out: {fault}" for fault in faults]
    notes += _missing_receives(lanes, whole, orders[-1])
    if (count := len({order.ranks for order in orders})) > 1:
        notes.append(f"the {len(orders)} steps ran {count} orders: the last one is drawn and replayed")
    if any(len(lane.kernels) for lane in lanes):
        notes.append("an action lasts from the begin of its first GPU kernel to the end of its last one")
    return Traced(_named(orders[-1]), lanes, notes, whole)


def _missing_receives(lanes: Sequence[Lane], whole: dict[int, list[RankStep]], order: Schedule) -> list[str]:
    """Return which ranks lack receives in a step; refuse the ranks if one has more than the others send it."""
    shares, notes = list[float](), list[str]()  # receives of each rank per input that it needs of another rank
    for rank, (lane, *rows) in enumerate(zip(lanes, *whole.values(), strict=True)):
        ends = [each.end for each in lane.of("receive")]
        counts = [sum(row.began <= end <= row.ended for end in ends) for row in rows]
        if (least := min(counts)) < (usual := Counter(counts).most_common(1)[0][0]):
            notes.append(f"{lane.name}: {least} receives in a step, {usual} in most: a wait may count as compute")
        shares.append(usual / max(1, sum(map(bool, (remote_source(order, rank, each) for each in order.ranks[rank])))))
    if lanes[0].world > len(lanes) and (len(lanes) == 1 or max(shares) > 1.5 * min(shares) > 0):
        most = lanes[shares.index(max(shares))].rank
        raise TraceError(f"rank {most} works with ranks that are not given: give all ranks of one pipeline")
    return notes


def _in_order(lanes: Sequence[Lane], notes: Sequence[str]) -> tuple[list[Lane], list[str]]:
    """Return the lanes in the pipeline's order, with a stage for each action; refuse them if ranks may be missing."""
    ranks, world = [lane.rank for lane in lanes], max(lane.world for lane in lanes)
    given = f"ranks {', '.join(map(str, ranks[:8]))}{f' of {world}' if world else ''}"
    is_part = world not in (0, len(lanes))
    notes = [*notes, *[f"{given} are read as one whole pipeline"] * is_part]
    if all(each.mark.stage is not None for lane in lanes for each in lane.of(*OPS)):
        firsts = [lane.rank if lane.is_exact else min(each.mark.stage or 0 for each in lane.of(*OPS)) for lane in lanes]
        return [lane for _, lane in sorted(zip(firsts, lanes, strict=True), key=itemgetter(0))], notes
    is_even = len({after - before for before, after in pairwise(ranks)}) == 1 and world and world % len(lanes) == 0
    if not is_even and (is_part or ranks != list(range(len(lanes)))):
        raise TraceError(f"{given} are given ({lanes[0].file}, ...), and no stages: give all ranks of one pipeline")
    for stage, lane in enumerate(lanes):
        marks = (each.mark if each.mark.stage is not None else each.mark._replace(stage=stage) for each in lane.ranges)
        lane.ranges[:] = [each._replace(mark=mark) for each, mark in zip(lane.ranges, marks, strict=True)]
    return list(lanes), notes


def _named(schedule: Schedule) -> Schedule:
    """Return an order with its name, if microp builds it."""
    for name, build in ORDERS.items():
        looped = {"stages_per_rank": schedule.stages // len(schedule.ranks)} if name in LOOPED else {}
        takes = signature(build).parameters
        divisors = [number for number in range(2, schedule.chunks) if schedule.chunks % number == 0]
        ways: list[dict[str, Any]] = [{}, {"drain": Drain.lifo}, *({"slices": number} for number in divisors)]
        for own in (way for way in ways if way.keys() <= takes.keys()):
            try:
                chunks = schedule.chunks // own.get("slices", 1)
                if (built := build(len(schedule.ranks), chunks, **looped, **own)).ranks == schedule.ranks:
                    return replace(built.apart, ranks=schedule.ranks)  # other engines run F, then B
            except ValueError:  # it is not for these ranks and chunks
                continue
    return schedule


def _steps_of(lane: Lane) -> dict[int, RankStep]:
    """Return what a rank did by step: the profiler's, the file's, or from one optimizer or repetition to the next."""
    optimizers, windows = lane.of("optimizer"), lane.of("step")
    begins = [each.start for each in windows or optimizers]
    found, counts = defaultdict[int, list[Span]](list), Counter[tuple[int, str, int]]()
    repeated, seen = 0, set[tuple[int, Action]]()
    for mark, span in _spans(lane):
        # 1. the step of the action, and its microbatch where its name has none
        at, action = bisect_right(begins, span.wait_start), span.action
        if windows and (not at or span.wait_start >= windows[at - 1].end):
            continue  # outside of the steps
        if mark.microbatch is None:
            action = action._replace(microbatch=counts[at, mark.op, action.stage])
            counts[at, mark.op, action.stage] += 1
        if not begins:
            repeated += (repeated, action) in seen
            seen.add((repeated, action))
        found[at + repeated].append(span._replace(microbatch=action.microbatch))
    # 2. when the steps began and ended
    steps, untils = {}, [each[0].wait_start for each in found.values()]
    for at, actions, later in zip(found, found.values(), [*untils[1:], None], strict=True):
        window, last = windows[at - 1] if windows else None, max(each.end for each in actions)
        until = window.end if window else later
        own = [each for each in optimizers if last - SLACK <= each.start and (until is None or each.start < until)]
        began, ended = window.start if window else actions[0].wait_start, max([last, *(each.end for each in own)])
        number = at if window is None or window.mark.microbatch is None else window.mark.microbatch
        steps[number] = RankStep(actions, began, ended, sum(each.end - each.start for each in own))
    return steps


def _spans(lane: Lane) -> Iterator[tuple[Mark, Span]]:
    """Yield the mark and the span of each action, without its waits: it begins where the receive before it ended."""
    receives, sends = sorted(each.end for each in lane.of("receive")), [each.start for each in lane.of("send")]
    for opened, closed, mark, waits in _alone(lane):
        if waits:
            place = lane.rank, Op(mark.op), mark.stage or 0, mark.microbatch or 0
            yield mark, Span(*place, waits[0], waits[1], opened, closed)
            continue
        parts = [(mark, opened, closed)]
        if mark.second is not None:  # a pair is cut where its backward has the first operator, or after a third
            first, last = lane.backwards.searchsorted((opened, closed))
            third = opened + (closed - opened) // 3
            middle = third if first == last else _last_operator(lane, opened, int(lane.backwards[first]))
            parts = [(mark, opened, middle), (mark.second, middle, closed)]
        for one, start, until in parts:
            end = max(_last_operator(lane, start, until), until - EXIT)
            if at := bisect_right(receives, until):
                start = max(start, receives[at - 1])
            if (after := bisect_right(sends, start)) < len(sends) and sends[after] < until:
                end = _last_operator(lane, start, sends[after])
            first, last = lane.kernels[:, 0].searchsorted((start, until))
            if first < last:  # it launched kernels
                start, end = int(lane.kernels[first:last, 1].min()), int(lane.kernels[first:last, 2].max())
            yield one, Span(lane.rank, Op(one.op), one.stage or 0, one.microbatch or 0, opened, start, start, end)


def _alone(lane: Lane) -> list[Range]:
    """Return the ranges of actions, none inside another; where an action's range contains it again, the inner one."""
    kept: list[Range] = []
    for each in lane.of(*OPS):
        if kept and each.start < kept[-1].end - SLACK:
            outer = kept.pop()
            if each.end > outer.end + SLACK or each.mark not in (outer.mark._replace(second=None), outer.mark.second):
                action, other = ("{1}{0}{2}".format(*one.mark).replace("None", "") for one in (each, outer))
                raise TraceError(f"{lane.name}: {action} begins before {other} has ended: give one lane per rank")
        kept.append(each)
    return kept


def _last_operator(lane: Lane, start: int, end: int) -> int:
    """Return when the last operator between two times ended, or the later time: a busy machine records a send late."""
    at = int(lane.operators.searchsorted(end, "right")) - 1
    return int(lane.operators[at]) if at >= 0 and lane.operators[at] > start else end


def align(found: Traced) -> Traced:
    """Return the steps on one clock; TraceError: in no step the bounds can be met."""
    if all(lane.is_exact for lane in found.lanes):
        return found._replace(clocks="one clock")
    files = list(dict.fromkeys(lane.file for lane in found.lanes))
    clocks, schedule = [files.index(lane.file) for lane in found.lanes], found.schedule
    steps, left_out, residual, corrected, is_late = dict[int, list[RankStep]](), list[str](), 0.0, 0.0, False
    for step, rows in found.steps.items():
        # 1. the bounds; ranges may contain waits: then only their ends are certain
        most = MOST * max(row.ended - row.began for row in rows)
        least, action, off = _bounds(schedule, rows, clocks, "start")
        if has_waits := off > most:
            least, action, off = _bounds(schedule, rows, clocks, "end")
        if off > most:
            early = f"{action} ends {off / 1e6:.3g} ms before its input was made, whatever the clocks"
            left_out.append(f"left out: step {step}: {early}")
            continue
        # 2. the offset of each clock, and by how much one may be off; noise is shared out
        least = least - off
        low, high = np.append(0.0, least[0, 1:]), np.append(0.0, -least[1:, 0])
        is_met = bool((least <= 0).all())
        offsets = np.zeros(len(files)) if is_met else (low + high) / 2
        free = np.maximum(-low, high) if is_met else (high - low) / 2
        residual, corrected = max(residual, float(free.max())), max(corrected, float(np.abs(offsets).max()))
        # 3. the step with them
        steps[step], moved = _moved(schedule, rows, [int(offsets[clock]) for clock in clocks])
        is_late = is_late or has_waits or moved > most / 50
    if not steps:
        raise TraceError(f"no step can be used; {left_out[0]}: give each rank's own trace")
    late = "some actions begin before their input was made: the wait is taken off, but not the transfer"
    how = f"corrected by up to {corrected / 1e6:.4g} ms" if corrected else "left as they are"
    text = f"clocks {how}: no receive ends before its send began; they agree within {residual / 1e6:.3g} ms"
    notes = [*found.notes, *left_out, *[late] * is_late]
    return found._replace(steps=steps, notes=notes, clocks=text if len(files) > 1 else "one clock")


def _bounds(schedule: Schedule, rows: Sequence[RankStep], clocks: Sequence[int], moment: str) -> tuple[Any, str, float]:
    """Return [a, b], the least o(b) - o(a), for all pairs of clocks, and the worst action with its contradiction.

    `moment`: what of an action comes after its input was made, its `start` or only its `end`.
    """
    zero = min(row.began for row in rows)
    ends = {span.action: span.end - zero for row in rows for span in row.spans}
    least, needs = np.full((max(clocks) + 1,) * 2, -np.inf), [(0, "an action")]
    for rank, row in enumerate(rows):
        for span in row.spans:
            if (source := remote_source(schedule, rank, span.action)) is not None:
                needs.append((ends[source] - (getattr(span, moment) - zero), str(span.action)))
                pair = clocks[schedule.placement[source.stage]], clocks[rank]
                least[pair] = max(least[pair], needs[-1][0])
    np.fill_diagonal(least, np.maximum(least.diagonal(), 0))
    for middle in range(len(least)):
        least = np.maximum(least, least[:, middle, None] + least[None, middle, :])
    return least, max(needs)[1], float(least.diagonal().max())


def _moved(schedule: Schedule, rows: Sequence[RankStep], by: Sequence[int]) -> tuple[list[RankStep], int]:
    """Return a step with its clocks moved, no action before its input, and the most by which one had to be moved.

    A rank waits for an input of another rank from the end of the action before, as `engine=torch` counts it, or from
    the begin of the step, which is that of the first action where no range tells it; what else lies between two actions
    is the host's time.
    """
    ends = {span.action: span.end + offset for row, offset in zip(rows, by, strict=True) for span in row.spans}
    step, most = list[RankStep](), 0
    first = min(row.spans[0].start + offset for row, offset in zip(rows, by, strict=True))
    for rank, (row, offset) in enumerate(zip(rows, by, strict=True)):
        began = first if row.began == row.spans[0].wait_start else row.began + offset
        spans, free = list[Span](), began
        for span in row.spans:
            start, end, source = span.start + offset, span.end + offset, remote_source(schedule, rank, span.action)
            begin = max(free, start if source is None else min(max(start, ends[source]), end))
            most, wait = max(most, begin - start), begin if source is None else free
            free = max(end, begin)
            spans.append(Span(rank, *span.action, wait, begin, begin, free))
        step.append(row._replace(spans=spans, began=began, ended=row.ended + offset))
    return step, most
