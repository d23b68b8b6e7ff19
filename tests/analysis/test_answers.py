"""The answers' sentences have the figures of the rows, a verdict where launches allow one, and no figure too many."""

from __future__ import annotations

from itertools import product

import pytest
from costs_helper import equal

from analysis import sweep, words
from analysis.__main__ import EXPERIMENTS, OVER_ALL_RUNS
from analysis.command import answer_of
from microp.records import LAUNCH
from microp.results import Store
from microp.schedule.builders import gpipe, naive, one_f_one_b, zb_h1
from microp.simulator import Costs, simulate
from microp.trace import KINDS, makespan
from tests.boxes import faults
from tests.made_sweeps import made
from tests.made_up import Made, run
from tests.recorded import write_plan

STEADY = (1.0, 1.02, 0.98)  # how long the steps of three launches are, relative to the model
ONE = "One launch each, so no spread between launches is known: repeat=0,1,2 gives it."


def launches(folder, schedule, costs, slower=STEADY, **changes):
    """The rows of launches that are as slow as `slower` says."""
    return [run(folder, schedule, costs, factor, **{LAUNCH: n, **changes}) for n, factor in enumerate(slower)]


def took(schedule, costs) -> float:
    return float(makespan(simulate(schedule, costs)))


def test_without_runs_there_is_no_answer():
    assert [answer_of(name, Made([])) for name in (*EXPERIMENTS, *OVER_ALL_RUNS)] == [""] * 10


# --- one experiment each --------------------------------------------------------------------------------


def m_runs(folder, few=STEADY, many=STEADY):
    """K = 4 on real devices, 16 rows as one microbatch or as 8: steps of 480 and 165 ms, bubbles of 3/4 and 3/11."""
    rows = []
    for build, (chunks, slower) in product((gpipe, one_f_one_b), ((1, few), (8, many))):
        changes = {"device": "cpu", "bubble.closed_form": 3 / (chunks + 3)}
        rows += launches(folder, build(4, chunks), equal(4, 40 / chunks, 80 / chunks), slower, **changes)
    return Made(rows)


def test_m_sensitivity_says_bubble_time_and_memory(tmp_path):
    said = answer_of("m_sensitivity", m_runs(tmp_path))
    assert said == (
        "Real compute, K = 4, batch fixed: from M = 1 to 8 the bubble of gpipe goes from 0.750 [0.750, 0.750] to 0.273 "
        "[0.273, 0.273] (closed form: 0.750 to 0.273); a step with M = 8 is 65.6 % faster than one with M = 1 "
        "[65.6 %, 65.6 %], 3 launches each. Real compute, K = 4, batch fixed, M = 8: the rank that holds most keeps "
        "8.00 MiB of activations under gpipe, 4.00 MiB under 1f1b. Brackets: ranges over up to 3 launches; "
        "behind a verdict, 95 % intervals."
    )


def test_one_launch_has_times_and_no_verdict(tmp_path):
    said = answer_of("m_sensitivity", m_runs(tmp_path, (1.0,), (1.0,)))
    assert "goes from 0.750 to 0.273 (closed" in said
    assert "a step with M = 8 takes 165 ms, against 480 ms for one with M = 1." in said
    assert said.endswith(ONE)
    assert "[" not in said
    assert "faster" not in said


def test_launches_that_differ_too_much_have_no_winner(tmp_path):
    said = answer_of("m_sensitivity", m_runs(tmp_path, many=(0.6, 4.0, 1.0)))
    assert "too noisy to say" in said
    assert "more launches each (repeat=3" in said


def test_checkpoint_overhead_says_time_and_memory(tmp_path):
    """T = 15 a microbatch and with recomputation 20; half of the activations are kept."""
    rows = []
    for policy, costs in {"never": equal(2, 5, 10), "always": Costs((5, 5), (10, 10), recompute=(5, 5))}.items():
        kept = 4.0 if policy == "never" else 2.0
        changes = {"checkpointing": policy, "peak_activation_mib": [kept, kept / 2], "config.checkpointing.segments": 1}
        rows += launches(tmp_path, gpipe(2, 4), costs, **changes)
    said = answer_of("checkpoint_overhead", Made(rows))
    assert said.startswith(
        "With always, a step takes 1.33 times as long as with checkpointing=never, by simulation 1.33, "
        "and keeps 0.500 of the peak activations. Of a ratio, the interval over launches is at most "
    )


def test_partition_skew_says_throughput_and_position(tmp_path):
    """12 layers on four ranks, F = 1 and B = 2 ms a layer: uniform, or half of them on the first or the last rank."""
    rows, steps = [], {}
    nominal = {"config.device.forward_ms": 1.0, "config.device.backward_ms": 2.0, "config.device.per": ["layer"]}
    for heavy, (share, most) in product((0, 3), ((0.25, 3), (0.5, 6))):
        layers = [most if rank == heavy else (12 - most) // 3 for rank in range(4)]
        costs = Costs(tuple(layers), tuple(2 * n for n in layers))
        steps[heavy, share] = took(one_f_one_b(4, 8), costs)
        changes = {"config.partition.rank": heavy, "config.partition.share": share, "partition": layers, **nominal}
        rows += launches(tmp_path, one_f_one_b(4, 8), costs, **changes)
    said = answer_of("partition_skew", Made(rows))
    ratio, bound = steps[3, 0.25] / steps[3, 0.5], steps[3, 0.25] / (8 * 6 * 3)
    assert (
        f"with 50 % of the layers on rank 3, the throughput of 1f1b is {ratio:.3f} [{ratio:.3f}, {ratio:.3f}] of"
        in said
    )
    assert f"the heavy rank's work alone would give {bound:.3f}, computed from the nominal times" in said
    faster = 1 - steps[0, 0.5] / steps[3, 0.5]
    assert faster > 0
    assert f"a step with a heavy first rank is {faster:.1%}".replace("%", " %") in said


def test_schedules_says_the_fastest_and_the_smallest(tmp_path):
    split, plain = Costs((5, 5), (5, 5), (5, 5)), equal(2, 5, 10)
    rows = launches(tmp_path, zb_h1(2, 4), split)
    for build in (gpipe, one_f_one_b, naive):
        rows += launches(tmp_path, build(2, 4), plain)
    said = answer_of("schedules", Made(rows))
    best, worst = took(zb_h1(2, 4), split), took(naive(2, 4), plain)
    assert f"zb_h1 has the shortest step: {best:.1f} ms [{0.98 * best:.1f}, {1.02 * best:.1f}]" in said
    assert f"naive has the longest, {worst:.0f} ms [" in said
    assert f"zb_h1 is {1 - best / took(gpipe(2, 4), plain):.1%} faster than".replace("%", " %") in said
    assert "most: gpipe with 4.00 MiB" in said


def test_hop_latency_says_what_each_schedule_pays(tmp_path):
    """K = 4 and c = 2 ms: 1F1B pays 2 c (K - 1) / K = 3 ms per microbatch, GPipe nothing."""
    rows = []
    for build, chunks, latency in product((gpipe, one_f_one_b), (8, 16, 32), (0, 2)):
        rows += launches(tmp_path, build(4, chunks), equal(4, 5, 10, latency=latency), (1.0,))
    said = answer_of("hop_latency", Made(rows))
    assert said.startswith(
        "A latency of 2 ms per hop makes the time per microbatch longer by 0.00 ms under gpipe and 3.0"
    )
    assert "the closed form 2c(K-1)/K gives 3.00 ms for 1f1b." in said


def test_engine_speed_says_ratios(tmp_path):
    rows = []
    for chunks, over in ((4, 1.0), (8, 1.2)):
        ratios = {"microp/limit": over, "torch/limit": 1.5 * over, "torch/microp": 1.5}
        changes = {f"engines.ratio.{pair}": ratio for pair, ratio in ratios.items()}
        rows += launches(tmp_path, gpipe(2, chunks), equal(2, 5, 10), **changes)
    said = answer_of("engine_speed", Made(rows))
    assert said.startswith(
        "Emulated, K = 2, shm: the step time of microp over the limit 1.10 (1.00 to 1.20) (2 configurations), torch "
        "over the limit 1.65 (1.50 to 1.80) (2 configurations) and torch over microp 1.50 (2 configurations). Figures "
        "are medians over configurations (schedule and M), with their ranges."
    )
    rows = [{**row, "device": "cpu", "disturbed": row["chunks"] == 4} for row in rows]
    for row in rows[:3]:
        row |= {"engines.ratio.microp/limit": 0.9, "engines.ratio.torch/limit": float("nan")}
    said = answer_of("engine_speed", Made(rows))
    assert "microp over the limit 1.05 (0.90 to 1.20) (2 configurations), torch over the limit 1.80 (1 conf" in said
    assert "torch over microp 1.50 (2 configurations) (disturbed: 1 of 2)." in said
    assert "a ratio below 1 means that the schedule fills bubbles with W" in said


def test_gradient_sync_says_ways_and_scaling(tmp_path):
    rows, none = [], {"config.sync.all_reduce": "auto"}
    for way, ms in (("flat", 40.0), ("ddp", 30.0)):
        changes = {"sync": way, "replicas": 2, "device": "cpu", "step_ms.median": ms, "disturbed": way == "flat"}
        rows += launches(tmp_path, gpipe(1, 1), equal(1, 5, 10), (1.0,), **changes, **none)
    for replicas, rate in ((1, 100.0), (4, 350.0)):
        changes = {"sync": "ddp", "replicas": replicas, "samples_per_s": rate, "disturbed": replicas == 1}
        rows += launches(tmp_path, gpipe(1, 1), equal(1, 5, 10), (1.0,), **changes, **none)
    assert answer_of("gradient_sync", Made(rows)) == (
        "With two replicas of a model of width 64, a step takes 40.0 ms (disturbed) with flat and 30.0 ms with ddp. "
        f"The rows per second of 4 emulated replicas, relative to those of one, are 3.50 (disturbed) at width 64. {ONE}"
    )


def test_hybrid_says_what_is_exposed(tmp_path):
    rows = []
    for build, exposed in ((gpipe, 20.0), (one_f_one_b, 10.0)):
        changes = {"replicas": 2, "config.device.reduce_ms": 20.0, "reduction.exposed_ms": exposed}
        changes |= {"reduction.measured_ms": 99.0, "reduction.simulated_ms": 100.0, "config.device.forward_ms": 5.0}
        changes |= {"config.device.backward_ms": 10.0}
        rows += launches(tmp_path, build(2, 4), equal(2, 5, 10), (1.0,), **changes)
    assert answer_of("hybrid", Made(rows)) == (
        "With M = 4 and a sum of 20 ms per stage, the rank that waits longest for its sums waits 20.0 ms under gpipe "
        "and 10.0 ms under 1f1b. The measured step times differ from the simulated ones by 1.0 % in the median and "
        f"1.0 % at most, over 2 points. {ONE}"
    )


def test_over_all_runs(tmp_path):
    """A launch that is a tenth slower than its actions: the replay is off by 1 - 1/1.1, the launches by a tenth."""
    times = {f"time_ms.{kind}": [0.0, 0.0] for kind in KINDS}
    times |= {"time_ms.compute": [60.0, 80.0], "time_ms.drain": [40.0, 0.0], "time_ms.warmup": [0.0, 20.0]}
    changes = {"question": "one", "config.partition.name": "uniform", **times}
    store = Made(launches(tmp_path, gpipe(2, 4), equal(2, 5, 10), (1.0, 1.1), **changes))
    said = answer_of("prediction", store)
    assert said.startswith("Replayed from its own actions: emulated, 2 runs: median error 4.5 %")
    assert answer_of("rank_time", store) == (
        "Emulated, 1 configuration: ranks compute 70 % of a step; the next largest parts are wait: drain (20 %) "
        "and wait: warm-up (10 %)."
    )


def test_prediction_says_what_was_known_before_the_run(tmp_path):
    """Two configurations, one predicted 10 % too long: the order is right, so the plan chosen is the fastest."""
    rows = []
    for chunks, factor in ((2, 1.0), (8, 1.1)):
        schedule, costs = gpipe(2, chunks), equal(2, 40 / chunks, 80 / chunks)
        predicted = {"predicted.step_ms": factor * took(schedule, costs), "replayed.step_ms": 70.0}
        rows += launches(tmp_path, schedule, costs, (1.0,), **{"question": str(chunks), **predicted})
    said = answer_of("prediction", Made(rows))
    assert (
        "Predicted before the run: emulated, 2 configurations: median error 5.0 %, 90 % within 9.0 %, bias +5.0 %, "
        "Kendall's tau 1.00, regret of the plan chosen 0.0 %; median error of the baselines: closed bubble 0.0 %, "
    ) in said


# --- a sweep of one's own -------------------------------------------------------------------------------


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
        "launches each. Least memory: 2, where the rank that holds most keeps 2.00 MiB of activations; most: 8 with "
        "8.00 MiB. Brackets: ranges over up to 3 launches; behind a verdict, 95 % intervals."
    )


def test_disturbed_and_wide_points_are_never_fastest_without_a_word(tmp_path):
    rows = own(tmp_path, (1.0,), disturbed=True)
    said = sweep.answer(rows, ["chunks"])
    assert said.startswith("Fastest of 2 points (disturbed: 2 of 2): 8 with 135 ms per step (disturbed), ")
    assert said.endswith(ONE)
    said = sweep.answer(own(tmp_path, (0.9, 1.0, 1.1)), ["chunks"])
    assert "(spread too wide: 2 of 2): 8 with 135 ms per step [122, 148] (its spread is too wide), with" in said


def test_batches_of_different_sizes_are_compared_by_the_row(tmp_path):
    rows = own(tmp_path, (1.0,))
    rows.loc[rows["chunks"] == 2, "batch_size"] = 64
    said = sweep.answer(rows, ["chunks"])
    assert f"Fastest of 2 points: 2 with {180 / 64:.2f} ms per row of the batch" in said
    assert f"slowest: 8 with {135 / 16:.2f} ms per row" in said


def test_a_single_point_and_a_folder_with_equal_launches(tmp_path):
    rows = own(tmp_path)
    single = sweep.answer(rows[(rows["chunks"] == 8) & (rows[LAUNCH] == 0)], [])
    assert single.startswith("135 ms per step, with a bubble of 0.111.")
    assert "two fastest" not in sweep.answer(rows.assign(**{LAUNCH: 0}), ["chunks"])


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.0588, "0.059"), (0.5, "0.500"), (57.33, "57.3"), (1234.5, "1,234"), (-2, "-2.00"), (0.9999, "1.00")],
)
def test_a_number_has_three_digits(value, shown):
    assert words.number(value) == shown


# --- what is missing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_with_runs_has_an_answer_or_says_what_is_missing(name, tmp_path):
    row = run(tmp_path, gpipe(2, 4), equal(2, 5, 10), device="cpu", sync="ddp")
    row |= {"config.sync.all_reduce": "auto", "config.model.name": "mlp", "config.model.layers": 8}
    said = answer_of(name, Made([row]))
    assert said.startswith("The finished runs do not answer the question yet: it needs ")
    assert said.endswith(f". `python -m microp.run -cn {name}` runs what is missing.")


def test_a_failed_point_of_a_sweep_is_named(tmp_path):
    write_plan(
        tmp_path, "1_config", "config", {"a": ["steps=2", "learning_rate=0.1"], "b": ["steps=2", "learning_rate=9"]}
    )
    store = Store(tmp_path)
    store.rows = [{"run_id": "a", "status": "finished"}, {"run_id": "b", "status": "failed"}]
    [plan] = store.plans
    assert sweep.without_result(store, plan) == "Without a result: 1 of 2 points, learning_rate=9 (failed)."
    assert store.unfinished(plan.points) == []


def test_a_sweep_over_engines_says_how_they_compare_in_turn(tmp_path):
    """A run that compares engines counts with microp's step, and torch's and the limit's times are in the table."""
    rows = []
    for engine, chunks in product(("microp", "compare"), (4, 8)):
        ratios = {"microp/limit": 1.02, "torch/limit": 1.5 * 1.02, "torch/microp": 1.5}
        compared = {f"engines.ratio.{name}": value for name, value in ratios.items()}
        times = {f"engines.pipeline_ms.{name}.median": value for name, value in (("limit", 50.0), ("torch", 76.5))}
        more = {**compared, **times} if engine == "compare" else {}
        rows.append(made(tmp_path, "gpipe", chunks, **{"config.engine.name": engine, LAUNCH: 0}, **more))
    exhibit = sweep.exhibit(Made(rows).runs(), "own", "Own")
    assert "compare (microp's step)" in exhibit.answer
    assert (
        "Step times of engines that take turns, as ratios, medians over points with their ranges: microp over the "
        "limit 1.02, torch over the limit 1.53 and torch over microp 1.50." in exhibit.answer
    )
    assert exhibit.table["engines.ratio.torch/microp"].dropna().tolist() == [1.5, 1.5]
    assert exhibit.table["engines.pipeline_ms.torch.median"].dropna().tolist() == [76.5, 76.5]
    assert any("torch over microp" in " ".join(axis.get_ylabel().split()) for axis in exhibit.figure.axes)
    assert faults(exhibit.figure) == []
