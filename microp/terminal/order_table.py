"""Prints what a search for an order found, beside the named schedules and the lower bounds."""

from __future__ import annotations

from typing import Any

from microp.terminal.columns import Column, paragraph
from microp.terminal.columns import show as show_columns
from microp.terminal.console import out

_WAYS = {
    "named": "a named schedule, none is faster",
    "rules": "found by a priority rule",
    "moves": "found by small moves",
    "solver": "found by the solver",
}


def show(figures: dict[str, Any]) -> None:
    """Print a table of orders, the fastest first, then what is known about the optimum and how to run the order."""
    rows = sorted(figures["orders"], key=lambda row: row["makespan"])
    bound = max(figures["bounds"].values(), default=0.0)
    above = [f"{max(0.0, row['makespan'] / bound - 1):.1%}" if bound else "" for row in rows]
    peaks = [f"{row['peak']:g}" for row in rows]
    columns = [
        Column("order", [row["schedule"] for row in rows], "left", 90),
        Column("makespan", [f"{row['makespan']:g}" for row in rows], importance=80),
        *([Column("over the bound", above, importance=60)] if bound else []),
        Column("peak", peaks, importance=70, about="peak: (stage, microbatch) pairs of a rank, from F to W."),
    ]
    cap = "no cap" if figures["cap"] is None else f"at most {figures['cap']:g} pairs held"
    size = f"K={figures['ranks']}, M={figures['chunks']}, {figures['stages']} stages, {cap}"
    paragraph(out, f"{size}: {_WAYS[figures['method']]}, {figures['seconds']:.1f} s", style="")
    show_columns(out, columns, "the objects of output=json")
    paragraph(out, _bounds(figures))
    if figures["refused"]:
        refused = ", ".join(f"{name} ({peak:g})" for name, peak in figures["refused"].items())
        paragraph(out, f"Beyond the cap, with their peaks: {refused}.")
    if figures["solver"] and figures["bounds"]:
        paragraph(out, _solver(figures))
    out.print(f"order {figures['file']}", soft_wrap=True, markup=False)
    out.print(f"run   {figures['command']}", soft_wrap=True, markup=False)


def _bounds(figures: dict[str, Any]) -> str:
    """Return the lower bounds, or why there are none."""
    if not figures["bounds"]:
        if not figures["unlike"]:
            return "No lower bound of all orders is known: a pair takes less than its forward and its backward."
        return (
            f"No lower bound of all orders is known: with {figures['unlike']} each order has times of its own, with "
            "which it is priced here."
        )
    names = ", ".join(f"{name} {value:g}" for name, value in figures["bounds"].items() if name != "solver" or value)
    return f"Lower bounds of any order: {names}."


def _solver(figures: dict[str, Any]) -> str:
    """Return whether the fastest order is the optimum, by the best lower bound."""
    solver, best = figures["solver"], figures["makespan"]
    size = f"{solver['variables']} variables, {solver['constraints']} constraints, {solver['seconds']:.1f} s"
    if figures["proven"]:
        return f"Solver: {best:g} is the optimum, proven ({size})."
    bound = max(figures["bounds"].values())
    rounded = ", of times that were rounded down for it" if solver["rounded"] else ""
    gap = f"{best:g} is {best / bound - 1:.2%} above it" if bound else f"{best:g} is above it"
    return f"Solver: {bound:g} is a lower bound{rounded}; {gap}, and not proven ({size})."
