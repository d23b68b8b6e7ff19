"""What does a skewed partition cost, and does it matter which rank has most of the layers?

::

    1f1b, heavy first      █ █ █ █ █ █ █ █          the heavy rank's forwards hide the work of
                            ▌ ▌ ▌ ▌ ▌ ▌ ▌ ▌         the other ranks
    1f1b, heavy last     ▌ ▌      ▌ ▌ ▌
                           █ █ █ █ █ █ █ █          the work before and after it is exposed
                           ◄── M beta ───►          beta: F + B of the heavy rank, its work alone

The time of a layer is the nominal one of an emulated device, or the median over the uniform runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.patches import Patch

from analysis import looks, nominal, plot, scales
from analysis.command import run
from analysis.exhibit import Exhibit, distance, kind_of, markers, percent
from analysis.prediction import makespan_ms, measured_steps
from analysis.words import closing, number, sentences, spread, undecided, versus
from microp.records import LAUNCH, WIDE_FRACTION, over_launches, paired
from microp.results import records
from microp.simulator import Costs, simulate
from microp.trace import busy, makespan

NEEDS = "the uniform partition and a skewed one, or a heavy first and a heavy last rank under 1f1b"
POINT = ["schedule", "position", "share"]
PANEL = ["device", "ranks", "panel"]
SHARE = "share of the layers on one rank, %"
OF_RANKS = {"-": "the heavy rank", "--": "the other ranks, median"}  # in the figure of the utilisation


def prepared(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with a heavy rank, one row per point and launch, and what is expected of them.

    Columns are added: `panel`, a title; `position` and `share` of the heavy rank; `case`, the order and the costs with
    layers of equal time; `expected_ms`, the step with them; `alone_ms`, the heavy rank's work alone, with `.low` and
    `.high` by the shortest and the longest time of a layer; and `origin`, where that time is from.
    """
    found = [runs.head(0)]
    if "config.partition.share" in runs:
        runs = runs.dropna(subset=["config.partition.share"])
        position, share = runs["config.partition.rank"].astype(int), 100 * runs["config.partition.share"]
        runs = runs.assign(position=position, share=share).drop_duplicates(["device", "ranks", *POINT, LAUNCH])
        for (device, ranks), rows in runs.groupby(["device", "ranks"], sort=True):
            if times := list(_layer_times(rows)):
                panel = f"{kind_of(str(device))}, K = {ranks}"
                found.append(_expected(rows, times).assign(panel=panel, origin=_origin(str(device), times)))
    return pd.concat(found[1:] or found, ignore_index=True)


def _expected(rows: pd.DataFrame, times: Sequence[tuple[float, float]]) -> pd.DataFrame:
    """Return the runs of one panel with what is expected of them, by F and B of a layer in each run that gives them."""
    first = records(rows.drop_duplicates("schedule")[["schedule", "folder"]])
    orders = {row["schedule"]: nominal.order(row) for row in first}
    forward, backward = (median(column) for column in zip(*times, strict=True))
    keys = [(name, *layers) for name, layers in zip(rows["schedule"], rows["partition"], strict=True)]
    cases: dict[Any, Any] = {
        (name, *layers): (orders[name], Costs(tuple(n * forward for n in layers), tuple(n * backward for n in layers)))
        for name, *layers in keys
    }
    steps = {key: nominal.step_ms(*case) for key, case in cases.items()}
    heavy, each = rows["chunks"] * rows["partition"].map(max), [sum(pair) for pair in times]
    alone = {"alone_ms": forward + backward, "alone_ms.low": min(each), "alone_ms.high": max(each)}
    rows = rows.assign(samples_per_s=1e3 * rows["batch_size"] / rows["step_ms.median"])  # also of rows not counted
    rows = rows.assign(**{name: heavy * ms for name, ms in alone.items()})
    return rows.assign(case=pd.Series(keys, rows.index).map(cases), expected_ms=[steps[key] for key in keys])


def _origin(device: str, times: Sequence[tuple[float, float]]) -> str:
    """Return the origin of a layer's times as text."""
    if device == "emulated":
        return "nominal"
    low, high = min(map(sum, times)), max(map(sum, times))
    runs = "the uniform run" if len(times) == 1 else f"the median of {len(times)} uniform runs"
    return f"{runs} ({low:.3g} to {high:.3g} ms per layer)" if low < high else runs


def exhibits(rows: pd.DataFrame) -> list[Exhibit | None]:
    """Return up to three figures: utilisation, throughput, and the position of the heavy rank."""
    return [throughput(rows), positions(rows), utilisation(rows)]


def answer(rows: pd.DataFrame) -> str:
    """Return a sentence per device and K on throughput, and one on the position of the heavy rank."""
    panels = rows.groupby("panel", sort=False)
    told = [f"{panel}{text}" for panel, own in panels for text in (_cost(own), _position(own)) if text]
    return sentences([*told, closing(rows, ["device", "ranks", *POINT])]) if told else ""


def _cost(rows: pd.DataFrame) -> str:
    """Return the throughput of the most skewed partition relative to the uniform one, and by the heavy rank's work."""
    even = rows[rows["partition"].map(set).map(len) == 1]
    skewed = paired(rows[rows["share"] == rows["share"].max()], even, ["schedule", "position"], "samples_per_s")
    if skewed.empty or rows["share"].nunique() < 2:
        return ""
    schedule = looks.in_order(sorted(skewed["schedule"].unique()))[0]
    skewed = skewed[(skewed["schedule"] == schedule) & (skewed["position"] == skewed["position"].max())]
    [point] = records(over_launches(skewed, POINT, ["ratio"]))
    even = even[even["schedule"] == schedule]
    times = "nominal times" if skewed["origin"].iloc[0] == "nominal" else "times measured with the uniform partition"
    found = f"is {spread(point, 'ratio')} of that with the uniform partition"
    if point["disturbed"] and point["launches"] == 1 and undecided(even, skewed) and undecided(skewed, even):
        found = "against that with the uniform partition is too noisy to say (disturbed)"
    return (
        f": with {point['share']:g} % of the layers on rank {point['position']}, the throughput of {schedule} "
        f"{found}; the heavy rank's work alone would give "
        f"{number(even['expected_ms'].iloc[0] / skewed['alone_ms'].iloc[0])}, computed from the {times}"
    )


def _position(rows: pd.DataFrame) -> str:
    """Return whether a heavy first rank is cheaper than a heavy last one, under 1F1B at a share near 50 %."""
    rows = rows[(rows["schedule"] == "1f1b") & (rows["share"] > rows["share"].min())]
    first, last = rows[rows["position"] == 0], rows[rows["position"] == rows["ranks"] - 1]
    if not (shares := {*first["share"]} & {*last["share"]}):
        return ""
    share = min(shares, key=lambda share: abs(share - 50))
    first, last = (side[side["share"] == share] for side in (first, last))
    text = versus("a step with a heavy first rank", first, "one with a heavy last rank", last)
    return f", 1f1b with a share of {share:g} %: {text}"


def _layer_times(rows: pd.DataFrame) -> Iterator[tuple[float, float]]:
    """Yield F and B of a layer: the nominal ones of an emulated device, or those of each uniform run."""
    for row in records(rows):
        if row["device"] == "emulated":
            yield row["config.device.forward_ms"], row["config.device.backward_ms"]
        elif len(set(row["partition"])) == 1:
            steps = measured_steps(Path(row["folder"]), row["ranks"])
            actions = [action for step in steps for own in step for action in own["action_ms"].items()]
            times = [[time for name, time in actions if name.endswith(op)] for op in "FB"]
            if all(times):
                yield tuple(median(of_op) / row["partition"][0] for of_op in times)


# --- each rank's utilisation -----------------------------------------------------------------------


def utilisation(rows: pd.DataFrame) -> Exhibit:
    """Return the figure of each rank's utilisation, the share of the makespan in which it computes."""
    table = _used(rows)
    shown = _heavy_and_others(table)
    groups = list(shown.groupby(["panel", "schedule"], sort=False))
    figure, axes = plot.panels(len(groups))
    named = looks.looks(sorted(shown["position"].unique()))
    for axis, ((panel, schedule), own) in zip(axes, groups, strict=True):
        for heavy, line in ((True, "-"), (False, "--")):
            drawn_as = {position: look._replace(line=line) for position, look in named.items()}
            lines, label = own[own["heavy"] == heavy], "rank {} is heavy" if heavy else ""
            plot.lines(axis, lines, "share", "utilisation", "position", drawn_as, "formula", label)
        plot.titled(axis, f"{panel}, {schedule}", SHARE, "utilisation of a rank")
        axis.set_ylim(0, 1.05)
        scales.evenly(axis, own["share"])
    keys = [looks.line(label, style) for style, label in OF_RANKS.items()]
    plot.legend(figure, [*keys, looks.dotted("simulated, in the same colour: equal layers, free hops")])
    others = table[(table["rank"] != table["position"]) & (table["share"] == 80)]
    middle = others.groupby("panel")["utilisation"].median()
    seen = "; ".join(f"{percent(value, 0)} ({panel})" for panel, value in middle.items())
    text = (
        "Compute time over makespan of the heavy rank, and the median of the other ranks, which have equally many "
        "layers, against the share of layers on the heavy rank (the smallest share is the uniform partition). Dotted: "
        f"simulated, with equal layers. The table has every rank. {markers(rows)}"
        + (f" Median utilisation of the other ranks at a share of 80 %: {seen}." if seen else "")
    )
    return Exhibit("partition-skew-utilisation", "Utilisation under a skewed partition", text, figure, table, rows)


def _heavy_and_others(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per point for the heavy rank, and one for the median of the others."""
    table = table.assign(heavy=table["rank"] == table["position"]).astype({"utilisation.wide": float})
    values = [column for column in table.columns if column.startswith(("utilisation", "formula"))]
    keys = ["panel", "schedule", "position", "share", "heavy"]
    return table.groupby(keys, sort=False)[values].median().reset_index().astype({"utilisation.wide": bool})


def _used(rows: pd.DataFrame) -> pd.DataFrame:
    used = ((row, rank, value) for row in records(rows) for rank, value in enumerate(_utilisation(row)))
    lines = [{**row, "rank": rank, "utilisation": value} for row, rank, value in used]
    table = over_launches(pd.DataFrame(lines), [*PANEL, *POINT, "rank"], ["utilisation"], WIDE_FRACTION)
    spans = [simulate(*case) for case in _points(rows)["case"]]
    table["formula"] = [float(time / makespan(own)) for own in spans for _, time in sorted(busy(own).items())]
    return table.drop(columns=["device", "ranks"])


def _points(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per point, in the order of `over_launches`."""
    return rows.drop_duplicates([*PANEL, *POINT]).sort_values([*PANEL, *POINT])


def _utilisation(row: dict[str, Any]) -> list[float]:
    steps = measured_steps(Path(row["folder"]), row["ranks"])
    return [median(step[rank]["compute_ms"] / makespan_ms(step) for step in steps) for rank in range(row["ranks"])]


# --- throughput ------------------------------------------------------------------------------------


def throughput(rows: pd.DataFrame) -> Exhibit:
    """Return the figure of the throughput: measured, computed, and by the heavy rank's work alone."""
    table = throughputs(rows)
    every = product(table.groupby("panel", sort=False), looks.in_order(sorted(table["schedule"].unique())))
    groups = [(panel, name, own) for (panel, own), name in every if name in set(own["schedule"])]
    figure, axes = plot.panels(len(groups))
    named = looks.looks(sorted(table["position"].unique()))
    for axis, (panel, schedule, own) in zip(axes, groups, strict=True):
        alone = own.drop_duplicates("share").sort_values("share")
        axis.plot(alone["share"], alone["alone"], **looks.THIN)
        axis.fill_between(alone["share"], alone["alone.low"], alone["alone.high"], color="0.9", linewidth=0, zorder=0.5)
        speeds = own[own["schedule"] == schedule]
        plot.lines(axis, speeds, "share", "samples_per_s", "position", named, "formula", "rank {} is heavy")
        plot.titled(axis, f"{panel}, {schedule}", SHARE, "rows per second", own=True)
        scales.evenly(axis, own["share"])
        axis.set_ylim(0, None)
    computed = _computed(rows)
    keys: list[Artist] = [looks.thin("the heavy rank's work alone, M (F + B)")]
    if (table["alone.low"] < table["alone.high"]).any():
        keys.append(Patch(color="0.9", label="the same by the fastest and the slowest uniform run"))
    plot.legend(figure, [looks.dotted(f"{computed}, in the same colour"), *keys])
    miss = "; ".join(
        f"{distance(own['samples_per_s'], own['formula'])} ({panel})" for panel, own in table.groupby("panel")
    )
    origins = "; ".join(f"{panel}, {own.iloc[0]}" for panel, own in rows.groupby("panel", sort=False)["origin"])
    text = (
        "Throughput against the share of layers on the heavy rank. Grey: the rows per second if a step took only the "
        f"heavy rank's M (F + B). Dotted: {computed}. Both are without optimizer and transfers; time of a layer: "
        f"{origins}. The measured throughput differs from the dotted line by {miss}. {markers(rows)}"
    )
    return Exhibit("partition-skew-throughput", "Throughput under a skewed partition", text, figure, table, rows)


def throughputs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table of rows per second: measured, computed, and by the heavy rank's work alone."""
    table, points = over_launches(rows, [*PANEL, *POINT], ["samples_per_s", "step_ms.median"]), _points(rows)
    times = {"formula": "expected_ms", "alone": "alone_ms", "alone.low": "alone_ms.high", "alone.high": "alone_ms.low"}
    table["formula"], table["formula_ms"] = 0.0, points["expected_ms"].to_numpy()
    for name, time in times.items():
        table[name] = (1e3 * points["batch_size"] / points[time]).to_numpy()
    return table.drop(columns=["device", "ranks"])


# --- which rank ------------------------------------------------------------------------------------


def positions(rows: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the step time by position and schedule, relative to a heavy last rank.

    It is None unless the last rank was heavy at a share at which another was, too.
    """
    table = _over_last(rows)
    if table.empty:
        return None
    named = table.assign(line=table["schedule"] + ", rank " + table["position"].map(str) + " is heavy")
    groups, computed = [(str(panel), own) for panel, own in named.groupby("panel", sort=False)], _computed(rows)
    keys = [looks.dotted(f"{computed}, in the same colour"), looks.thin("1: the last rank is heavy")]
    names = SHARE, "step time / that with a heavy last rank"
    figure = plot.line_panels(groups, "share", "ratio", "line", names, keys, "formula")
    for axis, (_, own) in zip(figure.axes, groups, strict=True):
        axis.axhline(1, **looks.THIN)
        scales.evenly(axis, own["share"])
    seen = "; ".join(
        f"{name} {' and '.join(f'{own[key].min():.2f} to {own[key].max():.2f}' for key in ('formula', 'ratio'))}"
        for name, own in table.groupby("schedule")
    )
    text = (
        "Step time by the position of the heavy rank, over that of the same launch, schedule and share with the last "
        f"rank heavy; a uniform partition has no heavy rank. Dotted: {computed}. The ratio, computed and measured: "
        f"{seen}. {markers(rows)}"
    )
    return Exhibit("partition-skew-position", "Position of the heavy rank", text, figure, table, rows)


def _computed(rows: pd.DataFrame) -> str:
    """Return how the step times of these runs are computed."""
    return f"{nominal.origin(_points(rows)['case'])}, with equal layers and free hops"


def _over_last(rows: pd.DataFrame) -> pd.DataFrame:
    is_last = rows["position"] == rows["ranks"] - 1
    others, same = rows[~is_last & (rows["partition"].map(set).map(len) > 1)], [*PANEL, "schedule", "share"]
    compared, ideal = (paired(others, rows[is_last], same, time) for time in ("step_ms.median", "expected_ms"))
    table = over_launches(compared, [*PANEL, *POINT], ["ratio"])
    table["formula"] = _points(ideal)["ratio"].to_numpy()
    return table.drop(columns=["device", "ranks"])


if __name__ == "__main__":
    run(__file__)
