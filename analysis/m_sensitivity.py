"""Effect of the number of microbatches M on speed-up, bubble, effective depth and memory.

::

    bubble │●                     T(M) │         ●        T = a + b M, microbatch fixed:
           │  ●                        │      ●           b     time per microbatch
           │     ●   ●   ●             │   ●              a/b   depth of the pipeline, minus 1
           └───────────── M            └──┴───────── M    this gives the bubble without a trace

M is varied in two ways: with a fixed batch the microbatches shrink as M grows, with a fixed
microbatch the batch grows. The kind of a run is found from its row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis import nominal, plot
from analysis.command import main
from analysis.exhibit import INTERVALS, Exhibit, drawn, kind_of
from microp.simulator import closed_forms
from microp.store import LAUNCH, WIDE_FRACTION, Store, least_squares, over_launches, paired, records

NAME = "m_sensitivity"
POINT = ["schedule", "chunks"]


class Part(NamedTuple):
    """The rows of one panel: one device, one K, and a fixed batch or a fixed microbatch."""

    device: str
    ranks: int
    fixed: str
    rows: pd.DataFrame

    @property
    def title(self) -> str:
        return f"{kind_of(self.device)}, K = {self.ranks}, {self.fixed} fixed"


def exhibits(store: Store) -> list[Exhibit]:
    """Return up to four figures: speed-up, bubble, effective depth and memory against M."""
    runs = store.runs(NAME)
    if runs.empty:
        return []
    runs = runs.assign(work=[step_work(row) for row in records(runs)])
    found = list(parts(runs))
    made = [speed_up(found, runs), bubble(found), effective_depth(found), memory(found)]
    return drawn(made, store.missing(NAME))


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
    same = ["device", "config.model.name", "config.model.layers", "config.model.dim", "work"]
    alone = runs[(runs["ranks"] == 1) & (runs["chunks"] == 1)].drop_duplicates([*same, LAUNCH])
    compared = [
        part._replace(rows=rows.assign(speed_up=1 / rows["ratio"]))
        for part in found
        if (rows := paired(part.rows, alone, same, "step_ms.median"))["chunks"].nunique() > 1
    ]
    if not compared:
        return None
    tables = [_table(part, "speed_up") for part in compared]
    for table, part in zip(tables, compared, strict=True):
        table["formula"] = part.ranks * (1 - table["formula"])
    figure = _panels(compared, tables, "speed_up", "speed-up over one rank")
    for axis, part in _of_parts(figure, compared):
        axis.axhline(part.ranks, color="0.6", linewidth=0.8)
        axis.annotate(f"K = {part.ranks}", (1, part.ranks), (2, -3), textcoords="offset points", va="top", fontsize=7)
    text = (
        "Step time of the unpartitioned model (one rank, one microbatch, the same batch) over that of the pipeline, "
        f"paired by launch. Dashed: K (1 - bubble), with the bubble's formula. {INTERVALS}"
    )
    used = pd.concat([alone, *(part.rows for part in compared)])
    return Exhibit("m-sensitivity-speed-up", "Speed-up against M", text, figure, pd.concat(tables), used)


def bubble(found: Sequence[Part]) -> Exhibit | None:
    """Return the figure of the measured bubble and its formula; None if no part has two values of M."""
    if not found:
        return None
    tables = [_table(part, "bubble.measured", WIDE_FRACTION) for part in found]
    for table in tables:
        table["as fraction"] = [_fraction(value) for value in table["formula"]]
        table["measured - formula"] = table["bubble.measured"] - table["formula"]
    figure = _panels(found, tables, "bubble.measured", "bubble, idle / total")
    for axis in figure.axes:
        axis.set_ylim(0, None)
    text = (
        "Idle time over total time of all ranks. Dashed: the formulas, (K-1)/(M+K-1) for GPipe and 1F1B, which "
        f"assume that all layers cost the same. {INTERVALS}"
    )
    return Exhibit("m-sensitivity-bubble", "Bubble against M", text, figure, pd.concat(tables), _rows(found))


def _fraction(value: float) -> str:
    return "" if pd.isna(value) else str(Fraction(value).limit_denominator(1000))


def effective_depth(found: Sequence[Part]) -> Exhibit | None:
    """Return the figure of the lines T = a + b M through the step times and of the depths a/b + 1."""
    fitted = {part.title: pd.DataFrame(_fits(part)) for part in found if part.fixed == "microbatch"}
    growing = [part for part in found if part.fixed == "microbatch" and not fitted[part.title].empty]
    if not growing:
        return None
    figure, axes = plot.sheet(2, len(growing), gridspec_kw={"height_ratios": [3, 2]})
    tables = []
    for (above, below), part in zip(axes.T, growing, strict=True):
        times = over_launches(part.rows, POINT, ["step_ms.median"])
        fits = over_launches(fitted[part.title], ["schedule"], ["a", "b", "depth", "formula"])
        named = plot.looks(fits["schedule"])
        for position, (name, look) in enumerate(named.items()):
            own = fits[fits["schedule"] == name].assign(position=position)
            [line] = records(own)
            plot.points(
                above, times[times["schedule"] == name], "chunks", "step_ms.median", look._replace(line=""), name
            )
            ends = [0, part.rows["chunks"].max()]
            above.plot(ends, [line["a"] + line["b"] * m for m in ends], color=look.colour, linestyle=look.line)
            plot.points(below, own, "position", "depth", look, name)
            plot.theory(below, [position - 0.35, position + 0.35], [line["formula"]] * 2)
        pipelined = times[times["schedule"] != "naive"] if set(times["schedule"]) != {"naive"} else times
        above.set(xlabel=plot.CHUNKS, xlim=(0, None), ylim=(0, 1.2 * pipelined["step_ms.median"].max()))
        above.set_title(part.title)
        above.xaxis.set_major_locator(MaxNLocator(integer=True))
        below.set(ylim=(0, max(part.ranks, fits["depth.high"].max()) + 0.6), xlim=(-0.5, len(fits) - 0.5))
        below.set_xticks(range(len(named)), list(named))
        below.axhline(part.ranks, color="0.6", linewidth=0.8)
        tables.append(_named(part, fits))
    axes[0, 0].set_ylabel("step time, ms")
    axes[1, 0].set_ylabel("effective depth, a/b + 1")
    plot.legend(figure, [plot.THEORY])
    text = (
        "Above: step time, and the least-squares line T = a + b M through the points with M >= K, fitted to relative "
        "errors (the naive schedule exceeds the panel). Below: the depth a/b + 1 of each line, found without a trace. "
        f"Dashed: the depth by the schedule's formula; grey: K. {INTERVALS}"
    )
    return Exhibit("m-sensitivity-depth", "T(M) = a + b M", text, figure, pd.concat(tables), _rows(growing))


def _fits(part: Part) -> Iterator[dict[str, Any]]:
    """Yield the line of each schedule and launch; `formula` is the depth that follows from the closed form."""
    for (schedule, launch), rows in part.rows.groupby(["schedule", LAUNCH]):
        rows = rows[rows["chunks"] >= part.ranks]  # with fewer microbatches ZB-H1 has another shape
        if rows["chunks"].nunique() < 2:
            continue
        known = rows.dropna(subset=["bubble.closed_form"])
        a, b = least_squares(rows["chunks"], rows["step_ms.median"])
        line = {"schedule": schedule, LAUNCH: launch, "a": a, "b": b, "depth": a / b + 1, "formula": float("nan")}
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
    figure = _panels(measured, tables, "activation_mib", "peak activations of a rank, MiB")
    for axis in figure.axes:
        axis.set_ylim(0, None)
    text = (
        "Peak bytes of activations on the rank that holds most, counted exactly in a separate step. With a fixed "
        "microbatch, memory grows with M under GPipe and stays constant from M = K on under 1F1B; with a fixed batch "
        "it is constant under GPipe and falls under 1F1B. Dashed: the number of microbatches held, by formula, times "
        "the bytes of one microbatch, taken from M = 1."
    )
    return Exhibit(
        "m-sensitivity-memory", "Peak activations against M", text, figure, pd.concat(tables), _rows(measured)
    )


def _law(part: Part, point: dict[str, Any]) -> float:
    """Return the memory of the worst rank in MiB: microbatches held, by closed form, times the size of one."""
    own = part.rows[part.rows["schedule"] == point["schedule"]]
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


def _of_parts(figure: Any, found: Sequence[Part]) -> Iterator[tuple[Any, Part]]:
    """Return the axis of each part, with the part."""
    axes = {axis.get_title(loc="left"): axis for axis in figure.axes}
    return ((axes[part.title], part) for part in found)


def _rows(found: Sequence[Part]) -> pd.DataFrame:
    return pd.concat([part.rows for part in found]).drop_duplicates("run_id")


def _table(part: Part, value: str, floor: float = 0.0) -> pd.DataFrame:
    """Return a table with one row per schedule and M, and the bubble's formula in `formula`."""
    table = over_launches(part.rows, POINT, [value], floor)
    formula = part.rows[[*POINT, "bubble.closed_form"]].drop_duplicates(POINT)
    formula = formula.rename(columns={"bubble.closed_form": "formula"}).astype({"formula": float})
    return _named(part, table.merge(formula, on=POINT))


def _named(part: Part, table: pd.DataFrame) -> pd.DataFrame:
    table.insert(0, "panel", part.title)
    table.insert(1, "ranks", part.ranks)
    return table


def _panels(found: Sequence[Part], tables: Sequence[pd.DataFrame], value: str, label: str) -> Any:
    """Return a figure with one panel per part: `value` over M, one line per schedule, and the formulas."""
    rows, columns = (list(dict.fromkeys(keys)) for keys in ([p.fixed for p in found], [p[:2] for p in found]))
    figure, grid = plot.sheet(len(rows), len(columns))
    free = {
        (row, column): axis
        for row, line in zip(rows, grid, strict=True)
        for column, axis in zip(columns, line, strict=True)
    }
    for part, table in zip(found, tables, strict=True):
        axis = free.pop((part.fixed, part[:2]))
        named = plot.looks(table["schedule"])
        for _, own in table.groupby("schedule"):
            plot.theory(axis, own["chunks"], own["formula"])
        shifted = plot.beside(table, "chunks", "schedule", named)
        plot.lines(axis, shifted, "chunks", value, "schedule", named)
        plot.powers(axis, table["chunks"], plot.CHUNKS)
        axis.set_title(part.title)
    for axis in free.values():
        axis.remove()
    for axis in grid[:, 0]:
        axis.set_ylabel(label)
    plot.legend(figure, [plot.THEORY])
    return figure


if __name__ == "__main__":
    sys.exit(main(NAME, exhibits))
