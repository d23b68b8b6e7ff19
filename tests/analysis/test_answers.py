"""The answers' sentences have the figures of the rows, a verdict where launches allow one, and no figure too many."""

import re
from itertools import product

import pandas as pd
import pytest
from drawn import equal

from analysis import sweep
from analysis.__main__ import EXPERIMENTS
from analysis.command import OVER_ALL_RUNS, section
from analysis.words import versus
from microp.records import LAUNCH
from microp.schedule.builders import gpipe, one_f_one_b
from microp.simulator import simulate
from microp.trace import KINDS, makespan
from tests.made_cases import CASES
from tests.made_up import Made, by_stem, run

STEADY = (1.0, 1.02, 0.98)  # how long the steps of three launches are, relative to the model
ONE = "One launch each, so no spread between launches is known: repeat=0,1,2 gives it."


def launches(folder, schedule, costs, slower=STEADY, **changes):
    """The rows of launches that are as slow as `slower` says."""
    return [run(folder, schedule, costs, factor, **{LAUNCH: n, **changes}) for n, factor in enumerate(slower)]


SAID = {  # of `CASES[name].few`, with F = 5 and B = 10 ms, K = 2
    "m_sensitivity": (
        "Real compute, K = 2, batch fixed: from M = 1 to 16 the bubble of gpipe goes from 0.500 [0.500, 0.500] to "
        "0.059 [0.059, 0.059] (closed form: 0.500 to 0.059); a step with M = 16 is 46.9 % faster than one with M = 1 "
        "[46.9 %, 46.9 %], 2 launches each.",  # 1/(M+1); 1 - (17/16) / 2
        "Brackets: ranges over up to 2 launches; behind a verdict, 95 % intervals.",
    ),
    "checkpoint_overhead": (  # 1.3 - 0.05 S and 0.2 + 0.1 S for S segments
        "With always, a step takes 1.25 times as long as with checkpointing=never",
        "and keeps 0.300 of the peak activations. With segments, a step takes 1.20 times as long",
    ),
    "partition_skew": (  # M = 8, 60 layers, 30 and 30 or 15 and 45: 9 * 30, 8 * 45 + 15 or 8 * 45
        "with 75 % of the layers on rank 1, the throughput of gpipe is 0.720 [0.720, 0.720] of",
        "the heavy rank's work alone would give 0.750, computed from the nominal times",
        "1f1b with a share of 75 %: a step with a heavy first rank is 4.0 % faster than one with a heavy last rank",
    ),
    "schedules": ("1f1b with 75.0 ms per step [75.0, 75.0]", "most: gpipe with 4.00 MiB"),
    "hop_latency": (
        "A latency of 2 ms per hop adds to the time per microbatch 0.00 ms [0.00, 0.00] under gpipe and "
        "2.00 ms [2.00, 2.00] under 1f1b; the closed form 2c(K-1)/K gives 2.00 ms for 1f1b.",
    ),
    "engine_speed": (  # 1 + 0.1 len(name) / M, and torch twice that
        "Real compute, K = 2, width 64, shm: the step time of microp over the limit 1.08 (1.05 to 1.12) (4 "
        "configurations), torch over the limit 2.16 (2.10 to 2.25) (4 configurations) and torch over microp 2.00 (4",
    ),
    "gradient_sync": (
        "With two replicas of a model of width 128, a step takes 36.1 ms [36.1, 36.1] with naive, 30.1 ms",  # 15 * 2
        "Run in turn within one launch, ddp's step time over that of torch_ddp is 0.900 [0.900, 0.900] at width 64",
    ),
    "hybrid": (
        "With M = 4 and a sum of 20 ms per stage, the rank that waits longest for its sums waits 80.0 ms",  # 15 M + 20
        "The measured step times differ from the simulated ones by 0.0 % in the median and 0.0 % at most, over 8",
    ),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_answer_has_the_figures_of_the_rows(name, tmp_path):
    said = section(name, Made(list(CASES[name].few(tmp_path)))).answer
    assert [text for text in SAID[name] if text not in said] == [], said


def m_runs(folder, few=STEADY, many=STEADY):
    """K = 4 on real devices, 16 rows as one microbatch or as 8: steps of 480 and 165 ms, bubbles of 3/4 and 3/11."""
    rows = []
    for build, (chunks, slower) in product((gpipe, one_f_one_b), ((1, few), (8, many))):
        changes = {"device": "cpu", "bubble.closed_form": 3 / (chunks + 3)}
        rows += launches(folder, build(4, chunks), equal(4, 40 / chunks, 80 / chunks), slower, **changes)
    return Made(rows)


def test_one_launch_and_launches_that_differ_too_much_have_no_verdict(tmp_path):
    said = section("m_sensitivity", m_runs(tmp_path, (1.0,), (1.0,))).answer
    assert "goes from 0.750 to 0.273 (closed" in said
    assert "a step with M = 8 takes 165 ms, against 480 ms for one with M = 1." in said
    assert said.endswith(ONE)
    assert [text for text in ("[", "faster") if text in said] == []
    said = section("m_sensitivity", m_runs(tmp_path, many=(0.6, 4.0, 1.0))).answer
    assert "too noisy to say" in said
    assert "more launches each (repeat=3" in said


def test_over_all_runs(tmp_path):
    """A launch that is a tenth slower than its actions: the replay is off by 1 - 1/1.1, the launches by a tenth."""
    times = {f"time_ms.{kind}": [0.0, 0.0] for kind in KINDS}
    times |= {"time_ms.compute": [60.0, 80.0], "time_ms.drain": [40.0, 0.0], "time_ms.warmup": [0.0, 20.0]}
    changes = {"question": "one", "config.partition.name": "uniform", **times}
    store = Made(launches(tmp_path, gpipe(2, 4), equal(2, 5, 10), (1.0, 1.1), **changes))
    said = section("prediction", store).answer
    assert said.startswith("Replayed from its own actions: emulated, 2 runs: median error 4.5 %")
    assert section("rank_time", store).answer == (
        "Emulated, 1 configuration: ranks compute 70 % of a step; the next largest parts are wait: drain (20 %) "
        "and wait: warm-up (10 %)."
    )
    noisy = section("rank_time", Made(store.runs().assign(disturbed=True))).answer
    assert noisy.startswith("Emulated, 1 configuration (disturbed: 1 of 1): ranks compute 70 %")


def predicted_runs(folder, **changes):
    """Two configurations, one predicted 10 % too long."""
    rows = []
    for chunks, factor in ((2, 1.0), (8, 1.1)):
        schedule, costs = gpipe(2, chunks), equal(2, 40 / chunks, 80 / chunks)
        predicted = {"predicted.step_ms": factor * float(makespan(simulate(schedule, costs))), "replayed.step_ms": 70.0}
        asked = {"question": str(chunks), "config.device.per": ["row"]}  # actions of fewer rows are shorter
        rows += launches(folder, schedule, costs, (1.0,), **asked, **predicted, **changes)
    return rows


def test_prediction_says_what_was_known_before_the_run(tmp_path):
    """The order is right, so the plan chosen is the fastest."""
    said = section("prediction", Made(predicted_runs(tmp_path))).answer
    assert (
        "Predicted before the run: emulated, 2 configurations: median error 5.0 %, 90 % within 9.0 %, bias +5.0 %, "
        "Kendall's tau 1.00, regret of the plan chosen 0.0 %; median error of the baselines: closed bubble 0.0 %, "
    ) in said


def own(folder, slower=STEADY, **changes):
    """GPipe with 2 and 8 microbatches of the same 16 rows, on two ranks: steps of 90 and 67.5 ms."""
    rows = []
    for chunks in (2, 8):
        costs = equal(2, 40 / chunks, 80 / chunks)
        rows += launches(folder, gpipe(2, chunks), costs, slower, activation_mib=float(chunks), **changes)
    return Made(rows).runs()


def test_a_sweep_names_the_fastest_point_and_compares_it(tmp_path):
    said = sweep.answer(own(tmp_path), ["chunks"])
    assert said == (
        "Fastest of 2 points: 8 with 135 ms per step [132, 138], with a bubble of 0.111 [0.111, 0.111]; slowest: 2 "
        "with 180 ms per step [176, 184]. The two fastest compared: 8 is 25.0 % faster than 2 [25.0 %, 25.0 %], 3 "
        "launches each. Bubbles: from 0.111 [0.111, 0.111] (8) to 0.333 [0.333, 0.333] (2). Least activations: 2, "
        "where the rank that holds most keeps 2.00 MiB; most: 8 with 8.00 MiB. Brackets: ranges over up to 3 "
        "launches; behind a verdict, 95 % intervals."
    )


def test_points_whose_launches_or_steps_do_not_tell_them_apart_share_the_first_place(tmp_path):
    """Of one launch by its steps: those of 3, 8 and 2 lie within 1 % of each other, but not those of 9."""
    rows = own(tmp_path, (1.0,))
    more = pd.concat([rows, rows.assign(chunks=rows["chunks"] + 1)])
    for end, factor in {"p10": 0.995, "median": 1.0, "p90": 1.005}.items():
        more[f"step_ms.{end}"] = more["chunks"].map({2: 100.2, 3: 100.0, 8: 100.1, 9: 150.0}) * factor
    said = sweep.answer(more, ["chunks"])
    assert said.startswith("Least time of 4 points: 3 with 100 ms per step, with a bubble of ")
    assert ", not told apart from 8 and 2; slowest: 9 with 150 ms per step." in said


def test_disturbed_and_wide_points_are_never_fastest_without_a_word(tmp_path):
    rows = own(tmp_path, (1.0,), disturbed=True)
    more = pd.concat([rows, rows.assign(chunks=rows["chunks"] + 1)])  # 2, 8, 3 and 9
    times = [f"step_ms.{end}" for end in ("median", "p10", "p90")]
    threefold = rows.assign(**{time: rows[time] * (1 + 2 * (rows["chunks"] == 2)) for time in times})
    for points, said in (
        (
            rows,
            "The times of 2 points are too noisy to rank (disturbed: 2 of 2): 135 to 180 ms per step; "
            "disturbed, and less than 2 times apart. ",
        ),
        (rows.assign(disturbed=rows["chunks"] == 8), "The times of 2 points are too noisy to rank (disturbed: 1 of 2)"),
        (threefold, "Fastest of 2 points (disturbed: 2 of 2): 8 with 135 ms per step (disturbed), with "),
        (more.assign(disturbed=more["chunks"] != 3), "The times of 4 points are too noisy to rank (disturbed: 3 of 4)"),
        (
            more.assign(disturbed=more["chunks"].isin((8, 9))),
            "Least time of 2 points, without 2 disturbed: 2 with 180 ms per step (8 took less, 135 ms per step "
            "(disturbed)), with a bubble of ",
        ),
        (rows[rows["chunks"] == 8], "135 ms per step (disturbed), with a bubble of "),
    ):
        assert sweep.answer(points, ["chunks"]).startswith(said)
    said = sweep.answer(own(tmp_path, (0.9, 1.0, 1.1)), ["chunks"])
    assert "(spread too wide: 2 of 2): 8 with 135 ms per step [122, 148] (its spread is too wide), with" in said
    rows = own(tmp_path, (0.99, 1.0, 1.01), disturbed=True)
    two, eight = (rows[rows["chunks"] == chunks] for chunks in (2, 8))
    assert versus("8", eight, "2", two) == "8 is 25.0 % faster than 2 [25.0 %, 25.0 %], 3 launches each (disturbed)"
    assert versus("8", eight, "2", two.assign(disturbed=False)).startswith("8 is 25.0 % faster than 2")


def test_captions_and_answers_mark_figures_of_disturbed_runs(tmp_path):
    rows = [{**row, "disturbed": True} for row in CASES["hop_latency"].few(tmp_path)]
    caption = by_stem(section("hop_latency", Made(rows)).exhibits)["hop-latency-slopes"].caption
    times = "0.00 ms [0.00, 0.00] (disturbed) under gpipe and 2.00 ms [2.00, 2.00] (disturbed) under 1f1b"
    assert f"At c = 2 ms: {times}. Markers: " in caption
    assert re.search(r"(\d+) of \1 runs were disturbed\.", caption)
    section_of_all = section("prediction", Made(predicted_runs(tmp_path, disturbed=True)))
    for said in (section_of_all.answer, *(each.caption for each in section_of_all.exhibits)):
        assert re.search(r"mulated, 2 (runs|configurations) \(disturbed: 2 of 2\): median error", said)
    assert section_of_all.exhibits[1].table["disturbed"].all()


def test_batches_of_different_sizes_are_compared_by_the_row(tmp_path):
    rows = own(tmp_path, (1.0,))
    rows.loc[rows["chunks"] == 2, ["batch_size", "config.batch_size"]] = 64
    said = sweep.answer(rows, ["chunks"])
    assert f"Fastest of 2 points: 2 with {180 / 64:.2f} ms per row of the batch" in said
    assert f"slowest: 8 with {135 / 16:.2f} ms per row" in said


def test_times_that_do_not_know_rows_name_no_fastest_number_of_microbatches(tmp_path):
    rows = own(tmp_path, (1.0,), **{"config.device.name": "emulated"})
    rows["config.device.per"] = [[] for _ in rows.index]
    said = sweep.answer(rows, ["chunks"])
    assert said.startswith("The nominal times are per microbatch, whatever its rows, so more chunks")
    assert "astest" not in said
    assert "2 with 180 ms per step, a bubble of " in said
    sizes = rows.assign(**dict.fromkeys(("batch_size", "config.batch_size"), 8 * rows["chunks"]), chunks=4)
    said = sweep.answer(sizes.assign(**{"config.chunks": 4}), ["batch_size"])
    assert "take longer, and more rows do not: compare points of equal chunks and batch_size, or" in said
    assert "16 with 180 ms per step, a bubble of " in said
    assert "per row of" not in said
    rows["config.device.per"] = [["row"] for _ in rows.index]
    assert sweep.answer(rows, ["chunks"]).startswith("Fastest of 2 points: 8")


@pytest.mark.parametrize("name", [*EXPERIMENTS, *OVER_ALL_RUNS])
def test_without_runs_there_is_no_answer_and_with_too_few_it_says_what_is_missing(name, tmp_path):
    assert section(name, Made([])).answer == ""
    if name in EXPERIMENTS:
        row = run(tmp_path, gpipe(2, 4), equal(2, 5, 10), device="cpu", sync="ddp")
        row |= {"config.sync.all_reduce": "auto", "config.model.name": "mlp", "config.model.layers": 8}
        store = Made([row])
        said = section(name, store).answer
        assert said.startswith("The finished runs do not answer the question yet: it needs ")
        assert said.endswith(f". `python -m microp.run -cn {name}_quick` runs what is missing.")
        needs, store.schedules = said.partition(" yet: ")[2].partition(". `")[0], ["gpipe", "mine"]
        few = f"--schedule=gpipe,mine leaves too few runs to answer the question: {needs}."
        assert section(name, store).answer == few
