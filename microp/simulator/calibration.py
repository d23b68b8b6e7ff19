"""Derives costs from measured times, and replays a step with them.

::

    spans ── calibrate ──────► Costs ── simulate ──► spans, replayed: as measured, without noise
    rows  ── calibrate_steps ──┘
    rows and spans ── replay_steps ────────────────► spans, replayed: as the step in the middle, with its noise

The pairs of the schedule have to be those that were run as one action (`Schedule.apart` has none).
From spans that were simulated with asynchronous hops, `calibrate` returns costs that simulate to the same spans.
Other link models are not recovered: the costs that it returns always have asynchronous hops.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from operator import attrgetter
from statistics import mean, median_low
from typing import Any, NamedTuple

from microp.schedule import Action, Op, Schedule, remote_source
from microp.simulator.costs import Costs, ratio
from microp.simulator.simulation import Simulated, simulate
from microp.trace import Span, as_spans

OTHER = 1.5
LAIN = 0.1  # of the time that a tensor has lain: a shorter wait is the engine's


def schedule_of(spans: Iterable[Span], name: str, pairs: frozenset[Action] = frozenset()) -> Schedule:
    """Return the schedule that was run: each rank's actions in the order of their starts; slices count as microbatches.

    If stage 0 ran a part of the microbatches only, copies of the model ran the others.
    """
    spans = as_spans(spans)
    rows: list[list[Action]] = [[] for _ in range(int(spans.rank.max()) + 1)]
    for span in spans:
        rows[span.rank].append(span.action)
    units = int(spans.microbatch.max()) + 1
    copies, rest = divmod(units, len(set(spans.microbatch[spans.stage == 0].tolist())) or units)
    return Schedule(name, units, tuple(map(tuple, rows)), copies=1 if rest else copies, pairs=pairs)


def calibrate(schedule: Schedule, spans: Iterable[Span]) -> Costs:
    """Return the costs in `spans`: the median time of each stage's F, B, I and W, and of each hop.

    Args:
        spans: the spans of one or more steps, in any unit of time; the costs are in the same unit.
    """
    lengths: dict[tuple[int, str], list[Any]] = defaultdict(list)
    for span in (spans := as_spans(spans)):
        lengths[span.stage, span.op].append(span.end - span.start)
    return _costs(schedule, lengths, _taken(schedule, spans), 1)


def calibrate_steps(schedule: Schedule, steps: Sequence[Sequence[Mapping[str, Any]]], spans: Iterable[Span]) -> Costs:
    """Return costs in milliseconds: the median action times over several steps, and the hops of the traced step.

    Args:
        steps: for each step, the ranks' rows in the order of the ranks; see `microp.records`.
        spans: the spans of the traced step, in nanoseconds.
    """
    return _costs(schedule, _action_ms(steps), _taken(schedule, spans), 1e6)


def replay(schedule: Schedule, spans: Iterable[Span]) -> Simulated:
    """Return simulated spans of the schedule with the median times of `spans`, in any unit of time.

    A microbatch that takes `OTHER` times as long as most, or less by that factor, is one of another length, and keeps
    its times: on most stages and in most ops it takes the same multiple of the median.
    """
    spans, costs = as_spans(spans), calibrate(schedule, spans)
    if schedule.pairs:
        paired = schedule.pairs.union(schedule.partners.values())
        times: dict[Any, list[Any]] = defaultdict(list)
        for span in spans:
            times[span.stage, span.op, span.action in paired].append(span.end - span.start)
        return simulate(schedule, costs, {s.action: _median(times[s.stage, s.op, s.action in paired]) for s in spans})
    ratios: dict[int, list[Any]] = defaultdict(list)
    for span in spans:
        if usual := costs.of(span.action):
            ratios[span.microbatch].append(ratio(span.end - span.start, usual))
    shares = tuple(_median(ratios[unit]) if ratios[unit] else 1 for unit in range(schedule.units))
    if all(1 / OTHER < share < OTHER for share in shares):
        return simulate(schedule, costs)
    return simulate(schedule, replace(costs, shares=shares))


def replay_steps(schedule: Schedule, steps: Sequence[Sequence[Mapping[str, Any]]], spans: Iterable[Span]) -> Simulated:
    """Return simulated spans, in milliseconds, of the step that the middle half of the steps is like.

    ::

        a stage's F in the steps in the middle   mean 2.0 ms
        the same in the traced step              1.8  1.9  3.3  2.0    mean 2.25, so here  1.6  1.7  2.9  1.8

    The times of a stage's actions are those of the steps of middle length, on average, and vary as in the traced step.
    Variation makes a step longer, because the ranks wait for whichever is late: with one time per stage a replay is
    too short. A hop takes its time in the traced step, or the median if it cannot be timed: where ranks share cores a
    few hops take a hundred times the median. The engine's own time is the traced step's median.

    Args:
        steps: for each step, the ranks' rows in the order of the ranks; see `microp.records`.
        spans: the spans of the traced step, in nanoseconds.
    """
    taken = _taken(schedule, spans)
    costs, usual = _costs(schedule, _action_ms(steps), taken, 1e6), _action_ms(_middle_half(steps))
    alike: dict[tuple[int, str], dict[Action, Any]] = defaultdict(dict)
    for span, *_ in taken:
        alike[span.stage, span.op][span.action] = span.end - span.start
    takes: dict[Action, float] = {}
    for kind, times in alike.items():
        middle, here = mean(usual[kind]), mean(times.values())
        takes |= {action: middle * (time / here if here else 1.0) for action, time in times.items()}
    hops = {}
    for span, taker, link, made in taken:
        if link is None or made == inf:
            continue
        waited, lay = span.ready - span.wait_start, span.wait_start - made
        if lay < 0 or waited > max(costs.hop(link) * 1e6, LAIN * lay):
            hops[taker] = (span.ready - made) / 1e6  # the rank waited for it
    return simulate(schedule, costs, takes, hops)


def _action_ms(steps: Iterable[Sequence[Mapping[str, Any]]]) -> dict[tuple[int, str], list[float]]:
    """Return (stage, op) -> the times of such actions in the rows of these steps."""
    values: dict[tuple[int, str], list[float]] = defaultdict(list)
    for step in steps:
        for row in step:
            for name, milliseconds in row["action_ms"].items():
                values[int(name[:-1]), name[-1]].append(milliseconds)
    return values


def _middle_half(steps: Sequence[Sequence[Mapping[str, Any]]]) -> Sequence[Sequence[Mapping[str, Any]]]:
    """Return the steps without the shortest and the longest quarter of them."""

    def length(step: Sequence[Mapping[str, Any]]) -> int:
        return int(max(row["last_end_ns"] for row in step) - min(row["first_start_ns"] for row in step))

    ordered, left_out = sorted(steps, key=length), len(steps) // 4
    return ordered[left_out : len(steps) - left_out]


# --- medians ---------------------------------------------------------------------------------------


class _Taken(NamedTuple):
    """A span and the tensor of another rank that it took; the forward of a pair the later one of both its actions'."""

    span: Span
    taker: Action  # the action that took it: the span's, or its partner
    link: int | None  # the higher stage of the hop; None if it took none
    made: Any  # when it had been made; inf: not in spans


def _taken(schedule: Schedule, spans: Iterable[Span]) -> list[_Taken]:
    """Return the spans in the order of `Spans`, each with its input of the same step."""
    spans = list(as_spans(spans))
    ends: dict[Action, list[Any]] = defaultdict(list)
    for span in spans:
        ends[span.action].append(span.end)
    steps: Counter[Action] = Counter()
    taken = []
    partners = schedule.partners
    seconds = set(partners.values())
    for span in spans:
        action, step = span.action, steps[span.action]
        steps[action] += 1
        takers = () if action in seconds else (action, partners[action]) if action in partners else (action,)
        tensors = [_Taken(span, action, None, inf)]
        for taker in takers:
            if (source := remote_source(schedule, span.rank, taker)) is not None:
                made = ends[partners.get(source, source)]
                link = max(source.stage, taker.stage)
                tensors.append(_Taken(span, taker, link, made[step] if step < len(made) else inf))
        taken.append(max(tensors[1:], key=attrgetter("made"), default=tensors[0]))
    return taken


def _costs(
    schedule: Schedule, times: Mapping[tuple[int, str], Iterable[Any]], taken: Sequence[_Taken], unit: float
) -> Costs:
    """Return the costs with the median of the times of each (stage, op).

    Args:
        unit: the length of the unit of `times`, in that of the spans.
    """
    hops = _hops(schedule, taken)
    overhead = _overhead(schedule, taken, hops)
    medians = {key: _median(values) for key, values in times.items()}
    stages = range(schedule.stages)
    backward = tuple(medians[stage, "I" if (stage, "I") in medians else "B"] for stage in stages)
    weight = tuple(medians.get((stage, "W"), 0) for stage in stages)
    full = tuple(medians.get((stage, "B"), backward[stage] + weight[stage]) for stage in stages)
    return Costs(
        forward=tuple(medians[stage, "F"] for stage in stages),
        backward=backward,
        weight=weight,
        full=full if any((stage, "B") in medians and (stage, "I") in medians for stage in stages) else (),
        latency=tuple(ratio(hop, unit) for hop in hops),
        overhead=tuple(ratio(time, unit) for time in overhead) if any(overhead) else (),
    )


def _overhead(schedule: Schedule, taken: Sequence[_Taken], hops: Sequence[Any]) -> list[Any]:
    """Return, for each stage, the engine's own time per action: 0 if the spans were simulated without one.

    ::

        end ── gap ──► wait_start ── lead ──► ready     the gap: every action's, by stage and op its median
                                                        the lead: the shortest, of inputs that were there
    """
    gaps: dict[tuple[int, Op], list[Any]] = defaultdict(list)
    leads: dict[tuple[int, Op], list[Any]] = defaultdict(list)
    seen: set[Action] = set()
    before: Span | None = None
    for span, _, link, made in taken:
        is_first = span.action not in seen
        seen.add(span.action)
        is_next = before is not None and before.rank == span.rank and before.action not in schedule.pairs
        if before is not None and is_next and span.wait_start >= before.end and is_first:
            gaps[before.stage, before.op].append(span.wait_start - before.end)
        before = span
        if link is None or made + hops[link] <= span.wait_start:  # it was there
            leads[span.stage, span.op].append(span.ready - span.wait_start)
    shortest = {key: [min(times)] * len(times) for key, times in leads.items()}  # in others there may be some of a hop
    return [_mean_of_medians(gaps, stage) + _mean_of_medians(shortest, stage) for stage in range(schedule.stages)]


def _mean_of_medians(values: Mapping[tuple[int, Op], Sequence[Any]], stage: int) -> Any:
    """Return the mean over a stage's ops of the median time, weighted by their actions."""
    of_stage = {key: times for key, times in values.items() if key[0] == stage and times}
    medians = {key: _median(times) for key, times in of_stage.items()}
    if len(set(medians.values())) <= 1:
        return next(iter(medians.values()), 0)
    total = sum(map(len, of_stage.values()))
    return sum(medians[key] * len(times) for key, times in of_stage.items()) / total


def _hops(schedule: Schedule, taken: Sequence[_Taken]) -> list[Any]:
    """Return, for each stage, the time of a hop between it and the stage before it.

    A hop can be timed if the consumer was waiting before the tensor was made: it lasts from the
    producer's end to the moment at which the consumer had the tensor. A link takes the median of its
    timed hops. A link without timed hops takes the shortest time from `made` to `ready` if a consumer
    waited on it for longer than overhead explains, else the smaller of that and the median of all links.

    ::

        made ──── hop ────► ready          timed: the consumer waits before `made`
          wait_start ─────► ready          the same time, but some of the wait may be overhead
                    wait_start = ready     the tensor had arrived: the hop took at most this time
    """
    timed: dict[int, list[Any]] = defaultdict(list)
    seen: dict[int, list[tuple[Any, Any]]] = defaultdict(list)  # link -> (made to ready, wait_start to ready)
    for span, _, link, made in taken:
        if link is None or made == inf:
            continue
        seen[link].append((span.ready - made, span.ready - span.wait_start))
        if span.wait_start < made:
            timed[link].append(span.ready - made)
    # If no action without a message begins later than its rank is free, the spans have no overhead.
    late = any(span.ready > span.wait_start for span, _, link, _ in taken if link is None)
    typical = median_low([hop for hops in timed.values() for hop in hops]) if timed else inf
    overhead = typical if late else 0

    def hop(link: int) -> Any:
        if link in timed:
            return _median(timed[link])
        if link not in seen:
            return 0
        shortest = min(hop for hop, _ in seen[link])
        return shortest if any(wait > overhead for _, wait in seen[link]) else min(typical, shortest)

    return [max(0, hop(stage)) for stage in range(schedule.stages)]


def _median(values: Iterable[Any]) -> Any:
    """Return the median; it keeps the values' type if the two in the middle are equal."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low if low == high else (low + high) / 2
