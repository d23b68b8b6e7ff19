"""Searches for an order: the task of `python -m microp.order`.

::

    OrderConfig ── prepare ─► Problem ── search, solver ─► Found ── to_text ─► a schedule file
                                                                └─► a table beside the named schedules
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from microp.app.config import read_config
from microp.app.errors import ConfigError
from microp.app.hydra_callbacks import Point, PointsCallback
from microp.app.pricing_job import make_pricing_job
from microp.app.schema import Config, OrderConfig
from microp.planner.orders import Found, Noisy, Problem, Solved, judge, named_schedules, pairs, search, with_solver
from microp.schedule import Schedule, to_text, validate
from microp.settings import broken_rules, not_writable, quoted
from microp.terminal import console, order_table

MOST = 10_000  # actions: the search prices the whole order again and again


class _Prepared(NamedTuple):
    """A problem, and the named schedule that gave the placement."""

    problem: Problem
    schedule: Schedule


class OrderCallback(PointsCallback):
    """Checks all points before the first search."""

    @classmethod
    def prepare(cls, config: Config) -> _Prepared:
        assert isinstance(config, OrderConfig)
        found = _problems(config)
        try:
            job = make_pricing_job(replace(config, activation_limit=None))
        except ConfigError as error:
            raise ConfigError([*error.problems, *found]) from error
        if found:
            raise ConfigError(found)
        schedule = job.schedule
        placement = tuple(schedule.placement[stage] for stage in range(schedule.stages))
        try:
            problem = Problem(placement, schedule.chunks, job.costs, pairs(schedule.stages, config.activation_limit))
        except ValueError as error:
            raise ConfigError([f"activation_limit={config.activation_limit}: {error}"]) from error
        if len(problem.times) > MOST:
            raise ConfigError(
                [f"the order has {len(problem.times)} actions, too many to search: use at most {MOST} (ranks, chunks)"]
            )
        return _Prepared(problem, schedule)

    def problems_together(self, points: list[Point]) -> list[str]:
        files = Counter(point.config.search.file for point in points if isinstance(point.config, OrderConfig))
        return [
            f"search.file={quoted(file)} is the file of {number} points: give each its own, as "
            "'search.file=order-${chunks}.txt'"
            for file, number in files.items()
            if number > 1
        ]


def _problems(config: OrderConfig) -> list[str]:
    found = broken_rules(config.search, "search.")
    path = Path(config.search.file)
    if reason := not_writable(path.parent) or ("it is a folder" if path.is_dir() else ""):
        found.append(f"search.file={quoted(path)} cannot be written ({reason}): choose another file")
    elif path.exists():
        found.append(f"search.file={quoted(path)} exists: give another name")
    if config.search.solver_seconds and find_spec("ortools") is None:
        found.append(
            f"search.solver_seconds={config.search.solver_seconds:g} needs OR-Tools: install microp[plan], or use 0"
        )
    if (given := config.device.memory_gib) is not None and config.partition["name"] != "balanced":
        found.append(
            f"device.memory_gib={given:g} does not limit an order: use activation_limit, the (stage, microbatch) pairs "
            "that a rank holds"
        )
    if config.replicas != 1:
        found.append(f"replicas={config.replicas} does not change an order, which is of one pipeline: leave it out")
    return found


def run_order(config: DictConfig) -> dict[str, Any]:
    """Search for one point's order, write it, print it beside the named ones, and return the figures."""
    point = read_config(config)
    assert isinstance(point, OrderConfig)
    problem, _ = OrderCallback.take(point)
    with console.err.status("searching for an order"):
        found, solved = search(problem, point.search.seconds, point.seed), None
        if point.search.solver_seconds:
            found, solved = with_solver(problem, found, point.search.solver_seconds)
    path = Path(point.search.file)
    figures = {**_figures(problem, found, solved, point.search.noise), "file": str(path)}
    orders = {order.name: order for order in _orders(problem, found)}
    schedule = validate(orders[figures["written"]], point.activation_limit)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_text(schedule))
    if point.output == "json":
        print(json.dumps(figures), flush=True)
    else:
        order_table.show(figures)
    return figures


def _orders(problem: Problem, found: Found) -> list[Schedule]:
    """Return the order that was found, and the named ones within the cap."""
    named, _ = named_schedules(problem)
    return [replace(found.schedule, name="found"), *named]


def _figures(problem: Problem, found: Found, solved: Solved | None, noise: float) -> dict[str, Any]:
    """Return the result as plain values.

    `written` is the order that is to be written: the found one, or the fastest on average if times vary.
    """
    orders = _orders(problem, found)
    noisy: list[Noisy | None] = [*judge(problem, orders, noise)] if noise else [None] * len(orders)
    means = [each.mean if each else 0.0 for each in noisy]
    times = {"found": found.makespan, **found.named}
    return {
        "ranks": problem.ranks,
        "chunks": problem.chunks,
        "stages": problem.stages,
        "cap": problem.memory.cap,
        "makespan": float(found.makespan),
        "written": orders[means.index(min(means))].name,
        "method": found.method,
        "seconds": found.seconds,
        "bounds": {name: float(value) for name, value in found.bounds._asdict().items()},
        "orders": [
            {
                "schedule": order.name,
                "makespan": float(times[order.name]),
                "peak": float(max(map(problem.peak, problem.rows_of(order)))),
                "noisy": each and each._asdict(),
            }
            for order, each in zip(orders, noisy, strict=True)
        ],
        "refused": {name: float(peak) for name, peak in found.refused.items()},
        "solver": None
        if solved is None
        else {
            "makespan": None if solved.makespan is None else float(solved.makespan),
            "bound": float(solved.bound),
            "proven": solved.proven,
            "rounded": solved.rounded,
            "seconds": solved.seconds,
            "variables": solved.size[0],
            "constraints": solved.size[1],
        },
    }
