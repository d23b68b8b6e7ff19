"""Faster, slower, or too noisy to say, and which questions of two groups are compared with each other."""

import math

import numpy as np
import pytest
from stored import store_run

from microp.results import compare, find, pair_questions, spelling
from microp.results.comparison import MOST, student_factor


def launches(*times: float, first: int = 0) -> dict[int, float]:
    return dict(enumerate(times, first))


def test_students_factor_is_that_of_the_tables():
    table = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 9: 2.2622, 30: 2.0423, 120: 1.9799}
    assert [student_factor(freedom) for freedom in table] == pytest.approx([*table.values()], abs=5e-5)


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


NOISY = "a against b: too noisy to say: "
SENTENCES = {
    ((48.1, 47.0, 49.9), (50.2, 49.3, 51.4)): "a is 3.9 % faster than b [1.7 %, 6.1 %], 3 launches each",
    ((50.2, 49.3, 51.4), (48.1, 47.0, 49.9)): "a is 4.1 % slower than b [1.7 %, 6.5 %], 3 launches each",
    ((148.0, 147.0), (50.0, 51.0)): "a takes 2.92 times as long as b [2.47, 3.46], 2 launches each",
    ((50.0,), (60.0,)): "a against b: the spread of 1 launch each is unknown; 2 more launches each (repeat=1,2) would "
    "show it",
    ((50.0, 51.0, 50.5, 49.5), (50.1, 50.9, 50.4, 49.6)): f"{NOISY}0.0 % less time [-0.4 %, +0.4 %], 4 launches each; "
    f"it would take more than {MOST} launches each to settle a difference of this size",
    ((48.1, 49.5, 48.9), (50.2, 49.3, 51.4)): f"{NOISY}2.9 % less time [-9.7 %, +4.4 %], 3 launches each; "
    "4 more launches each (repeat=3,4,5,6) would settle a difference of this size",
}


@pytest.mark.parametrize(("times", "others"), SENTENCES)
def test_the_sentence(times, others):
    assert compare(launches(*times), launches(*others)).sentence("a", "b") == SENTENCES[times, others]


@pytest.mark.parametrize(("paired", "busy", "count"), [(True, 0.1, 3), (False, 0.0, 3)])
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


@pytest.fixture
def groups(tmp_path):
    """A function that stores runs and returns the two groups that two filters ask for."""

    def made(runs: list[tuple[list[str], dict]], a: str, b: str):
        for overrides, figures in runs:
            store_run(tmp_path, *overrides, **figures)
        return [find([str(tmp_path), text]).rows for text in (a, b)]

    return made


def named(columns) -> set[str]:
    return set(map(spelling, columns))


def pairs_of(pairing) -> list[tuple]:
    """The keys that tell the pairs apart, of each pair."""
    return list(pairing.figures.drop_duplicates("pair")[pairing.keys].itertuples(index=False, name=None))


def test_keys_that_only_one_option_has_do_not_part_the_others(groups):
    """GPipe's drain is no key of zb_h1: without this rule no question of GPipe would have a partner."""
    runs = [([f"schedule={s}", "chunks=4"], {}) for s in ("1f1b", "gpipe", "zb_h1")]
    pairing = pair_questions(*groups(runs, "schedule=1f1b,gpipe", "schedule=zb_h1"))
    assert pairs_of(pairing) == [("1f1b / zb_h1",), ("gpipe / zb_h1",)]


def test_two_single_questions_always_pair(groups):
    """Null for one option and no key of the other is no difference; a single launch has no interval."""
    runs = [(["schedule=1f1b", "chunks=4"], {}), (["schedule=gpipe", "chunks=8", "model.dim=64"], {})]
    pairing = pair_questions(*groups(runs, "chunks=4", "chunks=8"))
    assert len(pairs_of(pairing)) == 1
    assert named(pairing.compared) == {"schedule", "schedule.drain", "chunks", "model.dim"}
    rate = figure(pairing, "samples_per_s")
    assert (rate["low"], rate["comparison"].verdict) == (None, "unknown")
    devices = ("device=cpu", "device=emulated")
    pairing = pair_questions(*groups([([device], {}) for device in devices], *devices))
    assert "device.forward_ms" in named(pairing.compared)
    assert "device.weight_ms" not in named(pairing.compared)


def test_launches_of_one_question_are_one_question(groups):
    runs = [(["chunks=4", f"repeat={r}"], {"step_ms": 50.0 + r}) for r in range(4)]
    pairing = pair_questions(*groups(runs, "repeat=0,2", "repeat=1,3"))
    assert (pairing.compared, pairing.keys) == ([], [])
    step = figure(pairing, "step_ms")
    assert (step["a"], step["a_least"], step["a_largest"]) == (51.0, 50.0, 52.0)
    assert (step["a_launches"], step["b_launches"], step["comparison"].paired) == (2, 2, False)


def figure(pairing, name: str) -> dict:
    """One figure of the only pair."""
    [line] = pairing.figures[pairing.figures["figure"] == name].to_dict("records")
    return line


def test_times_have_a_verdict_and_memory_and_loss_are_exact(groups):
    """A rate is faster where it is higher; a figure that a side lacks is left out."""
    times = {"1f1b": (48.1, 47.0, 49.9), "gpipe": (50.2, 49.3, 51.4)}
    runs = [
        ([f"schedule={name}", f"repeat={repeat}"], {"step_ms": times[name][repeat], **memory})
        for name, memory in (
            ("1f1b", {"peak_memory_mib": [33.0, 20.0], "peak_activation_mib": None}),
            ("gpipe", {"peak_memory_mib": [40.0, 20.0], "peak_activation_mib": [1.0, 2.0]}),
        )
        for repeat in range(3)
    ]
    pairing = pair_questions(*groups(runs, "schedule=1f1b", "schedule=gpipe"))
    step, rate = (figure(pairing, name) for name in ("step_ms", "samples_per_s"))
    assert (step["comparison"].paired, step["verdict"], rate["verdict"]) == (True, "faster", "faster")
    assert (step["ratio"], step["low"], step["high"]) == pytest.approx((0.9607, 0.9386, 0.9834), abs=1e-4)
    assert (rate["ratio"], rate["low"], rate["high"]) == pytest.approx((1 / 0.9607, 1 / 0.9834, 1 / 0.9386), abs=1e-4)
    peak = figure(pairing, "peak_memory_mib")
    assert (peak["verdict"], peak["ratio"], peak["comparison"], peak["low"]) == ("less", 33 / 40, None, None)
    assert figure(pairing, "loss.last")["verdict"] == "equal"
    assert "peak_activation_mib" not in set(pairing.figures["figure"])
