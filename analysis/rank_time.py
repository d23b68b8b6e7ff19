"""Where did the time of each rank go?

::

    gpipe, 42 ms   │██ 62 % ██░░░░░░ 0    compute, recompute, optimizer, host
                   │███████████░░░░░ 1    wait: transfer, for a tensor that was sent
    1f1b, 40 ms    │██ 65 % ██░░░░░ 0     wait: warm-up, steady phase, drain: for another rank
                   │███████████░░░░ 1     a bar adds up to the step's wall time, in ms

A panel is one configuration, in which only the schedule differs. For each device, model and number of ranks the
figure first shows the configuration that most schedules share; among equals one without recomputation whose number of
microbatches is nearest to 2K. The table has all questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from analysis import fitting, looks, plot, scales
from analysis.command import run
from analysis.exhibit import Exhibit, counted, kind_of, nominal_of, percent
from analysis.varied import differing, group_of, say
from analysis.words import TIME, doubts, listed, sentences
from microp.records import read_traced_step
from microp.results import is_missing, records
from microp.trace import DRAWN, KINDS, bubble_fraction, makespan, sheet

PAGE = plot.PAGE - 1  # inches without legends: as many panels are drawn as fit
MOST_STEPS = 6  # above each other on one time axis
MOST_NUMBERED = 4  # ranks of which all bars have their number; else the first and the last
GAP = 0.08  # inches between the bars of two schedules
AROUND = 0.7  # inches of a panel above and below its bars, without its title
SEEN = 0.003  # of a bar: what is shorter cannot be seen, and is neither drawn nor in the legend
WHERE = ["device", "model", "ranks"]
SETTING = ["chunks", "batch_size", "checkpointing", "place"]
AGAIN = "checkpointing.name"
IN_EVERY_TITLE = ("chunks", "ranks", "device.name", "model.name")
HOW_LONG = ("steps", "warmup_steps")  # a configuration was measured
OUTLIER = 1.5  # of the median step of its run: a drawn step that took longer is named
LINES = 6  # of a panel's title
LINE = 0.17  # inches
# compute is dark and waits are light; hatching separates neighbours that are alike without colour
LOOKS: dict[str, tuple[str, str, str]] = {  # colour, hatching, name
    "compute": ("#0072b2", "", "compute"),
    "recompute": ("#56b4e9", "///", "recompute"),
    "optimizer": ("#d55e00", "\\\\\\", "optimizer"),
    "host": ("#303030", "", "host"),
    "transfer": ("#cc79a7", "xxx", "wait: transfer"),
    "warmup": ("#c0c0c0", "", "wait: warm-up"),
    "steady": ("#9c9c9c", "...", "wait: steady phase"),
    "drain": ("#c0c0c0", "////", "wait: drain"),
    "reduction": ("#009e73", "++", "wait: sum over replicas, copies"),
}
assert set(LOOKS) == set(KINDS), "each kind of time has a look"


def exhibits(runs: pd.DataFrame) -> list[Exhibit]:
    """Return one figure with one panel per configuration, and one of schedules on one time axis."""
    found, room = _panels(runs), plot.WIDTH - _beside() - 0.3  # of a title, which begins where the bars do
    heights = [AROUND + LINE + len(own) * (_thickness(own) * own["ranks"].iloc[0] + GAP) for own in found]
    order = sorted(range(len(found)), key=lambda at: heights[at] > PAGE / 2)
    found, heights = ([each[at] for at in order] for each in (found, heights))
    panels = found[: max(1, int(np.searchsorted(np.cumsum(heights), PAGE)))]
    titles = [fitting.wrapped(title, room, LINES) for title in _titles(panels, found)]
    heights = [height + LINE * title.count("\n") for height, title in zip(heights, titles, strict=False)]
    figure, axes = plot.sheet(len(panels), 1, sum(heights) / len(heights), gridspec_kw={"height_ratios": heights})
    every = [row for own in panels for row in records(own)]
    shown = [kind for kind in LOOKS if max(np.max(kind_ms(row, kind) / _totals(row)) for row in every) >= SEEN]
    for axis, wrapped, own in zip(axes[:, 0], titles, panels, strict=True):
        _draw(axis, own, shown)
        plot.titled(axis, x="wall time of the step, ms")
        axis.set_title(wrapped)
    plot.legend(figure, [Patch(**_look(kind), label=LOOKS[kind][2]) for kind in shown])
    plot.head(figure, nominal_of(pd.concat(panels)) or "Runs of real compute" * bool(nominal_of(runs)))
    text = (
        "Wall time by kind of the last measured step, which is not the median of the tables, one bar per rank, "
        "whose number is at its end; the time of the whole step is beside the name, the mean share of compute in bars "
        "that have room. A panel holds the schedules of one configuration: its title tells it from others, and its "
        "bars differ only in what their names say. Host: the rank's own time around its actions. Waits in warm-up, "
        "steady phase and drain are for another rank to finish an action; transfer is a wait for a tensor that was "
        "already being sent. Of several launches that with the median step time is shown. "
        f"Drawn: {len(panels)} of {counted(len(found), 'panel')}, of most schedules first, but what fills over half a "
        f"page last; the table has all, and kinds below {percent(SEEN)} of a bar.{_outliers(pd.concat(panels))}"
    )
    return [Exhibit("rank-time", "Time of each rank by kind", text, figure, _table(runs), runs), *_on_one_axis(found)]


def _on_one_axis(configurations: Sequence[pd.DataFrame]) -> list[Exhibit]:
    """Return a figure of the steps of the configuration with most schedules, one above the other; none without two."""
    if not (several := [own for own in configurations if own["schedule"].nunique() > 1]):
        return []
    several = [own for own in several if (own["chunks"] >= own["ranks"]).any()] or several  # else orders hardly differ
    several = [own for own in several if own["checkpointing"].iloc[0] == "never"] or several
    best = max(several, key=lambda rows: (min(MOST_STEPS, rows["schedule"].nunique()), -rows["disturbed"].mean()))
    own = best.drop_duplicates("schedule")
    order = sorted(looks.in_order(own["schedule"]), key=lambda name: name == "naive")[:MOST_STEPS]  # its step is long
    rows = {row["schedule"]: {**row, "time_ms": True} for row in records(own)}
    panels, sums, lines = {}, {}, []
    for schedule in order:
        if (step := read_traced_step(FilePath(rows[schedule]["folder"]), rows[schedule])) is not None:
            spans, usual = step.panels["measured"], rows[schedule]["step_ms.median"]
            doubt = f" (disturbed, median {usual:.4g} ms)" * bool(rows[schedule]["disturbed"])
            name = fitting.shortened(schedule, plot.WIDTH / 2)
            panels[f"{name}{doubt}"], sums[f"{name}{doubt}"] = spans, step.sums["measured"]
            numbers = {"ms": float(makespan(spans)) / 1e6, "bubble": float(bubble_fraction(spans))}
            lines.append({"schedule": name, **numbers, "disturbed": bool(rows[schedule]["disturbed"])})
    if len(panels) < 2 or sum(map(len, panels.values())) > DRAWN:
        return []
    row = min(0.4, (PAGE / len(panels) - 0.7) / float(own["ranks"].iloc[0]))
    figure, used = sheet(panels, sums=sums, row=row, width=plot.WIDTH), own[own["schedule"].isin(order)]
    noisy = ", ".join(schedule for schedule in order if rows[schedule]["disturbed"])
    left_out = [schedule for schedule in looks.in_order(own["schedule"]) if schedule not in order]
    text = (
        f"The last measured step of {len(panels)} schedules, one launch each, one above the other on one time axis: "
        f"{_titles([own], configurations)[0]}.{f' Left out: {listed(left_out)}.' if left_out else ''} python -m "
        f"analysis.timeline RUN RUN draws any runs so.{noisy and f' Disturbed: {noisy}.'}{_outliers(used)}"
    )
    return [Exhibit("schedule-timelines", "Schedules on one time axis", text, figure, pd.DataFrame(lines), used)]


def _outliers(rows: pd.DataFrame) -> str:
    """Return a sentence on the drawn steps that took much longer than the median of their run, if any did."""
    steps = [(row["bar"], _totals(row).max(), row["step_ms.median"]) for row in records(rows)]
    told = [f"{bar} took {ms:.1f} ms, of a median of {usual:.1f}" for bar, ms, usual in steps if ms > OUTLIER * usual]
    return f" Outliers among the drawn steps: {'; '.join(told)}." if told else ""


def answer(runs: pd.DataFrame) -> str:
    """Return a sentence per kind of computation: the share of compute over configurations, and the largest rest."""
    return sentences(_largest(kind, own) for kind, own in runs.groupby(runs["device"].map(kind_of)))


def _largest(kind: str, runs: pd.DataFrame) -> str:
    totals = pd.DataFrame([{name: sum(kind_ms(row, name)) for name in LOOKS} for row in records(runs)])
    shares = totals.div(totals.sum(axis=1), axis=0)
    low, middle, high = (percent(shares["compute"].quantile(q), 0) for q in (0, 0.5, 1))
    reach = f" in the median ({low} to {high})" if len(shares) > 1 else ""
    rest = shares.drop(columns="compute").median().sort_values(ascending=False, kind="stable")
    first, second = (f"{LOOKS[str(name)][2]} ({percent(share, 0)})" for name, share in rest.head(2).items())
    of = f"{counted(len(shares), 'configuration')}{doubts(runs, TIME)}"
    return f"{kind}, {of}: ranks compute {middle} of a step{reach}; the next largest parts are {first} and {second}"


def prepared(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the launch with the median step time of each question on several ranks whose time is accounted for."""
    if "time_ms.compute" not in runs:
        return runs.head(0)
    runs = runs[(runs["ranks"] > 1) & runs["time_ms.compute"].notna()]
    if runs.empty:
        return runs
    equal = runs["partition"].map(set).map(len) == 1  # with one stage per rank or several
    runs = runs.assign(place=runs["partition"].map(str).where(~equal, "equal"))
    ordered = (own.sort_values(kind="stable") for _, own in runs.groupby("question")["step_ms.median"])
    return runs.loc[[own.index[(len(own) - 1) // 2] for own in ordered]]


def _panels(runs: pd.DataFrame) -> list[pd.DataFrame]:
    """Return each configuration's rows, in the order of the panels: first the best one of each device, model and K.

    The best one is that of most schedules; among equals one without recomputation, and then the one nearest to M = 2K.
    """
    keys = differing(runs)
    others = [key for key in keys if group_of(key) != "schedule"]
    own_keys = [key for key in keys if group_of(key) == "schedule" and key != "schedule.name"]
    by = list(dict.fromkeys([*WHERE, *SETTING, *(f"config.{key}" for key in others)]))
    found = [own for _, own in runs.groupby([runs[column].map(str) for column in by], sort=True)]
    found = [own.assign(bar=_bars(own, own_keys)) for own in sorted(found, key=_order)]
    where = [tuple(own[WHERE].iloc[0]) for own in found]
    return [found[at] for at in sorted(range(len(found)), key=lambda at: where[:at].count(where[at]))]


def _order(rows: pd.DataFrame) -> tuple[int, bool, float]:
    first = rows.iloc[0]
    far = abs(float(np.log2(first["chunks"] / (2 * first["ranks"]))))
    return -rows["schedule"].nunique(), first["checkpointing"] != "never", far


def _titles(panels: Sequence[pd.DataFrame], configurations: Sequence[pd.DataFrame]) -> list[str]:
    """Return the name of each panel: the usual figures, and the few keys that tell it from all other configurations."""
    rows = pd.DataFrame([own.iloc[0] for own in configurations])
    keys = [key for key in differing(rows) if group_of(key) != "schedule" and key not in IN_EVERY_TITLE]
    titles, texts = [], rows[[f"config.{key}" for key in keys]].map(str).set_axis(keys, axis=1)
    for row, mine in ((rows.loc[own.index[0]], texts.loc[own.index[0]]) for own in panels):
        usual = [*WHERE, "chunks", "place", *["checkpointing"] * (row["checkpointing"] != "never")]
        others, told = texts[(rows[usual] == row[usual]).all(axis=1)] != mine, [AGAIN] * ("checkpointing" in usual)
        for part in ({"batch_size", "model.dim"}, {*keys} - {*HOW_LONG}, {*keys}):
            while (left := others[[key for key in keys if key in part]]).any(axis=None):
                told.append(left.sum().idxmax())  # which tells it from most of those that are left
                others = others[~others[told[-1]]]
        values = {key.removesuffix(".name"): row.get(f"config.{key}") for key in sorted(told, key=[AGAIN, *keys].index)}
        named = [f", {say(key, value)}" for key, value in values.items() if not is_missing(value)]
        named += [] if row["place"] == "equal" else [f", layers {row['place']}"]
        titles.append(f"{row['device']}, {row['model']}, K = {row['ranks']}, M = {row['chunks']}{''.join(named)}")
    return titles


def _bars(rows: pd.DataFrame, keys: list[str]) -> list[str]:
    """Return the names of the bars of a configuration: the schedule, with its own keys if runs differ in them."""
    several = [key for key in keys if rows.groupby("schedule")[f"config.{key}"].nunique(dropna=False).max() > 1]
    named = rows[[f"config.{key}" for key in several]]
    found = [{key.removeprefix("schedule."): row[f"config.{key}"] for key in several} for row in records(named)]
    told = [[say(key, value) for key, value in own.items() if not is_missing(value)] for own in found]
    return [", ".join([schedule, *own]) for schedule, own in zip(rows["schedule"], told, strict=True)]


def _thickness(rows: pd.DataFrame) -> float:
    """Return the thickness of a bar in inches, so that the ranks of a schedule leave room for its name."""
    ranks = float(rows["ranks"].iloc[0])
    return max(0.05, min(0.15 if plot.WIDTH > plot.ONE_COLUMN else max(0.2, 0.48 / ranks), 0.6 / ranks))


def _beside() -> float:
    """Return the inches that the names of the bars have, whose times stand below them in a narrow figure."""
    return 2 * scales.ROW if plot.WIDTH > plot.ONE_COLUMN else 1.05


def _draw(axis: Axes, rows: pd.DataFrame, shown: Sequence[str]) -> None:
    names, gap, order = [], GAP / _thickness(rows), looks.in_order(rows["schedule"])
    widest = max(_totals(row).max() for row in records(rows))
    bars: dict[str, list[Any]] = {kind: [] for kind in shown}
    for place, row in enumerate(sorted(records(rows), key=lambda row: (order.index(row["schedule"]), row["bar"]))):
        ranks, total = row["ranks"], _totals(row)
        group = ranks + gap  # the height of a schedule, in bars
        at, left = place + (np.arange(ranks) + 0.5 + gap / 2) / group - 0.5, np.zeros(ranks)
        for kind in shown:
            spent = np.array(kind_ms(row, kind))
            if spent.any():
                low, high, ends = at - 0.46 / group, at + 0.46 / group, left + spent
                bars[kind] += np.transpose([(left, low), (ends, low), (ends, high), (left, high)], (2, 0, 1)).tolist()
                left = ends
        compute = kind_ms(row, "compute")
        share = percent(sum(compute) / total.sum(), 0)
        if min(compute) * (plot.WIDTH - _beside() - 0.5) > fitting.width(f" {share} ") * widest:  # else it hides others
            behind = {"facecolor": LOOKS["compute"][0], "edgecolor": "none", "pad": 1.5}
            axis.text(0, place, f" {share}", va="center", color="white", zorder=3, bbox=behind, clip_on=True)
        for rank in range(0, ranks, ranks - 1 if ranks > MOST_NUMBERED else 1):
            axis.text(total[rank], at[rank], f" {rank}", va="center")
        time, doubt = f"{total.max():.1f} ms", " (disturbed)" * bool(row["disturbed"])
        if plot.WIDTH > plot.ONE_COLUMN:
            after = f", {time}{doubt}"
            names.append(f"{fitting.shortened(row['bar'], _beside() - fitting.width(after))}{after}")
        else:
            names.append("\n".join([fitting.shortened(row["bar"], _beside()), time, *filter(None, [doubt.strip()])]))
    for kind, own in bars.items():
        if own:  # one patch for all bars of a kind, because each patch takes the time of a hatch
            axis.add_artist(PathPatch(Path.make_compound_path_from_polys(np.array(own)), **_look(kind)))
    axis.set_yticks(range(len(names)), names)
    axis.set(xlim=(0, 1.04 * widest), ylim=(len(names) - 0.5, -0.5))
    axis.grid(visible=False)
    axis.tick_params(axis="y", length=0)


def _look(kind: str) -> dict[str, Any]:
    colour, hatch, _ = LOOKS[kind]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}


def kind_ms(row: Any, kind: str) -> list[float]:
    """Return the time of a kind on each rank in ms; 0 for a run that was recorded before the kind existed."""
    values: Any = row.get(f"time_ms.{kind}")
    return values if isinstance(values, list) else [0.0] * len(row["time_ms.compute"])


def _totals(row: Any) -> Any:
    """Return the wall time of the step on each rank in ms, as an array."""
    return np.sum([kind_ms(row, kind) for kind in LOOKS], axis=0)


def _table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table with one row per question and rank, in milliseconds, with all keys in which questions differ."""
    usual = ("schedule", "chunks", "ranks", "device", "model", "checkpointing", "run_id", "disturbed")
    keys = [key for key in differing(rows) if key not in (*IN_EVERY_TITLE, AGAIN, "schedule.name")]
    lines = [
        {
            **{key: row[key] for key in usual},
            **{key: row[f"config.{key}"] for key in keys},
            "rank": rank,
            **{f"{kind}_ms": kind_ms(row, kind)[rank] for kind in LOOKS},
        }
        for row in records(rows.sort_values(["device", "ranks", "schedule", "chunks", "run_id"]))
        for rank in range(len(row["time_ms.compute"]))
    ]
    return pd.DataFrame(lines)


if __name__ == "__main__":
    run(__file__)
