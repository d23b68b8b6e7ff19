"""What it costs to keep replicas equal: the ways to sum gradients, the ring, and the scaling with replicas."""

from __future__ import annotations

import pandas as pd

from analysis.answers.words import closing, doubts, listed, number, points, sentence, spread
from analysis.gradient_sync import BUCKET, DIM, NAME, USUAL_MB, WAYS, prepared, relative_to_one, ring_fits, ring_sums
from microp.store import Store, records

TIME, TURNS = "step_ms.median", "syncs.ratio.ddp/torch_ddp"
NEEDS = "two ways to sum with two replicas, several sizes of a ring's sums, or several numbers of emulated replicas"


def answer(store: Store) -> str:
    """Return up to four sentences: ways to sum, ddp against torch's own in turn, the ring, and scaling."""
    runs = prepared(store.runs(NAME))
    if runs.empty:
        return ""
    told = [*_ways(runs), *_in_turn(runs), *_ring(runs), *_scaling(runs)]
    by = ["device", "replicas", "sync", DIM, BUCKET, "ring"]
    return " ".join(map(sentence, [*told, closing(runs, by)])) if told else ""


def _ways(runs: pd.DataFrame) -> list[str]:
    """Return the step times of the ways to sum, for the widest model that has several."""
    real = runs[(runs["device"] != "emulated") & ~runs["ring"] & (runs["replicas"] > 1)]
    own = real[(real[BUCKET].fillna(USUAL_MB) == USUAL_MB) & real["sync"].isin(WAYS)]
    table = points(own, [DIM, "sync"], [TIME])
    several = table.groupby(DIM)["sync"].nunique()
    wide = several[several > 1]
    if wide.empty:
        return []
    seen = {row["sync"]: row for row in records(table[table[DIM] == wide.index.max()])}
    times = [f"{spread(seen[way], TIME, 'ms')} with {way}" for way in WAYS if way in seen]
    return [f"with two replicas of a model of width {wide.index.max()}, a step takes {listed(times)}"]


def _in_turn(runs: pd.DataFrame) -> list[str]:
    if TURNS not in runs or runs[TURNS].isna().all():
        return []
    table = points(runs.dropna(subset=[TURNS]), [DIM], [TURNS])
    seen = [f"{spread(row, TURNS)} at width {row[DIM]}" for row in records(table)]
    return [f"run in turn within one launch, ddp's step time over that of torch_ddp is {listed(seen)}"]


def _ring(runs: pd.DataFrame) -> list[str]:
    used, table = ring_sums(runs[runs["ring"]])
    fits = ring_fits(table)
    seen = [
        f"{number(alpha)} ms per message and {number(beta / 1024)} GiB/s with {replicas} replicas"
        for replicas, (alpha, beta) in fits.items()
    ]
    if not seen:
        return []
    sums = points(used[used["replicas"].isin(list(fits))], ["replicas", "mib"], ["reduction.all_reduce_ms"])
    doubt = doubts(sums, "reduction.all_reduce_ms", "points")
    return [f"the ring's latency and bandwidth, fitted to its sums, are {', '.join(seen)}{doubt}"]


def _scaling(runs: pd.DataFrame) -> list[str]:
    """Return the throughput of the most emulated replicas relative to one, for the smallest and the largest model."""
    _, compared = relative_to_one(runs[runs["device"] == "emulated"])
    if compared.empty or compared["replicas"].nunique() < 2:
        return []
    most = compared["replicas"].max()
    table = records(points(compared[compared["replicas"] == most], [DIM], ["ratio"]))
    seen = [f"{spread(row, 'ratio')} at width {row[DIM]}" for row in table]
    return [f"the rows per second of {most} emulated replicas, relative to those of one, are {listed(seen)}"]
