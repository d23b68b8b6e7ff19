"""Time of each rank by kind: compute, waits, transfer and the rest of a step, as stacked bars.

::

    share │░░░░│    │░░░░│  warm-up, steady, drain: waits for another rank     the bar of a rank
    of the│    │░░░░│████│  transfer: waits for a tensor that was sent         adds up to the
    step  │████│████│████│  compute, recompute, optimizer, host                step's wall time
           r0   r1   r2

For each device, model and number of ranks the figure shows the setting that most schedules share;
if there are several, the one whose number of microbatches is nearest to 2K. The table has all
questions.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import plot
from analysis.command import ANY_RUN, main
from analysis.exhibit import Exhibit
from microp.store import Store, records
from microp.trace import KINDS

PANELS = 6
WHERE = ["device", "model", "ranks"]
SETTING = ["chunks", "batch_size", "checkpointing", "config.partition.name", "place"]
# compute is dark and waits are light; hatching separates neighbours that are alike without colour
LOOKS: dict[str, tuple[str, str]] = {
    "compute": ("#0072b2", ""),
    "recompute": ("#56b4e9", "///"),
    "optimizer": ("#d55e00", "\\\\\\"),
    "host": ("#303030", ""),
    "transfer": ("#cc79a7", "xxx"),
    "warmup": ("#dcdcdc", ""),
    "steady": ("#bdbdbd", "..."),
    "drain": ("#efefef", ""),
    "reduction": ("#009e73", "++"),
}
assert set(LOOKS) == set(KINDS), "each kind of time has a look"


def exhibits(store: Store) -> list[Exhibit]:
    """Return one figure with one panel per device, model and number of ranks."""
    runs = store.runs()
    if "time_ms.compute" not in runs:
        return []
    runs = runs[(runs["ranks"] > 1) & runs["time_ms.compute"].notna()]
    if runs.empty:
        return []
    runs = runs.assign(place=runs["partition"].map(str))
    typical = runs.loc[runs.groupby("question")["step_ms.median"].apply(_middle)]
    panels = [(where, _most_compared(own)) for where, own in typical.groupby(WHERE)]
    panels = sorted(panels, key=lambda panel: -panel[1]["schedule"].nunique())[:PANELS]
    figure, axes = plot.sheet(len(panels), 1, (7.2, 2.1))
    for axis, (where, own) in zip(axes[:, 0], panels, strict=True):
        _draw(axis, own)
        first = records(own)[0]
        axis.set_title(f"{where[0]}, {where[1]}, K = {first['ranks']}, M = {first['chunks']}")
    axes[-1, 0].set_xlabel("ranks of each schedule")
    plot.legend(figure)
    text = (
        "Share of a traced step's wall time by kind, for each rank; a bar adds up to the whole step. Waits for another "
        "rank are divided by phase into warm-up, steady and drain. Transfer: the rank waited for a tensor that was "
        "being sent. Reduction: the rank waited for the sum over the replicas. The figure shows, for each "
        "configuration, the launch with the median step time; the table has all configurations."
    )
    return [Exhibit("rank-time", "Time of each rank by kind", text, figure, _table(typical), typical)]


def _middle(steps: pd.Series[float]) -> Any:
    """Return the label of the launch with the median step time."""
    return steps.sort_values(kind="stable").index[(len(steps) - 1) // 2]


def _most_compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the setting that most schedules share; among equals, of the one nearest to M = 2K."""
    by_setting = rows.groupby(SETTING, dropna=False)["schedule"].nunique().reset_index(name="schedules")
    by_setting["far"] = np.log2(by_setting["chunks"] / (2 * rows["ranks"].iloc[0])).abs()
    best = by_setting.sort_values(["schedules", "far", *SETTING], ascending=[False, *[True] * (len(SETTING) + 1)])
    return rows.merge(best.head(1), on=SETTING).drop_duplicates("schedule")


def _draw(axis: Axes, rows: pd.DataFrame) -> None:
    by_schedule = rows.set_index("schedule")
    left, places, names = 0.0, [], []
    for schedule in plot.in_order(rows["schedule"]):
        row = by_schedule.loc[schedule]
        spent = {kind: np.array(_spent(row, kind), dtype=float) for kind in LOOKS}
        ranks = len(spent["compute"])
        total = np.sum(list(spent.values()), axis=0)
        x, below = left + np.arange(ranks), np.zeros(ranks)
        for kind, (colour, hatch) in LOOKS.items():
            share = spent[kind] / total
            axis.bar(x, share, 0.9, below, color=colour, hatch=hatch, edgecolor="white", linewidth=0, label=kind)
            below += share
        axis.text(left + (ranks - 1) / 2, 1.02, f"{schedule}, {total.max():.1f} ms", ha="center", fontsize=7)
        places += list(x)
        names += [str(rank) for rank in range(ranks)]
        left += ranks + 1
    axis.set_xticks(places, names)
    axis.set(ylim=(0, 1.12), yticks=[0, 0.25, 0.5, 0.75, 1], ylabel="share of the step")
    axis.grid(visible=False)
    axis.tick_params(axis="x", length=0)


def _spent(row: Any, kind: str) -> list[float]:
    """Return the time of a kind on each rank in ms; 0 for a run that was recorded before the kind existed."""
    values: Any = row.get(f"time_ms.{kind}")
    return values if isinstance(values, list) else [0.0] * len(row["time_ms.compute"])


def _table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table with one row per question and rank, in milliseconds."""
    lines = [
        {
            **{key: row[key] for key in ("schedule", "chunks", "ranks", "device", "model", "checkpointing", "run_id")},
            "rank": rank,
            **{f"{kind}_ms": _spent(row, kind)[rank] for kind in LOOKS},
        }
        for row in records(rows.sort_values(["device", "ranks", "schedule", "chunks", "run_id"]))
        for rank in range(len(row["time_ms.compute"]))
    ]
    return pd.DataFrame(lines)


if __name__ == "__main__":
    sys.exit(main("rank_time", exhibits, ANY_RUN))
