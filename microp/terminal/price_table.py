"""Prints the table of simulated schedules: what was swept, then what was found; a single one with its timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from microp.results import asked, same
from microp.terminal.columns import Column, extremes, paragraph
from microp.terminal.columns import show as show_columns
from microp.terminal.console import out
from microp.terminal.run_table import swept_columns

MATTERS = ("schedule", "ranks", "chunks", "device", "partition", "checkpointing")
WHOLE = "the objects of output=json"
FILES = "timeline.svg timeline.png trace.json schedule.txt schedule.csv"
_RESULTS: tuple[tuple[str, int, Callable[[dict[str, Any]], str], str], ...] = (  # heading, importance, text, meaning
    ("makespan", 90, lambda price: f"{price['makespan']:g}", "in the costs' unit"),
    ("closed form", 60, lambda price: _known(price["closed_form"]["makespan"]), "the makespan by formula"),
    ("gpipe", 80, lambda price: f"{price['bubble']['gpipe']:.4f}", "the bubble as idle / total time"),
    ("megatron", 40, lambda price: f"{price['bubble']['megatron']:.4f}", "as idle / ideal time"),
    ("zero bubble", 50, lambda price: f"{price['bubble']['zero_bubble']:.4f}", "as idle / largest span of a rank"),
    ("in flight", 70, lambda price: extremes(price["in_flight_peak"], "g"), "peak microbatches of a rank"),
    ("MiB", 65, lambda price: extremes(price["peak_memory_mib"], ".1f"), ""),
)


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
    results = [
        Column(name, list(map(text, prices)), importance=importance, about=f"{name}: {meaning}." if meaning else "")
        for name, importance, text, meaning in _RESULTS
    ]
    show_columns(out, [*swept_columns(asked(configs, [point.overrides for point in points])), *results], WHOLE)
    if len(prices) == 1:
        _show_timeline(prices[0])
    folders = [price["folder"] for price in prices if price["folder"]]
    if folders:
        out.print()
        for folder in folders:
            out.print(f"drawn {folder}: {FILES}", soft_wrap=True, markup=False)
        out.print("open  a trace.json in ui.perfetto.dev", soft_wrap=True)


def _known(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _show_timeline(price: dict[str, Any]) -> None:
    """Print the timeline of a price and the numbers of its ranks."""
    out.print()
    out.print(price["text"], soft_wrap=True, markup=False)
    known = price["closed_form"]["in_flight_peak"]
    form = f" (closed form {_listed(known)})" if known else ""
    out.print(f"in flight per rank: {_listed(price['in_flight_peak'])}{form}", soft_wrap=True)
    if price["peak_memory_mib"]:
        out.print(f"peak MiB per rank:  {_listed(price['peak_memory_mib'], '.1f')}", soft_wrap=True)
    if sums := price["reduction"]:
        out.print(f"with the sums over the replicas: makespan {sums['makespan']:g}", soft_wrap=True)
        out.print(f"wait for the sums per rank: {_listed(sums['exposed'])}", soft_wrap=True)


def _listed(values: Sequence[float], form: str = "g") -> str:
    return " ".join(format(value, form) for value in values)
