"""A table and a figure of any sweep: `python -m analysis.sweep outputs/sweeps`.

::

    varying keys        schedule  chunks  model.dim       (not repeat, which numbers the launches)
    x                   chunks: the numeric key with the most values
    lines               schedule, with all keys that are left over
    columns             the device, or model.dim: the next key, if it has few values
    rows                step time, bubble, peak activations, each a row of panels; engines over each other, if compared
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from analysis import command, looks, nominal, plot, scales, words
from analysis.engine_speed import RATIOS, TIMES
from analysis.exhibit import Exhibit, counted, markers
from analysis.varied import group_of, is_numeric, say, varying
from analysis.words import BUBBLE, TIME, closing, fastest, least_memory, listed, sentences, spread
from microp.records import WIDE_FRACTION, Plan, over_launches, read_plans
from microp.results import HOW, Store, finished_runs, one_process, recorded_point, records, text_of, worst_rank_mib
from microp.system import about_sweep, run_command, sweep_names
from microp.terminal import read_store

QUANTITIES = {  # column -> its label, and a width of the interval that is never too wide
    "step_ms.median": ("step time, ms", 0.0),
    "bubble.measured": ("bubble, idle / total", WIDE_FRACTION),
    "activation_mib": ("peak activations of a rank, MiB", 0.0),
    **{ratio: (f"step time, {name}", 0.0) for ratio, name in RATIOS.items()},  # of runs with engine=compare
}
STEP = "ms per step"
COMPARED = "compare (microp's step)"  # whose step a run with engine=compare counts with
MOST_COLUMNS = 3
MOST_TOLD = 8  # sets of points; the table has all
MOST_LINES = 24  # more cannot be told apart


class Axes(NamedTuple):
    """The role of each varying key in the figure."""

    x: str | None
    lines: list[str]
    column: str | None


def exhibit(runs: pd.DataFrame, stem: str, title: str) -> Exhibit:
    """Return the exhibit of these runs, at least one, over the keys that vary between them."""
    rows = runs.assign(activation_mib=worst_rank_mib(runs))
    for key in varying(runs):
        values = runs[f"config.{key}"]
        rows[key] = values if is_numeric(runs, key) else values.map(text_of, na_action="ignore")
    if "engine.name" in rows:
        rows["engine.name"] = rows["engine.name"].replace("compare", COMPARED)
    axes = assign(rows)
    keys = [*axes.lines, *filter(None, [axes.column, axes.x])]
    alone = rows["schedule"].iloc[0] if rows["schedule"].nunique() == 1 else "measured"
    rows["line"] = [
        ", ".join(say(key, row[key]) for key in axes.lines if pd.notna(row[key])) or alone for _, row in rows.iterrows()
    ]
    rows["column"] = [say(axes.column, text_of(value)) for value in rows[axes.column]] if axes.column else ""
    rows["x"] = rows[axes.x].fillna("-") if axes.x else ""
    points = ["column", "line", "x"]
    table, said = rows[[*points, *keys]].drop_duplicates(points), answer(rows, keys, say)
    rows.loc[rows["ranks"] == 1, [BUBBLE, "bubble.closed_form"]] = float("nan")  # one process waits for nobody
    for quantity, (_, floor) in (QUANTITIES | dict.fromkeys(TIMES, ("", 0.0))).items():
        if quantity not in rows:
            continue
        own = over_launches(rows, points, [quantity], floor)
        table = table.merge(own.drop(columns=["launches", "disturbed"]) if "launches" in table else own, on=points)
    formula = rows[[*points, "bubble.closed_form"]].drop_duplicates(points)
    table = table.merge(formula.rename(columns={"bubble.closed_form": "formula"}), on=points)
    table = table.sort_values([*filter(None, [axes.column]), *axes.lines, "x"])  # numbers by their size
    number = table["line"].nunique()
    closed = "Dotted: closed form of the bubble, for equal layers and free hops or an emulated device's nominal times."
    text = (
        f"{counted(len(table), 'point')}; varied: {', '.join(keys) or 'nothing'}; {_same(runs)}. {markers(runs)}"
        + (f" {closed}" if table["formula"].notna().any() else "")
        + (f" Drawn: the first {MOST_LINES} of {number} lines; the table has all." if number > MOST_LINES else "")
    )
    figure, reason = _draw(table, axes), nominal.uncompared(runs)
    plot.head(figure, f"Emulated runs: {reason.partition(', so ')[0]}" if reason else "")
    title += f": {', '.join(key.removesuffix('.name') for key in keys[:4])}" * bool(keys)
    return Exhibit(stem, title, text, figure, table.drop(columns=points), runs, said)


def _same(runs: pd.DataFrame) -> str:
    """Return the usual figures that are the same in all runs, as text."""
    usual = {"schedule": "", "model": "", "device": "", "ranks": "K = ", "chunks": "M = "}
    same = [f"{name}{runs[key].iloc[0]}" for key, name in usual.items() if runs[key].nunique() == 1]
    return f"the same in all: {', '.join(same) or 'nothing of these'}"


def answer(
    rows: pd.DataFrame, keys: Sequence[str], named: Callable[[str, Any], str] = lambda _, value: str(value)
) -> str:
    """Return which point of a sweep is fastest and by how much, how engines compare, and which needs least memory.

    `rows` has one row per run and the column `activation_mib`; `keys` name a point, `named` says a key's value.
    """
    names = [", ".join(named(key, row[key]) for key in keys if pd.notna(row[key])) for row in records(rows)]
    rows = rows.assign(point=names, **{"ms per row": rows[TIME] / rows["batch_size"]})
    value, unit = (TIME, STEP) if rows["batch_size"].nunique() == 1 else ("ms per row", "ms per row of the batch")
    told, table = fastest(rows, value, unit)
    if work := [key for key in keys if group_of(key) not in (*HOW, "batch_size")]:  # points that do not compare
        parts = [(map(named, work, values), own) for values, own in rows.groupby(work, dropna=False)]
        told = [f"{', '.join(which)}: {fastest(own, value, unit)[0][0]}" for which, own in parts]
        told = told if len(told) <= MOST_TOLD else []
    if reason := nominal.uncompared(rows):
        told = [reason, *_of_equals(rows)]
    if known := [ratio for ratio in RATIOS if ratio in rows and rows[ratio].notna().any()]:
        ratios = over_launches(rows.dropna(subset=known, how="all"), ["point"], known)
        said = listed([f"{RATIOS[ratio]} {words.middle(ratios[ratio])}" for ratio in known])
        told.append(f"step times of engines that take turns, as ratios, medians over points with their ranges: {said}")
    if len(ends := records(table.dropna(subset=[BUBBLE]).sort_values(BUBBLE))) > 1:
        low, *_, high = ends
        told.append(f"bubbles: from {spread(low, BUBBLE)} ({low['point']}) to {spread(high, BUBBLE)} ({high['point']})")
    return sentences([*told, *least_memory(table), closing(rows, ["point"])])


def _of_equals(rows: pd.DataFrame) -> list[str]:
    """Return a phrase for each number of chunks, ranks, ... whose points compare: their times and bubbles."""
    told = []
    for _, own in rows.groupby(["chunks", "ranks", "replicas", "batch_size"]):
        table = over_launches(own, ["point"], [TIME, BUBBLE]).sort_values([TIME, "point"])
        ends = [f"{e['point']} with {spread(e, TIME, STEP)}, a bubble of {spread(e, BUBBLE)}" for e in records(table)]
        told += [ends[0] if len(ends) == 1 else f"from {ends[0]}, to {ends[-1]}"]
    return told if len(told) <= MOST_TOLD else []


def assign(rows: pd.DataFrame) -> Axes:
    """Return the role of each varying key."""
    keys = varying(rows)
    counts = {key: rows[key].nunique() for key in keys}
    numbers = [key for key in keys if is_numeric(rows, key)]
    x = max(numbers, key=lambda key: (counts[key], -keys.index(key)), default=keys[0] if keys else None)
    rest = sorted((key for key in keys if key != x), key=lambda key: (key != "schedule.name", -counts[key]))
    second = "device.name" if "device.name" in rest else rest[1] if len(rest) > 1 else None  # emulated times are apart
    column = second if second and counts[second] <= MOST_COLUMNS else None
    return Axes(x, [key for key in rest if key != column], column)


def _draw(table: pd.DataFrame, axes: Axes) -> Figure:
    shown = [each for each in QUANTITIES if each in table and table[each].notna().any()] or ["step_ms.median"]
    columns = list(dict.fromkeys(table["column"]))
    figure, grid = plot.sheet(len(shown), len(columns), 2.0, sharex=True, sharey="row")
    numeric = pd.api.types.is_numeric_dtype(table["x"])
    ticks = sorted(table["x"].unique()) if numeric else list(dict.fromkeys(table["x"]))
    named = looks.looks(list(dict.fromkeys(table["line"]))[:MOST_LINES])
    names = {line: f"{number} {line}" for number, line in enumerate(named, 1)} if len(named) > looks.DIFFERENT else {}
    table = table.assign(line=table["line"].map(lambda line: names.get(line, line)))
    named = {names.get(line, line): look if numeric else look._replace(line="") for line, look in named.items()}
    ends = []  # of lines
    for axis_row, quantity in zip(grid, shown, strict=True):
        for axis, column in zip(axis_row, columns, strict=True):
            own = table[(table["column"] == column) & table["line"].isin(named)]
            own = own.assign(x=own["x"] if numeric else [ticks.index(value) for value in own["x"]])
            if numeric:
                own = plot.beside(own, "x", "line", named, _doubles(ticks, numeric))
            plot.lines(axis, own, "x", quantity, "line", named, "formula" if quantity == "bubble.measured" else None)
            ends.append((axis, own.dropna(subset=[quantity]).drop_duplicates("line", keep="last"), quantity))
            title, x = column if quantity == shown[0] else "", axes.x if quantity == shown[-1] else ""
            plot.titled(axis, title, x or "", QUANTITIES[quantity][0])
        axis_row[0].set_ylim(0, 1.05 * axis_row[0].get_ylim()[1])  # of the row; room for a marker at the top
    for axis in grid[-1]:
        if _doubles(ticks, numeric):
            scales.powers(axis, ticks)
        elif numeric:
            scales.evenly(axis, ticks)
        else:
            scales.categories(axis, [str(tick) for tick in ticks])
    closed = [looks.dotted("closed form of the bubble, in the same colour")]
    plot.legend(figure, closed if table["formula"].notna().any() else [])
    for axis, last, quantity in ends if names else ():
        plot.number_points(axis, last, "x", quantity, "line", named, all_of_them=False)
    return figure


def _doubles(ticks: list[Any], numeric: bool) -> bool:
    """Return whether the values are best shown on a logarithmic axis."""
    return numeric and len(ticks) > 1 and ticks[0] > 0 and ticks[-1] / ticks[0] >= 4


def of_plan(store: Store, plan: Plan) -> Exhibit | None:
    """Return the exhibit of one sweep, a stored one's with its question; None if none of its runs has finished."""
    runs = store.of({point.run_id for point in plan.points})
    if runs.empty:
        return None
    made = exhibit(runs, f"sweep-{plan.folder.name}", f"Sweep {plan.folder.name}")
    lost = without_result(store, plan)
    asked = about_sweep(plan.experiment)[0] if plan.experiment in sweep_names() else ""
    told = f"{made.answer} {sentences(one_process(list(map(recorded_point, runs['recorded']))))}".strip()
    return replace(made, answer=f"{asked} {told} {lost}".strip(), caption=f"{made.caption} {lost}".strip())


def without_result(store: Store, plan: Plan) -> str:
    """Return a sentence on the points of a sweep that ran without a result; empty if there are none."""
    everywhere = set.intersection(*(set(point.overrides) for point in plan.points))
    names = {point.run_id: ", ".join(w for w in point.overrides if w not in everywhere) for point in plan.points}
    lost = [row for row in store.rows if row["run_id"] in names and row["status"] != "finished"]
    told = "; ".join(f"{names[row['run_id']] or row['run_id']} ({row['status']})" for row in lost)
    return f"Without a result: {len(lost)} of {counted(len(plan.points), 'point')}, {told}." if lost else ""


def main(arguments: list[str] | None = None) -> int:
    """Draw the newest sweep below a folder, or all runs below it if it has no sweep."""
    parser = command.command_parser("analysis.sweep", main.__doc__)
    parser.add_argument("folder", type=Path, help="outputs/sweeps, one of its folders, or a folder of runs")
    command.add_schedule(parser)
    options, folder = command.read_report(parser, arguments)
    missing: list[str] = []
    plans, unreadable = read_plans(options.folder)
    for reason in unreadable:
        print(f"left out: {reason}", file=sys.stderr)
    if plans:
        store = read_store(plans[-1].folder.resolve().parents[1], options.schedule)
        known = store.schedules_of({point.run_id for point in plans[-1].points})
        made, missing = of_plan(store, plans[-1]), store.unfinished(plans[-1].points)
    else:
        runs, name = finished_runs(options.folder), options.folder.resolve().name
        known = [] if runs.empty else sorted({*runs["schedule"]})
        runs = runs[runs["schedule"].isin(options.schedule)] if options.schedule and known else runs
        made = None if runs.empty else exhibit(runs, f"sweep-{name}", f"Runs of {options.folder}")
    command.check_schedules(parser, options.folder, options.schedule, known)
    if made is None:
        parser.error(command.nothing(options.folder, "python -m microp.run -m schedule=gpipe,1f1b chunks=4,8,16"))
    command.save([made], folder)
    command.print_answer(made.answer)
    command.print_missing(missing)
    return 0


if __name__ == "__main__":
    run_command(main)
