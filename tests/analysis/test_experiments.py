"""The experiments' figures say what is true of runs that obey the model exactly."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from drawn import equal

from analysis import checkpoint_overhead
from analysis.command import section
from analysis.gradient_sync import MIB
from analysis.memory_law import boundary_mib, laws, peak_of
from microp.records import LAUNCH
from microp.schedule import builders
from microp.schedule.builders import gpipe, one_f_one_b
from microp.simulator import simulate
from microp.trace import ends_at, reductions
from tests.made_sweeps import latency_runs, schedule_runs, skew_runs, sync_runs
from tests.made_up import Made, by_stem, run

SEGMENTS = {"never": 0, "always": 1, "segments": 2}


def peaks_by_hand(name: str, policy: str, chunks: int) -> list[float]:
    """In MiB: a = 9 boundaries on the first rank and 8.5 on the last; a boundary has 16 / M rows of 64 x 4 bytes."""
    boundary = 16 * 64 * 4 / 2**20 / chunks
    numbers = [chunks, chunks] if name == "gpipe" else [2, 1]
    if policy == "never":
        return [number * a * boundary for number, a in zip(numbers, (9, 8.5), strict=True)]
    if policy == "always":
        return [9 * boundary, (numbers[1] + 7.5) * boundary]
    return [(numbers[0] + 4) * boundary, (2 * numbers[1] + 3.5) * boundary]  # the last segment has the head


@pytest.fixture
def checkpointed(tmp_path):
    """GPipe and 1F1B on two ranks, two M, two launches of which the second is a fifth slower throughout."""
    rows, builds, launches = [], {"gpipe": gpipe, "1f1b": one_f_one_b}, enumerate((1.0, 1.2))
    for (name, build), chunks, policy, (launch, slower) in product(builds.items(), (4, 8), SEGMENTS, launches):
        plain = equal(2, 5, 10)
        costs = plain if policy == "never" else replace(plain, recompute=(5, 5))
        changes = {LAUNCH: launch, "question": f"{name}-{chunks}-{policy}", "checkpointing": policy}
        changes["config.checkpointing.segments"] = SEGMENTS[policy]
        changes["peak_activation_mib"] = peaks_by_hand(name, policy, chunks)
        rows.append(run(tmp_path, build(2, chunks), costs, slower, **changes))
    return Made(rows)


def test_the_penalty_is_the_one_simulated(checkpointed):
    """T = 15 and with recomputation 20: a third more, whatever M; the slow launch is compared with itself."""
    exhibits = section("checkpoint_overhead", checkpointed).exhibits
    table = by_stem(exhibits)["checkpoint-overhead-penalty"].table
    assert len(table) == 8
    assert table["ratio"].tolist() == pytest.approx([4 / 3] * 8)
    assert table["ratio.low"].tolist() == pytest.approx([4 / 3] * 8)
    [first] = table.query("chunks == 4 and schedule == 'gpipe' and checkpointing == 'always'").to_dict("records")
    assert first["simulated.high"] == pytest.approx(4 / 3)  # of the launch that is as fast as its actions
    assert first["kept"] == pytest.approx((4 + 7.5) / (4 * 9))


def test_the_memory_law_counts_to_the_byte(checkpointed):
    """The mean segment is off where the last one has the head; the one counted off 1F1B is not."""
    table = laws(checkpointed.frame, checkpoint_overhead.POINT)
    assert len(table) == 24
    assert table["counted error"].abs().max() < 1e-12
    assert table[table["checkpointing"] != "segments"]["law error"].abs().max() < 1e-12
    off = table.query("checkpointing == 'segments' and rank == 1 and schedule == '1f1b'")
    assert off["law error"].tolist() == pytest.approx([5.5 / 5.25 - 1] * 2)


@pytest.mark.parametrize(("drain", "most"), [("fifo", 3 + 9 + 8), ("lifo", 3 + 9)])
def test_except_last_saves_only_where_the_last_goes_first(drain, most):
    """a = 9, b = 1, M = 4: first-in first-out has the last microbatch whole beside the one that is rebuilt."""
    [row] = builders.gpipe(1, 4, builders.Drain(drain)).ranks
    assert peak_of(row, whole=9, inputs=1, segment=8, spared=[3]) == most


def test_a_boundary_has_the_models_shape():
    model = {"name": "mlp", "layers": 4, "dim": 8, "dtype": "float64"}
    row = {f"config.model.{key}": value for key, value in model.items()}
    row |= {"batch_size": 32, "chunks": 4, "partition": [2, 2]}
    assert boundary_mib(row) == 8 * 8 * 8 / 2**20
    gpt = {"name": "gpt", "heads": 2.0, "context": 16.0, "dropout": 0.0}
    gpt_row = {**row, **{f"config.model.{key}": value for key, value in gpt.items()}}
    assert boundary_mib(gpt_row) == 16 * boundary_mib(row)
    bf16 = {"config.model.dtype": "float32", "config.dtype": "bf16"}
    lowered = [boundary_mib({**each, **bf16}) for each in (row, gpt_row)]
    assert lowered == [boundary_mib(row) / 4, boundary_mib(gpt_row) / 2]  # between the blocks of a gpt it is float32


def test_a_heavy_first_stage_is_cheaper_under_1f1b_alone_and_throughput_is_as_computed(tmp_path):
    """Four ranks; half of the layers on the first or the last, or as many on each."""
    rows = skew_runs(tmp_path, [("emulated", 4)], (0.25, 0.5), (0, 3), launches=(0,))
    made = section("partition_skew", Made([{**row, "samples_per_s": None} for row in rows]))  # per layer, not per row
    exhibits = made.exhibits
    assert "the throughput of gpipe is 0.611 of" in made.answer
    tables = {stem: exhibit.table for stem, exhibit in by_stem(exhibits).items()}
    table = tables["partition-skew-position"]
    ratios = table[table["position"] == 0].set_index(["schedule", "share"])
    assert ratios["ratio"].tolist() == pytest.approx(ratios["formula"].tolist())
    assert ratios.loc[("gpipe", 50.0), "ratio"] == 1
    assert ratios.loc[("1f1b", 50.0), "ratio"] == pytest.approx(8 / 9)  # 8 * 30 layers, and three times 10 more
    speed, used = tables["partition-skew-throughput"], tables["partition-skew-utilisation"]
    assert speed["samples_per_s"].tolist() == pytest.approx(speed["formula"].tolist())
    assert (speed["alone"] >= speed["samples_per_s"] - 1e-9).all()
    assert used["utilisation"].tolist() == pytest.approx(used["formula"].tolist())
    assert len(used) == 8 * 4


def test_the_front_has_what_nothing_beats(tmp_path):
    """1F1B is as fast as GPipe and holds less, ZB-H1 is faster and holds no more than 1F1B's first rank.

    A disturbed run, whose marker is hollow, is not on it; a single filled marker is none.
    """
    names = ("gpipe", "1f1b", "zb_h1", "naive")
    rows = list(schedule_runs(tmp_path, names, (8,), ("never",), ("emulated",), ranks=4, launches=(0,)))
    exhibits = section("schedules", Made(rows)).exhibits
    table = by_stem(exhibits)["schedules-pareto"].table.set_index("schedule")
    assert table["step_ms.median"].tolist() == pytest.approx(table["step_ms.formula"].tolist())
    assert table["bubble.measured"].tolist() == pytest.approx(table["bubble.formula"].tolist())
    assert table[table["front"]].index.tolist() == ["naive", "zb_h1"]
    [fastest] = [row for row in rows if row["schedule"] == "zb_h1"]
    for share, more in ((0.995, []), (0.97, ["gpipe"])):  # of its time: less than 1 % may be overhead, or noise
        times = {key: share * fastest[key] for key in ("step_ms.p10", "step_ms.median", "step_ms.p90")}
        near = Made([{**row, **(times if row["schedule"] == "gpipe" else {})} for row in rows])
        table = by_stem(section("schedules", near).exhibits)["schedules-pareto"].table
        assert sorted(table["schedule"][table["front"]]) == [*more, "naive", "zb_h1"]
    noisy = [{**row, "disturbed": row["schedule"] != "naive"} for row in rows]
    noisy = by_stem(section("schedules", Made(noisy)).exhibits)["schedules-pareto"]
    assert not noisy.table["front"].any()
    assert "Pareto" not in noisy.caption


def test_the_slopes_differ_by_the_formula(tmp_path):
    """K = 4: 1F1B pays 1.5 c a microbatch for its hops, the others nothing."""
    rows = latency_runs(tmp_path, ("gpipe", "1f1b", "eager_1f1b"), (8, 16, 32), ranks=4, launches=(0,))
    exhibits = section("hop_latency", Made(list(rows))).exhibits
    found = by_stem(exhibits)
    times = found["hop-latency-step-time"].table
    assert times["step_ms.median"].tolist() == pytest.approx(times["formula"].tolist())
    added = found["hop-latency-slopes"].table
    assert added["added_ms"].tolist() == pytest.approx(added["formula"].tolist(), abs=1e-6)
    assert added.set_index(["schedule", "latency_ms"]).loc[("1f1b", 2.0), "formula"] == 3


ALPHA, BETA = 0.2, 2048.0  # ms, MiB/s


def ring_ms(replicas: int, mib: float) -> float:
    return 2 * (replicas - 1) * ALPHA + 2 * (replicas - 1) / replicas * mib / BETA * 1e3


def test_every_part_has_its_figure(tmp_path):
    """Three sizes, three sizes of buckets, up to four replicas, of which each is 5 % slower than the one before."""
    rows = list(sync_runs(tmp_path, (128, 256, 512), (1.0, 4.0, 25.0), (1, 2, 4)))
    for row in rows:
        row["samples_per_s"] = None  # the emulated ones' times are per microbatch, whatever its rows
        row["step_ms.median"] = row["batch_size"] / row["replicas"] * 4 / 0.95 ** (row["replicas"] - 1)
        if row["replicas"] > 1 and row["config.sync.all_reduce"] == "ring":
            row["reduction.all_reduce_ms"] = ring_ms(row["replicas"], row["reduction.reduced_bytes"] / MIB)
    found = by_stem(section("gradient_sync", Made(rows)).exhibits)
    assert list(found) == [f"gradient-sync-{name}" for name in ("ways", "buckets", "ring", "scaling")]
    assert "0.900 [0.900, 0.900] at width 512; both move the same bytes" in found["gradient-sync-ways"].caption
    buckets = found["gradient-sync-buckets"].table
    assert sorted(buckets["config.sync.bucket_mb"].unique()) == [1, 4, 25]
    ring = found["gradient-sync-ring"]
    assert ring.table["fit"].tolist() == pytest.approx(ring.table["reduction.all_reduce_ms"].tolist())
    assert "The error of the fit is 0 % in the median" in ring.caption
    assert "whose step nominally takes 15 ms for 1 row; the sums" in found["gradient-sync-scaling"].caption
    scaling = found["gradient-sync-scaling"].table
    assert scaling[scaling["replicas"] == 2]["ratio"].tolist() == pytest.approx([1.9] * 3)


def test_a_hybrid_is_as_simulated(tmp_path):
    """Measured is what is simulated; the first replica's timeline has its sums."""
    rows = []
    for build, reduce_ms in product((gpipe, one_f_one_b), (5.0, 20.0)):
        schedule, costs = build(4, 4), equal(4, 5, 10)
        spans = simulate(schedule, costs)
        taken = reductions(schedule, spans, (reduce_ms,) * 4)
        total = float(ends_at(spans, taken))
        times = {"reduction.measured_ms": total, "reduction.simulated_ms": total}
        times |= {"reduction.exposed_ms": reduce_ms, "reduction.simulated_exposed_ms": reduce_ms}
        row = run(tmp_path, schedule, costs, replicas=2, **times, **{"config.device.reduce_ms": reduce_ms})
        for rank in range(4):
            sums = [{"rank": rank, "stage": s.stage, "start_ns": s.start * 1e6, "end_ns": s.end * 1e6} for s in taken]
            lines = [json.dumps(each) for each, s in zip(sums, taken, strict=True) if s.rank == rank]
            Path(row["folder"], f"reductions.rank{rank}.jsonl").write_text("\n".join(lines) + "\n")
        rows.append(row)
    step, lines = section("hybrid", Made(rows)).exhibits
    assert step.table["measured / simulated"].tolist() == [1] * 4
    assert len(lines.table) == 8  # four ranks of two schedules
    assert (lines.table["to_ms"] - lines.table["from_ms"]).tolist() == pytest.approx([20.0] * 8)
    assert all(file.stat().st_size for exhibit in (step, lines) for file in exhibit.save(tmp_path / "report"))
