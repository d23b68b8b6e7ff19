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
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis import looks, nominal, plot, scales
from analysis.command import main
from analysis.exhibit import FIT, Exhibit, drawn, kind_of, markers, not_fitted
from analysis.words import closing, mib_text, number, sentences, spread, versus
from microp.records import LAUNCH, WIDE_FRACTION, least_squares, over_launches, paired
from microp.results import Store, one_process, recorded_point, records, worst_rank_mib
from microp.simulator import closed_forms
from microp.system import run_command

NAME = "m_sensitivity"
NEEDS = "a pipelined schedule with at least two values of M"
POINT = ["schedule", "chunks"]
SAME = ["device", "config.model.name", "config.model.layers", "config.model.dim", "work"]  # of pipeline and monolith
BUBBLES = {  # the closed forms of the bubble with equal layers, F = B = W and free hops
    "gpipe": "(K-1)/(M+K-1)",
    "1f1b": "(K-1)/(M+K-1)",
    "zb_h1": "(K-1)/(3M+K-1) from M = K on",
    "naive": "(K-1)/K",
}


class Part(NamedTuple):
    """The rows of one panel: one device, one K, and a fixed batch or a fixed microbatch."""

    device: str
    ranks: int
    fixed: str
    rows: pd.DataFrame

    @property
    def title(self) -> str:
        return f"{kind_of(self.device)}, K = {self.ranks}, {self.fixed} fixed"


def _runs(store: Store) -> pd.DataFrame:
    """Return the experiment's runs, with the column `work` of a step."""
    runs = store.runs(NAME)
    return runs if runs.empty else runs.assign(work=[step_work(row) for row in records(runs)])


def exhibits(store: Store) -> list[Exhibit]:
    """Return up to four figures: speed-up, bubble, effective depth and memory against M."""
    runs = _runs(store)
    if runs.empty:
        return []
    found = list(parts(runs))
    made = [bubble(found), speed_up(found, runs), effective_depth(found), memory(found)]
    return drawn(made, store.missing(NAME))


def answer(store: Store) -> str:
    """Return sentences on bubble and time from the smallest to the largest M, on memory, and on one process alone."""
    runs = _runs(store)
    every = [] if runs.empty else list(parts(runs))
    first = {(part.device, part.ranks): part for part in reversed(every)}  # the part with a fixed batch comes first
    told = [text for part in reversed(first.values()) if (text := _ends(part))]
    if not told:
        return ""
    rows = pd.concat([part.rows for part in first.values()])
    memories = [text for part in sorted(every, key=lambda part: part.fixed) if (text := _memories(part))]
    points = [recorded_point(row) for row in store.rows if row["run_id"] in set(runs["run_id"])]
    alone = list(one_process(points))
    return sentences([*told, *memories[-1:], *alone, closing(rows, ["device", "ranks", *POINT])])


def _ends(part: Part) -> str:
    """Return what happens from the smallest to the largest M under the first pipelined schedule."""
    reach = part.rows[part.rows["schedule"] != "naive"].groupby("schedule")["chunks"].nunique()
    names = looks.in_order(sorted(reach[reach > 1].index))
    if not names:
        return ""
    growing = "step_ms.median" if part.fixed == "batch" else "per microbatch"
    own = part.rows[part.rows["schedule"] == names[0]]
    own = own.assign(**{"per microbatch": own["step_ms.median"] / own["chunks"]})
    low, *_, high = records(over_launches(own, ["chunks"], ["bubble.measured", "bubble.closed_form"]))
    formulas = [point["bubble.closed_form"] for point in (low, high)]
    known = "" if pd.isna(formulas).any() else f" (closed form: {' to '.join(map(number, formulas))})"
    before, after = (own[own["chunks"] == point["chunks"]] for point in (low, high))
    what = "step" if part.fixed == "batch" else "microbatch"
    time = versus(f"a {what} with M = {high['chunks']}", after, f"one with M = {low['chunks']}", before, growing)
    return (
        f"{part.title}: from M = {low['chunks']} to {high['chunks']} the bubble of {names[0]} goes from "
        f"{spread(low, 'bubble.measured')} to {spread(high, 'bubble.measured')}{known}; {time}"
    )


def _memories(part: Part) -> str:
    """Return the peak activations under GPipe and 1F1B at the largest common M, if both were run."""
    rows = part.rows.assign(mib=worst_rank_mib(part.rows)).dropna(subset=["mib"])
    peaks = rows.groupby(["chunks", "schedule"])["mib"].median().unstack()
    peaks = peaks.reindex(columns=["gpipe", "1f1b"]).dropna()
    if peaks.empty or peaks.index[-1] == 1:
        return ""
    gpipe, other = map(mib_text, peaks.iloc[-1])
    return (
        f"{part.title}, M = {peaks.index[-1]}: the rank that holds most keeps {gpipe} of activations under gpipe, "
        f"{other} under 1f1b"
    )


def step_work(row: dict[str, Any]) -> float:
    """Return the work of a step: the rows of its batch, or the nominal time in ms on an emulated device."""
    if row["device"] != "emulated":
        return float(row["batch_size"])
    costs = nominal.costs(row, nominal.order(row))
    return round(float(row["chunks"] * sum(costs.forward + costs.backward + costs.weight)), 6)


def parts(runs: pd.DataFrame) -> Iterator[Part]:
    """Yield the panels that have at least two values of M."""
    pipelines = runs[runs["ranks"] > 1]
    for (device, _), rows in pipelines.groupby(["device", "ranks"], sort=True):
        for fixed, measure in (("batch", rows["work"]), ("microbatch", rows["work"] / rows["chunks"])):
            measure = measure.round(6)
            reach = rows.groupby(measure)["chunks"].nunique()
            if reach.max() > 1:
                own = rows[measure == reach.idxmax()].drop_duplicates(["schedule", "chunks", LAUNCH])
                yield Part(str(device), int(own["ranks"].iloc[0]), fixed, own)


def speed_up(found: Sequence[Part], runs: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the speed-up over the unpartitioned model, paired by launch."""
    compared = [
        part._replace(rows=rows) for part in found if (rows := speed_ups(part.rows, runs))["chunks"].nunique() > 1
    ]
    if not compared:
        return None
    tables = [_table(part, "speed_up") for part in compared]
    for table, part in zip(tables, compared, strict=True):
        table["formula"] = part.ranks * (1 - table["formula"])
    legend = [looks.dotted("closed form: K (1 - bubble), in the same colour"), looks.thin("K, the number of ranks")]
    figure = _panels(compared, tables, "speed_up", "speed-up over one rank", legend)
    for axis, part in zip(figure.axes, compared, strict=True):
        plot.level(axis, part.ranks)
    used = pd.concat([monoliths(runs), *(part.rows for part in compared)])
    text = (
        "Step time of the unpartitioned model (one rank, one microbatch, the same batch) over that of the pipeline, "
        f"paired by launch. Dotted: closed form, K (1 - bubble) with the bubble {_closed_forms(tables)}. "
        f"{markers(used)}"
    )
    return Exhibit("m-sensitivity-speed-up", "Speed-up against M", text, figure, pd.concat(tables), used)


def monoliths(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of unpartitioned models, each once; `runs` have the work of a step in the column `work`."""
    alone = runs[(runs["ranks"] == 1) & (runs["chunks"] == 1)]
    return alone if alone.empty else alone.drop_duplicates([*SAME, LAUNCH])


def speed_ups(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return those rows whose monolith is among `runs`, with the column `speed_up`, paired by launch."""
    alone = monoliths(runs)
    if alone.empty:
        return rows.head(0).assign(speed_up=0.0)
    compared = paired(rows, alone, SAME, "step_ms.median")
    return compared.assign(speed_up=1 / compared["ratio"])


def bubble(found: Sequence[Part]) -> Exhibit | None:
    """Return the figure of the bubble, measured and by closed form; None if no part has two values of M."""
    if not found:
        return None
    tables = [_table(part, "bubble.measured", WIDE_FRACTION) for part in found]
    for table in tables:
        fractions = table["formula"].map(lambda value: str(Fraction(value).limit_denominator(1000)), na_action="ignore")
        table["as fraction"] = fractions.fillna("")
        table["measured - formula"] = table["bubble.measured"] - table["formula"]
    key = [looks.dotted("closed form, in the same colour: equal layers, free hops")]
    figure = _panels(found, tables, "bubble.measured", "bubble, idle / total", key)
    for axis in figure.axes:
        axis.set_ylim(0, None)
    text = (
        f"Idle time over total time of all ranks. Dotted: closed form, {_closed_forms(tables)}. {markers(_rows(found))}"
    )
    return Exhibit("m-sensitivity-bubble", "Bubble against M", text, figure, pd.concat(tables), _rows(found))


def _closed_forms(tables: Sequence[pd.DataFrame]) -> str:
    """Return the closed forms of the bubble that were drawn, each with its schedules."""
    told: dict[str, list[str]] = {}
    for name in looks.in_order(pd.concat(tables).dropna(subset=["formula"])["schedule"]):
        told.setdefault(BUBBLES.get(name, "another"), []).append(name)
    forms = ", ".join(f"{form} for {' and '.join(own)}" for form, own in told.items())
    return f"{forms}, with layers of equal cost and free hops"


def effective_depth(found: Sequence[Part]) -> Exhibit | None:
    """Return the figure of the lines T = a + b M through the step times and of the depths a/b + 1."""
    growing = [part for part in found if part.fixed == "microbatch"]
    if not growing:
        return None
    values = ["a", "b", "depth", "formula"]
    tables = [over_launches(pd.DataFrame(_fits(part)), ["schedule"], values) for part in growing]
    known = [table["depth"].notna().any() for table in tables]
    layout: dict[str, Any] = {"gridspec_kw": {"width_ratios": [3, 2]}} if any(known) else {}
    figure, axes = plot.sheet(len(growing), 1 + any(known), **layout)
    for row, part, fits in zip(axes, growing, tables, strict=True):
        _step_times(row[0], part, fits)
        if any(known):
            _depths(row[1], part, fits)
    fits = pd.concat(map(_named, growing, tables))
    legend, title, text = [], "Step time against M", ""
    if any(known):
        legend = [looks.dotted("least-squares line T = a + b M"), looks.thin("K, the number of ranks")]
        title = "T(M) = a + b M"
        text = (
            "Left: step time and its least-squares line T = a + b M over M >= K, by relative errors (naive exceeds the "
            "panel). Right: a/b + 1 of each line, an estimate of the number of ranks from step times alone."
        )
    if fits["formula"].notna().any():
        legend.insert(1, looks.stroke("depth by the closed form of the bubble: equal layers, free hops"))
    if fits["depth"].isna().any():
        text += f" {not_fitted('values of M >= K')}"
    plot.legend(figure, legend)
    caption = f"{text} {markers(_rows(growing))}".strip()
    return Exhibit("m-sensitivity-depth", title, caption, figure, fits, _rows(growing))


def _step_times(axis: Axes, part: Part, fits: pd.DataFrame) -> None:
    times = over_launches(part.rows, POINT, ["step_ms.median"])
    ends = [0, part.rows["chunks"].max()]
    for name, look in looks.looks(fits["schedule"]).items():
        own = times[times["schedule"] == name]
        plot.points(axis, own, "chunks", "step_ms.median", look._replace(line=""), str(name))
        [line] = records(fits[fits["schedule"] == name])
        if not pd.isna(line["depth"]):
            plot.computed(axis, ends, [line["a"] + line["b"] * m for m in ends], look.colour)
    pipelined = times[times["schedule"] != "naive"] if set(times["schedule"]) != {"naive"} else times
    plot.titled(axis, part.title, plot.CHUNKS, "step time, ms")
    axis.set_ylim(0, 1.2 * pipelined["step_ms.median"].max())
    scales.evenly(axis, times["chunks"])
    axis.set_xlim(0, None)


def _depths(axis: Axes, part: Part, fits: pd.DataFrame) -> None:
    """Draw the depth of each line; without lines the panel is left out."""
    fits = fits.dropna(subset=["depth"])
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
    axis.set_xlabel("effective depth, a/b + 1")
    axis.set_xlim(0, max(part.ranks, fits["depth.high"].max()) + 0.6)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.axvline(part.ranks, **looks.THIN)


def _fits(part: Part) -> Iterator[dict[str, Any]]:
    """Yield the line of each schedule and launch, NaN if it has too few M; `formula` is the depth by closed form."""
    for (schedule, launch), rows in part.rows.groupby(["schedule", LAUNCH]):
        rows = rows[rows["chunks"] >= part.ranks]  # with fewer microbatches ZB-H1 has another shape
        about = {"schedule": schedule, LAUNCH: launch, "disturbed": rows["disturbed"].any()}
        line = {**about, **dict.fromkeys(("a", "b", "depth", "formula"), float("nan"))}
        if rows["chunks"].nunique() >= FIT:
            a, b = least_squares(rows["chunks"], rows["step_ms.median"])
            line |= {"a": a, "b": b, "depth": a / b + 1}
            known = rows.dropna(subset=["bubble.closed_form"])
            if known["chunks"].nunique() > 1:
                ideal_a, ideal_b = least_squares(known["chunks"], known["chunks"] / (1 - known["bubble.closed_form"]))
                line["formula"] = ideal_a / ideal_b + 1
        yield line


def memory(found: Sequence[Part]) -> Exhibit | None:
    """Return the figure of the peak activations on the rank that holds most."""
    measured = [
        part._replace(rows=rows.assign(activation_mib=rows["peak_activation_mib"].map(max)))
        for part in found
        if not (rows := part.rows.dropna(subset=["peak_activation_mib"])).empty
    ]
    if not measured:
        return None
    tables = [_table(part, "activation_mib") for part in measured]
    for table, part in zip(tables, measured, strict=True):
        table["formula"] = [_law(part, row) for row in records(table)]
    known = pd.concat(tables)["formula"].notna().any()
    key = [looks.dotted("closed form: microbatches held, times the bytes of one at M = 1")] if known else []
    figure = _panels(measured, tables, "activation_mib", "peak activations of a rank, MiB", key)
    for axis in figure.axes:
        axis.set_ylim(0, None)
    text = (
        "Peak bytes of activations on the rank that holds most, counted exactly in a separate step. Dotted: closed "
        "form, the number of microbatches that the schedule holds times the bytes of one, taken from M = 1. With a "
        "fixed microbatch it grows with M under GPipe and is constant from M = K on under 1F1B; with a fixed batch it "
        "is constant under GPipe and falls under 1F1B."
    )
    title = "Peak activations against M"
    return Exhibit("m-sensitivity-memory", title, text, figure, pd.concat(tables), _rows(measured))


def _law(part: Part, point: dict[str, Any]) -> float:
    """Return the memory of the worst rank in MiB: microbatches held, by closed form, times the size of one."""
    needed = part.rows[["schedule", "chunks", "peak_activation_mib", "folder"]]  # to pick from all columns takes long
    own = needed[needed["schedule"] == point["schedule"]]
    single = own[own["chunks"] == 1]
    if single.empty:
        return float("nan")
    [row] = records(own[own["chunks"] == point["chunks"]].head(1))
    held = closed_forms.held_peak(nominal.order(row))
    if held is None:
        return float("nan")
    size = 1 if part.fixed == "microbatch" else 1 / point["chunks"]
    alone = single["peak_activation_mib"].iloc[0]
    peaks: list[float] = [float(number) * mib * size for number, mib in zip(held, alone, strict=True)]
    return max(peaks)


def _rows(found: Sequence[Part]) -> pd.DataFrame:
    return pd.concat([part.rows for part in found]).drop_duplicates("run_id")


def _table(part: Part, value: str, floor: float = 0.0) -> pd.DataFrame:
    """Return a table with one row per schedule and M, and the bubble by closed form in `formula`."""
    table = over_launches(part.rows, POINT, [value], floor)
    formula = part.rows[[*POINT, "bubble.closed_form"]].drop_duplicates(POINT)
    formula = formula.rename(columns={"bubble.closed_form": "formula"}).astype({"formula": float})
    return _named(part, table.merge(formula, on=POINT))


def _named(part: Part, table: pd.DataFrame) -> pd.DataFrame:
    table.insert(0, "panel", part.title)
    table.insert(1, "ranks", part.ranks)
    return table


def _panels(
    found: Sequence[Part], tables: Sequence[pd.DataFrame], value: str, label: str, legend: Sequence[Line2D]
) -> Figure:
    """Return a figure with one panel per part: `value` over M, one line per schedule, and the closed forms."""
    figure, axes = plot.panels(len(found))
    for axis, part, table in zip(axes, found, tables, strict=True):
        named = looks.looks(table["schedule"])
        shifted = plot.beside(table, "chunks", "schedule", named)
        plot.lines(axis, shifted, "chunks", value, "schedule", named, "formula")
        scales.powers(axis, table["chunks"])
        plot.titled(axis, part.title, plot.CHUNKS, label)
    plot.legend(figure, legend)
    return figure


if __name__ == "__main__":
    run_command(lambda: main(NAME, exhibits))
