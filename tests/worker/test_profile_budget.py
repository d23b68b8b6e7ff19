"""A profile keeps to its time: fewer steps, then fewer rounds and cases, and never none of an op."""

from collections import Counter

import pytest

from microp.worker.profiling import FEWEST, MOST, WARMUP, Budget

SECONDS, CASES, NEEDED, ROUNDS = 45.0, 41, 6, 3


def run(step: float):
    """Run a budget on a machine whose steps take `step` seconds; return how often each case ran, steps and time."""
    budget, now = Budget(CASES, NEEDED, ROUNDS, SECONDS), 0.0
    ran, counted = Counter(), []
    for case in budget.turns():
        before = 0.05 + WARMUP * step
        now += before
        counted.append(budget.steps(now, before, step))
        now += counted[-1] * step
        ran[case] += 1
    return ran, counted, now


def test_a_fast_model_is_measured_with_all_cases_in_all_rounds():
    ran, counted, took = run(0.02)
    assert ran == dict.fromkeys(range(CASES), ROUNDS)
    assert FEWEST < min(counted) <= max(counted) <= MOST
    assert took == pytest.approx(SECONDS, rel=0.1)


@pytest.mark.parametrize("step", [0.1, 0.4, 1.6])
def test_a_slow_model_is_measured_with_fewer_cases(step):
    ran, counted, took = run(step)
    assert NEEDED <= len(ran) < CASES
    assert set(ran) == set(range(len(ran)))  # the last ones are left out
    assert len(set(ran.values())) == 1  # every round has all of them
    assert min(counted) >= FEWEST
    assert took < 1.4 * SECONDS
    ran, counted, _ = run(60.0)  # the needed ones are run however slow the model is
    assert (ran, counted) == (dict.fromkeys(range(NEEDED), 1), [FEWEST] * NEEDED)
