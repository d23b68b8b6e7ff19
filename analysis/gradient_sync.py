"""Cost of keeping replicas equal: ways to sum gradients, bucket sizes, the ring, more replicas.

::

    step │●                   naive: one sum per parameter     ms per sum  │        ╱
         │  ●         ●       small buckets pay latency,       of the ring │     ╱      2(N-1) α
         │     ●   ●          a large one starts late                      │  ╱       + 2(N-1)/N S/β
         └─────────── MiB                                                  └──────── S

Each replica is one rank with the whole model. All ways are given the same batch. `ddp` and
torch's own also run in turn within one launch, which is the more precise comparison.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd

from analysis import plot
from analysis.command import main
from analysis.exhibit import INTERVALS, Exhibit, distance, drawn
from microp.settings import MIB
from microp.store import LAUNCH, Store, over_launches, paired, records

NAME = "gradient_sync"
WAYS = ["naive", "flat", "ddp", "torch_ddp"]
DIM, BUCKET = "config.model.dim", "config.sync.bucket_mb"
USUAL_MB = 25.0  # torch's bucket size
TIMES = ["reduction.exposed_ms", "reduction.all_reduce_ms", "reduction.reduced_bytes"]
NEEDED = ["config.sync.all_reduce", BUCKET, *TIMES]


def exhibits(store: Store) -> list[Exhibit]:
    """Return up to four figures: ways to sum, bucket sizes, the ring, and scaling."""
    runs = store.runs(NAME)
    if runs.empty:
        return []
    absent = [column for column in NEEDED if column not in runs]  # of runs with one replica, or without buckets
    runs = runs.assign(**dict.fromkeys(absent, np.nan))
    runs["ring"] = runs["config.sync.all_reduce"] == "ring"
    real = runs[(runs["device"] != "emulated") & ~runs["ring"]]
    made = [
        ways(real[(real[BUCKET].fillna(USUAL_MB) == USUAL_MB) & real["sync"].isin(WAYS)], real),
        buckets(real[real["sync"].isin(["ddp", "torch_ddp"])]),
        ring(runs[runs["ring"]]),
        scaling(runs[runs["device"] == "emulated"]),
    ]
    return drawn(made, store.missing(NAME))


def ways(runs: pd.DataFrame, real: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the step time and the exposed time of the sum against the size of the model."""
    if runs.empty:
        return None
    values = ["step_ms.median", *TIMES]
    table = over_launches(runs, ["sync", DIM], values)
    # torch waits for its sums within the last backward, so that their time cannot be measured separately
    table.loc[table["sync"] == "torch_ddp", ["reduction.exposed_ms", "reduction.all_reduce_ms"]] = np.nan
    figure, axes = plot.sheet(1, 2)
    for axis, value, name in zip(axes[0], values, ("step time, ms", "exposed time of the sum, ms"), strict=False):
        plot.lines(axis, table, DIM, value, "sync", plot.looks(WAYS))
        plot.powers(axis, table[DIM], "width of the model's 16 layers")
        axis.set(yscale="log", ylabel=name)
        plot.plain(axis.yaxis)
        axis.yaxis.set_minor_formatter(lambda number, _: f"{number:g}" if f"{number:e}"[0] in "25" else "")
    plot.legend(figure)
    text = (
        "Two replicas of the whole model, 32 rows each. Left: time of a step with its optimizer. Right: time that a "
        "rank waits for the sum after its backward (without torch_ddp, which waits within the backward). "
        f"{INTERVALS} {_in_turn(real)}"
    )
    return Exhibit("gradient-sync-ways", "Ways to sum gradients", text, figure, table, runs)


def _in_turn(real: pd.DataFrame) -> str:
    """Return a sentence on the ratio of ddp to torch's own, run in turn within one launch."""
    both = real[real["sync"] == "compare"]
    if both.empty:
        return ""
    table = over_launches(both, [DIM], ["syncs.ratio.ddp/torch_ddp"])
    seen = "; ".join(
        f"{row['syncs.ratio.ddp/torch_ddp']:.2f} ({row['syncs.ratio.ddp/torch_ddp.low']:.2f} to "
        f"{row['syncs.ratio.ddp/torch_ddp.high']:.2f}) at {row[DIM]}"
        for row in records(table)
    )
    same = (both["syncs.reduced_bytes.ddp"] == both["syncs.reduced_bytes.torch_ddp"]).all()
    moved = "both move the same bytes" if same else "they do not move the same bytes"
    return f"Median ratio of step times, ddp over torch_ddp in turn within one launch: {seen}; {moved}."


def buckets(runs: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the step time against the bucket size, with one panel per size of the model."""
    runs = runs.dropna(subset=[BUCKET])
    if runs[BUCKET].nunique() < 2:
        return None
    table = over_launches(runs, [DIM, "sync", BUCKET], ["step_ms.median"])
    sizes = sorted(table[DIM].unique())
    figure, axes = plot.sheet(1, len(sizes), (2.3, 2.5))
    for axis, dim in zip(axes[0], sizes, strict=True):
        plot.lines(axis, table[table[DIM] == dim], BUCKET, "step_ms.median", "sync", plot.looks(WAYS))
        plot.powers(axis, table[BUCKET], "bucket, MiB")
        axis.set_title(f"width {dim}, {_model_mib(runs, dim):.1f} MiB")
    axes[0, 0].set_ylabel("step time, ms")
    plot.legend(figure)
    text = (
        "Step time against the bucket size of the gradients (the first bucket of a step has at most 1 MiB), with two "
        "replicas. Small buckets pay the latency of many sums, a large one starts late. If the processes leave no core "
        f"free for the sums, there is little overlap. {INTERVALS}"
    )
    return Exhibit("gradient-sync-buckets", "Bucket size", text, figure, table, runs)


def _model_mib(runs: pd.DataFrame, dim: Any) -> float:
    return float(runs[runs[DIM] == dim]["reduction.reduced_bytes"].max()) / MIB


def ring(runs: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the time of one ring sum against its bytes, with the fitted latency and bandwidth.

    Only numbers of replicas with two sizes are drawn, because one size does not determine the fit.
    """
    runs = runs[(runs["replicas"] > 1) & (runs["reduction.all_reduce_ms"] > 0)]
    runs = runs.assign(mib=runs["reduction.reduced_bytes"] / MIB)
    runs = runs[runs.groupby("replicas")["mib"].transform("nunique") > 1]
    if runs.empty:
        return None
    table = over_launches(runs, ["replicas", "mib"], ["reduction.all_reduce_ms"])
    fits: dict[int, tuple[float, float]] = {}
    for n in sorted(table["replicas"].unique().tolist()):
        own = table[table["replicas"] == n]
        fits[n] = alpha_beta(n, own["mib"], own["reduction.all_reduce_ms"])
    table["fit"] = [_ring_ms(row["replicas"], row["mib"], *fits[row["replicas"]]) for row in records(table)]
    figure, axes = plot.sheet(1, 1, (4.2, 3.0))
    axis = axes[0, 0]
    value, label = "reduction.all_reduce_ms", "{} replicas"
    plot.lines(axis, table, "mib", value, "replicas", plot.looks(fits), "fit", label)
    axis.set(xscale="log", yscale="log", xlabel="bytes summed S, MiB", ylabel="time of the sum, ms")
    plot.plain(axis.xaxis, axis.yaxis)
    plot.legend(figure, [plot.THEORY])
    seen = "; ".join(f"N = {n}: α {alpha:.2f} ms, β {beta / 1024:.2f} GiB/s" for n, (alpha, beta) in fits.items())
    text = (
        "Time of one sum of all gradients by the ring against its bytes. Dashed: 2(N-1) α + 2(N-1)/N S/β (Patarasuk "
        f"and Yuan 2009) with the best-fitting latency and bandwidth: {seen}. The error of the fit is "
        f"{distance(table['fit'], table[value], 0)}. {INTERVALS}"
    )
    return Exhibit("gradient-sync-ring", "Latency and bandwidth of the ring", text, figure, table, runs)


def alpha_beta(replicas: int, mib: pd.Series[float], times: pd.Series[float]) -> tuple[float, float]:
    """Return latency (ms per message, at least 0) and bandwidth (MiB/s), by least squares of relative errors."""
    turns = 2 * (replicas - 1)
    x, y = np.asarray(mib, dtype=float), np.asarray(times, dtype=float)
    rows = np.stack([np.full(len(x), turns), turns / replicas * x * 1e3], axis=1) / y[:, None]
    (alpha, slowness), *_ = np.linalg.lstsq(rows, np.ones(len(x)), rcond=None)
    if alpha < 0:
        alpha, slowness = 0.0, float(rows[:, 1].sum() / (rows[:, 1] ** 2).sum())
    return float(alpha), float(1 / slowness)


def _ring_ms(replicas: int, mib: float, alpha: float, beta: float) -> float:
    turns = 2 * (replicas - 1)
    return turns * alpha + turns / replicas * mib / beta * 1e3


def scaling(runs: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the throughput of N emulated replicas over that of one, for each size of the model."""
    alone = runs[runs["replicas"] == 1].drop_duplicates([DIM, LAUNCH])
    compared = paired(runs, alone, [DIM], "samples_per_s")
    if compared["replicas"].nunique() < 2:
        return None
    table = over_launches(compared, [DIM, "replicas"], ["ratio", "step_ms.median"])
    figure, axes = plot.sheet(1, 1, (4.2, 3.0))
    axis = axes[0, 0]
    plot.lines(axis, table, "replicas", "ratio", DIM, plot.looks(sorted(table[DIM].unique())), label="width {}")
    numbers = sorted(table["replicas"].unique())
    plot.theory(axis, numbers, numbers)
    plot.powers(axis, numbers, "replicas N")
    axis.set_ylabel("throughput relative to one replica")
    plot.legend(figure, [plot.THEORY])
    step = 1e3 * float(alone["batch_size"].iloc[0]) / float(alone["samples_per_s"].median())
    text = (
        "Rows per second over those of one replica, paired by launch. Each replica is an emulated device whose step "
        f"takes {step:.0f} ms for 16 rows, so that only the sums, which are real, can add time. Dashed: N. On a host "
        f"with fewer cores than replicas the sums compete for cores. {INTERVALS}"
    )
    return Exhibit("gradient-sync-scaling", "Scaling with replicas", text, figure, table, runs)


if __name__ == "__main__":
    sys.exit(main(NAME, exhibits))
