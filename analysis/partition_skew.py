"""Skewed partitions: the cost of giving one rank most of the layers, by the position of that rank.

::

    1f1b, heavy first      █ █ █ █ █ █ █ █          the heavy rank's forwards hide the work of
                            ▌ ▌ ▌ ▌ ▌ ▌ ▌ ▌         the other ranks
    1f1b, heavy last     ▌ ▌      ▌ ▌ ▌
                           █ █ █ █ █ █ █ █          the work before and after it is exposed
                           ◄── M beta ───►          beta: F + B of the heavy rank; no step is shorter

The bottleneck limits the throughput to sum t / (K beta) times that of K equally loaded ranks. The exact
forms are those of `microp.simulator.closed_forms`, with the nominal times of an emulated device; with real
compute the time of a layer is taken from the runs with the uniform partition.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import nominal, plot
from analysis.command import main
from analysis.exhibit import INTERVALS, Exhibit, distance, drawn, kind_of
from analysis.prediction import makespan_ms, measured_steps
from microp.schedule import Schedule
from microp.simulator import Costs, simulate
from microp.store import LAUNCH, WIDE_FRACTION, Store, over_launches, paired, records
from microp.trace import busy, makespan

NAME = "partition_skew"
POINT = ["schedule", "position", "share"]
point_of = itemgetter(*POINT)
SHARE = "share of the layers on one rank, %"


class Part(NamedTuple):
    """The rows of one device and one K, and the times of a layer's F and B there, in ms."""

    device: str
    ranks: int
    rows: pd.DataFrame
    forward: float
    backward: float

    @property
    def title(self) -> str:
        return f"{kind_of(self.device)}, K = {self.ranks}"

    def order(self, schedule: str) -> Schedule:
        """Return the schedule as it was run."""
        return nominal.order(records(self.rows[self.rows["schedule"] == schedule].head(1))[0])

    def costs(self, layers: Sequence[int]) -> Costs:
        """Return the costs of stages with these numbers of layers."""
        return Costs(tuple(n * self.forward for n in layers), tuple(n * self.backward for n in layers))


def exhibits(store: Store) -> list[Exhibit]:
    """Return up to three figures: utilisation, throughput, and the position of the heavy rank."""
    runs = store.runs(NAME)
    if "config.partition.share" not in runs:
        return []
    runs = runs.dropna(subset=["config.partition.share"])
    runs = runs.assign(position=runs["config.partition.rank"].astype(int), share=100 * runs["config.partition.share"])
    found = list(parts(runs.drop_duplicates(["device", "ranks", *POINT, LAUNCH])))
    if not found:
        return []
    made = [utilisation(found), throughput(found), positions(found)]
    return drawn(made, store.missing(NAME))


def parts(runs: pd.DataFrame) -> Iterator[Part]:
    """Yield the rows of each device and K with the times of a layer there."""
    for (device, _), rows in runs.groupby(["device", "ranks"], sort=True):
        times = list(_layer_times(rows))
        if times:
            forward, backward = (median(column) for column in zip(*times, strict=True))
            yield Part(str(device), int(rows["ranks"].iloc[0]), rows.reset_index(drop=True), forward, backward)


def _layer_times(rows: pd.DataFrame) -> Iterator[tuple[float, float]]:
    """Yield F and B of a layer: the nominal ones of an emulated device, or those of each uniform run."""
    for row in records(rows):
        if row["device"] == "emulated":
            yield row["config.device.forward_ms"], row["config.device.backward_ms"]
        elif len(set(row["partition"])) == 1:
            steps = measured_steps(Path(row["folder"]), row["ranks"])
            actions = [action for step in steps for own in step for action in own["action_ms"].items()]
            if not actions:
                continue
            forward, backward = (median(time for name, time in actions if name.endswith(op)) for op in "FB")
            yield forward / row["partition"][0], backward / row["partition"][0]


# --- each rank's utilisation -----------------------------------------------------------------------


def utilisation(found: Sequence[Part]) -> Exhibit:
    """Return the figure of each rank's utilisation, the share of the makespan in which it computes."""
    tables = [_used(part) for part in found]
    table = pd.concat(tables)
    keys = list(dict.fromkeys(zip(table["panel"], table["schedule"], strict=True)))
    most = sorted(table["position"].unique())
    figure, axes = plot.sheet(len(keys), len(most), (2.6, 1.9), sharey=True, sharex=True)
    free = {(key, position): axes[row, column] for row, key in enumerate(keys) for column, position in enumerate(most)}
    looks = plot.looks(range(max(part.ranks for part in found)))
    for (panel, schedule, position), own in table.groupby(["panel", "schedule", "position"]):
        axis = free.pop(((panel, schedule), position))
        plot.lines(axis, own, "share", "utilisation", "rank", looks, "formula", "rank {}")
        axis.set(title=f"{panel}\n{schedule}, heavy rank {position}", ylim=(0, 1.05), xlabel=SHARE)
        axis.xaxis.set_tick_params(labelbottom=True)
    for axis in free.values():
        axis.remove()
    for axis in axes[:, 0]:
        axis.set_ylabel("utilisation")
    plot.legend(figure, [plot.THEORY])
    others = table[(table["rank"] != table["position"]) & (table["share"] == 80)]
    seen = "; ".join(f"{panel} {value:.0%}" for panel, value in others.groupby("panel")["utilisation"].median().items())
    text = (
        "Compute time over makespan of each rank, against the share of layers on the heavy rank (the smallest share is "
        f"the uniform partition). Dashed: simulated, with equal layers. {INTERVALS} "
        + (f"Median utilisation of the other ranks at a share of 80 %: {seen}." if seen else "")
    )
    return Exhibit(
        "partition-skew-utilisation", "Utilisation under a skewed partition", text, figure, table, _rows(found)
    )


def _used(part: Part) -> pd.DataFrame:
    lines = [
        {**row, "rank": rank, "utilisation": value}
        for row in records(part.rows)
        for rank, value in enumerate(_utilisation(row))
    ]
    table = over_launches(pd.DataFrame(lines), [*POINT, "rank"], ["utilisation"], WIDE_FRACTION)
    formulas: dict[Any, dict[int, float]] = {}
    for row in records(part.rows.drop_duplicates(POINT)):
        spans = simulate(part.order(row["schedule"]), part.costs(row["partition"]))
        total = makespan(spans)
        formulas[point_of(row)] = {rank: float(t / total) for rank, t in busy(spans).items()}
    table["formula"] = [formulas[point_of(row)][row["rank"]] for row in records(table)]
    table.insert(0, "panel", part.title)
    return table


def _utilisation(row: dict[str, Any]) -> list[float]:
    """Return the utilisation of each rank, the median over the measured steps."""
    steps = measured_steps(Path(row["folder"]), row["ranks"])
    return [median(step[rank]["compute_ms"] / makespan_ms(step) for step in steps) for rank in range(row["ranks"])]


# --- throughput ------------------------------------------------------------------------------------


def throughput(found: Sequence[Part]) -> Exhibit:
    """Return the figure of the throughput, with its exact form and the bound of the bottleneck."""
    tables = [_throughput(part) for part in found]
    table = pd.concat(tables)
    names = plot.in_order(sorted(table["schedule"].unique()))
    figure, axes = plot.sheet(len(found), len(names), (3.8, 2.5), sharey="row")
    looks = plot.looks(sorted(table["position"].unique()))
    for line, part, own in zip(axes, found, tables, strict=True):
        bound = own.drop_duplicates("share").sort_values("share")
        for axis, schedule in zip(line, names, strict=True):
            axis.plot(bound["share"], bound["bound"], color="0.6", linewidth=1.2, label="bottleneck bound")
            speeds = own[own["schedule"] == schedule]
            plot.lines(axis, speeds, "share", "samples_per_s", "position", looks, "formula", "heavy rank {}")
            axis.set(title=f"{part.title}, {schedule}", xlabel=SHARE, ylim=(0, None))
        line[0].set_ylabel("rows per second")
    plot.legend(figure, [plot.THEORY])
    miss = "; ".join(
        f"{panel}: {distance(own['samples_per_s'], own['formula'])}" for panel, own in table.groupby("panel")
    )
    text = (
        "Throughput against the share of layers on the heavy rank. Grey: the bottleneck's bound, by which a step takes "
        "at least M times the heavy rank's F + B. Dashed: the exact form, or the simulation if there is none, without "
        "optimizer and transfers; with real compute the time of a layer is taken from the uniform runs. Distance of "
        f"the measured throughput from it: {miss}. {INTERVALS}"
    )
    return Exhibit(
        "partition-skew-throughput", "Throughput under a skewed partition", text, figure, table, _rows(found)
    )


def _named(schedule: str, position: int) -> str:
    return f"{schedule}, rank {position}"


def _ordered(lines: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the lines grouped by schedule, the usual schedules first."""
    order = plot.in_order([schedule for schedule, _ in lines])
    return sorted(lines, key=lambda line: (order.index(line[0]), line[1]))


def _throughput(part: Part) -> pd.DataFrame:
    table = over_launches(part.rows, POINT, ["samples_per_s", "step_ms.median"])
    theory = {}
    for row in records(part.rows.drop_duplicates(POINT)):
        costs = part.costs(row["partition"])
        bound = row["chunks"] * max(f + b for f, b in zip(costs.forward, costs.backward, strict=True))
        formula = nominal.step_ms(part.order(row["schedule"]), costs)
        rows = row["batch_size"] * 1e3
        theory[point_of(row)] = (rows / formula, rows / bound, formula)
    table[["formula", "bound", "formula_ms"]] = [theory[point_of(row)] for row in records(table)]
    table.insert(0, "panel", part.title)
    return table


# --- which rank ------------------------------------------------------------------------------------


def positions(found: Sequence[Part]) -> Exhibit | None:
    """Return the figure of the step time by position and schedule, relative to a heavy last rank.

    It is None if only one position was run, or none with the last rank heavy.
    """
    tables = [table for part in found if (table := _over_last(part))["position"].nunique() > 1]
    if not tables:
        return None
    heights = [table.groupby(["schedule", "position"]).ngroups for table in tables]
    layout = {"gridspec_kw": {"height_ratios": heights}}
    figure, axes = plot.sheet(len(tables), 1, (6.6, 0.42 * max(heights) + 0.9), **layout)
    for axis, table in zip(axes[:, 0], tables, strict=True):
        lines = _ordered(list(dict.fromkeys(zip(table["schedule"], table["position"], strict=True))))
        shares = sorted(table["share"].unique())
        grid = np.full((len(lines), len(shares)), np.nan)
        for row in records(table):
            y, x = lines.index((row["schedule"], row["position"])), shares.index(row["share"])
            grid[y, x] = row["ratio"]
            colour = "white" if abs(row["ratio"] - 1) > 0.09 else "black"
            text = f"{row['ratio']:.2f}\n({row['formula']:.2f})"
            axis.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=7, color=colour)
        image = axis.pcolormesh(grid, cmap="RdBu_r", vmin=0.85, vmax=1.15, edgecolors="white")
        axis.set_xticks([x + 0.5 for x in range(len(shares))], [f"{share:g}" for share in shares])
        axis.set_yticks([y + 0.5 for y in range(len(lines))], [_named(*line) for line in lines])
        axis.set(title=table["panel"].iloc[0], xlabel=SHARE)
        axis.invert_yaxis()
        axis.grid(visible=False)
    figure.colorbar(image, ax=axes[:, 0].tolist(), label="step time relative to a heavy last rank", shrink=0.8)
    text = (
        "Step time by the position of the heavy rank, over that of the same launch, schedule and share with the last "
        "rank heavy: median over launches, and in brackets the exact form. By the exact form a heavy first rank is "
        "cheaper under 1F1B, and the position makes no difference under GPipe."
    )
    return Exhibit(
        "partition-skew-position", "Position of the heavy rank", text, figure, pd.concat(tables), _rows(found)
    )


def _over_last(part: Part) -> pd.DataFrame:
    last = part.rows[part.rows["position"] == part.ranks - 1]
    compared = paired(part.rows, last, ["schedule", "share"], "step_ms.median")
    table = over_launches(compared, POINT, ["ratio"])
    layers = {point_of(row): row["partition"] for row in records(part.rows)}

    def formula(schedule: str, position: int, share: float) -> float:
        return nominal.step_ms(part.order(schedule), part.costs(layers[schedule, position, share]))

    table["formula"] = [
        formula(*line) / formula(line[0], part.ranks - 1, line[2]) for line in table[POINT].itertuples(index=False)
    ]
    table.insert(0, "panel", part.title)
    return table


def _rows(found: Sequence[Part]) -> pd.DataFrame:
    return pd.concat([part.rows for part in found])


if __name__ == "__main__":
    sys.exit(main(NAME, exhibits))
