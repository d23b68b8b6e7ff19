"""Hop latency: its effect on the step time, and the part of it that each schedule hides.

::

    ms per     │         ● 1f1b      in the steady phase K - 1 of K microbatches wait for
    microbatch │      ●              two hops: 2c(K-1)/K per microbatch
               │   ●
               │ ●──■──■──■ gpipe, eager_1f1b: only the first and last microbatches wait
               └─────────── c

The time per microbatch is the slope b of T(M) = a + b M, fitted at each latency c.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import pandas as pd

from analysis import nominal, plot
from analysis.command import main
from analysis.exhibit import INTERVALS, Exhibit, distance, drawn
from microp.store import LAUNCH, Store, least_squares, over_launches, paired, records

NAME = "hop_latency"
POINT = ["chunks", "schedule", "latency_ms"]
LATENCY = "latency of a hop c, ms"


def exhibits(store: Store) -> list[Exhibit]:
    """Return up to two figures: step time against latency, and the time that latency adds per microbatch."""
    runs = nominal.emulated(store.runs(NAME))
    if runs.empty:
        return []
    runs = runs.assign(latency_ms=runs["config.device.latency_ms"].astype(float))
    runs = runs.drop_duplicates([*POINT, LAUNCH]).reset_index(drop=True)
    made = [step_time(runs), slopes(runs)]
    return drawn(made, store.missing(NAME))


def _nominal_ms(row: dict[str, Any]) -> float:
    schedule = nominal.order(row)
    return nominal.step_ms(schedule, nominal.costs(row, schedule))


def step_time(runs: pd.DataFrame) -> Exhibit:
    """Return the figure of the step time against latency, with one panel per M."""
    table = over_launches(runs, POINT, ["step_ms.median"])
    point = itemgetter(*POINT)
    formula = {point(row): _nominal_ms(row) for row in records(runs)}
    table["formula"] = [formula[point(row)] for row in records(table)]
    figure = plot.for_each_chunks(table, "latency_ms", "step_ms.median", "formula", LATENCY, "step time, ms")
    text = (
        "Step time against the latency of a hop. Dashed: the exact forms for the nominal times, from which the "
        f"measured step times differ by {distance(table['step_ms.median'], table['formula'])}. {INTERVALS}"
    )
    return Exhibit("hop-latency-step-time", "Step time against hop latency", text, figure, table, runs)


def slopes(runs: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the time that latency adds per microbatch; None without runs at latency 0 and at another."""
    fits = pd.DataFrame(list(_fits(runs)))
    if fits.empty or not (fits["latency_ms"] == 0).any() or fits["latency_ms"].nunique() < 2:
        return None
    without = fits[fits["latency_ms"] == 0]
    compared = paired(fits, without, ["schedule"], "b")
    compared["added_ms"] = compared["b"] - compared["b"] / compared["ratio"]
    by = ["schedule", "latency_ms"]
    table = over_launches(compared, by, ["b", "added_ms"], floor=0.1)
    ranks = int(runs["ranks"].iloc[0])
    table["formula"] = [
        2 * row["latency_ms"] * (ranks - 1) / ranks if row["schedule"] == "1f1b" else 0.0 for row in records(table)
    ]
    figure, axes = plot.sheet(1, 1, (4.2, 3.0))
    axis = axes[0, 0]
    looks = plot.looks(sorted(table["schedule"].unique()))
    plot.lines(axis, table, "latency_ms", "added_ms", "schedule", looks, "formula")
    axis.set(xlabel=LATENCY, ylabel="time added per microbatch, ms")
    plot.legend(figure, [plot.THEORY])
    at = table["latency_ms"].max()
    worst = table[table["latency_ms"] == at].set_index("schedule")["added_ms"]
    seen = ", ".join(f"{name} {value:.2f} ms" for name, value in worst.items())
    text = (
        "Time that the latency of a hop adds per microbatch: the slope b of T(M) = a + b M, minus the slope without "
        f"latency, paired by launch. Dashed: 2c(K-1)/K for 1F1B, here {2 * (ranks - 1) / ranks:g} c, and 0 for the "
        f"others. At c = {at:g} ms: {seen}. {INTERVALS}"
    )
    return Exhibit("hop-latency-slopes", "Cost of hop latency per microbatch", text, figure, table, runs)


def _fits(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the slope of each schedule, latency and launch with at least two values of M."""
    for (schedule, latency, launch), rows in runs.groupby(["schedule", "latency_ms", LAUNCH]):
        if rows["chunks"].nunique() > 1:
            _, b = least_squares(rows["chunks"], rows["step_ms.median"])
            yield {"schedule": schedule, "latency_ms": latency, LAUNCH: launch, "b": b}


if __name__ == "__main__":
    sys.exit(main(NAME, exhibits))
