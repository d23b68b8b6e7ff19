"""The figures of the sums over replicas say what is true of runs that obey the model exactly."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from costs_helper import equal

from analysis import gradient_sync, hybrid
from analysis.gradient_sync import MIB, alpha_beta
from microp.schedule.builders import gpipe, one_f_one_b
from microp.simulator import simulate
from microp.store import LAUNCH
from microp.trace import ends_at, reductions
from tests.made_up import Made, by_stem, run, saves

ALPHA, BETA = 0.2, 2048.0  # ms, MiB/s


def ring_ms(replicas: int, mib: float) -> float:
    return 2 * (replicas - 1) * ALPHA + 2 * (replicas - 1) / replicas * mib / BETA * 1e3


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_the_fit_finds_latency_and_bandwidth(replicas):
    sizes = [1, 4, 16, 64]
    found = alpha_beta(replicas, sizes, [ring_ms(replicas, mib) for mib in sizes])
    assert found == pytest.approx((ALPHA, BETA))


def test_a_latency_is_not_below_nothing():
    alpha, beta = alpha_beta(2, [1, 2, 4], [0.5, 2, 8])
    assert alpha == 0
    assert beta > 0


@pytest.fixture
def sums(tmp_path):
    """Every part of the sweep: three sizes, two launches of which the second is a fifth slower throughout."""
    rows = []
    for (launch, slower), dim in product(enumerate((1.0, 1.2)), (128, 256, 512)):
        mib = dim * dim * 4 * 16 / MIB
        common = {LAUNCH: launch, "config.model.dim": dim, "reduction.reduced_bytes": mib * MIB}

        def made(sync, step, bucket=None, reduce="auto", common=common, slower=slower, **changes):
            times = {f"step_ms.{key}": step * slower for key in ("median", "p10", "p90")}
            more = {"sync": sync, "config.sync.bucket_mb": bucket, "config.sync.all_reduce": reduce, "device": "cpu"}
            more |= {"reduction.exposed_ms": 1.0 * slower, "reduction.all_reduce_ms": 2.0 * slower}
            row = {**common, **times, **more, "replicas": 2, **changes}
            rows.append(run(tmp_path, gpipe(1, 1), equal(1, 1, 1), **row))

        for sync, step in (("naive", 30.0), ("flat", 20.0), ("ddp", 18.0), ("torch_ddp", 19.0)):
            made(sync, step + mib, 25.0 if "ddp" in sync else None)
        for bucket in (1.0, 4.0):
            made("ddp", 20.0 + abs(bucket - 4), bucket)
        bytes_ = {f"syncs.reduced_bytes.{name}": mib * MIB for name in ("ddp", "torch_ddp")}
        made("compare", 18.0, 25.0, **{"syncs.ratio.ddp/torch_ddp": 0.9}, **bytes_)
        for replicas in (2, 4):
            made("flat", 20, None, "ring", replicas=replicas, **{"reduction.all_reduce_ms": ring_ms(replicas, mib)})
        for replicas in (1, 2):
            speed = 250 * replicas * 0.95 ** (replicas - 1)
            made("ddp", 60, 25.0, replicas=replicas, device="emulated", samples_per_s=speed)
    return Made(rows)


def test_every_part_has_its_figure(sums, tmp_path):
    found = by_stem(gradient_sync.exhibits(sums))
    assert list(found) == [f"gradient-sync-{name}" for name in ("ways", "buckets", "ring", "scaling")]
    saves(list(found.values()), tmp_path / "report")
    assert "0.900 [0.900, 0.900] at width 512; both move the same bytes" in found["gradient-sync-ways"].caption
    buckets = found["gradient-sync-buckets"].table
    assert sorted(buckets["config.sync.bucket_mb"].unique()) == [1, 4, 25]
    ring = found["gradient-sync-ring"]
    assert ring.table["fit"].tolist() == pytest.approx(ring.table["reduction.all_reduce_ms"].tolist())
    assert "The error of the fit is 0 % in the median" in ring.caption
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
            own = (s for s in taken if s.rank == rank)
            lines = [
                json.dumps({"rank": rank, "stage": s.stage, "start_ns": s.start * 1e6, "end_ns": s.end * 1e6})
                for s in own
            ]
            Path(row["folder"], f"reductions.rank{rank}.jsonl").write_text("\n".join(lines) + "\n")
        rows.append(row)
    step, lines = hybrid.exhibits(Made(rows))
    assert step.table["measured / simulated"].tolist() == [1] * 4
    assert len(lines.table) == 8  # four ranks of two schedules
    assert (lines.table["to_ms"] - lines.table["from_ms"]).tolist() == pytest.approx([20.0] * 8)
    saves([step, lines], tmp_path / "report")
