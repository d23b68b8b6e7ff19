"""All schedules at equal M: bubble, memory, step time, and the best compromises of the last two.

::

    step_ms │ naive                       the Pareto front: no other schedule is
            │    v_min ─╮                 both faster and smaller
            │           ╰─ 1f1b ──── zb_v
            └──────────────────────── KiB

All schedules run on the same emulated ranks, on which a rank's share of the model takes the same
time under every schedule, with every activation kept and with recomputation.
"""

from __future__ import annotations

import sys
from operator import itemgetter
from typing import Any

import pandas as pd

from analysis import nominal, plot
from analysis.command import main
from analysis.exhibit import INTERVALS, Exhibit, distance, drawn
from microp.simulator import simulate
from microp.store import LAUNCH, Store, over_launches, records, worst_rank_mib
from microp.trace import bubble_fraction

NAME = "schedules"
POINT = ["chunks", "checkpointing", "schedule"]
SHOWN = {
    "bubble.measured": "bubble, idle / total",
    "activation_kib": "peak activations of a rank, KiB",
    "step_ms.median": "step time, ms",
}


def exhibits(store: Store) -> list[Exhibit]:
    """Return up to two figures of the emulated runs: the schedules side by side, and memory against time."""
    runs = nominal.emulated(store.runs(NAME))
    if runs.empty:
        return []
    runs = runs.drop_duplicates([*POINT, LAUNCH]).reset_index(drop=True)
    runs = runs.assign(activation_kib=[1024 * peak for peak in worst_rank_mib(runs)])
    table = over_launches(runs, POINT, list(SHOWN))
    point = itemgetter(*POINT)
    theory = {point(row): _theory(row) for row in records(runs)}
    table[["bubble.formula", "step_ms.formula"]] = [theory[point(row)] for row in records(table)]
    table["front"] = False
    for _, own in table.groupby("chunks"):
        table.loc[plot.front(own, "activation_kib", "step_ms.median"), "front"] = True
    return drawn([compared(table, runs), pareto(table, runs)], store.missing(NAME))


def _theory(row: dict[str, Any]) -> tuple[float, float]:
    """Return bubble and makespan (in ms) for the nominal times."""
    schedule = nominal.order(row)
    costs = nominal.costs(row, schedule)
    return float(bubble_fraction(simulate(schedule, costs))), nominal.step_ms(schedule, costs)


def compared(table: pd.DataFrame, runs: pd.DataFrame) -> Exhibit:
    """Return the figure of bubble, memory and step time with one row per schedule and one marker per M."""
    plain = table[table["checkpointing"] == "never"]
    own = table if plain.empty else plain
    order = own.groupby("schedule")["step_ms.median"].max().sort_values(ascending=False).index.tolist()
    figure, axes = plot.sheet(1, len(SHOWN), (2.7, 0.22 * len(order) + 1.0), sharey=True)
    formulas = {"bubble.measured": "bubble.formula", "step_ms.median": "step_ms.formula"}
    looks = plot.looks([f"M = {chunks}" for chunks in sorted(own["chunks"].unique())])
    for axis, (value, label) in zip(axes[0], SHOWN.items(), strict=True):
        for place, (name, look) in enumerate(looks.items()):
            line = own[own["chunks"].map("M = {}".format) == name]
            at = line["schedule"].map(order.index) + 0.24 * (place - (len(looks) - 1) / 2)
            below, above = line[value] - line[f"{value}.low"], line[f"{value}.high"] - line[value]
            axis.errorbar(line[value], at, xerr=[below, above], color=look.colour, linestyle="", capsize=2)
            axis.plot(line[value], at, look.marker, color=look.colour, label=name)
            wide = line[f"{value}.wide"].astype(bool)
            axis.plot(line[value][wide], at[wide], look.marker, color=look.colour, markerfacecolor="white")
            if value in formulas:
                axis.plot(line[formulas[value]], at, "|", color="0.1", markersize=9, label="theory", zorder=3)
        axis.set(xlabel=label, xlim=(0, None))
    axes[0, 0].set_yticks(range(len(order)), order)
    plot.legend(figure)
    miss = (own["step_ms.median"] / own["step_ms.formula"] - 1).abs()
    text = (
        "Bubble, peak activations of the rank that holds most, and step time of the schedules at equal M, "
        f"{'with' if plain.empty else 'without'} recomputation, the slowest at the bottom. {INTERVALS} Strokes: the "
        "closed form, or the simulation if there is none, for the nominal times. The measured step times differ from "
        f"it by {distance(own['step_ms.median'], own['step_ms.formula'])}, for "
        f"{own['schedule'][miss == miss.max()].iloc[0]}."
    )
    used = runs[runs["checkpointing"].isin(own["checkpointing"])]
    return Exhibit("schedules-compared", "Schedules at equal M", text, figure, own.drop(columns="front"), used)


def pareto(table: pd.DataFrame, runs: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the step time against memory, over schedules and policies of recomputation."""
    table = table.dropna(subset=["activation_kib"])
    if table.empty:
        return None
    chunks = sorted(table["chunks"].unique())
    figure, axes = plot.sheet(1, len(chunks), (4.2, 3.4))
    looks = plot.looks(["never", *sorted(set(table["checkpointing"]) - {"never"})])
    for axis, number in zip(axes[0], chunks, strict=True):
        own = table[table["chunks"] == number]
        plot.scatter(axis, own, "activation_kib", "step_ms.median", "checkpointing", looks)
        for row in records(own[own["front"]]):  # the space below and left of the front is empty
            at = (row["activation_kib"], row["step_ms.median"])
            below = {"textcoords": "offset points", "ha": "right", "va": "top", "fontsize": 7}
            axis.annotate(row["schedule"], at, (-4, -1), **below)
        axis.set(title=f"M = {number}", xlabel=SHOWN["activation_kib"], ylim=(0.85 * own["step_ms.median"].min(), None))
        axis.set_xscale("log", base=2)
        axis.set_xlim(0.6 * own["activation_kib"].min(), None)
        axis.set_yscale("log", base=2)
        plot.plain(axis.xaxis, axis.yaxis)
    axes[0, 0].set_ylabel("step time, ms")
    plot.legend(figure, [plot.FRONT])
    fronts = "; ".join(
        f"M = {number}: " + ", ".join(_named(row) for row in records(own.sort_values("activation_kib")))
        for number, own in table[table["front"]].groupby("chunks")
    )
    text = (
        "Step time against peak activations of the rank that holds most, one marker per schedule and policy of "
        f"recomputation. {INTERVALS} The line is the Pareto front, by ascending memory: {fronts}."
    )
    return Exhibit("schedules-pareto", "Memory against time over schedules", text, figure, table, runs)


def _named(row: dict[str, Any]) -> str:
    return str(row["schedule"]) + ("" if row["checkpointing"] == "never" else f" ({row['checkpointing']})")


if __name__ == "__main__":
    sys.exit(main(NAME, exhibits))
