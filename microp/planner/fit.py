"""Fits the times of layers to the samples of a profile's cases.

::

    a stage's time = (fixed + layers of each kind x their times) x alternating x alone

Times are fitted by least squares of the relative error, separately at each number of rows, and are never negative.
The factors are medians of ratios between samples that differ only in what ran before, or in what ran beside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from microp.planner.profile import Transport, interpolate
from microp.planner.samples import BACKWARD, CHECKPOINTED, FORWARD, FULL, RECOMPUTED, WEIGHT, Between, Sample
from microp.settings import MIB

ROUNDS = 3  # the factors and the times are fitted in turn
Table = dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class Fitted:
    """Times and factors, one value per number of rows; see `Profile`."""

    rows: tuple[float, ...]
    layers: dict[int, Table]
    fixed: Table
    alternating: Table
    checkpointed: tuple[float, ...]
    alone: tuple[float, ...]
    spread: dict[str, float]


def fit_times(together: Sequence[Sample], alone: Sequence[Sample], kinds: Sequence[int]) -> Fitted:
    """Return the times of each kind of layer.

    Args:
        together: the samples of cases in which several ranks computed.
        alone: the samples of cases with one rank, which holds all layers; at some numbers of rows.
        kinds: the kind of each layer of the model.
    """
    rows = tuple(sorted({sample.rows for sample in together}))
    every = sorted(set(kinds))
    ops = [op for op in (FORWARD, FULL, BACKWARD, WEIGHT) if any(s.op == op for s in together)]
    alternating = {op: _alternating(together, op, rows) for op in ops}
    factor = tuple(1.0 for _ in rows)
    found: dict[str, dict[float, dict[int, float]]] = {}
    for _ in range(ROUNDS):
        found = {}
        for op in ops:
            by_rows = defaultdict(list)
            for sample in together:
                if sample.op == op:
                    by_rows[sample.rows].append(sample)
            found[op] = {}
            for count, own in by_rows.items():
                factors = interpolate(rows, alternating[op], count), interpolate(rows, factor, count, 0.1)
                fixed = found[FULL].get(count, {}).get(-1) if op in (BACKWARD, WEIGHT) else None
                found[op][count] = _solve(own, every, *factors, fixed)
        factor = _alone(alone, found, alternating, rows)
    table = {op: _filled(values, rows, [-1, *every]) for op, values in found.items()}
    again = _recomputation(together, table, alternating[FULL], factor, rows)
    table["recompute"] = {
        part: tuple(share * time for share, time in zip(again, table[FORWARD][part], strict=True))
        for part in (-1, *every)
    }
    for op in (BACKWARD, WEIGHT):
        table.setdefault(op, {part: tuple(value / 2 for value in values) for part, values in table[FULL].items()})
    names = ("forward", "full", "backward", "weight", "recompute")
    spread = {op: median((s.high - s.low) / s.ms for s in together if s.op == op and s.ms > 0) for op in ops}
    return Fitted(
        rows,
        {kind: {name: table[name][kind] for name in names} for kind in every},
        {name: table[name][-1] for name in names},
        {op: alternating[op] for op in (FORWARD, FULL, BACKWARD) if op in alternating},
        _checkpointed(together, table[FORWARD], alternating[FORWARD], factor, rows),
        factor,
        spread,
    )


def _recomputation(
    samples: Sequence[Sample],
    table: Mapping[str, Mapping[int, Sequence[float]]],
    alternating: Sequence[float],
    alone: Sequence[float],
    rows: Sequence[float],
) -> tuple[float, ...]:
    """Return, per number of rows, the time that a recomputation adds to a backward, over the time of a forward.

    It is not a forward's: it stops before the last operation whose result is not kept, and its input is in the cache.
    """
    ratios: dict[float, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.op == RECOMPUTED:
            at = rows.index(sample.rows)
            forward, full = (
                table[op][-1][at] + sum(count * table[op][kind][at] for kind, count in sample.kinds)
                for op in (FORWARD, FULL)
            )
            took = sample.ms / _crowded(sample, alone[at]) - full * (alternating[at] if sample.alternating else 1)
            if forward > 0:
                ratios[sample.rows].append(max(0.0, took / forward))
    return _nearest({count: median(values) for count, values in ratios.items()}, rows)


def _checkpointed(
    samples: Sequence[Sample],
    forward: Mapping[int, Sequence[float]],
    alternating: Sequence[float],
    alone: Sequence[float],
    rows: Sequence[float],
) -> tuple[float, ...]:
    """Return, per number of rows, the time of a forward that keeps only its input, over that of one that keeps all."""
    ratios: dict[float, list[tuple[float, int]]] = defaultdict(list)
    for sample in samples:
        if sample.op == CHECKPOINTED:
            at = rows.index(sample.rows)
            whole = forward[-1][at] + sum(count * forward[kind][at] for kind, count in sample.kinds)
            took = sample.ms / _crowded(sample, alone[at]) / (alternating[at] if sample.alternating else 1)
            if whole > 0:
                ratios[sample.rows].append((min(1.0, took / whole), sample.actions))  # more is noise: it does less
    return _nearest({count: _mean(values) for count, values in ratios.items()}, rows)


def _mean(values: Sequence[tuple[float, int]]) -> float:
    """Return the mean of values with their weights."""
    return sum(value * weight for value, weight in values) / sum(weight for _, weight in values)


def _solve(
    samples: Sequence[Sample], kinds: Sequence[int], alternating: float, alone: float, known: float | None = None
) -> dict[int, float]:
    """Return the time of a layer of each kind, and under -1 the fixed part; not negative.

    Args:
        samples: of one op and one number of rows.
        kinds: the kinds of layers.
        alternating, alone: the factors.
        known: the fixed part if it is known: only stages with neither the first nor the last layer show it.
    """
    lines, goal = [], []
    for sample in samples:
        ms = sample.ms / (alternating if sample.alternating else 1) / _crowded(sample, alone)
        counts, weight = dict(sample.kinds), np.sqrt(sample.actions)  # a mean over many actions is more certain
        lines.append(np.array([float(known is None), *(counts.get(kind, 0) for kind in kinds)]) / ms * weight)
        goal.append(max(0.0, 1.0 - (known or 0.0) / ms) * weight)
    values = _not_negative(np.array(lines), np.array(goal))
    return dict(zip([-1, *kinds], [known if known is not None else values[0], *values[1:]], strict=True))


def _crowded(sample: Sample, alone: float) -> float:
    """Return the factor of a time of which the ranks spent a part alone."""
    return sample.crowd + (1 - sample.crowd) * alone


def _not_negative(lines: NDArray[Any], goal: NDArray[Any]) -> list[float]:
    """Return the least-squares solution with no negative value: a column with the most negative value is left out."""
    columns = list(range(lines.shape[1]))
    while True:
        found = np.linalg.lstsq(lines[:, columns], goal, rcond=1e-9)[0]
        if (found >= 0).all() or len(columns) == 1:
            break
        columns.pop(int(np.argmin(found)))
    values = [0.0] * lines.shape[1]
    for column, value in zip(columns, found, strict=True):
        values[column] = max(0.0, float(value))
    return values


def _alternating(samples: Sequence[Sample], op: str, rows: Sequence[float]) -> tuple[float, ...]:
    """Return, per number of rows, how much longer an action takes after another op."""
    plain: dict[Any, list[tuple[float, int]]] = defaultdict(list)
    after: dict[Any, list[tuple[float, int]]] = defaultdict(list)
    for sample in samples:
        if sample.op == op and sample.crowd > 0.5:
            (after if sample.alternating else plain)[sample.rows, sample.kinds].append((sample.ms, sample.actions))
    ratios: dict[float, list[float]] = defaultdict(list)
    for key in plain.keys() & after.keys():
        ratios[key[0]].append(_mean(after[key]) / _mean(plain[key]))
    return _nearest({count: median(values) for count, values in ratios.items()}, rows)


def _alone(
    samples: Sequence[Sample],
    found: Mapping[str, Mapping[float, Mapping[int, float]]],
    alternating: Mapping[str, Sequence[float]],
    rows: Sequence[float],
) -> tuple[float, ...]:
    """Return, per number of rows, how long an action takes while no other rank computes, over its time together."""
    ratios: dict[float, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.op not in found or sample.rows not in found[sample.op]:
            continue
        times = found[sample.op][sample.rows]
        together = times[-1] + sum(count * times[kind] for kind, count in sample.kinds)
        if sample.alternating:
            together *= interpolate(rows, alternating[sample.op], sample.rows)
        if together > 0:
            ratios[sample.rows].append(min(1.0, sample.ms / together))  # more is noise: nothing disturbs a rank alone
    return _nearest({count: median(values) for count, values in ratios.items()}, rows)


def _nearest(known: Mapping[float, float], rows: Sequence[float]) -> tuple[float, ...]:
    """Return a factor for each number of rows: between the known ones, at the ends the nearest; 1 if none is known."""
    places = sorted(known)
    if not places:
        return tuple(1.0 for _ in rows)
    values = [known[place] for place in places]
    return tuple(interpolate(places, values, min(max(count, places[0]), places[-1])) for count in rows)


def _filled(
    found: Mapping[float, Mapping[int, float]], rows: Sequence[float], parts: Sequence[int]
) -> dict[int, tuple[float, ...]]:
    """Return the times per number of rows, interpolated where an op was not measured."""
    places = sorted(found)
    return {
        part: tuple(interpolate(places, [found[place][part] for place in places], count) for count in rows)
        for part in parts
    }


def fit_transport(measured: Sequence[Between]) -> Transport:
    """Return the latency, the bandwidth and the engine's own time that the cases of one transport show."""
    hops = [(each.nbytes / MIB, median(each.hops)) for each in measured if each.hops]
    latency, per_mib = line(hops)
    overhead, overhead_per_mib = line([(each.nbytes / MIB, each.overhead) for each in measured])
    return Transport(latency, per_mib, overhead, overhead_per_mib)


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return (a, b) of y = a + b x, neither negative, by least squares of the relative error; (0, 0) for no points."""
    points = [(x, max(y, 1e-6)) for x, y in points]
    if not points:
        return 0.0, 0.0
    if len({x for x, _ in points}) == 1:
        return median(y for _, y in points), 0.0
    lines = np.array([[1 / y, x / y] for x, y in points])
    fixed, slope = _not_negative(lines, np.ones(len(points)))
    return fixed, slope
