"""What does it cost to keep replicas equal?

::

    step │●                   naive: one sum per parameter     ms per sum  │        ╱
         │  ●         ●       small buckets pay latency,       of the ring │     ╱      2(N-1) α
         │     ●   ●          a large one starts late                      │  ╱       + 2(N-1)/N S/β
         └─────────── MiB                                                  └──────── S

Each replica is one rank with the whole model. All ways are given the same batch. `ddp` and
torch's own also run in turn within one launch, which is the more precise comparison.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis import looks, nominal, plot, scales
from analysis.command import run
from analysis.exhibit import FIT, NOT_FITTED, Exhibit, counted, distance, markers
from analysis.words import TIME, closing, listed, number, sentences, spread
from microp.records import LAUNCH, least_squares, over_launches, paired
from microp.results import records
from microp.system import MIB

NEEDS = "two ways to sum with two replicas, several sizes of a ring's sums, or several numbers of emulated replicas"
WAYS = ["naive", "flat", "ddp", "torch_ddp"]
DIM, BUCKET = "config.model.dim", "config.sync.bucket_mb"
USUAL_MB = 25.0  # torch's bucket size
TIMES = ["reduction.exposed_ms", "reduction.all_reduce_ms", "reduction.reduced_bytes"]
TURNS = "syncs.ratio.ddp/torch_ddp"
NEEDED = ["config.sync.all_reduce", BUCKET, *TIMES]


def exhibits(runs: pd.DataFrame) -> list[Exhibit | None]:
    """Return up to four figures: ways to sum, bucket sizes, the ring, and scaling."""
    real = runs[(runs["device"] != "emulated") & ~runs["ring"]]
    return [
        ways(_usual(real), real),
        buckets(real[real["sync"].isin(["ddp", "torch_ddp"])]),
        ring(runs[runs["ring"]]),
        scaling(runs[runs["device"] == "emulated"]),
    ]


def _usual(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs whose one way to sum has buckets of the usual size, if it has buckets."""
    return runs[(runs[BUCKET].fillna(USUAL_MB) == USUAL_MB) & runs["sync"].isin(WAYS)]


def answer(runs: pd.DataFrame) -> str:
    """Return up to four sentences: ways to sum, ddp against torch's own in turn, the ring, and scaling."""
    told = []
    # 1. the ways to sum, for the widest model that has several
    usual = _usual(runs[(runs["device"] != "emulated") & ~runs["ring"] & (runs["replicas"] > 1)])
    several = usual.groupby(DIM)["sync"].nunique()
    if not (wide := several[several > 1]).empty:
        table = over_launches(usual[usual[DIM] == wide.index.max()], ["sync"], [TIME])
        times = {row["sync"]: f"{spread(row, TIME, 'ms')} with {row['sync']}" for row in records(table)}
        seen = listed([times[way] for way in WAYS if way in times])
        told.append(f"with two replicas of a model of width {wide.index.max()}, a step takes {seen}")
    # 2. the two that ran in turn
    if TURNS in runs and not runs[TURNS].isna().all():
        seen = listed(by_width(runs.dropna(subset=[TURNS]), TURNS))
        told.append(f"run in turn within one launch, ddp's step time over that of torch_ddp is {seen}")
    # 3. the ring
    fits = ring_fits(ring_sums(runs[runs["ring"]])[1]).items()
    if per := [f"{number(a)} ms per message and {number(b / 1024)} GiB/s with {n} replicas" for n, (a, b) in fits]:
        told.append(f"the ring's latency and bandwidth, fitted to its sums, are {listed(per)}")
    # 4. the most emulated replicas
    _, compared = relative_to_one(runs[runs["device"] == "emulated"])
    if not compared.empty and compared["replicas"].nunique() > 1:
        most = compared["replicas"].max()
        seen = listed(by_width(compared[compared["replicas"] == most], "ratio"))
        told.append(f"the rows per second of {most} emulated replicas, relative to those of one, are {seen}")
    return sentences([*told, closing(runs, ["device", "replicas", "sync", DIM, BUCKET, "ring"])]) if told else ""


def by_width(runs: pd.DataFrame, value: str) -> list[str]:
    """Return a value with its spread over launches for each width of the model, as text."""
    return [f"{spread(row, value)} at width {row[DIM]}" for row in records(over_launches(runs, [DIM], [value]))]


def prepared(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with all columns that are needed, and `ring`: whether the ring made their sums."""
    absent = [column for column in NEEDED if column not in runs]  # of runs with one replica, or without buckets
    runs = runs.assign(**dict.fromkeys(absent, np.nan))
    return runs.assign(ring=runs["config.sync.all_reduce"] == "ring")


def ways(runs: pd.DataFrame, real: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the step time and the exposed time of the sum against the size of the model."""
    if runs.empty:
        return None
    values = ["step_ms.median", *TIMES]
    table = over_launches(runs, ["sync", DIM], values)
    # torch waits for its sums within the last backward, so that their time cannot be measured separately
    table.loc[table["sync"] == "torch_ddp", ["reduction.exposed_ms", "reduction.all_reduce_ms"]] = np.nan
    figure, axes = plot.panels(2, 2.6)
    for axis, value, name in zip(axes, values, ("step time, ms", "exposed time of the sum, ms"), strict=False):
        plot.lines(axis, table, DIM, value, "sync", looks.looks(WAYS))
        plot.titled(axis, x="width of the model's 16 layers", y=name, own=True)
        scales.powers(axis, table[DIM])
        scales.logarithmic(axis.yaxis, table[value].dropna())
    plot.legend(figure)
    text = (
        "Two replicas of the whole model, 32 rows each. First: time of a step with its optimizer. Second: time that "
        "a rank waits for the sum after its backward (without torch_ddp, which waits within the backward). "
        f"{markers(runs)} {_in_turn(real)}"
    )
    return Exhibit("gradient-sync-ways", "Ways to sum gradients", text, figure, table, runs)


def _in_turn(real: pd.DataFrame) -> str:
    """Return a sentence on the ratio of ddp to torch's own, run in turn within one launch."""
    both = real[real["sync"] == "compare"]
    if both.empty:
        return ""
    seen = "; ".join(by_width(both, TURNS))
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
    figure, axes = plot.panels(len(sizes))
    for axis, dim in zip(axes, sizes, strict=True):
        plot.lines(axis, table[table[DIM] == dim], BUCKET, "step_ms.median", "sync", looks.looks(WAYS))
        mib = runs[runs[DIM] == dim]["reduction.reduced_bytes"].max() / MIB
        plot.titled(axis, f"width {dim}, {mib:.1f} MiB", "bucket, MiB", "step time, ms")
        scales.powers(axis, table[BUCKET])
    plot.legend(figure)
    text = (
        "Step time against the bucket size of the gradients (the first bucket of a step has at most 1 MiB), with two "
        "replicas. Small buckets pay the latency of many sums, a large one starts late. If the processes leave no core "
        f"free for the sums, there is little overlap. {markers(runs)}"
    )
    return Exhibit("gradient-sync-buckets", "Bucket size", text, figure, table, runs)


def ring(runs: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the time of one ring sum against its bytes, with the fitted latency and bandwidth.

    Only numbers of replicas with two sizes are drawn; a fit needs three, because one through two has no error.
    """
    runs, table = ring_sums(runs)
    if runs.empty:
        return None
    fits = ring_fits(table)
    table["fit"] = [
        _ring_ms(row["replicas"], row["mib"], *fits.get(row["replicas"], (np.nan, np.nan))) for row in records(table)
    ]
    value, names = "reduction.all_reduce_ms", ("bytes summed S, MiB", "time of the sum, ms")
    key = [looks.dotted("least-squares fit: 2(N-1) α + 2(N-1)/N S/β")] if fits else []
    figure = plot.line_panels([("", table)], "mib", value, "replicas", names, key, "fit", "{} replicas")
    [axis] = figure.axes
    scales.logarithmic(axis.xaxis, table["mib"])
    scales.logarithmic(axis.yaxis, [*table[value], *table["fit"]])
    text = "Time of one sum of all gradients by the ring against its bytes."
    if fits:
        seen = "; ".join(f"N = {n}: α {alpha:.2f} ms, β {beta / 1024:.2f} GiB/s" for n, (alpha, beta) in fits.items())
        known = table.dropna(subset=["fit"])
        text += (
            " Dotted: least-squares fit of 2(N-1) α + 2(N-1)/N S/β (Patarasuk and Yuan 2009), with latency α and "
            f"bandwidth β: {seen}. The error of the fit is {distance(known['fit'], known[value], 0)}."
        )
    if len(fits) < table["replicas"].nunique():
        text += f" {NOT_FITTED.format('sizes')}"
    text += f" {markers(runs)}"
    return Exhibit("gradient-sync-ring", "Latency and bandwidth of the ring", text, figure, table, runs)


def ring_sums(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs of the ring with two sizes or more, and a table of the times of their sums."""
    runs = runs[(runs["replicas"] > 1) & (runs["reduction.all_reduce_ms"] > 0)]
    runs = runs.assign(mib=runs["reduction.reduced_bytes"] / MIB)
    runs = runs[runs.groupby("replicas")["mib"].transform("nunique") > 1]
    return runs, over_launches(runs, ["replicas", "mib"], ["reduction.all_reduce_ms"])


def ring_fits(table: pd.DataFrame) -> dict[int, tuple[float, float]]:
    """Return latency and bandwidth of the ring for each number of replicas with `FIT` sizes; see `alpha_beta`."""
    groups: dict[Any, pd.DataFrame] = dict(iter(table.groupby("replicas")))
    values = {int(n): (own["mib"], own["reduction.all_reduce_ms"]) for n, own in groups.items() if len(own) >= FIT}
    return {n: alpha_beta(n, *own) for n, own in values.items()}


def alpha_beta(replicas: int, mib: pd.Series[float], times: pd.Series[float]) -> tuple[float, float]:
    """Return latency (ms per message, at least 0) and bandwidth (MiB/s), by least squares of relative errors."""
    turns = 2 * (replicas - 1)
    fixed, per_mib = least_squares(mib, times)
    if fixed < 0:
        rates = np.asarray(mib, dtype=float) / np.asarray(times, dtype=float)
        fixed, per_mib = 0.0, float(rates.sum() / (rates**2).sum())
    return fixed / turns, turns / replicas * 1e3 / per_mib


def _ring_ms(replicas: int, mib: float, alpha: float, beta: float) -> float:
    return 2 * (replicas - 1) * (alpha + mib / replicas / beta * 1e3)


def relative_to_one(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs with one replica, and all runs with `ratio`, their throughput over that of one replica."""
    runs = runs.assign(samples_per_s=1e3 * runs["batch_size"] / runs["step_ms.median"])  # also of rows not counted
    alone = runs[runs["replicas"] == 1].drop_duplicates([DIM, LAUNCH])
    return alone, paired(runs, alone, [DIM], "samples_per_s")


def scaling(runs: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the throughput of N emulated replicas over that of one, for each size of the model."""
    alone, compared = relative_to_one(runs)
    if compared["replicas"].nunique() < 2:
        return None
    table = over_launches(compared, [DIM, "replicas"], ["ratio", "step_ms.median"])
    names, key = ("replicas N", "throughput / that of one replica"), [looks.thin("N: sums that cost nothing")]
    figure = plot.line_panels([("", table)], "replicas", "ratio", DIM, names, key, label="width {}")
    [axis], numbers = figure.axes, sorted(table["replicas"].unique())
    axis.plot(numbers, numbers, **looks.THIN)
    scales.powers(axis, numbers)
    first = records(alone)[0]
    text = (
        "Rows per second over those of one replica, paired by launch. Each replica is an emulated device whose step "
        f"nominally takes {nominal.step_ms(*nominal.case(first)):g} ms for {counted(first['batch_size'], 'row')}; "
        "the sums, which are real, add to it. Grey: N. On a host with fewer cores than replicas the sums compete for "
        f"cores. {markers(runs)}"
    )
    return Exhibit("gradient-sync-scaling", "Scaling with replicas", text, figure, table, runs)


if __name__ == "__main__":
    run(__file__)
