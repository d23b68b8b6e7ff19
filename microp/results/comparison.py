"""Compares the times of two groups of launches: faster, slower, or too noisy to say.

::

    repeat   1f1b   gpipe   ratio
    0        48.1   50.2    0.958       mean and 95 %      ratio 0.96 [0.94, 0.98]   faster
    1        47.0   49.3    0.953   ─►  interval of    ─►  ratio 0.96 [0.90, 1.03]   too noisy to say: 4 more launches
    2        49.9   51.4    0.971       log(ratio)         ratio 1.04 [1.01, 1.07]   slower

A launch counts once, with the median of its measured steps, because the steps of a launch are not independent.
Launches that pair up are compared pair by pair, so that what slows down both at once is no difference. Launches
without partners are compared by Welch's method, in which the two groups may have different spreads. The intervals are
Student's, of logarithms, so that exchanging the groups gives the inverse ratio with the inverse interval. Of two equal
groups about 5 % of the intervals exclude 1.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean, variance
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from microp.records import LAUNCH

if TYPE_CHECKING:  # ranks do not import pandas
    import pandas as pd

Verdict = Literal["faster", "slower", "too noisy to say", "unknown"]
CONFIDENCE = 0.95
FEW = 3  # launches of each side to ask for where the spread is unknown: with 2, Student's factor is 12.7
NODES = 10_001  # of the trapezoidal rule: t is off by less than 0.05 %, of whole degrees of freedom by less than 1e-6
MOST = 100  # launches of each side; a comparison that would need more is not worth them


class Comparison(NamedTuple):
    """What two groups of launches say about a time, where less is better.

    `more` says how many more launches of each side would settle a difference of the size seen, if it stays that size;
    0 if it is settled, None if more than `MOST` of each side would be needed.
    """

    ratio: float  # the time over the other's time, as a geometric mean
    low: float  # the lower end of the 95 % interval of the ratio; 0 if a side has a single launch
    high: float  # its upper end; infinity if a side has a single launch
    launches: tuple[int, int]  # the number of launches that were compared, of each side
    paired: bool  # whether they were compared pair by pair
    verdict: Verdict  # `faster` or `slower` if the interval excludes 1; `unknown` if a side has a single launch
    more: int | None
    next_repeat: int  # the `repeat` from which on launches are missing

    def sentence(self, name: str, other: str) -> str:
        """Return the verdict in words, with its interval and launches, and what would settle it if it is open.

        The words call the groups `name` and `other`. Differences are relative to the other's time: 4 % faster means
        4 % less time.
        """
        a, b = self.launches
        launches = f"{a} launch{'' if a == 1 else 'es'} each" if a == b else f"{a} and {b} launches"
        if self.verdict == "unknown":
            return f"{name} against {other}: the spread of {launches} is unknown; {self._remedy('show it')}"
        if self.verdict != "too noisy to say":
            return f"{self._difference(name, other)}, {launches}"
        return (
            f"{name} against {other}: too noisy to say: {_percent(abs(self.ratio - 1))} "
            f"{'less' if self.ratio < 1 else 'more'} time "
            f"[{_percent(self.low - 1, '+')}, {_percent(self.high - 1, '+')}], {launches}; "
            f"{self._remedy('settle a difference of this size')}"
        )

    def _difference(self, name: str, other: str) -> str:
        if self.ratio >= 2:
            return f"{name} takes {self.ratio:.2f} times as long as {other} [{self.low:.2f}, {self.high:.2f}]"
        low, size, high = map(_percent, sorted(abs(ratio - 1) for ratio in (self.low, self.ratio, self.high)))
        return f"{name} is {size} {self.verdict} than {other} [{low}, {high}]"

    def _remedy(self, outcome: str) -> str:
        if self.more is None:
            return f"it would take more than {MOST} launches each to {outcome}"
        first, last = self.next_repeat, self.next_repeat + self.more - 1
        repeats = ",".join(map(str, range(first, last + 1))) if self.more <= 6 else f"{first},...,{last}"
        return f"{self.more} more launch{'' if self.more == 1 else 'es'} each (repeat={repeats}) would {outcome}"


def _percent(fraction: float, sign: str = "") -> str:
    return f"{100 * fraction:{sign}.1f} %"


def compare(times: Mapping[int, float], others: Mapping[int, float]) -> Comparison:
    """Compare the times of two groups of launches.

    Launches with the same key ran under the same conditions: the same `repeat`, or two engines in turn in one
    launch. They are compared pair by pair if most launches of the smaller group have such a partner; launches
    without one are then left out. `times` and `others` have one time per launch, by its `repeat`; see `launch_times`.

    Raises:
        ValueError: a group is empty, or a time is not a number greater than 0.
    """
    if not times or not others:
        raise ValueError("a comparison needs at least one launch on both sides")
    for time in (*times.values(), *others.values()):
        if not 0 < time < math.inf:
            raise ValueError(f"a time of {time} cannot be compared: it must be a number greater than 0")
    shared = times.keys() & others.keys()
    paired = 2 * len(shared) > min(len(times), len(others))
    if paired:
        samples = [[math.log(times[launch] / others[launch]) for launch in sorted(shared)]]
        centre = fmean(samples[0])
    else:
        samples = [[math.log(time) for time in group.values()] for group in (times, others)]
        centre = fmean(samples[0]) - fmean(samples[1])
    counts = [len(sample) for sample in samples]
    spread = [variance(sample) for sample in samples] if min(counts) > 1 else None
    half = math.inf if spread is None else _half_width(spread, counts)
    verdict: Verdict = "too noisy to say" if abs(centre) <= half else "faster" if centre < 0 else "slower"
    verdict = verdict if spread else "unknown"
    more = 0 if abs(centre) > half else _more(centre, spread, min(counts))
    low, high = math.exp(centre - half), math.exp(centre + half)
    following = max(shared if paired else times.keys() | others.keys()) + 1
    return Comparison(math.exp(centre), low, high, (counts[0], counts[-1]), paired, verdict, more, following)


def launch_times(rows: pd.DataFrame, value: str = "step_ms.median") -> dict[int, float]:
    """Return the time of each launch of one question, by its `repeat`; launches without a time are left out.

    Raises:
        ValueError: two rows are of the same launch, so they are of several questions.
    """
    known = rows[[LAUNCH, value]].dropna()
    if known[LAUNCH].duplicated().any():
        raise ValueError(f"several rows have the same {LAUNCH}: give the rows of one question")
    return {int(launch): float(time) for launch, time in known.itertuples(index=False)}


def _more(centre: float, spread: Sequence[float] | None, count: int) -> int | None:
    """Return how many more launches of each side would let the interval around `centre` exclude 0."""
    if spread is None:
        return FEW - count
    enough = bisect_left(
        range(MOST + 1), True, lo=2, key=lambda n: abs(centre) > _half_width(spread, [n] * len(spread))
    )
    return max(enough - count, 1) if enough <= MOST else None


def _half_width(variances: Sequence[float], counts: Sequence[int]) -> float:
    """Return half the width of the interval of a mean, or of the difference of two means by Welch's method."""
    parts = [spread / count for spread, count in zip(variances, counts, strict=True)]
    if not (total := sum(parts)):
        return 0.0
    freedom = total**2 / sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    return student_factor(freedom) * math.sqrt(total)


@cache
def student_factor(freedom: float) -> float:
    """Return t such that Student's distribution of v >= 1 degrees of `freedom` has 95 % of its mass between -t and t.

    With t = sqrt(v) tan(a) that mass is proportional to the integral of cos(x)^(v-1) from 0 to a (Abramowitz and
    Stegun, 26.7.1 with this substitution); the whole mass is that up to pi/2.
    """
    angles = np.linspace(0, math.pi / 2, NODES)
    density = np.cos(angles) ** (freedom - 1)
    mass = np.cumsum((density[1:] + density[:-1]) / 2)
    angle = float(np.interp(CONFIDENCE * mass[-1], mass, angles[1:]))
    return math.sqrt(freedom) * math.tan(angle)
