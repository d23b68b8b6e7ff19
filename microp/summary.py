"""The numbers of the whole run, measured beside predicted, from its rows and spans.

Three bubbles, all idle over total (GPipe's definition):
    measured      the median over the measured steps
    predicted     simulated with the run's own median F and B times of each stage, and its hop
    closed_form   the formula with an emulated device's own times; else with every layer costing
                  the same, F = B = W, and transfers nothing
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from microp import costs
from microp.accounting import KINDS, StepClock, account
from microp.costs import Costs
from microp.emulated import EmulatedSettings
from microp.plan import Plan
from microp.records import Row, read_asked, read_rows, read_spans
from microp.schedules import closed_forms
from microp.simulate import simulate
from microp.trace import Span, bubble_fraction, makespan


def summarise(plan: Plan, attempt: Path, status: str) -> dict[str, Any]:
    """What `summary.json` holds; figures that need a step that was not reached are None."""
    ranks = range(plan.ranks)
    rows = [read_rows(attempt, rank) for rank in ranks]
    steps = _complete_steps(rows, "measured", plan.engines[0])
    memory = _complete_steps(rows, "memory", plan.engines[0])
    last_rank = plan.schedule.placement[plan.schedule.stages - 1]
    losses = [step[last_rank]["loss"] for step in steps]
    step_ms = [max(row["step_ms"] for row in step) for step in steps]
    return {
        "run_id": plan.run_id,
        "status": status,
        "schedule": plan.schedule.name,
        "chunks": plan.schedule.chunks,
        "ranks": plan.ranks,
        "replicas": 1,
        "partition": list(plan.partition.sizes),
        "checkpointing": plan.checkpointing.name,
        "model": plan.model.name,
        "device": plan.device.name,
        "comms": plan.backend,
        "batch_size": plan.batch_size,
        "seed": plan.seed,
        "engine": plan.engine.name,
        "engines": _engines(plan, rows),
        "steps": len(steps),
        "step_ms": _spread(step_ms),
        "samples_per_s": plan.batch_size / median(step_ms) * 1e3 if steps else None,
        "bubble": _bubbles(plan, steps, read_spans(attempt)),
        "peak_memory_mib": _per_rank(memory, "peak_memory_mib"),
        "peak_activation_mib": _per_rank(memory, "peak_activation_mib"),
        "in_flight_peak": _per_rank(memory, "in_flight_peak"),
        "time_ms": _time(plan, steps, attempt),
        "actions": len(steps) * sum(map(len, plan.schedule.ranks)),
        "overruns": sum(row["overruns"] for step in steps for row in step),
        "loss": {"first": losses[0], "last": losses[-1]} if losses else None,
    }


def _complete_steps(rows: list[list[Row]], phase: str, engine: str) -> list[list[Row]]:
    """For each step of `phase` by `engine` that every rank finished, the ranks' rows."""
    wanted = [[row for row in own if row["phase"] == phase and row["engine"] == engine] for own in rows]
    return [list(step) for step in zip(*wanted, strict=False)]


def _engines(plan: Plan, rows: list[list[Row]]) -> dict[str, Any] | None:
    """Forward and backward without the optimizer, of each engine, and the medians of ratios within a turn."""
    if plan.engine.name != "compare":
        return None
    times = {
        engine: [max(row["pipeline_ms"] for row in step) for step in _complete_steps(rows, "measured", engine)]
        for engine in plan.engines
    }
    if plan.is_emulated:
        times["limit"] = [float(makespan(simulate(plan.schedule, nominal_costs(plan))))] * len(times["microp"])
    pairs = [(a, b) for a, b in (("microp", "limit"), ("torch", "limit"), ("torch", "microp")) if {a, b} <= set(times)]
    return {
        "pipeline_ms": {engine: _spread(values) for engine, values in times.items()},
        "ratio": {f"{a}/{b}": _median_ratio(times[a], times[b]) for a, b in pairs},
        "torch_schedule": plan.torch_schedule.name if "torch" in times else None,
    }


def _median_ratio(times: list[float], others: list[float]) -> float | None:
    ratios = [time / other for time, other in zip(times, others, strict=False)]
    return median(ratios) if ratios else None


def _per_rank(steps: list[list[Row]], key: str) -> list[float] | None:
    return [row[key] for row in steps[-1]] if steps else None


def _spread(values: list[float]) -> dict[str, float | int] | None:
    if not values:
        return None
    low, high = np.percentile(values, [10, 90])
    return {"median": median(values), "p10": float(low), "p90": float(high), "n": len(values)}


def _time(plan: Plan, steps: list[list[Row]], attempt: Path) -> dict[str, list[float]] | None:
    """Where the traced step's time went, a list over ranks for each kind; see `accounting`."""
    spans = read_spans(attempt)
    if not steps or len({span.action for span in spans}) != sum(map(len, plan.schedule.ranks)):
        return None
    clocks = {row["rank"]: step_clock(row) for row in steps[-1]}
    booked = account(plan.schedule, spans, read_asked(attempt), clocks)
    return {kind: [booked[rank][kind] / 1e6 for rank in range(plan.ranks)] for kind in KINDS}


def step_clock(row: Row) -> StepClock:
    """What `accounting` wants to know of a rank's row."""
    optimizer, recompute = (round(row[key] * 1e6) for key in ("optimizer_ms", "recompute_ms"))
    return StepClock(row["began_ns"], row["ended_ns"], optimizer, recompute)


def _bubbles(plan: Plan, steps: list[list[Row]], spans: list[Span]) -> dict[str, float | None]:
    predicted = None
    if steps and spans:
        predicted = bubble_fraction(simulate(plan.schedule, costs.of_steps(plan.schedule, steps, spans)))
    return {
        "measured": median(_bubble(step) for step in steps) if steps else None,
        "predicted": predicted,
        "closed_form": closed_form(plan),
    }


def _bubble(step: list[Row]) -> float:
    """The same fraction as `trace.bubble_fraction`, from the ranks' rows of one step."""
    total_ms = (max(row["last_end_ns"] for row in step) - min(row["first_start_ns"] for row in step)) / 1e6
    return float(1 - sum(row["compute_ms"] for row in step) / (len(step) * total_ms))


def nominal_costs(plan: Plan) -> Costs:
    """What the formula is asked about: an emulated device's times, else F = B = W = layers."""
    if isinstance(plan.device, EmulatedSettings):
        return plan.device.costs(plan.workload, plan.batch_size / plan.schedule.chunks)
    sizes = tuple(Fraction(size) for size in plan.partition.sizes)
    return Costs(forward=sizes, backward=sizes, weight=sizes)


def closed_form(plan: Plan) -> float | None:
    """The bubble by formula, or None where there is none for these costs."""
    form = closed_forms.bubble(plan.schedule, nominal_costs(plan))
    return None if form is None else float(form)
