"""Searches for an order: the task of `python -m microp.order`.

::

    OrderConfig ── prepare ─► Problem ── search, solver ─► Found ── to_text ─► a schedule file
                                                                └─► a table beside the named schedules

The problem's costs are those of an order that divides every backward. An order without W has the same: a full backward
takes what it takes there. Only with a profile's times, or with a partition that is computed for its order, an order has
costs of its own. Every order is then priced again with these, and no bound of all orders is claimed.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from microp.config import (
    Config,
    ConfigError,
    OrderConfig,
    costs_depend_on_order,
    default_values,
    make_pricing_job,
    run_of,
    schema,
    with_order,
)
from microp.orders import Found, Problem, Solved, named_schedules, search, with_solver
from microp.points import Point, PointsCallback, run_app, used_words
from microp.schedule import Action, Op, Schedule, to_text, validate
from microp.settings import EstimateSettings, broken_rules, not_writable, quoted
from microp.simulator import simulate
from microp.system import override
from microp.terminal import Column, console, out, paragraph, show_columns
from microp.trace import makespan

MOST = 10_000  # actions: the search prices the whole order again and again
_WAYS = {
    "named": "a named schedule, none found is faster",
    "rules": "found by a priority rule",
    "moves": "found by small moves",
    "solver": "found by the solver",
}


class OrderCallback(PointsCallback):
    """Checks all points before the first search."""

    @classmethod
    def prepare(cls, config: Config) -> Problem:
        assert isinstance(config, OrderConfig)
        problems = _problems(config)
        try:
            schedule = make_pricing_job(replace(config, activation_limit=None)).schedule
        except ConfigError as error:
            raise ConfigError([*error.problems, *problems]) from error
        if problems:
            raise ConfigError(problems)
        if (count := 3 * schedule.depth * schedule.units) > MOST:
            raise ConfigError(
                [f"the order has {count} actions, too many to search: use at most {MOST} (ranks, chunks)"]
            )
        placement = tuple(schedule.placement[stage] for stage in range(schedule.stages))
        costs = with_order(config, _divided(schedule)).costs
        try:
            shape = schedule.slices, schedule.copies, schedule
            return Problem(placement, schedule.chunks, costs, config.activation_limit, *shape)
        except ValueError as error:
            raise ConfigError([f"activation_limit={config.activation_limit}: {error}"]) from error

    def problems_together(self, config: DictConfig, points: list[Point]) -> list[str]:
        files = Counter(point.config.search.file for point in points if isinstance(point.config, OrderConfig))
        return [
            f"search.file={quoted(file)} is the file of {number} points: give each its own, as "
            "'search.file=order-${chunks}.txt'"
            for file, number in files.items()
            if number > 1
        ]


def _divided(schedule: Schedule) -> Schedule:
    """Return the order with every backward divided, and pairs, so that the time of one is among its costs."""

    def parts(action: Action) -> tuple[Action, ...]:
        return (action._replace(op=Op.I), action._replace(op=Op.W)) if action.op is Op.B else (action,)

    ranks = tuple(tuple(part for action in row for part in parts(action)) for row in schedule.ranks)
    together = frozenset(first for row in ranks for first, then in pairwise(row) if (first.op, then.op) == (Op.F, Op.I))
    return replace(schedule, ranks=ranks, pairs=together)


def _problems(config: OrderConfig) -> list[str]:
    problems = broken_rules(config.search, "search.")
    path = Path(config.search.file)
    if reason := not_writable(path.parent) or ("it is a folder" if path.is_dir() else ""):
        problems.append(f"search.file={quoted(path)} cannot be written ({reason}): choose another file")
    elif path.exists():
        problems.append(f"search.file={quoted(path)} exists: give another name")
    if config.search.solver_seconds and find_spec("ortools") is None:
        problems.append(
            f"search.solver_seconds={config.search.solver_seconds:g} needs OR-Tools: install microp[plan], or use 0"
        )
    if (given := config.device.memory_gib) is not None and config.partition["name"] != "balanced":
        problems.append(
            f"device.memory_gib={given:g} does not limit an order: use activation_limit, the (stage, microbatch) pairs "
            "that a rank holds"
        )
    for key, given in {"replicas": config.replicas != 1, "costs.reduction": config.costs.reduction is not None}.items():
        problems += [f"{key} does not change an order, which is of one pipeline: leave it out"] if given else []
    return problems


def main() -> None:
    run_app("order", OrderCallback.task(run_order))


def run_order(point: OrderConfig, problem: Problem) -> dict[str, Any]:
    """Search for one point's order, write it, print it beside the named ones, and return the figures."""
    with console.err.status("searching for an order"):
        found, solved = search(problem, point.search.seconds, point.seed), None
        if point.search.solver_seconds:
            found, solved = with_solver(problem, found, point.search.solver_seconds)
        if unlike := costs_depend_on_order(point):
            found = _with_own_costs(point, problem, found)
    path = Path(point.search.file)
    figures = {**_figures(problem, found, solved), "unlike": unlike, "file": str(path)}
    schedule = validate(replace(found.schedule, name="found"), point.activation_limit)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_text(schedule))
    figures["command"] = _command(point, schedule, path)
    priced = with_order(point, schedule)
    for note in priced.notes:
        console.note(note)
    for doubt in priced.doubts:
        console.warn(doubt)
    if point.output == "json":
        print(json.dumps(figures), flush=True)
    else:
        show_orders(figures)
    return figures


def _command(config: OrderConfig, schedule: Schedule, path: Path) -> str:
    """Return the command that runs the order, or prices it with costs or a device with which nothing can run.

    Its model and its batch are ones that the order can have.
    """
    run = run_of(config, schedule={**default_values("schedule", "file"), "path": str(path)})
    by_hand = {**vars(config.costs)} != schema.values_of("price")["costs"]  # no device has these costs
    left_out = ["search", "schedule", "output", "hydra", "ranks", "chunks", *["costs"] * (not by_hand)]
    words = used_words(run, left_out)
    words += ["schedule=file", override("schedule.path", str(path)), f"ranks={config.ranks}", f"chunks={config.chunks}"]
    words += [f"model.layers={schedule.depth}"] if config.model.layers < schedule.depth else []
    words += [f"batch_size={config.chunks}"] if config.batch_size < config.chunks else []
    priced = by_hand or isinstance(config.device, EstimateSettings) or config.model.slice_problems(schedule.slices)
    program = "microp.simulate" if priced else "microp.run"
    return shlex.join(["python", "-m", program, *words])


def _orders(problem: Problem, found: Found) -> list[Schedule]:
    """Return the order that was found, and the named ones within the cap."""
    named, _ = named_schedules(problem)
    return [replace(found.schedule, name="found"), *named]


def _with_own_costs(config: OrderConfig, problem: Problem, found: Found) -> Found:
    """Return the best of the orders if each is priced with its own costs, as schedule=file; no bound is known then."""
    orders = _orders(problem, found)
    times = [makespan(simulate(order, with_order(config, order).costs)) for order in orders]
    best = times.index(min(times))
    named = {order.name: time for order, time in zip(orders[1:], times[1:], strict=True)}
    method = "named" if best else found.method
    return replace(found, schedule=orders[best], makespan=times[best], method=method, bounds=None, named=named)


def _figures(problem: Problem, found: Found, solved: Solved | None) -> dict[str, Any]:
    """Return the result as plain values."""
    times = {"found": found.makespan, **found.named}
    return {
        "ranks": problem.ranks,
        "chunks": problem.chunks,
        "stages": problem.stages,
        "cap": problem.cap,
        "makespan": float(found.makespan),
        "method": found.method,
        "seconds": found.seconds,
        "bounds": {name: float(value) for name, value in (found.bounds._asdict() if found.bounds else {}).items()},
        "proven": found.proven,
        "orders": [
            {
                "schedule": order.name,
                "makespan": float(times[order.name]),
                "peak": float(max(map(problem.peak, problem.rows_of(order)))),
            }
            for order in _orders(problem, found)
        ],
        "refused": {name: float(peak) for name, peak in found.refused.items()},
        "solver": None
        if solved is None
        else {
            "makespan": float(solved.makespan) if found.bounds and solved.makespan is not None else None,
            "bound": float(solved.bound) if found.bounds else None,
            "proven": found.proven,
            "rounded": solved.rounded,
            "seconds": solved.seconds,
            "variables": solved.size[0],
            "constraints": solved.size[1],
        },
    }


# --- what is printed ----------------------------------------------------------------------------------


def show_orders(figures: dict[str, Any]) -> None:
    """Print a table of orders, the fastest first, then what is known about the optimum and how to run the order."""
    rows = sorted(figures["orders"], key=lambda row: row["makespan"])
    bound = max(figures["bounds"].values(), default=0.0)
    above = [f"{max(0.0, row['makespan'] / bound - 1):.1%}" if bound else "" for row in rows]
    peaks = [f"{row['peak']:g}" for row in rows]
    table = [
        Column("order", [row["schedule"] for row in rows], "left", 90),
        Column("makespan", [f"{row['makespan']:g}" for row in rows], importance=80),
        *([Column("over the bound", above, importance=60)] if bound else []),
        Column("peak", peaks, importance=70, about="peak: (stage, microbatch) pairs of a rank, from F to W."),
    ]
    cap = "no cap" if figures["cap"] is None else f"at most {figures['cap']:g} pairs held"
    size = f"K={figures['ranks']}, M={figures['chunks']}, {figures['stages']} stages, {cap}"
    paragraph(f"{size}: {_WAYS[figures['method']]}, {figures['seconds']:.1f} s", style="")
    show_columns(table, "the objects of output=json")
    paragraph(_bounds(figures))
    if figures["refused"]:
        refused = ", ".join(f"{name} ({peak:g})" for name, peak in figures["refused"].items())
        paragraph(f"Beyond the cap, with their peaks: {refused}.")
    if figures["solver"] and figures["bounds"]:
        paragraph(_solver(figures))
    out.print(f"order {figures['file']}", soft_wrap=True, markup=False)
    what = "price" if "microp.simulate" in figures["command"].split() else "run  "
    out.print(f"{what} {figures['command']}", soft_wrap=True, markup=False)


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
