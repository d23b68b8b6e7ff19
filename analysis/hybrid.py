"""Where the sums over replicas fall in a pipeline's step, and whether they are predicted.

::

    rank 0   F0 F1 ........ B0 B1│█████│      the last to be done: nothing hides its sum
    rank 1   .. F0 B0 F1 B1│█████│            its sum is over before the step is

Predicted is the step up to its optimizer: the simulated schedule, and each stage's sum from its
last weight gradient on.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from analysis import plot
from analysis.command import main
from analysis.exhibit import Exhibit, distance, drawn
from analysis.statistics import over_launches
from analysis.store import Store, records
from microp import render
from microp.records import read_reductions, read_spans

NAME = "hybrid"
POINT = ["chunks", "schedule", "reduce_ms"]
MEASURED, PREDICTED = "reduction.measured_ms", "reduction.predicted_ms"


def exhibits(store: Store) -> list[Exhibit]:
    """Two figures: step time against the sum's, and timelines."""
    runs = store.runs(NAME)
    if runs.empty:
        return []
    runs = runs.assign(reduce_ms=runs["config.device.reduce_ms"].astype(float))
    return drawn([steps(runs), timelines(runs)], store.missing(NAME))


def steps(runs: pd.DataFrame) -> Exhibit:
    """The step without its optimizer against the time of a stage's sum, a panel for each M."""
    table = over_launches(runs, POINT, [MEASURED, PREDICTED, "reduction.exposed_ms", "reduction.predicted_exposed_ms"])
    table["measured / predicted"] = table[MEASURED] / table[PREDICTED]
    labels = ("sum of a stage's gradients, ms", "step without its optimizer, ms")
    figure = plot.for_each_chunks(table, "reduce_ms", MEASURED, PREDICTED, *labels)
    first = records(runs)[0]
    text = (
        f"{first['replicas']} replicas of a pipeline of {first['ranks']} emulated ranks. Broken: simulated, with the "
        f"sums in it, from which measured ones lie {distance(table[MEASURED], table[PREDICTED])}. "
        "Medians over "
        "launches, bars: 95 % bootstrap interval."
    )
    return Exhibit("hybrid-step-time", "Step time with the sums in it", text, figure, table, runs)


def timelines(runs: pd.DataFrame) -> Exhibit | None:
    """The traced step of one launch of each schedule, with its sums."""
    chunks, every = runs["chunks"].min(), sorted(runs["reduce_ms"].unique())
    middle = every[len(every) // 2]
    shown = runs[(runs["chunks"] == chunks) & (runs["reduce_ms"] == middle)].drop_duplicates("schedule")
    traces = {row["schedule"]: Path(row["folder"]) for row in records(shown)}
    traces = {name: traces[name] for name in plot.in_order(traces) if read_spans(traces[name])}
    if not traces:
        return None
    figure, axes = plot.sheet(len(traces), 1, (7.0, 1.5), sharex=True)
    lines = []
    for axis, (schedule, attempt) in zip(axes[:, 0], traces.items(), strict=True):
        spans, sums = read_spans(attempt), read_reductions(attempt)
        render.draw(axis, spans, 1e6, sums)
        axis.grid(visible=False)
        axis.set_title(schedule)
        begin = min(span.start for span in spans)
        lines += [
            {
                "schedule": schedule,
                "rank": s.rank,
                "stage": s.stage,
                "from_ms": (s.start - begin) / 1e6,
                "to_ms": (s.end - begin) / 1e6,
            }
            for s in sums
        ]
    axes[-1, 0].set_xlabel("time since the step's first action, ms")
    text = (
        f"A measured step of the first replica, M = {chunks}: light F, dark B, orange W; grey, below the actions, the "
        f"sum of a stage's gradients over the replicas ({middle:g} ms). It sets out with the stage's last weight "
        "gradient, so that the last stages' are over while the first ones still compute."
    )
    return Exhibit("hybrid-timelines", "Where the sums fall", text, figure, pd.DataFrame(lines), shown)


if __name__ == "__main__":
    sys.exit(main(NAME, exhibits))
