"""Replayed and measured step times of all runs, and the error of the replay compared with the noise.

::

    a run's own median F, B, W times and hop ── simulate ──► replayed makespan ┐
    its measured steps ── median of last end - first start ──► measured ────────┴─► error

The noise is the distance of a launch from the median of the other launches of its question. An
estimate that does not know the launch itself cannot be expected to be more accurate.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import plot
from analysis.command import ANY_RUN, main
from analysis.exhibit import Exhibit, kind_of
from microp.simulator import calibrate_steps, schedule_of, simulate
from microp.store import Row, Store, read_rows, read_spans, records
from microp.trace import makespan


def exhibits(store: Store) -> list[Exhibit]:
    """Return one figure over all runs."""
    runs = store.runs()
    table = pd.DataFrame([line for row in records(runs) for line in _compare(row)])
    if table.empty:
        return []
    table["error"] = table["replayed_ms"] / table["measured_ms"] - 1
    table["noise"] = table.groupby("question")["measured_ms"].transform(_from_the_others)
    summary = "; ".join(_summary(kind, own) for kind, own in table.groupby("kind"))
    text = (
        "Left: makespan of a step, replayed by the simulator with the run's own median action and hop times, against "
        "the median measured makespan. Right: cumulative share of runs by error (solid) and by noise (dashed), the "
        "distance of a launch from the median of the other launches of its configuration. Vertical lines: 1 and 5 %. "
        f"{summary}."
    )
    used = runs[runs["run_id"].isin(table["run_id"])]
    shown = table.drop(columns="question").sort_values(["kind", "run_id"])
    return [Exhibit("replayed-measured", "Replayed against measured", text, _draw(table), shown, used)]


def _compare(row: dict[str, Any]) -> Iterator[Row]:
    """Yield the replayed and the measured makespan of a run; nothing if there is no trace or several replicas."""
    attempt = Path(row["folder"])
    spans, steps = read_spans(attempt), measured_steps(attempt, row["ranks"])
    if not spans or not steps or row["replicas"] != 1:
        return
    schedule = schedule_of(spans, row["schedule"])
    replayed = makespan(simulate(schedule, calibrate_steps(schedule, steps, spans)))
    yield {
        "run_id": row["run_id"],
        "question": row["question"],
        "kind": kind_of(row["device"]),
        "schedule": row["schedule"],
        "ranks": row["ranks"],
        "chunks": row["chunks"],
        "replayed_ms": float(replayed),
        "measured_ms": median(map(makespan_ms, steps)),
    }


def measured_steps(attempt: Path, ranks: int) -> list[list[Row]]:
    """Return the rows of each measured step, one per rank in the order of ranks.

    If several engines ran in turn, only the steps of the run's own engine count, which ran the last step.
    """
    every = [read_rows(attempt, rank) for rank in range(ranks)]
    measured = [
        [row for row in own if row["phase"] == "measured" and row.get("engine") == own[-1].get("engine")]
        for own in every
    ]
    return [list(step) for step in zip(*measured, strict=False)]


def makespan_ms(step: Sequence[Row]) -> float:
    return float(max(row["last_end_ns"] for row in step) - min(row["first_start_ns"] for row in step)) / 1e6


def _from_the_others(values: pd.Series[float]) -> pd.Series[float]:
    """Return the relative distance of each value from the median of the others; NaN for a single value."""
    return pd.Series([value / values.drop(label).median() - 1 for label, value in values.items()], values.index)


def _summary(kind: Any, own: pd.DataFrame) -> str:
    error, noise = own["error"].abs(), own["noise"].abs().dropna()
    text = f"{kind}, {len(own)} runs: median error {error.median():.1%}, 90 % of runs within {error.quantile(0.9):.1%}"
    if noise.empty:
        return text
    return f"{text} (noise {noise.median():.1%} and {noise.quantile(0.9):.1%})"


def _draw(table: pd.DataFrame) -> Any:
    figure, axes = plot.sheet(1, 2, (3.8, 3.2))
    left, right = axes[0]
    named = plot.looks(sorted(table["kind"].unique()))
    for kind, look in named.items():
        own = table[table["kind"] == kind]
        hollow = {"markerfacecolor": "none", "markersize": 4, "markeredgewidth": 0.8}
        left.plot(own["measured_ms"], own["replayed_ms"], look.marker, color=look.colour, label=kind, **hollow)
        _shares(right, own["error"], color=look.colour, marker=look.marker, markersize=4)
        dashes = {"linestyle": (0, (3, 2)), "linewidth": 1, "markerfacecolor": "none", "markersize": 4}
        _shares(right, own["noise"].dropna(), color=look.colour, marker=look.marker, **dashes)
    ends = [0.8 * table["measured_ms"].min(), 1.25 * table["measured_ms"].max()]
    left.plot(ends, ends, color="0.25", linewidth=0.8, zorder=1)
    left.set(xscale="log", yscale="log", xlabel="measured makespan, ms", ylabel="replayed makespan, ms")
    for distance in (0.01, 0.05):
        right.axvline(100 * distance, color="0.6", linewidth=0.7)
    right.set(xscale="log", xlim=(0.03, 100), ylim=(0, 1), xlabel="distance, %", ylabel="share of runs")
    plot.plain(left.xaxis, left.yaxis, right.xaxis)
    right.plot([], [], color="0.25", label="error")
    right.plot([], [], color="0.25", linestyle=(0, (3, 2)), linewidth=1, label="noise between launches")
    plot.legend(figure)
    return figure


def _shares(axis: Axes, values: pd.Series[float], **look: Any) -> None:
    """Draw the cumulative share of values over their size in percent."""
    ordered = np.sort(100 * values.abs().to_numpy(dtype=float))
    if len(ordered):
        axis.step(
            ordered.clip(0.001), np.arange(1, len(ordered) + 1) / len(ordered), where="post", markevery=0.15, **look
        )


if __name__ == "__main__":
    sys.exit(main("prediction", exhibits, ANY_RUN))
