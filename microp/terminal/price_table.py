"""Prints the table of simulated schedules: what was swept, then what was found; a single one with its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from microp.results import same, swept
from microp.terminal.columns import Column, paragraph
from microp.terminal.columns import show as show_columns
from microp.terminal.console import out
from microp.terminal.results import extremes
from microp.terminal.run_table import swept_columns

MATTERS = ("schedule", "ranks", "chunks", "device", "partition", "checkpointing")
WHOLE = "the objects of output=json"
FILES = "timeline.svg timeline.png trace.json schedule.txt schedule.csv"
_ABOUT = {
    "makespan": "makespan: from the first start to the last end, in the unit of the costs (ms on an emulated device).",
    "closed form": "closed form: the makespan by the schedule's formula; - if there is none for these costs.",
    "gpipe": "gpipe: the bubble as idle / total time of all ranks.",
    "megatron": "megatron: idle / ideal, the time that all ranks compute.",
    "zero bubble": "zero bubble: (largest span - work) / largest span; a rank's span is from its first start to "
    "its last end, and work is the mean time that a rank computes.",
    "in flight": "in flight: peak microbatches, of the ranks.",
    "MiB": "MiB: peak of weights, gradients, the optimizer's state and activations, of the ranks.",
}


class Priced(NamedTuple):
    """A point of a command, and its price."""

    config: dict[str, Any]  # the resolved configuration
    overrides: list[str]  # what was typed for it
    figures: dict[str, Any]  # the numbers of the price


def show(points: Sequence[Priced]) -> None:
    """Print a table of simulated schedules; a single one with its timeline."""
    configs, typed = [point.config for point in points], points[0].overrides
    heading = "simulated:" if len(points) == 1 else f"{len(points)} simulated, the same in all:"
    paragraph(out, " ".join([heading, *same(configs, typed, out.width - len(heading) - 1, MATTERS)]), style="")
    prices = [point.figures for point in points]
    shown = show_columns(out, [*swept_columns(swept(configs, typed)), *_results(prices)], WHOLE)
    paragraph(out, " ".join(_ABOUT[name] for name in shown if name in _ABOUT))
    if len(prices) == 1:
        _show_timeline(prices[0])
    folders = [price["folder"] for price in prices if price["folder"]]
    if folders:
        out.print()
        for folder in folders:
            out.print(f"drawn {folder}: {FILES}", soft_wrap=True, markup=False)
        out.print("open  a trace.json in ui.perfetto.dev", soft_wrap=True)


def _results(prices: Sequence[dict[str, Any]]) -> list[Column]:
    formulas = [price["closed_form"]["makespan"] for price in prices]
    bubbles = {
        name: [f"{price['bubble'][name.replace(' ', '_')]:.4f}" for price in prices]
        for name in ("gpipe", "megatron", "zero bubble")
    }
    return [
        Column("makespan", [f"{price['makespan']:g}" for price in prices], importance=90),
        Column("closed form", ["-" if value is None else f"{value:g}" for value in formulas], importance=60),
        Column("gpipe", bubbles["gpipe"], importance=80),
        Column("megatron", bubbles["megatron"], importance=40),
        Column("zero bubble", bubbles["zero bubble"], importance=50),
        Column("in flight", [extremes(price["in_flight_peak"], "g") for price in prices], importance=70),
        Column("MiB", [extremes(price["peak_memory_mib"], ".1f") for price in prices], importance=65),
    ]


def _show_timeline(price: dict[str, Any]) -> None:
    """Print the timeline of a price and the numbers of its ranks."""
    out.print()
    out.print(price["text"], soft_wrap=True, markup=False)
    known = price["closed_form"]["in_flight_peak"]
    form = f" (closed form {_listed(known)})" if known else ""
    out.print(f"in flight per rank: {_listed(price['in_flight_peak'])}{form}", soft_wrap=True)
    if (span := price["closed_form"]["largest_span"]) is not None:
        out.print(f"largest span of a rank by closed form: {span:g}", soft_wrap=True)
    if price["peak_memory_mib"]:
        out.print(f"peak MiB per rank:  {_listed(price['peak_memory_mib'], '.1f')}", soft_wrap=True)
    if sums := price["reduction"]:
        out.print(f"with the sums over the replicas: makespan {sums['makespan']:g}", soft_wrap=True)
        out.print(f"wait for the sums per rank: {_listed(sums['exposed'])}", soft_wrap=True)


def _listed(values: Sequence[float], form: str = "g") -> str:
    return " ".join(format(value, form) for value in values)
