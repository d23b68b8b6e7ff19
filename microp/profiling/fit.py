"""Fits the times of layers to the samples of a profile's cases.

::

    a stage's time = ((fixed + layers of each kind x their times) x factor + added) x alone

Times are fitted by least squares of the relative error, separately at each number of rows, and are never negative.
`factor` and `added` depend on what the rank ran before: after another op less of what an action needs is in the
processor's caches, both of its layers' weights (a factor) and of the code that every action runs (the same for any
number of layers).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from microp.profiling.profile import TIMES, After, Transport, interpolate
from microp.profiling.samples import (
    BACKWARD,
    CHECKPOINTED,
    FORWARD,
    FULL,
    RECOMPUTED,
    USUAL,
    WEIGHT,
    Between,
    Sample,
)
from microp.system import MIB

ROUNDS = 8  # the factors and the times are fitted in turn
LIKE = {CHECKPOINTED: FORWARD, RECOMPUTED: FULL}  # what these follow counts as for these
LEAST = 0.5  # of the mean factor: noise divides the time between the factor and what is added
MOST = 4.0  # times longer or shorter after another op; beyond is noise, which other numbers of rows would inherit
DOUBT = 1e-3  # of a sample's weight: so much counts what is assumed in doubt, which matters where no stage shows it
ALIKE = 1.3  # stages whose times differ by less do not show what is added apart from the factor
Table = dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class Fitted:
    """Times and factors, one value per number of rows; see `Profile`."""

    rows: tuple[float, ...]
    layers: dict[int, Table]
    fixed: Table
    after: dict[str, dict[str, After]]
    checkpointed: tuple[float, ...]
    alone: tuple[float, ...]
    spread: dict[str, float | None]


class _Ratios:
    """What is known of the times of actions apart from their layers: what ran before, and what runs beside."""

    def __init__(self, rows: tuple[float, ...]) -> None:
        self.rows, self.after, self.alone = rows, dict[str, dict[str, After]](), tuple(1.0 for _ in rows)

    def usual_ms(self, sample: Sample) -> float:
        """Return what a sample would have taken after the usual op, and beside others."""
        at = self.rows.index(sample.rows)
        ms = sample.ms / _crowded(sample, self.alone[at])
        known = self.after.get(LIKE.get(sample.op, sample.op), {}).get(sample.before)
        return ms if known is None else max(0.0, ms - known.added[at]) / known.factor[at]

    def stage_ms(self, times: Mapping[int, Sequence[float]], sample: Sample) -> float:
        """Return the time of a sample's layers, from those of each kind and of the fixed part at its rows."""
        at = self.rows.index(sample.rows)
        return _stage_ms({part: values[at] for part, values in times.items()}, sample)


def fit_times(together: Sequence[Sample], alone: Sequence[Sample], kinds: Sequence[int]) -> Fitted:
    """Return the times of each kind of layer.

    `together` are the samples of cases in which several ranks computed, `alone` those with one rank, which holds all
    layers, at some numbers of rows; `kinds` has the kind of each layer of the model.
    """
    rows = tuple(sorted({sample.rows for sample in together}))
    every = sorted(set(kinds))
    ops = [op for op in (FORWARD, FULL, BACKWARD, WEIGHT) if any(s.op == op for s in together)]
    ratios = _Ratios(rows)
    found: dict[str, dict[float, dict[int, float]]] = {}
    for _ in range(ROUNDS):
        for op in ops:
            by_rows = defaultdict(list)
            for sample in together:
                if sample.op == op:
                    by_rows[sample.rows].append(sample)
            fixed = found[FULL] if op in (BACKWARD, WEIGHT) else {}
            found[op] = {
                count: _solve(own, every, ratios, fixed.get(count, {}).get(-1)) for count, own in by_rows.items()
            }
            ratios.after[op] = _after([s for s in together if s.op == op], found[op], ratios)
        ratios.alone = _alone(alone, found, ratios)
    table: dict[str, dict[int, tuple[float, ...]]] = {}
    for op, values in found.items():  # interpolated where an op was not measured
        places = sorted(values)
        table[op] = {
            part: tuple(interpolate(places, [values[place][part] for place in places], count) for count in rows)
            for part in (-1, *every)
        }
    again = _recomputation(together, table, ratios)
    table["recompute"] = {
        part: tuple(share * time for share, time in zip(again, table[FORWARD][part], strict=True))
        for part in (-1, *every)
    }
    for op in (BACKWARD, WEIGHT):
        table.setdefault(op, {part: tuple(value / 2 for value in values) for part, values in table[FULL].items()})
    spread = {op: _spread([sample for sample in together if sample.op == op]) for op in ops}
    return Fitted(
        rows,
        {kind: {name: table[name][kind] for name in TIMES} for kind in every},
        {name: table[name][-1] for name in TIMES},
        ratios.after,
        _checkpointed(together, table[FORWARD], ratios),
        ratios.alone,
        spread,
    )


def _spread(samples: Sequence[Sample]) -> float | None:
    """Return the median of (p90 - p10) / median over the samples; None if it is known of none of them."""
    known = [(s.high - s.low) / s.ms for s in samples if s.ms > 0 and s.high == s.high]
    return median(known) if known else None


def _stage_ms(times: Mapping[int, float], sample: Sample) -> float:
    """Return the time of a sample's layers, from that of each kind and the fixed part."""
    return times[-1] + sum(count * times[kind] for kind, count in sample.kinds)


def _recomputation(
    samples: Sequence[Sample], table: Mapping[str, Mapping[int, Sequence[float]]], ratios: _Ratios
) -> tuple[float, ...]:
    """Return, per number of rows, the time that a recomputation adds to a backward, over the time of a forward.

    It is not a forward's: it stops before the last operation whose result is not kept, and its input is in the cache.
    """
    shares: dict[float, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.op == RECOMPUTED:
            forward, full = (ratios.stage_ms(table[op], sample) for op in (FORWARD, FULL))
            if forward > 0:
                shares[sample.rows].append(min(MOST, max(0.0, (ratios.usual_ms(sample) - full) / forward)))
    return _nearest({count: median(values) for count, values in shares.items()}, ratios.rows)


def _checkpointed(
    samples: Sequence[Sample], forward: Mapping[int, Sequence[float]], ratios: _Ratios
) -> tuple[float, ...]:
    """Return, per number of rows, the time of a forward that keeps only its input, over that of one that keeps all."""
    shares: dict[float, list[tuple[float, int]]] = defaultdict(list)
    for sample in samples:
        if sample.op == CHECKPOINTED:
            whole = ratios.stage_ms(forward, sample)
            if whole > 0:  # more than 1 is noise: it does less
                shares[sample.rows].append((min(1.0, ratios.usual_ms(sample) / whole), sample.actions))
    return _nearest({count: _mean(values) for count, values in shares.items()}, ratios.rows)


def _mean(values: Sequence[tuple[float, int]]) -> float:
    """Return the mean of values with their weights."""
    return sum(value * weight for value, weight in values) / sum(weight for _, weight in values)


def _solve(
    samples: Sequence[Sample], kinds: Sequence[int], ratios: _Ratios, known: float | None = None
) -> dict[int, float]:
    """Return the time of a layer of each kind, and under -1 the fixed part; not negative.

    `known` is the fixed part if it is known: only stages with neither the first nor the last layer show it.
    """
    lines, goal, layers = [], [], Counter[int]()
    for sample in samples:
        layers.update(dict(sample.kinds))
        ms = max(ratios.usual_ms(sample), sample.ms / 10)
        counts, weight = dict(sample.kinds), np.sqrt(sample.actions)  # a mean over many actions is more certain
        lines.append(np.array([float(known is None), *(counts.get(kind, 0) for kind in kinds)]) / ms * weight)
        goal.append(max(0.0, 1.0 - (known or 0.0) / ms) * weight)
    usual, unit = layers.most_common(1)[0][0], max(sample.ms for sample in samples)
    for kind in (-1, *kinds):  # in doubt nothing is fixed, and a layer takes as long as most others
        parts = (kind == -1, *((each == kind) - (each == usual) * (kind > -1) for each in kinds))
        lines.append(np.array(parts, float) * DOUBT / unit)
        goal.append(0.0)
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


def _after(samples: Sequence[Sample], found: Mapping[float, Mapping[int, float]], ratios: _Ratios) -> dict[str, After]:
    """Return, for all that ran before the samples of one op but the usual, the factor and what is added."""
    by_class: dict[str, dict[float, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        by_class[sample.before][sample.rows].append(sample)
    [op] = {sample.op for sample in samples}
    usual = by_class.get(USUAL[op], {})
    known = {}
    for what, by_rows in by_class.items():
        if what == USUAL[op]:
            continue
        fits = {count: _line(own, found[count], ratios) for count, own in by_rows.items() if count in usual}
        if fits:
            added, factor = (
                _nearest({count: fit[part] for count, fit in fits.items()}, ratios.rows) for part in (0, 1)
            )
            known[what] = After(added, factor)
    return known


def _line(samples: Sequence[Sample], times: Mapping[int, float], ratios: _Ratios) -> tuple[float, float]:
    """Return (added, factor) that make the time of a stage's layers that of the samples; in doubt nothing is added."""
    at = ratios.rows.index(samples[0].rows)
    points = [
        (_stage_ms(times, sample), sample.ms / _crowded(sample, ratios.alone[at]), sample.actions) for sample in samples
    ]
    points = [(usual, ms, actions) for usual, ms, actions in points if usual > 0]
    if not points:
        return 0.0, 1.0
    only_factor = 0.0, _mean([(min(MOST, max(1 / MOST, ms / usual)), actions) for usual, ms, actions in points])
    if max(points)[0] < ALIKE * min(points)[0]:
        return only_factor
    lines = np.array([[1 / ms, usual / ms] for usual, ms, _ in points])
    weights = np.sqrt([actions for *_, actions in points])
    added, factor = _not_negative(lines * weights[:, None], weights)
    return (added, factor) if LEAST * only_factor[1] < factor < MOST else only_factor


def _alone(
    samples: Sequence[Sample], found: Mapping[str, Mapping[float, Mapping[int, float]]], ratios: _Ratios
) -> tuple[float, ...]:
    """Return, per number of rows, how long an action takes while no other rank computes, over its time together."""
    shares: dict[float, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.op not in found or sample.rows not in found[sample.op]:
            continue
        together = _stage_ms(found[sample.op][sample.rows], sample)
        if known := ratios.after[sample.op].get(sample.before):
            at = ratios.rows.index(sample.rows)
            together = together * known.factor[at] + known.added[at]
        if together > 0:
            shares[sample.rows].append(min(1.0, sample.ms / together))  # more is noise: nothing disturbs a rank alone
    return _nearest({count: median(values) for count, values in shares.items()}, ratios.rows)


def _nearest(known: Mapping[float, float], rows: Sequence[float]) -> tuple[float, ...]:
    """Return a factor for each number of rows: between the known ones, at the ends the nearest; 1 if none is known."""
    places = sorted(known) or [0.0]
    return tuple(np.interp(rows, places, [known.get(place, 1.0) for place in places]).tolist())


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
