"""Which schedules hide the latency of a hop?

::

    ms per     │         ● 1f1b      in the steady phase K - 1 of K microbatches wait for
    microbatch │      ●              two hops: 2c(K-1)/K per microbatch
               │   ●
               │ ●──■──■──■ gpipe, eager_1f1b: only the first and last microbatches wait
               └─────────── c

The time per microbatch is the slope b of T(M) = a + b M, fitted at each latency c.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis import looks, nominal, plot
from analysis.command import run
from analysis.exhibit import Exhibit, distance, markers
from analysis.words import closing, listed, number, sentences, spread
from microp.records import LAUNCH, least_squares, over_launches, paired
from microp.results import records

NEEDS = "at least two values of M, each with latency 0 and with another one, on emulated devices"
POINT = ["chunks", "schedule", "latency_ms"]
LATENCY = "latency of a hop c, ms"


def prepared(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the emulated runs, one row per point and launch, with the column `latency_ms`."""
    runs = nominal.emulated(runs, latency_ms="config.device.latency_ms")
    return runs if runs.empty else runs.drop_duplicates([*POINT, LAUNCH]).reset_index(drop=True)


def exhibits(runs: pd.DataFrame) -> list[Exhibit | None]:
    """Return up to two figures: step time against latency, and the time that latency adds per microbatch."""
    return [slopes(runs), step_time(runs)]


def answer(runs: pd.DataFrame) -> str:
    """Return the time added by the largest latency under each schedule; empty without runs at latency 0."""
    table = added(runs)
    if table.empty:
        return ""
    at, seen = _at_most(table)
    text = f"a latency of {at:g} ms per hop adds to the time per microbatch {seen}"
    for form in table["formula"][(table["schedule"] == "1f1b") & (table["latency_ms"] == at)]:
        text += f"; the closed form 2c(K-1)/K gives {number(form)} ms for 1f1b"
    return sentences([text, closing(runs, POINT)])


def _at_most(table: pd.DataFrame) -> tuple[float, str]:
    """Return the largest latency, and the time that it adds under each schedule as text."""
    at = table["latency_ms"].max()
    slopes = {row["schedule"]: row for row in records(table[table["latency_ms"] == at])}
    most = max(row["added_ms"] for row in slopes.values())
    names = looks.in_order(sorted(slopes))
    return at, listed([f"{spread(slopes[name], 'added_ms', 'ms', most)} under {name}" for name in names])


def step_time(runs: pd.DataFrame) -> Exhibit:
    """Return the figure of the step time against latency, with one panel per M."""
    table = over_launches(runs, POINT, ["step_ms.median"])
    cases = [nominal.case(row) for row in records(runs.drop_duplicates(POINT).sort_values(POINT))]
    table["formula"] = [nominal.step_ms(*case) for case in cases]
    origin = f"{nominal.origin(cases)}, with the device's nominal times"
    key, names = [looks.dotted(f"{origin}, in the same colour")], (LATENCY, "step time, ms")
    groups = [(f"M = {number}", rows) for number, rows in table.groupby("chunks")]
    figure = plot.line_panels(groups, "latency_ms", "step_ms.median", "schedule", names, key, "formula")
    text = (
        f"Step time against the latency of a hop. Dotted: {origin}; the measured step times differ from it by "
        f"{distance(table['step_ms.median'], table['formula'])}. {markers(runs)}"
    )
    return Exhibit("hop-latency-step-time", "Step time against hop latency", text, figure, table, runs)


def added(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a table of the time that latency adds per microbatch; empty without runs at latency 0 and at another."""
    fits = pd.DataFrame(list(_fits(runs)))
    if fits.empty or not (fits["latency_ms"] == 0).any() or fits["latency_ms"].nunique() < 2:
        return pd.DataFrame()
    without = fits[fits["latency_ms"] == 0]
    compared = paired(fits, without, ["schedule"], "b")
    compared["added_ms"] = compared["b"] - compared["b"] / compared["ratio"]
    by = ["schedule", "latency_ms"]
    table = over_launches(compared, by, ["b", "added_ms"], floor=0.1)
    ranks = int(runs["ranks"].iloc[0])
    table["formula"] = [
        2 * row["latency_ms"] * (ranks - 1) / ranks if row["schedule"] == "1f1b" else 0.0 for row in records(table)
    ]
    return table


def slopes(runs: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the time that latency adds per microbatch; None without runs at latency 0 and at another."""
    table = added(runs)
    if table.empty:
        return None
    ranks = int(runs["ranks"].iloc[0])
    others = [name for name in looks.in_order(table["schedule"]) if name != "1f1b"]
    closed = ["2c(K-1)/K for 1f1b"] * ("1f1b" in set(table["schedule"]))
    closed += [f"0 for {' and '.join(others)}"] * bool(others)
    key, names = [looks.dotted(f"closed form: {', '.join(closed)}")], (LATENCY, "time added per microbatch, ms")
    figure = plot.line_panels([("", table)], "latency_ms", "added_ms", "schedule", names, key, "formula")
    at, seen = _at_most(table)
    text = (
        "Time that the latency of a hop adds per microbatch: the slope b of T(M) = a + b M, minus the slope without "
        f"latency, paired by launch. Dotted: closed form, {', '.join(closed)}; K = {ranks}. "
        f"At c = {at:g} ms: {seen}. {markers(runs)}"
    )
    return Exhibit("hop-latency-slopes", "Cost of hop latency per microbatch", text, figure, table, runs)


def _fits(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for (schedule, latency, launch), rows in runs.groupby(["schedule", "latency_ms", LAUNCH]):
        if rows["chunks"].nunique() > 1:
            _, b = least_squares(rows["chunks"], rows["step_ms.median"])
            point = {"schedule": schedule, "latency_ms": latency, LAUNCH: launch}
            yield {**point, "b": b, "disturbed": rows["disturbed"].any()}


if __name__ == "__main__":
    run(__file__)
