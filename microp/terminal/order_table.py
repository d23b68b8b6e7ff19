"""Prints what a search for an order found, beside the named schedules and the lower bounds."""

from __future__ import annotations

from typing import Any

from microp.terminal.columns import Column, paragraph
from microp.terminal.columns import show as show_columns
from microp.terminal.console import out

_WAYS = {
    "named": "a named schedule, none is faster",
    "rules": "found by a priority rule",
    "beam": "found by the beam search",
    "moves": "found by small moves",
    "solver": "found by the solver",
}


def show(figures: dict[str, Any]) -> None:
    """Print a table of orders, the fastest first, then what is known about the optimum and how to run the order."""
    rows = sorted(figures["orders"], key=lambda row: row["makespan"])
    bound = max(figures["bounds"].values())
    columns = [
        Column("order", [row["schedule"] for row in rows], "left", 90),
        Column("makespan", [f"{row['makespan']:g}" for row in rows], importance=80),
        Column("over the bound", [f"{row['makespan'] / bound - 1:.1%}" for row in rows], importance=60),
        Column("peak", [f"{row['peak']:g}" for row in rows], importance=70),
    ]
    if rows[0]["noisy"]:
        columns += [
            Column("noisy mean", [f"{row['noisy']['mean']:.4g}" for row in rows], importance=50),
            Column("noisy p90", [f"{row['noisy']['p90']:.4g}" for row in rows], importance=40),
        ]
    cap = "no cap" if figures["cap"] is None else f"at most {figures['cap']:g} pairs held"
    size = f"K={figures['ranks']}, M={figures['chunks']}, {figures['stages']} stages, {cap}"
    paragraph(out, f"{size}: {_WAYS[figures['method']]}, {figures['seconds']:.1f} s", style="")
    show_columns(out, columns, "the objects of output=json")
    names = ", ".join(f"{name} {value:g}" for name, value in figures["bounds"].items())
    paragraph(out, f"Lower bounds of any order: {names}. Peak: (stage, microbatch) pairs of a rank, from F to W.")
    if rows[0]["noisy"]:
        paragraph(out, _under_noise(figures))
    if figures["refused"]:
        refused = ", ".join(f"{name} ({peak:g})" for name, peak in figures["refused"].items())
        paragraph(out, f"Beyond the cap, with their peaks: {refused}.")
    if solver := figures["solver"]:
        paragraph(out, _solver(solver))
    out.print(f"order {figures['file']}", soft_wrap=True, markup=False)
    words = f"schedule=file schedule.path={figures['file']} ranks={figures['ranks']} chunks={figures['chunks']}"
    out.print(f"run   python -m microp.run {words}", soft_wrap=True, markup=False)


def _under_noise(figures: dict[str, Any]) -> str:
    """Return which order is the fastest on average if times vary."""
    means = {row["schedule"]: row["noisy"]["mean"] for row in figures["orders"]}
    best = figures["written"]
    if best == "found":
        second = min((name for name in means if name != best), key=means.__getitem__, default=None)
        beside = "" if second is None else f", {second} {means[second]:.4g}"
        return f"If times vary, the order that was found is the fastest on average ({means[best]:.4g}{beside})."
    return (
        f"If times vary, {best} is the fastest on average ({means[best]:.4g}, the order that was found "
        f"{means['found']:.4g}): it is the one that is written."
    )


def _solver(solver: dict[str, Any]) -> str:
    size = f"{solver['variables']} variables, {solver['constraints']} constraints, {solver['seconds']:.1f} s"
    if solver["makespan"] is None:
        return f"Solver: found no order ({size})."
    rounded = " of the costs as rounded for it" if solver["rounded"] else ""
    if solver["proven"]:
        return f"Solver: {solver['makespan']:g} is the optimum{rounded}, proven ({size})."
    gap = solver["makespan"] / solver["bound"] - 1 if solver["bound"] else float("inf")
    return f"Solver: {solver['makespan']:g}{rounded}, not proven: its own bound leaves a gap of {gap:.1%} ({size})."
