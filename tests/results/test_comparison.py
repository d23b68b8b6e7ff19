"""Faster, slower, or too noisy to say: against intervals worked out by hand, tables, and simulated launches."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from microp.records import LAUNCH
from microp.results import compare, launch_times
from microp.results.comparison import MOST, Comparison, student_factor


def launches(*times: float, first: int = 0) -> dict[int, float]:
    return dict(enumerate(times, first))


@pytest.mark.parametrize(
    ("freedom", "factor"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423), (120, 1.9799)],
)
def test_students_factor_is_that_of_the_tables(freedom, factor):
    assert student_factor(freedom) == pytest.approx(factor, abs=5e-5)


def test_pairs_by_hand():
    """The logarithms of the ratios are -0.02, -0.04, -0.06: mean -0.04, standard error 0.02 / sqrt(3)."""
    others = launches(50.0, 80.0, 20.0)
    times = {repeat: others[repeat] * math.exp(log) for repeat, log in launches(-0.02, -0.04, -0.06).items()}
    half = 4.302653 * 0.02 / math.sqrt(3)
    found, inverse = compare(times, others), compare(others, times)
    expected = math.exp(-0.04), math.exp(-0.04 - half), math.exp(-0.04 + half)
    assert (found.ratio, found.low, found.high) == pytest.approx(expected)
    assert (1 / inverse.ratio, 1 / inverse.high, 1 / inverse.low) == pytest.approx(expected)
    assert found.paired
    assert found.verdict == inverse.verdict == "too noisy to say"  # the half width is 0.0497


def test_welch_by_hand():
    """Logarithms 0, 0.1, 0.2 and 1, 1.2: variances 0.01 and 0.02, so 0.01/3 and 0.02/2 are added."""
    times = {repeat: math.exp(log) for repeat, log in launches(0.0, 0.1, 0.2).items()}
    others = {repeat: math.exp(log) for repeat, log in launches(1.0, 1.2, first=7).items()}
    found = compare(times, others)
    freedom = (0.04 / 3) ** 2 / ((0.01 / 3) ** 2 / 2 + 0.01**2)
    half = student_factor(freedom) * math.sqrt(0.04 / 3)
    assert not found.paired
    assert found.launches == (3, 2)
    assert (found.low, found.high) == pytest.approx((math.exp(-1 - half), math.exp(-1 + half)))
    assert found.verdict == "faster"


def test_what_slows_down_both_is_no_difference():
    """The second launch ran on a busy machine: only pairs can tell. Launches without a partner are left out of them."""
    times, others = launches(40.0, 80.0, 41.0), launches(42.0, 84.5, 43.0)
    assert compare(times, others).verdict == "faster"
    apart = compare(times, {repeat + 3: time for repeat, time in others.items()})
    assert (apart.paired, apart.verdict) == (False, "too noisy to say")
    found = compare(launches(40.0, 41.0, 40.5, 99.0), launches(50.0, 51.0, 50.5))
    assert (found.paired, found.launches) == (True, (3, 3))
    assert found.ratio == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("spread", [0.01, 0.03])
@pytest.mark.parametrize("paired", [True, False])
def test_the_launches_asked_for_would_settle_it(spread, paired):
    """With as many more of the same spread and mean the interval excludes 1; with one fewer it does not."""
    alternating = [spread * (-1) ** n for n in range(4)]

    def at(count: int) -> Comparison:
        """`count` launches of each side with the same variance as the first four."""
        unit = np.resize([-1.0, 1.0], count - count % 2)
        logs = np.append(unit, [0.0] * (count % 2))
        logs *= np.std(alternating, ddof=1) / np.std(logs, ddof=1)
        others = launches(*np.exp(0 * logs if paired else logs[::-1]), first=0 if paired else 500)
        return compare(launches(*np.exp(logs - 0.0148)), others)

    found = at(4)
    assert found.verdict == "too noisy to say"
    assert found.more
    assert at(4 + found.more).verdict == "faster"
    assert at(3 + found.more).verdict == "too noisy to say"


NOISY = "a against b: too noisy to say: "
SENTENCES = {
    ((48.1, 47.0, 49.9), (50.2, 49.3, 51.4)): "a is 3.9 % faster than b [1.7 %, 6.1 %], 3 launches each",
    ((50.2, 49.3, 51.4), (48.1, 47.0, 49.9)): "a is 4.1 % slower than b [1.7 %, 6.5 %], 3 launches each",
    ((148.0, 147.0), (50.0, 51.0)): "a takes 2.92 times as long as b [2.47, 3.46], 2 launches each",
    (
        (50.0,),
        (60.0,),
    ): f"{NOISY}the spread of 1 launch each is unknown; 2 more launches each (repeat=1,2) would show it",
    ((50.0, 51.0, 50.5, 49.5), (50.1, 50.9, 50.4, 49.6)): f"{NOISY}0.0 % less time [-0.4 %, +0.4 %], 4 launches each; "
    "a difference of more than 0.4 % is ruled out; it would take more than "
    f"{MOST} launches each to settle a difference of this size",
    ((48.1, 49.5, 48.9), (50.2, 49.3, 51.4)): f"{NOISY}2.9 % less time [-9.7 %, +4.4 %], 3 launches each; "
    "a difference of more than 9.7 % is ruled out; "
    "4 more launches each (repeat=3,4,5,6) would settle a difference of this size",
    ((50.0, 150.0), (50.0, 51.0)): f"{NOISY}71.5 % more time [-99.8 %, +162388.6 %], 2 launches each; "
    "9 more launches each (repeat=2,...,10) would settle a difference of this size",
}


@pytest.mark.parametrize(("times", "others"), SENTENCES)
def test_the_sentence(times, others):
    assert compare(launches(*times), launches(*others)).sentence("a", "b") == SENTENCES[times, others]


@pytest.mark.parametrize(
    ("paired", "busy", "count"), [(True, 0.0, 5), (True, 0.1, 3), (False, 0.0, 3), (False, 0.1, 5)]
)
def test_equal_groups_are_seldom_called_different(paired, busy, count):
    """600 comparisons of a thing with itself: 5 % give 30, and 46 are three standard deviations more.

    `busy` is the fraction of launches that ran on a busy machine, at half the speed.
    """
    generator = np.random.default_rng(1)
    called = 0
    for _ in range(600):
        groups = np.exp(generator.normal(0, 0.02, (2, count))) * np.where(generator.random((2, count)) < busy, 2, 1)
        called += compare(launches(*groups[0]), launches(*groups[1], first=0 if paired else 9)).more == 0
    assert called <= 46
    assert called > (8 if not busy else 0), "an interval that is far too wide would be no interval of 95 %"


def test_the_times_of_launches_come_from_a_frame_and_what_cannot_be_compared_is_refused():
    rows = pd.DataFrame({LAUNCH: [0, 2, 1], "step_ms.median": [5.0, 7.0, None]})
    assert launch_times(rows) == {0: 5.0, 2: 7.0}
    with pytest.raises(ValueError, match="one question"):
        launch_times(pd.concat([rows, rows]))
    for times, others in (({}, {0: 1.0}), ({0: 1.0}, {}), ({0: 0.0}, {0: 1.0})):
        with pytest.raises(ValueError, match="at least one launch|greater than 0"):
            compare(times, others)
