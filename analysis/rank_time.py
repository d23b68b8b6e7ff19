"""Where did the time of each rank go?

::

    gpipe, 42 ms   r0 │████████░░░░░░│   compute, recompute, optimizer, host
                   r1 │███████████░░░│   wait: transfer, for a tensor that was sent
    1f1b, 40 ms    r0 │████████░░░░░░│   wait: warm-up, steady phase, drain: for another rank
                   r1 │███████████░░░│   a bar adds up to the step's wall time
                      └ share of step

For each device, model and number of ranks the figure shows the setting that most schedules share;
if there are several, one without recomputation whose number of microbatches is nearest to 2K. The table has all
questions.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from analysis import fitting, looks, plot, scales
from analysis.command import ANY_RUN, main
from analysis.exhibit import Exhibit, percent
from microp.store import Store, records
from microp.trace import KINDS

PANELS = 6
GAP = 0.08  # inches between the bars of two schedules
AROUND = 0.85  # inches of a panel above and below its bars
SEEN = 0.003  # of a bar: what is shorter cannot be seen, and has no entry in the legend
WHERE = ["device", "model", "ranks"]
SETTING = ["chunks", "batch_size", "checkpointing", "config.partition.name", "place"]
# compute is dark and waits are light; hatching separates neighbours that are alike without colour
LOOKS: dict[str, tuple[str, str]] = {
    "compute": ("#0072b2", ""),
    "recompute": ("#56b4e9", "///"),
    "optimizer": ("#d55e00", "\\\\\\"),
    "host": ("#303030", ""),
    "transfer": ("#cc79a7", "xxx"),
    "warmup": ("#c0c0c0", ""),
    "steady": ("#9c9c9c", "..."),
    "drain": ("#c0c0c0", "////"),
    "reduction": ("#009e73", "++"),
}
NAMES = {
    "transfer": "wait: transfer",
    "warmup": "wait: warm-up",
    "steady": "wait: steady phase",
    "drain": "wait: drain",
    "reduction": "wait: sum over replicas",
}
assert set(LOOKS) == set(KINDS), "each kind of time has a look"


def exhibits(store: Store) -> list[Exhibit]:
    """Return one figure with one panel per device, model and number of ranks."""
    runs = typical(store.runs())
    if runs.empty:
        return []
    panels = [(where, _most_compared(own)) for where, own in runs.groupby(WHERE)]
    panels = sorted(panels, key=lambda panel: -panel[1]["schedule"].nunique())[:PANELS]
    heights = [AROUND + len(own) * (_thickness(own) * own["ranks"].iloc[0] + GAP) for _, own in panels]
    layout = {"gridspec_kw": {"height_ratios": heights}}
    figure, axes = plot.sheet(len(panels), 1, sum(heights) / len(heights), **layout)
    for axis, (where, own) in zip(axes[:, 0], panels, strict=True):
        _draw(axis, own)
        first = records(own)[0]
        again = "" if first["checkpointing"] == "never" else f", recomputation: {first['checkpointing']}"
        title = f"{where[0]}, {where[1]}, K = {first['ranks']}, M = {first['chunks']}{again}"
        plot.titled(axis, title, "share of the step's wall time, %")
    most = pd.DataFrame([shares.max(axis=1) for _, own in panels for row in records(own) for shares in [_shares(row)]])
    shown = [kind for kind in LOOKS if most[kind].max() >= SEEN]
    plot.legend(figure, [Patch(**_look(kind), label=NAMES.get(kind, kind)) for kind in shown])
    text = (
        "Share of a traced step's wall time by kind, one bar per rank with rank 0 at the top; the time of the whole "
        "step is beside the name. Host: what is left, the rank's own time around its actions. Waits in warm-up, steady "
        "phase and drain are for another rank to finish an action; transfer is a wait for a tensor that was already "
        "being sent. Shown is the launch with the median step time; the table has all configurations, and kinds below "
        f"{percent(SEEN)} of every bar."
    )
    return [Exhibit("rank-time", "Time of each rank by kind", text, figure, _table(runs), runs)]


def typical(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the launch with the median step time of each question on several ranks whose time is accounted for."""
    if "time_ms.compute" not in runs:
        return runs.head(0)
    runs = runs[(runs["ranks"] > 1) & runs["time_ms.compute"].notna()]
    if runs.empty:
        return runs
    equal = runs["partition"].map(set).map(len) == 1  # with one stage per rank or several
    runs = runs.assign(place=runs["partition"].map(str).where(~equal, "equal"))
    return runs.loc[runs.groupby("question")["step_ms.median"].apply(_middle)]


def _middle(steps: pd.Series[float]) -> Any:
    """Return the label of the launch with the median step time."""
    return steps.sort_values(kind="stable").index[(len(steps) - 1) // 2]


def _most_compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the setting that most schedules share.

    Among equals a setting without recomputation comes first, and then the one nearest to M = 2K.
    """
    by_setting = rows.groupby(SETTING, dropna=False)["schedule"].nunique().reset_index(name="schedules")
    by_setting["far"] = np.log2(by_setting["chunks"] / (2 * rows["ranks"].iloc[0])).abs()
    by_setting["again"] = by_setting["checkpointing"] != "never"
    order = ["schedules", "again", "far", *SETTING]
    best = by_setting.sort_values(order, ascending=[key != "schedules" for key in order])
    return rows.merge(best.head(1), on=SETTING).drop_duplicates("schedule")


def _thickness(rows: pd.DataFrame) -> float:
    """Return the thickness of a bar in inches, so that the ranks of a schedule leave room for its name."""
    return max(0.05, min(0.12, 0.32 / float(rows["ranks"].iloc[0])))


def _draw(axis: Axes, rows: pd.DataFrame) -> None:
    by_schedule = rows.set_index("schedule")
    names, gap = [], GAP / _thickness(rows)
    for place, schedule in enumerate(looks.in_order(rows["schedule"])):
        row = by_schedule.loc[schedule]
        shares = _shares(row)
        ranks = shares.shape[1]
        total = np.sum([kind_ms(row, kind) for kind in LOOKS], axis=0)
        group = ranks + gap  # the height of a schedule, in bars
        at, left = place + (np.arange(ranks) + 0.5 + gap / 2) / group - 0.5, np.zeros(ranks)
        for kind in LOOKS:
            share = 100 * shares.loc[kind].to_numpy()
            if share.any():
                axis.barh(at, share, 0.92 / group, left, **_look(kind))
                left += share
        names.append(f"{fitting.shortened(str(schedule), scales.ROW)}, {total.max():.1f} ms")
    scales.name_rows(axis, names, 2 * scales.ROW)
    axis.set_xlim(0, 100)
    axis.grid(visible=False)
    axis.tick_params(axis="y", length=0)


def _shares(row: Any) -> pd.DataFrame:
    """Return the share of each kind (rows) in the step's wall time on each rank (columns)."""
    spent = pd.DataFrame({kind: kind_ms(row, kind) for kind in LOOKS}).T.astype(float)
    return spent / spent.sum()


def _look(kind: str) -> dict[str, Any]:
    colour, hatch = LOOKS[kind]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}


def kind_ms(row: Any, kind: str) -> list[float]:
    """Return the time of a kind on each rank in ms; 0 for a run that was recorded before the kind existed."""
    values: Any = row.get(f"time_ms.{kind}")
    return values if isinstance(values, list) else [0.0] * len(row["time_ms.compute"])


def _table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table with one row per question and rank, in milliseconds."""
    lines = [
        {
            **{key: row[key] for key in ("schedule", "chunks", "ranks", "device", "model", "checkpointing", "run_id")},
            "rank": rank,
            **{f"{kind}_ms": kind_ms(row, kind)[rank] for kind in LOOKS},
        }
        for row in records(rows.sort_values(["device", "ranks", "schedule", "chunks", "run_id"]))
        for rank in range(len(row["time_ms.compute"]))
    ]
    return pd.DataFrame(lines)


if __name__ == "__main__":
    sys.exit(main("rank_time", exhibits, ANY_RUN))
