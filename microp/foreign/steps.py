"""Makes steps of what ranks did: steps told apart, waits taken off, each action once, on one clock.

::

    Forward 3   │ gloo:recv ▒▒▒▒│████████│ gloo:send │      a range may contain its receive and its send:
                                └── F3 ──┘                  the action is what lies between

    rank 0's clock   ··F0▐···········B0        o(1) - o(0) is at least as large that F0 of rank 1 starts after rank 0's,
    rank 1's clock   ····▐F0···B0▐···          and at most so large that B0 of rank 0 starts after rank 1's

Clocks are aligned by what must hold: no receive ends before its send began. The bounds of a step are closed under
addition (longest paths between the clocks). If the clocks meet them as they are, they are left so; else each is put in
the middle of its bounds, which meets them all. Each step is aligned by itself, so that drift does not add up.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import ChainMap, Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from math import inf
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np

from microp.foreign.reading import OPS, Lane, Mark, Range, TraceError
from microp.schedule import Action, Op, Schedule, remote_links, validate
from microp.schedule.builders import Drain, orders
from microp.simulator import schedule_of
from microp.trace import Span, makespan

FOREIGN = "foreign"  # what microp did not make: an order, the engine, the model
MOST = 0.005  # of a step: a contradiction that is noise
UNSURE = 0.05  # of a step: clocks that may be off by more, and bubbles with them, are said to be disturbed
SLACK = 1_000  # nanoseconds by which ranges may overlap: files round to a microsecond
Sources = Mapping[Action, Action]  # an action -> that of another rank whose tensor it takes


class RankStep(NamedTuple):
    """What one rank did in one step, in nanoseconds: on the clock of its file until `align` has moved it."""

    spans: list[Span]  # in the order of time; until then, `wait_start` is when the action's range began
    began: int
    ended: int  # the end of its optimizer, or else of its last action
    optimizer: int  # how long that took
    sends: dict[Mark, int]  # when torch began to send, where the trace tells it: after both actions of a pair


class Traced(NamedTuple):
    """The whole steps of a trace, which ran the same order."""

    schedule: Schedule  # with its name if it is one that microp builds
    lanes: list[Lane]  # of each rank
    notes: list[str]  # what was left out or changed, what the times are, and what can still be wrong
    steps: dict[int, list[RankStep]]  # number of the step -> what each rank did
    device: str  # where the actions ran: `cuda` or `cpu`
    clocks: str = ""  # how well the clocks agree, as a sentence

    @property
    def spans(self) -> dict[int, list[Span]]:
        """The spans of each step, rank by rank."""
        return {step: [span for row in rows for span in row.spans] for step, rows in self.steps.items()}

    @property
    def middle(self) -> int:
        """The position of the step of middle length."""
        lengths = [makespan(spans) for spans in self.spans.values()]
        return lengths.index(median_low(lengths))


def make_steps(lanes: Sequence[Lane], notes: Sequence[str] = ()) -> Traced:
    """Return the whole steps of the lanes, on the ranks' own clocks; TraceError: none is whole, or ranks lack."""
    lanes, notes = _in_order(lanes, notes)
    # 1. the steps that all ranks have
    ranks = [_steps_of(rank, lane) for rank, lane in enumerate(lanes)]
    reach = [(min(row.began for row in rows.values()), max(row.ended for row in rows.values())) for rows in ranks]
    for (one, (_, end)), (other, (begin, _)) in permutations(zip(lanes, reach, strict=True), 2):
        if one.host == other.host != "" and end < begin:
            raise TraceError(f"{one.name} ends before {other.name} begins, on one clock: give the traces of one launch")
    common = sorted(set.intersection(*map(set, ranks)))
    if len({*map(len, ranks)}) > 1:
        said = f"steps by rank: {', '.join(str(len(steps)) for steps in ranks[:16])}"
        if not all(lane.of("step") for lane in lanes):
            raise TraceError(f"{said}: which belong together is not known; give whole traces, or profile with step()")
        notes.append(f"{said}: the {len(common)} that all ranks have are read")
    # 2. those of them that are whole and ran the order of most
    rows = {step: [steps[step] for steps in ranks] for step in common}
    ran = {step: schedule_of((span for row in rows[step] for span in row.spans), FOREIGN) for step in common}
    whole, faults = dict[int, Schedule](), list[str]()
    for step, order in ran.items():
        try:
            if all(span.end <= span.start for row in rows[step] for span in row.spans):
                raise ValueError("step: no action takes any time")
            actions = tuple(tuple(span.action for span in row.spans) for row in rows[step])  # as the host ran them
            whole[step] = validate(replace(order, ranks=actions))
        except ValueError as error:
            problem = str(error).partition("\n")[0].partition(": ")[2]
            stage = re.search(r"\d+(?=[FBIW]\d)", problem)
            lane = lanes[order.placement.get(int(stage[0]), 0) if stage else 0]
            faults.append(f"step {step}: {problem} ({lane.name})")
    if not whole:
        why = [*faults, "the ranks have none in common"][0]
        raise TraceError(f"no step is whole: {why}: give whole traces of all ranks, made with microp.marked")
    schedule = Counter(whole.values()).most_common(1)[0][0]
    faults += [f"step {step}: its order is not that of most steps" for step in whole if whole[step] != schedule]
    kept = {step: rows[step] for step in whole if whole[step] == schedule}
    # 3. what there is to say about them
    notes += [*(f"left out: {fault}" for fault in faults), *_missing_receives(lanes, kept, schedule)]
    has_kernels = any(len(lane.kernels) for lane in lanes)
    notes += ["an action with GPU kernels lasts as long as these, one without as long as its range"] * has_kernels
    return Traced(_named(schedule), lanes, notes, kept, "cuda" if has_kernels else "cpu")


def _missing_receives(lanes: Sequence[Lane], whole: dict[int, list[RankStep]], order: Schedule) -> list[str]:
    """Return which ranks lack receives in a step; refuse the ranks if one has more than the others send it."""
    shares, notes = list[float](), list[str]()  # receives of each rank per input that it needs of another rank
    takers = [taker for _, taker in remote_links(order).values()]
    for rank, (lane, *rows) in enumerate(zip(lanes, *whole.values(), strict=True)):
        counts = [sum(row.began <= each.end <= row.ended for each in lane.of("receive")) for row in rows]
        if (least := min(counts)) < (usual := Counter(counts).most_common(1)[0][0]):
            notes.append(f"{lane.name}: {least} receives in a step, {usual} in most: a wait may count as compute")
        shares.append(usual / max(1, takers.count(rank)))
    if lanes[0].world > len(lanes) and (len(lanes) == 1 or max(shares) > 1.5 * min(shares) > 0):
        most = lanes[shares.index(max(shares))].rank
        raise TraceError(f"rank {most} works with ranks that are not given: give all ranks of one pipeline")
    return notes


def _in_order(lanes: Sequence[Lane], notes: Sequence[str]) -> tuple[list[Lane], list[str]]:
    """Return the lanes in the pipeline's order; refuse them if ranks may be missing."""
    ranks, world = [lane.rank for lane in lanes], max(lane.world for lane in lanes)
    given, is_part = f"ranks {', '.join(map(str, ranks[:8]))}{f' of {world}' if world else ''}", world > len(lanes)
    notes = [*notes, *[f"{given} are read as one whole pipeline"] * is_part]
    if all(each.mark.stage is not None for lane in lanes for each in lane.of(*OPS)):
        firsts = [lane.rank if lane.is_exact else min(each.mark.stage or 0 for each in lane.of(*OPS)) for lane in lanes]
        return [lanes[at] for _, at in sorted(zip(firsts, range(len(lanes)), strict=True))], notes
    is_even = len({after - before for before, after in pairwise(ranks)}) == 1 and world % len(lanes) == 0
    if not (is_even if is_part else ranks == list(range(len(lanes)))):
        raise TraceError(f"{given} are given ({lanes[0].file}, ...), and no stages: give all ranks of one pipeline")
    return list(lanes), notes


def _named(schedule: Schedule) -> Schedule:
    """Return an order with its name, if microp builds it."""
    ranks, units = len(schedule.ranks), schedule.chunks
    ways: list[dict[str, Any]] = [{}, {"drain": Drain.lifo}, *({"slices": n} for n in range(2, units) if not units % n)]
    for way in ways:
        for built in orders(ranks, units // way.get("slices", 1), schedule.stages // ranks, **way):
            if built.ranks == schedule.ranks:
                return built.apart  # other engines run F, then B
    return schedule


def _steps_of(rank: int, lane: Lane) -> dict[int, RankStep]:
    """Return what a rank did by step: the profiler's, the file's, or from one optimizer or repetition to the next."""
    optimizers, windows = lane.of("optimizer"), lane.of("step")
    begins = [each.start for each in windows or optimizers]
    found, counts = defaultdict[int, list[Span]](list), Counter[tuple[int, Action]]()
    repeated, seen = 0, set[tuple[int, Action]]()
    for mark, span in _spans(rank, lane):
        # 1. the step of the action, and its microbatch where its name has none
        at, action = bisect_right(begins, span.wait_start), span.action
        if windows and (not at or span.wait_start >= windows[at - 1].end):
            continue  # outside of the steps
        if mark.microbatch is None:
            action = action._replace(microbatch=counts[at, action])
            counts[at, span.action] += 1
        if not begins:
            repeated += (repeated, action) in seen
            seen.add((repeated, action))
        found[at + repeated].append(span._replace(microbatch=action.microbatch))
    if not found:
        raise TraceError(f"{lane.name}: no action lies within its steps: put profiler.step() around whole steps")
    # 2. when the steps began and ended
    steps, laters = {}, [each[0].wait_start for each in found.values()][1:]
    for at, spans, later in zip(found, found.values(), [*laters, inf], strict=True):
        last = max(span.end for span in spans)
        own = [each for each in optimizers if last - SLACK <= each.start < later]
        window = windows[at - 1] if windows else Range(spans[0].wait_start, last, Mark("step", microbatch=at))
        ended = max([last, *(each.end for each in own)])
        number = at if window.mark.microbatch is None else window.mark.microbatch
        sends = {each.mark: each.start for each in lane.of("SEND_F", "SEND_B") if window.start <= each.start <= ended}
        steps[number] = RankStep(spans, window.start, ended, sum(each.end - each.start for each in own), sends)
    return steps


def _spans(rank: int, lane: Lane) -> Iterator[tuple[Mark, Span]]:
    """Yield the mark and the span of each action, from the end of the receive before it to its last operator."""
    receives, operators = sorted(each.end for each in lane.of("receive")), lane.operators
    for opened, closed, mark, waits, is_bare in _alone(rank, lane):
        action = Op(mark.op), mark.stage or 0, mark.microbatch or 0
        if waits:
            yield mark, Span(rank, *action, waits[0], waits[1], opened, closed)
            continue
        start, end = opened, closed
        if at := bisect_right(receives, closed):
            start = max(start, receives[at - 1])
        if not is_bare and (at := int(operators.searchsorted(closed, "right"))) and operators[at - 1] > start:
            end = int(operators[at - 1])  # torch ends a range later, and a busy machine records a send in it late
        first, last = lane.kernels[:, 0].searchsorted((start, closed))
        if first < last:  # it launched kernels
            start, end = int(lane.kernels[first:last, 1].min()), int(lane.kernels[first:last, 2].max())
        yield mark, Span(rank, *action, opened, start, start, end)


def _alone(rank: int, lane: Lane) -> list[Range]:
    """Return the ranges of actions, none inside another; where torch's range of one contains a marked one, that."""
    kept: list[Range] = []
    for each in lane.of(*OPS):
        if each.mark.stage is None:
            each = each._replace(mark=each.mark._replace(stage=rank))
        if kept and each.start < kept[-1].end - SLACK:
            outer = kept.pop()
            if each.end > outer.end + SLACK or each.mark != outer.mark or outer.is_bare or not each.is_bare:
                action, other = ("{1}{0}{2}".format(*one.mark).replace("None", "") for one in (each, outer))
                raise TraceError(f"{lane.name}: {action} begins before {other} has ended: give one lane per rank")
        kept.append(each)
    return kept


def align(found: Traced) -> Traced:
    """Return the steps on one clock; TraceError: in no step the bounds can be met."""
    if all(lane.is_exact for lane in found.lanes):
        return found._replace(clocks="one clock")
    files, schedule = list(dict.fromkeys(lane.file for lane in found.lanes)), found.schedule
    clocks, steps, left_out = [files.index(lane.file) for lane in found.lanes], dict[int, list[RankStep]](), list[str]()
    sources = {schedule.consumers[made]: made for made in remote_links(schedule)}
    residual = corrected = length = 0.0
    for step, rows in found.steps.items():
        # 1. the bounds
        least, action, off = _bounds(rows, sources, clocks)
        if off > MOST * (length := max(row.ended - row.began for row in rows)):
            where = found.lanes[schedule.placement[action.stage]].name if action else ""
            early = f"{action} ({where}) begins {off / 1e6:.3g} ms before its input was made"
            left_out.append(f"left out: step {step}: {early}")
            continue
        # 2. the offset of each clock, and by how much one may be off; noise is shared out
        least = least - off
        np.fill_diagonal(least, 0)
        low, high, is_met = least[0], -least[:, 0], bool((least <= 0).all())
        offsets = np.zeros(len(files)) if is_met else (low + high) / 2
        residual = max(residual, float((np.maximum(-low, high) if is_met else (high - low) / 2).max()))
        corrected = max(corrected, float(np.abs(offsets).max()))
        # 3. the step with them
        steps[step] = _moved(rows, sources, [int(offsets[clock]) for clock in clocks])
    if not steps:
        raise TraceError(f"no step can be used; {left_out[0]}: use microp.marked, or mark actions without their waits")
    how = f"corrected by up to {corrected / 1e6:.4g} ms" if corrected else "left as they are"
    text = f"clocks {how}: no receive ends before its send began; they agree within {residual / 1e6:.3g} ms"
    if residual > UNSURE * length and (corrected or len({lane.host or lane.file for lane in found.lanes}) > 1):
        left_out += [f"disturbed: clocks may be off by {100 * residual / length:.0f} % of a step: synchronise them"]
    return found._replace(steps=steps, notes=found.notes + left_out, clocks=text if len(files) > 1 else "one clock")


def _bounds(rows: Sequence[RankStep], sources: Sources, clocks: Sequence[int]) -> tuple[Any, Action | None, float]:
    """Return [a, b], the least o(b) - o(a), for all pairs of clocks, and the worst action with its contradiction."""
    spans, sends = {span.action: span for row in rows for span in row.spans}, ChainMap(*(row.sends for row in rows))
    least, needs = np.full((max(clocks) + 1,) * 2, -np.inf), dict[Action, int]()
    for action, source in sources.items():
        send = Mark(f"SEND_{'F' if source.op is Op.F else 'B'}", source.stage, source.microbatch)
        needs[action] = max(spans[source].end, sends.get(send, 0)) - spans[action].start
        pair = clocks[spans[source].rank], clocks[spans[action].rank]
        least[pair] = max(least[pair], needs[action])
    np.fill_diagonal(least, np.maximum(least.diagonal(), 0))
    for middle in range(len(least)) if len(least) > 1 else ():
        least = np.maximum(least, least[:, middle, None] + least[None, middle, :])
    return least, max(needs, key=needs.__getitem__, default=None), float(least.diagonal().max())


def _moved(rows: Sequence[RankStep], sources: Sources, by: Sequence[int]) -> list[RankStep]:
    """Return a step with its clocks moved, in which no action begins before its input was made.

    A rank waits for an input from the end of the action before, as `engine=torch` has it, or from the begin of the
    step, which is that of the first action where no range tells it; else it is the host's time.
    """
    ends = {span.action: span.end + offset for row, offset in zip(rows, by, strict=True) for span in row.spans}
    step, first = list[RankStep](), min(row.spans[0].start + offset for row, offset in zip(rows, by, strict=True))
    for rank, (row, offset) in enumerate(zip(rows, by, strict=True)):
        began = first if row.began == row.spans[0].wait_start else row.began + offset
        spans, free = list[Span](), began
        for span in row.spans:
            start, end, takes = span.start + offset, span.end + offset, span.action in sources
            begin = max(free, min(max(start, ends[sources[span.action]]), end) if takes else start)
            wait, free = free if takes else begin, max(end, begin)
            spans.append(Span(rank, *span.action, wait, begin, begin, free))
        step.append(row._replace(spans=spans, began=began, ended=row.ended + offset))
    return step
