"""Which schedule is fastest at equal M, and which needs least memory?

::

    step_ms │ naive                       the Pareto front: no other schedule is
            │    v_min ─╮                 both faster and smaller
            │           ╰─ 1f1b ──── zb_v
            └──────────────────────── KiB

All schedules run on the same emulated ranks, on which a rank's share of the model takes the same
time under every schedule, with every activation kept and with recomputation.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis import fitting, looks, nominal, plot, scales
from analysis.command import run
from analysis.exhibit import Exhibit, distance, markers
from analysis.words import TIME, closing, fastest, least_memory, listed, sentences
from microp.records import LAUNCH, over_launches
from microp.results import records, worst_rank_mib
from microp.simulator import simulate
from microp.trace import bubble_fraction

NEEDS = "at least two schedules with the same M and checkpointing=never on emulated devices"
POINT = ["chunks", "checkpointing", "schedule"]
SHOWN = {
    "bubble.measured": "bubble, idle / total",
    "activation_kib": "peak activations of a rank, KiB",
    "step_ms.median": "step time, ms",
}


def prepared(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the emulated runs, one row per point and launch, with the peak activations of the worst rank."""
    runs = nominal.emulated(runs).drop_duplicates([*POINT, LAUNCH]).reset_index(drop=True)
    return runs.assign(activation_mib=worst_rank_mib(runs), activation_kib=[1024 * mib for mib in worst_rank_mib(runs)])


def exhibits(runs: pd.DataFrame) -> list[Exhibit | None]:
    """Return up to two figures: the schedules side by side, and memory against time."""
    table = over_launches(runs, POINT, list(SHOWN))
    cases = [nominal.case(row) for row in records(runs.drop_duplicates(POINT).sort_values(POINT))]
    table["bubble.formula"] = [float(bubble_fraction(simulate(*case))) for case in cases]
    table["step_ms.formula"] = [nominal.step_ms(*case) for case in cases]
    table["front"] = plot.on_front(table, POINT[:2], "activation_kib", runs, POINT)
    return [compared(table, runs), pareto(table, runs)]


def answer(runs: pd.DataFrame) -> str:
    """Return the fastest and the smallest schedule for the largest M with several schedules, without recomputation."""
    runs = runs[runs["checkpointing"] == "never"]
    several = runs.groupby("chunks")["schedule"].nunique()
    if several.empty or several.max() < 2:
        return ""
    chunks = several[several == several.max()].index.max()
    runs = runs[runs["chunks"] == chunks].assign(point=runs["schedule"])
    what = f"schedules with M = {chunks} on {runs['ranks'].iloc[0]} emulated ranks, nothing recomputed"
    told, table = fastest(runs, TIME, "ms per step", what)
    of_point = table.assign(chunks=chunks, checkpointing="never", schedule=table["point"])
    best = table[plot.on_front(of_point, POINT[:2], "activation_mib", runs, POINT)].sort_values("activation_mib")
    if len(best) > 1:
        told.append(f"the best compromises, none disturbed, from the least memory on: {listed(list(best['point']))}")
    return sentences([*told, *least_memory(table), closing(runs, POINT)])


def compared(table: pd.DataFrame, runs: pd.DataFrame) -> Exhibit:
    """Return the figure of bubble, memory and step time with one row per schedule and one marker per M."""
    plain = table[table["checkpointing"] == "never"]
    own = table if plain.empty else plain
    order = own.groupby("schedule")["step_ms.median"].max().sort_values().index.tolist()
    across = len(SHOWN) if plot.WIDTH > plot.ONE_COLUMN else 1
    height = (0.22 if across > 1 else 0.17) * len(order) + 0.8
    figure, axes = plot.sheet(len(SHOWN) // across, across, height, sharey=True)
    formulas = {"bubble.measured": "bubble.formula", "step_ms.median": "step_ms.formula"}
    named = looks.looks(sorted(own["chunks"].unique()))
    for axis, (value, label) in zip(axes.flat, SHOWN.items(), strict=True):
        for place, (chunks, look) in enumerate(named.items()):
            line = own[own["chunks"] == chunks]
            at = line["schedule"].map(order.index) + 0.6 / len(named) * (place - (len(named) - 1) / 2)
            plot.across(axis, line, value, at, look, f"M = {chunks}")
            if value in formulas:
                plot.strokes(axis, line[formulas[value]], at)
        axis.set_xlabel(fitting.wrapped(label, min(plot.room(axis), plot.WIDTH / 2)))  # beside the names in one column
        axis.set_xlim(0, 1.05 * axis.get_xlim()[1])  # room for a marker at the end
        axis.xaxis.set_major_locator(MaxNLocator(3))
    scales.name_rows(axes[0, 0], order)
    plot.legend(figure, [looks.stroke("closed form or simulated, with the device's nominal times")])
    used = runs[runs["checkpointing"].isin(own["checkpointing"])]
    origin = nominal.origin(map(nominal.case, records(used.drop_duplicates(POINT))))
    miss = (own["step_ms.median"] / own["step_ms.formula"] - 1).abs()
    apart = distance(own["step_ms.median"], own["step_ms.formula"])
    text = (
        "Bubble, peak activations of the rank that holds most, and step time of the schedules at equal M, "
        f"{'with' if plain.empty else 'without'} recomputation, the slowest at the bottom. {markers(used)} Strokes: "
        f"bubble and step time with the nominal times, by {origin}. The measured step times differ from the "
        f"computed by {apart} ({own['schedule'][miss == miss.max()].iloc[0]})."
    )
    return Exhibit("schedules-compared", "Schedules at equal M", text, figure, own.drop(columns="front"), used)


def pareto(table: pd.DataFrame, runs: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the step time against memory, over schedules and policies of recomputation."""
    table = table.dropna(subset=["activation_kib"])
    if table.empty:
        return None
    value, time = "activation_kib", "step_ms.median"
    groups = list(table.groupby(["chunks", "checkpointing"], sort=True))
    groups = sorted(groups, key=lambda group: (group[0][0], group[0][1] != "never"))
    least = pd.concat([own for _, own in groups]).drop_duplicates("schedule").sort_values([value, time])["schedule"]
    numbered, known = {name: f"{number} {name}" for number, name in enumerate(least, 1)}, looks.looks(sorted(least))
    named, shown = (
        {numbered[name]: known[name]._replace(line="") for name in least},
        table.assign(schedule=table["schedule"].map(numbered)),
    )
    figure, axes = plot.panels(len(groups), 3.0)
    for axis, ((chunks, policy), own) in zip(axes, groups, strict=True):
        same = table[table["chunks"] == chunks]
        plot.lines(axis, shown.loc[own.index], value, time, "schedule", named)
        plot.draw_front(axis, own[own["front"]], value, time)
        plot.titled(axis, f"M = {chunks}, recomputation: {policy}", SHOWN[value], SHOWN[time])
        scales.logarithmic(axis.xaxis, same[value])
        scales.logarithmic(axis.yaxis, [*same[time], 0.85 * same[time].min()])  # room for numbers
    plot.legend(figure)
    for axis, (_, own) in zip(axes, groups, strict=True):
        plot.number_points(axis, shown.loc[own.index], value, time, "schedule", named)
    fronts = "; ".join(
        f"{', '.join(own[own['front']].sort_values(value)['schedule'])} (M = {chunks}, {policy})"
        for (chunks, policy), own in groups
        if own["front"].any()
    )
    text = (
        "Step time against peak activations of the rank that holds most, one marker per schedule, "
        "numbered from the least memory in the first panel on. "
        f"{plot.about_front(table, f'; from the least memory to the shortest step: {fronts}')}{markers(runs)}"
    )
    return Exhibit("schedules-pareto", "Memory against time over schedules", text, figure, table, runs)


if __name__ == "__main__":
    run(__file__)
