"""Prints the plans that a search found: a table, and the command that runs one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from microp.terminal.columns import Column, paragraph
from microp.terminal.columns import show as show_columns
from microp.terminal.console import err, out

PEAK = "predicted peak of the fullest rank."


@contextmanager
def progress() -> Iterator[Callable[[float], None]]:
    """Show a bar, and give the function that is told the share that is done."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("searching plans", total=1.0)
        yield lambda share: bar.update(task, completed=share)


def show(plans: Sequence[Mapping[str, Any]], unit: str, heading: str, run: str) -> None:
    """Print plans, the fastest first, and the command that runs one, which is `run` and its name, as `plan3`."""
    paragraph(out, heading, style="")
    if not plans:
        return
    several = any(plan["replicas"] > 1 for plan in plans)
    steps = [f"{plan['step']:.4g}" for plan in plans]
    largest = [max(plan["peak_memory_mib"], default=0) for plan in plans]
    size, per = ("GiB", 1024) if max(largest) >= 10_000 else ("MiB", 1)
    memory = Column(size, [f"{peak / per:.4g}" for peak in largest], importance=90, about=f"{size}: {PEAK}")
    layers = [_sizes(plan["sizes"]) for plan in plans]
    orders = [f"{plan['schedule']} slices={plan['slices']}" if plan["slices"] else plan["schedule"] for plan in plans]
    binds = [plan["binds"] for plan in plans]
    columns = [
        Column("", [f"plan{number}" for number in range(1, len(plans) + 1)], "left", 100),
        Column(f"step {unit}", steps, importance=90, about="step: predicted time, as of a run."),
        *[memory] * any(largest),
        Column("schedule", orders, importance=80),
        Column("chunks", [str(plan["chunks"]) for plan in plans], "right", 80),
        Column("checkpointing", [plan["checkpointing"] for plan in plans], importance=70),
        *([Column("replicas", [str(plan["replicas"]) for plan in plans], "right", 70)] if several else []),
        Column("layers", layers, importance=60, shortest=12, about="layers: of each stage."),
        Column("binds", binds, importance=40, about="binds: what keeps a plan from being faster."),
    ]
    show_columns(out, columns, "outputs/plans")
    rest = "every other plan that was tried is slower than one of these, and no smaller; a balanced partition is tried "
    rest += "only where it is fastest within memory_gib, so a tighter one can find others"
    first = f"Each plan is slower and smaller than the one above it; {rest}."
    paragraph(out, first if any(largest) else "The memory of layers is not known: this is the fastest plan.")
    out.print(f"\nrun   {run} plan1", soft_wrap=True, markup=False)


def _sizes(sizes: Sequence[int]) -> str:
    """Return the sizes of stages: `4 each`, or one after the other."""
    return f"{sizes[0]} each" if len(set(sizes)) == 1 else " ".join(map(str, sizes))
