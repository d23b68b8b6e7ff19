"""How far are microp and torch's pipeline runtime from the arithmetic limit?

::

    one launch    limit │ microp │ torch │ microp │ torch │ limit │ ...     in turn, step by step
                     └── ratio ──┴─ ratio ─┘                                per turn; median over turns

The limit is (M+K-1)/M times the compute time of one rank alone, or the closed form on emulated
devices. Steps consist of forward and backward, without the optimizer. A schedule that torch does
not have (ZB-H1) is compared with torch's 1F1B, and only with real compute. torch always runs over
gloo (TCP), microp over shared memory, its own TCP connections or gloo: the panels say which.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis import looks, plot, scales
from analysis.command import run
from analysis.exhibit import Exhibit, counted, kind_of, markers
from analysis.words import doubts, listed, middle, sentences, widest
from microp.records import over_launches

NEEDS = "runs with engine=compare"
RATIOS = {
    "engines.ratio.microp/limit": "microp over the limit",
    "engines.ratio.torch/limit": "torch over the limit",
    "engines.ratio.torch/microp": "torch over microp",
}
TIMES = [f"engines.pipeline_ms.{engine}.median" for engine in ("limit", "microp", "torch")]
PANEL = ["device", "ranks", "config.model.dim", "comms"]
POINT = [*PANEL, "schedule", "chunks"]
TOGETHER = "config.engine.batch_weights"


def exhibits(runs: pd.DataFrame) -> list[Exhibit | None]:
    """Return one figure: the step times of both engines over the limit, with one panel per kind of stage.

    Only runs that compare a pipeline with the limit (`engine=compare`) are drawn.
    """
    table = over_launches(runs, POINT, [*RATIOS, *TIMES])
    text = (
        "Step time (forward and backward) over the limit, which is (M+K-1)/M times the compute time of one rank alone, "
        "or the closed form on emulated devices, whose clock leaves out the time that the host oversleeps. Colour: "
        "microp; grey: torch.distributed.pipelining with the same schedule (1F1B for ZB-H1). The engines run in turn, "
        "step by step; a ratio is of two steps of the same turn, and a launch counts with the median of its ratios. "
        "torch's messages go over gloo (TCP), microp's over the transport that the panel names. W together: "
        "engine.batch_weights=true, one matrix product for W actions that follow each other. A divided backward fills "
        "bubbles that the limit has, so its ratio can be below 1. "
        f"{markers(runs)}"
    )
    return [Exhibit("engine-speed", "microp, torch and the limit", text, figure(table), named(table), runs)]


def answer(runs: pd.DataFrame) -> str:
    """Return a sentence per device, K, width of the model and transport, and what ratios below 1 mean, if any."""
    table = over_launches(runs, POINT, list(RATIOS))
    told = [_ratios(key, own) for key, own in table.groupby(PANEL, sort=True, dropna=False)]
    told.append("figures are medians over configurations (schedule and M), with their ranges")
    microp, torch, _ = RATIOS
    if (table[table["device"] != "emulated"][[microp, torch]] < 1).any(axis=None):
        told.append(
            "with real compute the limit is measured too, by one rank that computes alone in turn with the engines; a "
            "ratio below 1 means that the schedule fills bubbles with W or runs several W as one product, or that the "
            "machine was disturbed in that rank's turns"
        )
    return sentences([*told, widest(table, RATIOS)])


def _ratios(key: tuple[Any, ...], table: pd.DataFrame) -> str:
    device, ranks, dim, comms = key
    size = "" if device == "emulated" else f", width {dim}"
    known = {name: counted(int(table[ratio].count()), "configuration") for ratio, name in RATIOS.items()}
    steps = [
        f"{name} {middle(table[ratio])} ({known[name]})" for ratio, name in RATIOS.items() if table[ratio].notna().any()
    ]
    place = f"{kind_of(device)}, K = {ranks}{size}, {comms}"
    return f"{place}: the step time of {listed(steps)}{doubts(table, next(iter(RATIOS)))}"


def prepared(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that compare an engine with the limit, with all columns of ratios and times.

    A schedule whose W actions are run together counts as a schedule of its own.
    """
    defaults: dict[str, Any] = {"comms": "shm", TOGETHER: False, **dict.fromkeys((*RATIOS, *TIMES), float("nan"))}
    runs = runs.assign(**{column: value for column, value in defaults.items() if column not in runs})
    runs = runs.assign(schedule=runs["schedule"].mask(runs[TOGETHER].eq(True), runs["schedule"] + ", W together"))
    return runs.dropna(subset=[ratio for ratio in RATIOS if ratio.endswith("/limit")], how="all")


def figure(table: pd.DataFrame) -> Any:
    """Return a figure with one panel per device, K, model size and transport."""
    panels = list(table.groupby(PANEL, sort=True, dropna=False))
    sheet, axes = plot.panels(len(panels))
    named = looks.looks(table["schedule"].unique())
    grey = {schedule: look._replace(colour="0.6") for schedule, look in named.items()}
    for axis, ((device, ranks, dim, comms), own) in zip(axes, panels, strict=True):
        plot.lines(axis, own, "chunks", "engines.ratio.microp/limit", "schedule", named, label="microp, {}")
        plot.lines(axis, own, "chunks", "engines.ratio.torch/limit", "schedule", grey, label="torch, compared with {}")
        axis.axhline(1, **looks.THIN)
        size = "" if device == "emulated" else f", dim {dim}"
        plot.titled(axis, f"{kind_of(str(device))}{size}, K = {ranks}, {comms}", plot.CHUNKS, "step time / limit")
        scales.powers(axis, own["chunks"])
    plot.legend(sheet, [looks.thin("1: the arithmetic limit")])
    return sheet


def named(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with readable column names: times in ms, and ratios with their intervals."""
    result = table[[*POINT, "launches", "disturbed"]].rename(columns={"config.model.dim": "dim"})
    for column in TIMES:
        result[f"{column.split('.')[2]} ms"] = table[column]
    for column, name in RATIOS.items():
        result[name], result[f"{name}, low"] = table[column], table[f"{column}.low"]
        result[f"{name}, high"] = table[f"{column}.high"]
    return result


if __name__ == "__main__":
    run(__file__)
