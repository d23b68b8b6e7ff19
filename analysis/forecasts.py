"""How good were the times that were known before a run, and the choices that follow from them?

::

    a model's configurations     predicted   measured
    gpipe, 6 microbatches           62.0       63.0     error   -1.6 %
    1f1b, 6 microbatches            61.0       60.5     error   +0.8 %, chosen: regret = measured / best - 1

Beside the prediction stand the replay, which knows the run's own times, and three baselines that know next to nothing.
A baseline has one unknown number per problem (a model, its batch and the device with its nominal times), the time of a
unit of work, which is taken from the problem's other configurations:

* the closed bubble: the busiest rank's work over 1 - (K-1)/(M+K-1)
* FLOPs: the busiest rank's work, a forward 1, a backward 2, a recomputation 1 per layer and microbatch
* the mean of the other configurations
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.exhibit import counted, kind_of
from analysis.varied import say
from analysis.words import doubts
from microp.records import over_launches
from microp.results import is_missing, records, uncounted
from microp.settings import TIMES as DEVICE_TIMES

Numbers = NDArray[np.floating[Any]]
PREDICTED, REPLAYED = "predicted", "replayed"
BASELINES = ("closed bubble", "FLOPs", "mean")
FORECASTS = (REPLAYED, PREDICTED, *BASELINES)
TIMES = ("step_ms.median", "predicted.step_ms", "replayed.step_ms")
SPREAD = ("step_ms.p10", "step_ms.p90", "disturbed")
QUESTION = (
    *("question", "model", "config.model.dim", "device", "schedule", "chunks", "ranks", "batch_size", "partition"),
    *("replicas", "checkpointing", "config.device.name", "config.profile"),
    *(f"config.schedule.{key}" for key in ("name", "of", "stages_per_rank")),
)
PROBLEM = ("config.model.layers", "batch_size", *(f"config.device.{key}" for key in ("per", *DEVICE_TIMES)))
RANKED = ["problem", "uncounted"]  # configurations are ranked where these agree
LEAST_NOISE = 0.02  # two configurations that differ by less are alike, if there is one launch of each


def forecasts(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per configuration of one replica: its measured step time and all forecasts of it, in ms.

    `measured` is the median over the launches, `measured.wide` whether it is not to be relied on, and `noise` half of
    their range over it (NaN for one launch); a `group` has the configurations of one model on one device, a `problem`
    those of one batch and the same nominal times among them, ranked where what these do not count is the same.
    """
    if not {*TIMES} <= {*runs.columns}:
        return pd.DataFrame()
    needed = [key for key in dict.fromkeys((*TIMES, *SPREAD, *QUESTION, *PROBLEM)) if key in runs]  # all take long
    known = runs[needed][runs["replicas"] == 1].dropna(subset=["step_ms.median", "predicted.step_ms"])
    table = pd.DataFrame([_of_launches(own) for _, own in known.groupby("question", sort=True)])
    if table.empty:
        return table
    table[list(BASELINES)] = np.nan
    for _, own in table.groupby("problem"):
        if len(own) > 1:
            for name, units in (("closed bubble", own["work"] / (1 - own["closed"])), ("FLOPs", own["work"])):
                table.loc[own.index, name] = units * of_the_others(own["measured"] / units, np.median)
            table.loc[own.index, "mean"] = of_the_others(own["measured"], np.mean)
    return table.drop(columns=["work", "closed"])


def of_the_others(values: pd.Series[float], middle: Callable[[Any], Any]) -> Numbers:
    """Return for each of at least two values the median or the mean of the others."""
    numbers = values.to_numpy(dtype=float)
    return np.array([middle(numbers[own]) for own in ~np.eye(len(numbers), dtype=bool)])


def _of_launches(launches: pd.DataFrame) -> dict[str, Any]:
    first = records(launches.head(1))[0]
    times, [point] = launches["step_ms.median"], records(over_launches(launches, ["question"], ["step_ms.median"]))
    ranks, chunks = int(first["ranks"]), int(first["chunks"])  # a column is of floats if a run has no end
    size = first.get("config.model.dim")
    model = first["model"] if size is None or np.isnan(size) else f"{first['model']}, dim {size:g}"
    group = f"{model}, {kind_of(first['device'])}, {counted(ranks, 'rank')}"
    asked = {key.rpartition(".")[2]: first[key] for key in PROBLEM if not is_missing(first.get(key))}
    lacking = uncounted({key.removeprefix("config."): value for key, value in first.items()})
    return {
        "group": group,
        "problem": ", ".join([group, *(say(key, value) for key, value in asked.items())]),
        "uncounted": ", ".join(f"{name}: {size:g}" for name, size in lacking.items()),
        "kind": kind_of(first["device"]),
        "schedule": first["schedule"],
        "chunks": chunks,
        "partition": str(first["partition"]),
        "checkpointing": first["checkpointing"],
        "launches": len(launches),
        "measured": float(times.median()),
        "measured.wide": point["step_ms.median.wide"],
        "disturbed": point["disturbed"],
        "noise": float((times.max() - times.min()) / 2 / times.median()) if len(times) > 1 else np.nan,
        PREDICTED: float(launches["predicted.step_ms"].median()),
        REPLAYED: float(launches["replayed.step_ms"].median()),
        "work": _busiest(first, "row" in lacking),
        "closed": (ranks - 1) / (chunks + ranks - 1),
    }


def _busiest(row: dict[str, Any], per_microbatch: bool) -> float:
    """Return the work of the rank with the most layers; where times are `per_microbatch`, whatever its rows."""
    layers, ranks = list(row["partition"]), int(row["ranks"])
    of_rank = [sum(layers[rank::ranks]) for rank in range(ranks)]  # of looped schedules; a V's ranks are about alike
    again = 0 if row["checkpointing"] == "never" else 1
    return float(max(of_rank) * (3 + again) * row["chunks" if per_microbatch else "batch_size"])


def errors(table: pd.DataFrame, name: str) -> dict[str, float]:
    """Return the relative errors of a forecast: their median (the bias), and of their size median, p90, p95 and max."""
    error = (table[name] / table["measured"] - 1).dropna()
    if error.empty:
        return {}
    parts = {"median": 0.5, "p90": 0.9, "p95": 0.95, "max": 1.0}
    sizes = {part: float(error.abs().quantile(share)) for part, share in parts.items()}
    return {"n": len(error), "bias": float(error.median()), **sizes}


def kendall(table: pd.DataFrame, name: str) -> float | None:
    """Return Kendall's tau of a forecast among configurations that compare and differ by more than their noise."""
    agree = total = 0
    for _, own in table.dropna(subset=[name]).groupby(RANKED):
        for one, other in combinations(records(own), 2):
            apart = one["measured"] / other["measured"] - 1
            if abs(apart) <= max(_noise(one), _noise(other)):
                continue
            total += 1
            agree += np.sign(one[name] - other[name]) * np.sign(apart)
    return agree / total if total else None


def regrets(table: pd.DataFrame, name: str) -> list[float]:
    """Return how much longer what had the least forecast took than the fastest, of each set of what compares."""
    found = []
    for _, own in table.dropna(subset=[name]).groupby(RANKED):
        if len(own) > 1:
            chosen = own["measured"][own[name] <= own[name].min() * (1 + 1e-9)].max()  # of equal ones the slowest
            found.append(float(chosen / own["measured"].min() - 1))
    return found


def _noise(row: dict[str, Any]) -> float:
    return LEAST_NOISE if np.isnan(row["noise"]) else float(row["noise"])


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per kind of computation and forecast: its errors, Kendall's tau, regret and doubts."""
    rows = []
    for kind, own in table.groupby("kind"):
        for name in FORECASTS:
            if found := errors(own, name):
                lost = regrets(own, name)
                worth = {"tau": kendall(own, name), "regret": median(lost) if lost else None}
                about = {"kind": kind, "forecast": name, "doubts": doubts(own, "measured")}
                about["hollow"] = own["measured.wide"].mean() > 0.5
                rows.append({**about, **found, **worth})
    return pd.DataFrame(rows)
