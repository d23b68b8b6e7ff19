"""Which questions of two groups are compared with each other, and what is said of their figures."""

from __future__ import annotations

import pytest
from stored import store_run

from microp.results import find, pair_questions, spelling


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


def test_questions_pair_that_agree_in_all_other_keys(groups):
    runs = [([f"schedule={s}", f"chunks={m}"], {}) for s in ("1f1b", "gpipe") for m in (16, 4)]
    runs += [(["schedule=1f1b", "chunks=8"], {})]
    pairing = pair_questions(*groups(runs, "schedule=1f1b", "schedule=gpipe"))
    assert named(pairing.compared) == {"schedule", "schedule.drain"}
    assert pairing.keys == ["chunks"]
    assert pairs_of(pairing) == [("4",), ("16",)]
    assert pairing.alone == (1, 0)
    assert {"ranks", "model.dim", "batch_size"} <= named(pairing.same)
    assert not {"chunks", "schedule", "repeat", "tracking.mode", "output_dir"} & named(pairing.same)


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
    assert (rate["low"], rate["comparison"].verdict) == (None, "too noisy to say")
    pairing = pair_questions(
        *groups([(["device=cpu"], {}), (["device=emulated"], {})], "device=cpu", "device=emulated")
    )
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


def compared(groups, **figures):
    """The comparison of 1F1B with GPipe in three launches with these times (or other numbers)."""
    runs = [
        ([f"schedule={name}", f"repeat={repeat}"], {key: values[name][repeat] for key, values in figures.items()})
        for name in ("1f1b", "gpipe")
        for repeat in range(3)
    ]
    return pair_questions(*groups(runs, "schedule=1f1b", "schedule=gpipe"))


TIMES = {"1f1b": (48.1, 47.0, 49.9), "gpipe": (50.2, 49.3, 51.4)}


def test_times_have_a_verdict_and_memory_and_loss_are_exact(groups):
    """A rate is faster where it is higher; a figure that a side lacks is left out."""
    peaks = {"1f1b": [[33.0, 20.0]] * 3, "gpipe": [[40.0, 20.0]] * 3}
    lacks = {"1f1b": [None] * 3, "gpipe": [[1.0, 2.0]] * 3}
    pairing = compared(groups, step_ms=TIMES, peak_memory_mib=peaks, peak_activation_mib=lacks)
    step, rate = (figure(pairing, name) for name in ("step_ms", "samples_per_s"))
    assert step["comparison"].paired
    assert (step["verdict"], rate["verdict"]) == ("faster", "faster")
    assert (step["ratio"], step["low"], step["high"]) == pytest.approx((0.9607, 0.9386, 0.9834), abs=1e-4)
    assert (rate["ratio"], rate["low"], rate["high"]) == pytest.approx((1 / 0.9607, 1 / 0.9834, 1 / 0.9386), abs=1e-4)
    peak = figure(pairing, "peak_memory_mib")
    assert (peak["verdict"], peak["ratio"], peak["comparison"], peak["low"]) == ("less", 33 / 40, None, None)
    assert figure(pairing, "loss.last")["verdict"] == "equal"
    assert "peak_activation_mib" not in set(pairing.figures["figure"])
