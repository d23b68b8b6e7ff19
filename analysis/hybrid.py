"""Where do the gradient sums over replicas fall in a pipeline's step, and does the simulation agree?

::

    rank 0   F0 F1 ........ B0 B1│█████│      finishes last: its sum is exposed
    rank 1   .. F0 B0 F1 B1│█████│            finishes earlier: its sum is hidden

The simulation covers the step without its optimizer: the schedule, with the sum of each stage
starting at the end of its last weight gradient.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis import looks, nominal, plot
from analysis.command import run
from analysis.exhibit import Exhibit, counted, distance, markers
from analysis.words import closing, doubts, listed, sentences, spread
from microp.records import over_launches, read_reductions, read_spans
from microp.results import records
from microp.trace import sheet

NEEDS = "emulated runs with at least two replicas"
POINT = ["chunks", "schedule", "reduce_ms"]
MEASURED, SIMULATED = "reduction.measured_ms", "reduction.simulated_ms"


def prepared(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the emulated runs with the column `reduce_ms`, the nominal time of a sum."""
    return nominal.emulated(runs, reduce_ms="config.device.reduce_ms")


def exhibits(runs: pd.DataFrame) -> list[Exhibit | None]:
    """Return up to two figures: step time against the time of a sum, and timelines."""
    return [steps(runs), timelines(runs)]


def answer(runs: pd.DataFrame) -> str:
    """Return the exposed time of the longest sum under each schedule, and the simulation's distance from all steps."""
    runs = summed(runs)
    if runs.empty:
        return ""
    table = over_launches(runs, POINT, [MEASURED, SIMULATED, "reduction.exposed_ms"])
    at = table[table["chunks"] == table["chunks"].max()]
    at = at[at["reduce_ms"] == at["reduce_ms"].max()]
    exposed = {row["schedule"]: spread(row, "reduction.exposed_ms", "ms") for row in records(at)}
    waits = listed([f"{exposed[name]} under {name}" for name in looks.in_order(sorted(exposed))])
    chunks, reduce_ms = at.iloc[0][["chunks", "reduce_ms"]]
    return sentences(
        [
            f"with M = {chunks:g} and a sum of {reduce_ms:g} ms per stage, the rank that waits longest for its sums "
            f"waits {waits}",
            f"the measured step times differ from the simulated ones by {distance(table[MEASURED], table[SIMULATED])}, "
            f"over {counted(len(table), 'point')}{doubts(table, MEASURED)}",
            closing(runs, POINT),
        ]
    )


def summed(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with several replicas, whose sums were measured."""
    return runs.dropna(subset=[MEASURED]) if MEASURED in runs else runs.head(0)


def steps(runs: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the step time without optimizer against the time of a sum, with one panel per M.

    It is None if no run has several replicas.
    """
    runs = summed(runs)
    if runs.empty:
        return None
    table = over_launches(runs, POINT, [MEASURED, SIMULATED, "reduction.exposed_ms", "reduction.simulated_exposed_ms"])
    table["measured / simulated"] = table[MEASURED] / table[SIMULATED]
    names = ("sum of a stage's gradients, ms", "step without optimizer, ms")
    key = [looks.dotted("simulated with the device's nominal times and the sums, in the same colour")]
    groups = [(f"M = {number}", rows) for number, rows in table.groupby("chunks")]
    figure = plot.line_panels(groups, "reduce_ms", MEASURED, "schedule", names, key, SIMULATED)
    first = records(runs)[0]
    text = (
        f"{first['replicas']} replicas of a pipeline of {first['ranks']} emulated ranks. Dotted: simulated together "
        f"with the sums; the measured step times differ from it by {distance(table[MEASURED], table[SIMULATED])}. "
        f"{markers(runs)}"
    )
    return Exhibit("hybrid-step-time", "Step time with gradient sums", text, figure, table, runs)


def timelines(runs: pd.DataFrame) -> Exhibit | None:
    """Return the timelines of one launch per schedule, with the sums; None if no run left a trace of them."""
    runs = runs[[bool(read_spans(Path(at)) and read_reductions(Path(at))) for at in runs["folder"]]]
    if runs.empty:
        return None
    chunks = runs["chunks"].min()
    every = sorted(runs[runs["chunks"] == chunks]["reduce_ms"].unique())
    middle = every[len(every) // 2]
    shown = runs[(runs["chunks"] == chunks) & (runs["reduce_ms"] == middle)].drop_duplicates("schedule")
    folders = {row["schedule"]: Path(row["folder"]) for row in records(shown)}
    traces = {name: folders[name] for name in looks.in_order(folders)}
    panels = {name: read_spans(attempt) for name, attempt in traces.items()}
    sums = {name: read_reductions(attempt) for name, attempt in traces.items()}
    figure = sheet(panels, sums=sums, row=0.3, width=plot.WIDTH)
    lines = [
        (name, each.rank, each.stage, *((time - min(panels[name].start)) / 1e6 for time in (each.start, each.end)))
        for name, own in sums.items()
        for each in own
    ]
    table = pd.DataFrame(lines, columns=["schedule", "rank", "stage", "from_ms", "to_ms"])
    table = table.merge(shown[["schedule", "disturbed"]], on="schedule")
    text = (
        f"A measured step of the first replica, M = {chunks}. Below the actions of a rank: the sum of a "
        f"stage's gradients over the replicas ({middle:g} ms). It starts after the stage's last weight "
        "gradient, so that the sums of the last stages end while the first stages still compute."
    )
    return Exhibit("hybrid-timelines", "Gradient sums within a step", text, figure, table, shown)


if __name__ == "__main__":
    run(__file__)
