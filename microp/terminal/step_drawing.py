"""Draws the last measured step of a single run below its table.

::

    replayed 62.1 ms, bubble 0.205 · measured 63 ms (+1.4 %), bubble 0.211

    rank 0 |F0--F1--··········B0====B1====|
    rank 1 |····F0--F1--B0====B1====······|
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microp.records import clocks_text, read_traced_step
from microp.terminal.console import out
from microp.trace import screen, timeline

RANKS, ACTIONS = 8, 4000  # the most of a step that is drawn unasked; reading these takes a few hundredths of a second


def show(attempt: Path, summary: Mapping[str, Any]) -> None:
    """Print the measured step of a run, if the run is finished and the step is small."""
    if summary["status"] != "finished":
        return
    if summary["ranks"] > RANKS or summary["actions"] > ACTIONS * max(1, summary["steps"] * summary["replicas"]):
        return
    step = read_traced_step(attempt, summary)
    if step is None:
        return
    shown, above = screen(out.file), [name for name in step.panels if name != "measured"]
    lines = timeline(
        step.panels,
        shown.columns,
        sums=step.sums,
        in_header=above,
        predicted=summary.get("predicted"),
        replicas=summary["replicas"],
        clocks=clocks_text(summary),
    )
    out.print()
    print(shown.text(lines), file=out.file, flush=True)
