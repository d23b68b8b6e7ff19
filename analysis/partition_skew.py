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

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.patches import Patch

from analysis import looks, nominal, plot
from analysis.command import main
from analysis.exhibit import Exhibit, distance, kind_of, markers, percent
from analysis.prediction import makespan_ms, measured_steps
from analysis.words import closing, number, sentences, spread, versus
from microp.records import LAUNCH, WIDE_FRACTION, over_launches, paired
from microp.results import records
from microp.schedule import Schedule
from microp.simulator import Costs, simulate
from microp.system import run_command
from microp.trace import busy, makespan

NEEDS = "the uniform partition and a skewed one, or a heavy first and a heavy last rank under 1f1b"
POINT = ["schedule", "position", "share"]
point_of = itemgetter(*POINT)
SHARE = "share of the layers on one rank, %"
OF_RANKS = {"-": "the heavy rank", "--": "the other ranks, median"}  # in the figure of the utilisation


class Part(NamedTuple):
    """The rows of one device and one K, F and B of a layer in each run that gives them, in ms, and the orders run."""

    device: str
    ranks: int
    rows: pd.DataFrame
    times: Sequence[tuple[float, float]]
    orders: Mapping[str, Schedule]

    @property
    def title(self) -> str:
        return f"{kind_of(self.device)}, K = {self.ranks}"

    @property
    def origin(self) -> str:
        """The origin of a layer's times, as text."""
        if self.device == "emulated":
            return "nominal"
        low, high = min(map(sum, self.times)), max(map(sum, self.times))
        runs = "the uniform run" if len(self.times) == 1 else f"the median of {len(self.times)} uniform runs"
        return f"{runs} ({low:.3g} to {high:.3g} ms per layer)" if low < high else runs

    def costs(self, layers: Sequence[int]) -> Costs:
        """Return the costs of stages with these numbers of layers."""
        forward, backward = (median(column) for column in zip(*self.times, strict=True))
        return Costs(tuple(n * forward for n in layers), tuple(n * backward for n in layers))

    def alone_ms(self, row: dict[str, Any]) -> tuple[float, float, float]:
        """Return the time of the heavy rank's work in a step by the median of `times`, the shortest and the longest."""
        middle = self.costs([row["chunks"] * max(row["partition"])])
        each = [row["chunks"] * max(row["partition"]) * sum(pair) for pair in self.times]
        return middle.forward[0] + middle.backward[0], min(each), max(each)


def exhibits(found: Sequence[Part]) -> list[Exhibit | None]:
    """Return up to three figures: utilisation, throughput, and the position of the heavy rank."""
    return [throughput(found), positions(found), utilisation(found)]


def answer(found: Sequence[Part]) -> str:
    """Return a sentence per device and K on throughput, and one on the position of the heavy rank."""
    told = [text for part in found for text in (_cost(part), _position(part)) if text]
    if not told:
        return ""
    return sentences([*told, closing(_rows(found), ["device", "ranks", *POINT])])


def _cost(part: Part) -> str:
    """Return the throughput of the most skewed partition relative to the uniform one, and by the heavy rank's work."""
    rows = part.rows
    even = rows[[len(set(layers)) == 1 for layers in rows["partition"]]]
    skewed = paired(rows[rows["share"] == rows["share"].max()], even, ["schedule", "position"], "samples_per_s")
    if skewed.empty or rows["share"].nunique() < 2:
        return ""
    schedule = looks.in_order(sorted(skewed["schedule"].unique()))[0]
    skewed = skewed[(skewed["schedule"] == schedule) & (skewed["position"] == skewed["position"].max())]
    [point] = records(over_launches(skewed, POINT, ["ratio"]))
    uniform = nominal.step_ms(part.orders[schedule], part.costs(even["partition"].iloc[0]))
    alone = float(uniform / part.alone_ms(records(skewed)[0])[0])
    times = "nominal times" if part.device == "emulated" else "times measured with the uniform partition"
    return (
        f"{part.title}: with {point['share']:g} % of the layers on rank {point['position']}, the throughput of "
        f"{schedule} is {spread(point, 'ratio')} of that with the uniform partition; the heavy rank's work alone would "
        f"give {number(alone)}, computed from the {times}"
    )


def _position(part: Part) -> str:
    """Return whether a heavy first rank is cheaper than a heavy last one, under 1F1B at a share near 50 %."""
    rows = part.rows[(part.rows["schedule"] == "1f1b") & (part.rows["share"] > part.rows["share"].min())]
    first, last = (rows[rows["position"] == heavy] for heavy in (0, part.ranks - 1))
    shares = {*first["share"]} & {*last["share"]}
    if not shares:
        return ""
    share = min(shares, key=lambda share: abs(share - 50))
    first, last = (side[side["share"] == share] for side in (first, last))
    text = versus("a step with a heavy first rank", first, "one with a heavy last rank", last)
    return f"{part.title}, 1f1b with a share of {share:g} %: {text}"


def prepared(runs: pd.DataFrame) -> list[Part]:
    """Return the rows of each device and K with the times of a layer there; nothing without skewed partitions."""
    return list(_parts(runs)) if "config.partition.share" in runs else []


def _parts(runs: pd.DataFrame) -> Iterator[Part]:
    runs = runs.dropna(subset=["config.partition.share"])
    runs = runs.assign(position=runs["config.partition.rank"].astype(int), share=100 * runs["config.partition.share"])
    runs = runs.drop_duplicates(["device", "ranks", *POINT, LAUNCH])
    for (device, _), rows in runs.groupby(["device", "ranks"], sort=True):
        times = list(_layer_times(rows))
        if times:
            first = records(rows.drop_duplicates("schedule")[["schedule", "folder"]])
            orders = {row["schedule"]: nominal.order(row) for row in first}
            yield Part(str(device), int(rows["ranks"].iloc[0]), rows.reset_index(drop=True), times, orders)


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


def utilisation(found: Sequence[Part]) -> Exhibit:
    """Return the figure of each rank's utilisation, the share of the makespan in which it computes."""
    table = pd.concat(map(_used, found))
    shown = _heavy_and_others(table)
    groups = list(shown.groupby(["panel", "schedule"], sort=False))
    figure, axes = plot.panels(len(groups))
    named = looks.looks(sorted(shown["position"].unique()))
    for axis, ((panel, schedule), own) in zip(axes, groups, strict=True):
        for heavy, line in ((True, "-"), (False, "--")):
            drawn_as = {position: look._replace(line=line) for position, look in named.items()}
            rows, label = own[own["heavy"] == heavy], "rank {} is heavy" if heavy else ""
            plot.lines(axis, rows, "share", "utilisation", "position", drawn_as, "formula", label)
        plot.titled(axis, f"{panel}, {schedule}", SHARE, "utilisation of a rank")
        axis.set_ylim(0, 1.05)
    keys = [looks.line(label, style) for style, label in OF_RANKS.items()]
    plot.legend(figure, [*keys, looks.dotted("simulated, in the same colour: equal layers, free hops")])
    others = table[(table["rank"] != table["position"]) & (table["share"] == 80)]
    middle = others.groupby("panel")["utilisation"].median()
    seen = "; ".join(f"{percent(value, 0)} ({panel})" for panel, value in middle.items())
    text = (
        "Compute time over makespan of the heavy rank, and the median of the other ranks, which have equally many "
        "layers, against the share of layers on the heavy rank (the smallest share is the uniform partition). Dotted: "
        f"simulated, with equal layers. The table has every rank. {markers(_rows(found))}"
        + (f" Median utilisation of the other ranks at a share of 80 %: {seen}." if seen else "")
    )
    return Exhibit(
        "partition-skew-utilisation", "Utilisation under a skewed partition", text, figure, table, _rows(found)
    )


def _heavy_and_others(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per point for the heavy rank, and one for the median of the others."""
    table = table.assign(heavy=table["rank"] == table["position"]).astype({"utilisation.wide": float})
    values = [column for column in table.columns if column.startswith(("utilisation", "formula"))]
    keys = ["panel", "schedule", "position", "share", "heavy"]
    shown = table.groupby(keys, sort=False)[values].median().reset_index()
    return shown.astype({"utilisation.wide": bool})


def _used(part: Part) -> pd.DataFrame:
    lines = [
        {**row, "rank": rank, "utilisation": value}
        for row in records(part.rows)
        for rank, value in enumerate(_utilisation(row))
    ]
    table = over_launches(pd.DataFrame(lines), [*POINT, "rank"], ["utilisation"], WIDE_FRACTION)
    formulas: dict[Any, dict[int, float]] = {}
    for row in records(part.rows.drop_duplicates(POINT)):
        spans = simulate(part.orders[row["schedule"]], part.costs(row["partition"]))
        total = makespan(spans)
        formulas[point_of(row)] = {rank: float(t / total) for rank, t in busy(spans).items()}
    table["formula"] = [formulas[point_of(row)][row["rank"]] for row in records(table)]
    table.insert(0, "panel", part.title)
    return table


def _utilisation(row: dict[str, Any]) -> list[float]:
    steps = measured_steps(Path(row["folder"]), row["ranks"])
    return [median(step[rank]["compute_ms"] / makespan_ms(step) for step in steps) for rank in range(row["ranks"])]


# --- throughput ------------------------------------------------------------------------------------


def throughput(found: Sequence[Part]) -> Exhibit:
    """Return the figure of the throughput: measured, computed, and by the heavy rank's work alone."""
    tables = [throughputs(part) for part in found]
    table = pd.concat(tables)
    names = looks.in_order(sorted(table["schedule"].unique()))
    every = product(zip(found, tables, strict=True), names)
    groups = [(part, name, own) for (part, own), name in every if name in set(own["schedule"])]
    figure, axes = plot.panels(len(groups))
    named = looks.looks(sorted(table["position"].unique()))
    for axis, (part, schedule, own) in zip(axes, groups, strict=True):
        alone = own.drop_duplicates("share").sort_values("share")
        axis.plot(alone["share"], alone["alone"], **looks.THIN)
        axis.fill_between(alone["share"], alone["alone.low"], alone["alone.high"], color="0.9", linewidth=0, zorder=0.5)
        speeds = own[own["schedule"] == schedule]
        plot.lines(axis, speeds, "share", "samples_per_s", "position", named, "formula", "rank {} is heavy")
        plot.titled(axis, f"{part.title}, {schedule}", SHARE, "rows per second", own=True)
        axis.set_ylim(0, None)
    origin = _origin(found)
    keys: list[Artist] = [looks.thin("the heavy rank's work alone, M (F + B)")]
    if (table["alone.low"] < table["alone.high"]).any():
        keys.append(Patch(color="0.9", label="the same by the fastest and the slowest uniform run"))
    plot.legend(figure, [looks.dotted(f"{origin}, in the same colour"), *keys])
    miss = "; ".join(
        f"{distance(own['samples_per_s'], own['formula'])} ({panel})" for panel, own in table.groupby("panel")
    )
    text = (
        "Throughput against the share of layers on the heavy rank. Grey: the rows per second if a step took only the "
        f"heavy rank's M (F + B). Dotted: {origin}. Both are without optimizer and transfers; time of a layer: "
        f"{'; '.join(f'{part.title}, {part.origin}' for part in found)}. The measured throughput differs from the "
        f"dotted line by {miss}. {markers(_rows(found))}"
    )
    return Exhibit(
        "partition-skew-throughput", "Throughput under a skewed partition", text, figure, table, _rows(found)
    )


def throughputs(part: Part) -> pd.DataFrame:
    """Return a table of rows per second: measured, computed, and by the heavy rank's work alone."""
    table = over_launches(part.rows, POINT, ["samples_per_s", "step_ms.median"])
    expected = {}
    for row in records(part.rows.drop_duplicates(POINT)):
        formula = nominal.step_ms(part.orders[row["schedule"]], part.costs(row["partition"]))
        alone, fastest, slowest = part.alone_ms(row)
        rows = row["batch_size"] * 1e3
        expected[point_of(row)] = (rows / formula, formula, rows / alone, rows / slowest, rows / fastest)
    columns = ["formula", "formula_ms", "alone", "alone.low", "alone.high"]
    table[columns] = [expected[point_of(row)] for row in records(table)]
    table.insert(0, "panel", part.title)
    return table


# --- which rank ------------------------------------------------------------------------------------


def positions(found: Sequence[Part]) -> Exhibit | None:
    """Return the figure of the step time by position and schedule, relative to a heavy last rank.

    It is None unless the last rank was heavy at a share at which another was, too.
    """
    tables = [table for part in found if not (table := _over_last(part)).empty]
    if not tables:
        return None
    figure, axes = plot.panels(len(tables), 2.8)
    lines = [[f"{row['schedule']}, rank {row['position']} is heavy" for row in records(table)] for table in tables]
    named = looks.looks(sorted({name for names in lines for name in names}))
    for axis, table, names in zip(axes, tables, lines, strict=True):
        plot.lines(axis, table.assign(line=names), "share", "ratio", "line", named, "formula")
        plot.level(axis, 1)
        plot.titled(axis, table["panel"].iloc[0], SHARE, "step time / that with a heavy last rank", own=True)
    origin = _origin(found)
    plot.legend(figure, [looks.dotted(f"{origin}, in the same colour"), looks.thin("1: the last rank is heavy")])
    seen = "; ".join(
        f"{name} {' and '.join(f'{own[key].min():.2f} to {own[key].max():.2f}' for key in ('formula', 'ratio'))}"
        for name, own in pd.concat(tables).groupby("schedule")
    )
    text = (
        "Step time by the position of the heavy rank, over that of the same launch, schedule and share with the last "
        f"rank heavy; a uniform partition has no heavy rank. Dotted: {origin}. The ratio, computed and measured: "
        f"{seen}. {markers(_rows(found))}"
    )
    return Exhibit(
        "partition-skew-position", "Position of the heavy rank", text, figure, pd.concat(tables), _rows(found)
    )


def _origin(found: Sequence[Part]) -> str:
    """Return how the step times of these parts are computed."""
    points = ((part, row) for part in found for row in records(part.rows.drop_duplicates(POINT)))
    cases = ((part.orders[row["schedule"]], part.costs(row["partition"])) for part, row in points)
    return f"{nominal.origin(cases)}, with equal layers and free hops"


def _over_last(part: Part) -> pd.DataFrame:
    last = part.rows[part.rows["position"] == part.ranks - 1]
    others = part.rows[(part.rows["position"] != part.ranks - 1) & (part.rows["partition"].map(set).map(len) > 1)]
    compared = paired(others, last, ["schedule", "share"], "step_ms.median")
    table = over_launches(compared, POINT, ["ratio"])
    layers = {point_of(row): row["partition"] for row in records(part.rows)}

    def formula(schedule: str, position: int, share: float) -> float:
        return nominal.step_ms(part.orders[schedule], part.costs(layers[schedule, position, share]))

    table["formula"] = [
        formula(*line) / formula(line[0], part.ranks - 1, line[2]) for line in table[POINT].itertuples(index=False)
    ]
    table.insert(0, "panel", part.title)
    return table


def _rows(found: Sequence[Part]) -> pd.DataFrame:
    return pd.concat([part.rows for part in found])


if __name__ == "__main__":
    run_command(lambda: main("partition_skew"))
