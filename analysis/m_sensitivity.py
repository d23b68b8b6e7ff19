"""How do speed-up, bubble and memory depend on the number of microbatches M?

::

    bubble │●                     T(M) │         ●        T = a + b M, microbatch fixed:
           │  ●                        │      ●           b     time per microbatch
           │     ●   ●   ●             │   ●              a/b   depth of the pipeline, minus 1
           └───────────── M            └──┴───────── M    this gives the bubble without a trace

With a fixed batch the microbatches shrink as M grows, with a fixed microbatch the batch grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis import looks, nominal, plot, scales
from analysis.command import run
from analysis.exhibit import FIT, NOT_FITTED, Exhibit, kind_of, markers
from analysis.words import closing, mib_text, number, sentences, spread, versus
from microp.records import LAUNCH, WIDE_FRACTION, least_squares, over_launches, paired
from microp.results import one_process, recorded_point, records, worst_rank_mib
from microp.simulator import closed_forms

NEEDS = "a pipelined schedule with at least two values of M"
POINT = ["schedule", "chunks"]
PANEL = ["device", "ranks", "fixed", "panel"]
SAME = ["device", "config.model.name", "config.model.layers", "config.model.dim", "work"]  # of pipeline and monolith
BUBBLES = {  # the closed forms of the bubble with equal layers, F = I = W and free hops
    "gpipe": "(K-1)/(M+K-1)",
    "1f1b": "(K-1)/(M+K-1)",
    "zb_h1": "(K-1)/(3M+K-1) from M = K on",
    "naive": "(K-1)/K",
}


def prepared(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs with the work of a step, and those of each panel with its title; none has fewer than two M."""
    runs = runs.assign(work=[step_work(row) for row in records(runs)])
    found = [runs.head(0)]
    for (device, ranks), rows in runs[runs["ranks"] > 1].groupby(["device", "ranks"], sort=True):
        for fixed, measure in (("batch", rows["work"]), ("microbatch", rows["work"] / rows["chunks"])):
            measure = measure.round(6)
            reach = rows.groupby(measure)["chunks"].nunique()
            sizes = reach.index[(reach == reach.max()) & (reach > 1)]
            for size in sizes:
                own = rows[measure == size].drop_duplicates([*POINT, LAUNCH])
                what = f", {size:g} {'ms' if device == 'emulated' else 'rows'}" * (len(sizes) > 1)
                panel = f"{kind_of(str(device))}, K = {ranks}, {fixed} fixed{what}"
                found.append(own.assign(fixed=fixed, panel=panel))
    return runs, pd.concat(found[1:] or found, ignore_index=True)


def exhibits(both: tuple[pd.DataFrame, pd.DataFrame]) -> list[Exhibit | None]:
    """Return up to four figures: speed-up, bubble, effective depth and memory against M."""
    runs, rows = both
    return [] if rows.empty else [bubble(rows), speed_up(rows, runs), effective_depth(rows), memory(rows)]


def answer(both: tuple[pd.DataFrame, pd.DataFrame]) -> str:
    """Return sentences on bubble and time from the smallest to the largest M, on memory, and on one process alone."""
    runs, rows = both
    if rows.empty:
        return ""
    first = rows[rows["fixed"] == rows.groupby(["device", "ranks"])["fixed"].transform("min")]  # a fixed batch, if any
    if not (told := [text for _, own in first.groupby("panel", sort=False) if (text := _ends(own))]):
        return ""
    by_fixed = rows.sort_values("fixed", kind="stable").groupby("panel", sort=False)
    memories = [text for _, own in by_fixed if (text := _memories(own))]
    alone = one_process([recorded_point(row) for row in runs.get("recorded", ())])
    return sentences([*told, *memories[-1:], *alone, closing(first, ["device", "ranks", *POINT])])


def _ends(rows: pd.DataFrame) -> str:
    """Return what happens from the smallest to the largest M of a panel under the first pipelined schedule."""
    reach = rows[rows["schedule"] != "naive"].groupby("schedule")["chunks"].nunique()
    if not (names := looks.in_order(sorted(reach[reach > 1].index))):
        return ""
    own, panel, is_batch = rows[rows["schedule"] == names[0]], rows["panel"].iloc[0], rows["fixed"].iloc[0] == "batch"
    own = own.assign(**{"per microbatch": own["step_ms.median"] / own["chunks"]})
    low, *_, high = records(over_launches(own, ["chunks"], ["bubble.measured", "bubble.closed_form"]))
    formulas = [point["bubble.closed_form"] for point in (low, high)]
    known = "" if pd.isna(formulas).any() else f" (closed form: {' to '.join(map(number, formulas))})"
    before, after = (own[own["chunks"] == point["chunks"]] for point in (low, high))
    what, value = ("step", "step_ms.median") if is_batch else ("microbatch", "per microbatch")
    time = versus(f"a {what} with M = {high['chunks']}", after, f"one with M = {low['chunks']}", before, value)
    return (
        f"{panel}: from M = {low['chunks']} to {high['chunks']} the bubble of {names[0]} goes from "
        f"{spread(low, 'bubble.measured')} to {spread(high, 'bubble.measured')}{known}; {time}"
    )


def _memories(rows: pd.DataFrame) -> str:
    """Return the peak activations under GPipe and 1F1B at the largest common M of a panel, if both were run."""
    known = rows.assign(mib=worst_rank_mib(rows)).dropna(subset=["mib"])
    peaks = known.groupby(["chunks", "schedule"])["mib"].median().unstack()
    peaks = peaks.reindex(columns=["gpipe", "1f1b"]).dropna()
    if peaks.empty or peaks.index[-1] == 1:
        return ""
    gpipe, other = map(mib_text, peaks.iloc[-1])
    return (
        f"{rows['panel'].iloc[0]}, M = {peaks.index[-1]}: the rank that holds most keeps {gpipe} of activations under "
        f"gpipe, {other} under 1f1b"
    )


def step_work(row: dict[str, Any]) -> float:
    """Return the work of a step: the rows of its batch, or the nominal time in ms on an emulated device."""
    if row["device"] != "emulated":
        return float(row["batch_size"])
    costs = nominal.costs(row, nominal.order(row))
    return round(float(row["chunks"] * sum(costs.forward + costs.backward + costs.weight)), 6)


def speed_up(rows: pd.DataFrame, runs: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the speed-up over the unpartitioned model, paired by launch."""
    compared = speed_ups(rows, runs)
    compared = compared[compared.groupby("panel")["chunks"].transform("nunique") > 1]
    if compared.empty:
        return None
    table = _table(compared, "speed_up")
    table["formula"] = table["ranks"] * (1 - table["formula"])
    legend = [looks.dotted("closed form: K (1 - bubble), in the same colour"), looks.thin("K, the number of ranks")]
    figure = _panels(table, "speed_up", "speed-up over one rank", legend)
    for axis, ranks in zip(figure.axes, table.groupby("panel", sort=False)["ranks"].first(), strict=True):
        axis.axhline(ranks, **looks.THIN)
    alone = monoliths(runs).merge(compared[[*SAME, LAUNCH]].drop_duplicates())
    used = runs[runs["run_id"].isin([*alone["run_id"], *compared["run_id"]])]  # each once, and disturbed by itself
    text = (
        "Step time of the unpartitioned model (one rank, one microbatch, the same batch) over that of the pipeline, "
        f"paired by launch. Dotted: closed form, K (1 - bubble) with the bubble {_closed_forms(table)}. "
        f"{markers(used)}"
    )
    return Exhibit("m-sensitivity-speed-up", "Speed-up against M", text, figure, table, used)


def monoliths(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of unpartitioned models, each once; `runs` have the work of a step in the column `work`."""
    return runs[(runs["ranks"] == 1) & (runs["chunks"] == 1)].drop_duplicates([*SAME, LAUNCH])


def speed_ups(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return those rows whose monolith is among `runs`, with the column `speed_up`, paired by launch."""
    alone = monoliths(runs)
    if alone.empty:
        return rows.head(0).assign(speed_up=0.0)
    compared = paired(rows, alone, SAME, "step_ms.median")
    return compared.assign(speed_up=1 / compared["ratio"])


def bubble(rows: pd.DataFrame) -> Exhibit:
    """Return the figure of the bubble, measured and by closed form."""
    table = _table(rows, "bubble.measured", WIDE_FRACTION)
    fractions = table["formula"].map(lambda value: str(Fraction(value).limit_denominator(1000)), na_action="ignore")
    table["as fraction"] = fractions.fillna("")
    table["measured - formula"] = table["bubble.measured"] - table["formula"]
    key = [looks.dotted("closed form, in the same colour: equal layers, free hops")]
    figure, used = _panels(table, "bubble.measured", "bubble, idle / total", key), rows.drop_duplicates("run_id")
    for axis in figure.axes:
        axis.set_ylim(0, None)
    text = f"Idle time over total time of all ranks. Dotted: closed form, {_closed_forms(table)}. {markers(used)}"
    return Exhibit("m-sensitivity-bubble", "Bubble against M", text, figure, table, used)


def _closed_forms(table: pd.DataFrame) -> str:
    """Return the closed forms of the bubble that were drawn, each with its schedules."""
    told: dict[str, list[str]] = {}
    for name in looks.in_order(table.dropna(subset=["formula"])["schedule"]):
        told.setdefault(BUBBLES.get(name, "another"), []).append(name)
    forms = ", ".join(f"{form} for {' and '.join(own)}" for form, own in told.items())
    return f"{forms}, with layers of equal cost and free hops"


def effective_depth(rows: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the lines T = a + b M through the step times and of the depths a/b + 1."""
    rows = rows[rows["fixed"] == "microbatch"]
    if rows.empty:
        return None
    fits = _named(over_launches(pd.DataFrame(_fits(rows)), [*PANEL, "schedule"], ["a", "b", "depth", "formula"]))
    if fits["depth"].isna().all():
        return None
    figure, axes = plot.panels(2 * fits["panel"].nunique())
    for left, right, (panel, own) in zip(axes[::2], axes[1::2], fits.groupby("panel", sort=False), strict=True):
        _step_times(left, rows[rows["panel"] == panel], own)
        _depths(right, own)
    legend = [looks.dotted("least-squares line T = a + b M"), looks.thin("K, the number of ranks")]
    text = (
        "First: step time and its least-squares line T = a + b M over M >= K, by relative errors (naive exceeds the "
        "panel). Second: a/b + 1 of each line, an estimate of the number of ranks from step times alone."
    )
    if fits["formula"].notna().any():
        legend.insert(1, looks.stroke("depth by the closed form of the bubble: equal layers, free hops"))
    if fits["depth"].isna().any():
        text += f" {NOT_FITTED.format('values of M >= K')}"
    plot.legend(figure, legend)
    used = rows.drop_duplicates("run_id")
    return Exhibit("m-sensitivity-depth", "T(M) = a + b M", f"{text} {markers(used)}", figure, fits, used)


def _step_times(axis: Axes, rows: pd.DataFrame, fits: pd.DataFrame) -> None:
    times = over_launches(rows, POINT, ["step_ms.median"])
    ends = [0, rows["chunks"].max()]
    for name, look in looks.looks(fits["schedule"]).items():
        own = times[times["schedule"] == name]
        plot.points(axis, own, "chunks", "step_ms.median", look._replace(line=""), str(name))
        [line] = records(fits[fits["schedule"] == name])
        if not pd.isna(line["depth"]):
            plot.computed(axis, ends, [line["a"] + line["b"] * m for m in ends], look.colour)
    pipelined = times[times["schedule"] != "naive"] if set(times["schedule"]) != {"naive"} else times
    plot.titled(axis, rows["panel"].iloc[0], plot.CHUNKS, "step time, ms")
    axis.set_ylim(0, 1.2 * pipelined["step_ms.median"].max())
    scales.evenly(axis, times["chunks"])
    axis.set_xlim(0, None)


def _depths(axis: Axes, fits: pd.DataFrame) -> None:
    """Draw the depth of each line; without lines the panel is left out."""
    ranks, fits = fits["ranks"].iloc[0], fits.dropna(subset=["depth"])
    if fits.empty:
        axis.remove()
        return
    named = looks.looks(fits["schedule"])
    for position, (name, look) in enumerate(named.items()):
        own = fits[fits["schedule"] == name]
        at = pd.Series(position, own.index)
        plot.across(axis, own, "depth", at, look, "")
        plot.strokes(axis, own["formula"], at)
    scales.name_rows(axis, list(named), 0.9)
    plot.titled(axis, x="effective depth, a/b + 1")
    axis.set_xlim(0, max(ranks, fits["depth.high"].max()) + 0.6)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.axvline(ranks, **looks.THIN)


def _fits(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the line of each panel, schedule and launch, NaN if it has too few M; `formula`: depth by closed form."""
    keys = [*PANEL, "schedule", LAUNCH]
    for values, own in rows.groupby(keys):
        own = own[own["chunks"] >= own["ranks"]]  # with fewer microbatches ZB-H1 has another shape
        line = {**dict(zip(keys, values, strict=True)), "disturbed": own["disturbed"].any()}
        line |= dict.fromkeys(("a", "b", "depth", "formula"), float("nan"))
        if own["chunks"].nunique() >= FIT:
            a, b = least_squares(own["chunks"], own["step_ms.median"])
            line |= {"a": a, "b": b, "depth": a / b + 1}
            known = own.dropna(subset=["bubble.closed_form"])
            if known["chunks"].nunique() > 1:
                ideal_a, ideal_b = least_squares(known["chunks"], known["chunks"] / (1 - known["bubble.closed_form"]))
                line["formula"] = ideal_a / ideal_b + 1
        yield line


def memory(rows: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the peak activations on the rank that holds most."""
    rows = rows.dropna(subset=["peak_activation_mib"])
    if rows.empty:
        return None
    rows = rows.assign(activation_mib=rows["peak_activation_mib"].map(max))
    table = _table(rows, "activation_mib")
    needed = rows[["panel", "fixed", *POINT, "peak_activation_mib", "folder"]]  # to pick from all columns takes long
    table["formula"] = [_law(needed, row) for row in records(table)]
    key = [looks.dotted("closed form: microbatches held, times the bytes of one")]
    key = key if table["formula"].notna().any() else []
    figure = _panels(table, "activation_mib", "peak activations of a rank, MiB", key)
    for axis in figure.axes:
        axis.set_ylim(0, None)
    text = (
        "Peak bytes of activations on the rank that holds most, counted exactly in a separate step. Dotted: closed "
        "form, the number of microbatches that the schedule holds times the bytes of one: those at M = 1, of a "
        "fixed batch over M. With a fixed microbatch it grows with M under GPipe and is constant from M = K on under "
        "1F1B; with a fixed batch it is constant under GPipe and falls under 1F1B."
    )
    used = rows.drop_duplicates("run_id")
    return Exhibit("m-sensitivity-memory", "Peak activations against M", text, figure, table, used)


def _law(rows: pd.DataFrame, point: dict[str, Any]) -> float:
    """Return the memory of the worst rank in MiB: microbatches held, by closed form, times the size of one."""
    own = rows[(rows["panel"] == point["panel"]) & (rows["schedule"] == point["schedule"])]
    single = own[own["chunks"] == 1]
    if single.empty:
        return float("nan")
    [row] = records(own[own["chunks"] == point["chunks"]].head(1))
    held = closed_forms.held_peak(nominal.order(row))
    if held is None:
        return float("nan")
    size = 1 if row["fixed"] == "microbatch" else 1 / point["chunks"]
    alone = single["peak_activation_mib"].iloc[0]
    peaks: list[float] = [float(number) * mib * size for number, mib in zip(held, alone, strict=True)]
    return max(peaks)


def _table(rows: pd.DataFrame, value: str, floor: float = 0.0) -> pd.DataFrame:
    """Return a table with one row per panel, schedule and M, and the bubble by closed form in `formula`."""
    by = [*PANEL, *POINT]
    formula = rows[[*by, "bubble.closed_form"]].drop_duplicates(by).rename(columns={"bubble.closed_form": "formula"})
    return _named(over_launches(rows, by, [value], floor).merge(formula.astype({"formula": float}), on=by))


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the title of its panel in the place of the device and of what is fixed."""
    table.insert(0, "panel", table.pop("panel"))
    return table.drop(columns=["device", "fixed"])


def _panels(table: pd.DataFrame, value: str, label: str, legend: Sequence[Line2D]) -> Figure:
    """Return a figure with one panel per part: `value` over M, one line per schedule, and the closed forms."""
    shifted = plot.beside(table, "chunks", "schedule", looks.in_order(table["schedule"]))
    groups, names = [(str(panel), own) for panel, own in shifted.groupby("panel", sort=False)], (plot.CHUNKS, label)
    figure = plot.line_panels(groups, "chunks", value, "schedule", names, legend, "formula")
    for axis, (_, own) in zip(figure.axes, groups, strict=True):
        scales.powers(axis, table.loc[own.index, "chunks"])
    return figure


if __name__ == "__main__":
    run(__file__)
