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
from statistics import mean, median
from typing import Any

import numpy as np

from microp import costs
from microp.accounting import KINDS, StepClock, account
from microp.costs import Costs
from microp.emulated import EmulatedSettings
from microp.plan import Plan
from microp.records import Row, read_asked, read_reductions, read_rows, read_spans
from microp.reduction import after_last_gradient, ends_at, exposed, reductions
from microp.schedules import closed_forms
from microp.simulate import simulate
from microp.trace import Span, bubble_fraction, makespan


def summarise(plan: Plan, attempt: Path, status: str) -> dict[str, Any]:
    """What `summary.json` holds; figures that need a step that was not reached are None."""
    rows = [read_rows(attempt, number) for number in range(plan.processes)]
    steps = _complete_steps(rows, "measured", plan.engines[0])
    if compared := _syncs(plan, steps):
        steps = [step for step in steps if step[0]["sync"] == "ddp"]
    memory = _complete_steps(rows, "memory", plan.engines[0])
    losses = _losses(plan, steps)
    step_ms = [max(row["step_ms"] for row in step) for step in steps]
    return {
        "run_id": plan.run_id,
        "status": status,
        "schedule": plan.schedule.name,
        "chunks": plan.schedule.chunks,
        "ranks": plan.ranks,
        "replicas": plan.replicas,
        "sync": plan.sync.name if plan.replicas > 1 else None,
        "syncs": compared,
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
        "reduction": _reduction(plan, steps, attempt),
        "peak_memory_mib": _per_rank(plan, memory, "peak_memory_mib"),
        "peak_activation_mib": _per_rank(plan, memory, "peak_activation_mib"),
        "in_flight_peak": _per_rank(plan, memory, "in_flight_peak"),
        "time_ms": _time(plan, steps, attempt),
        "actions": len(steps) * plan.replicas * sum(map(len, plan.schedule.ranks)),
        "overruns": sum(row["overruns"] for step in steps for row in step),
        "loss": {"first": losses[0], "last": losses[-1]} if losses else None,
    }


def _losses(plan: Plan, steps: list[list[Row]]) -> list[float]:
    """The whole batch's loss in each step: the sum over the replicas' last ranks."""
    last_rank = plan.schedule.placement[plan.schedule.stages - 1]
    return [sum(row["loss"] for row in step if row["rank"] == last_rank) for step in steps]


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


def _per_rank(plan: Plan, steps: list[list[Row]], key: str) -> list[float] | None:
    """A value a rank of the pipeline: the largest among its replicas."""
    if not steps:
        return None
    return [max(row[key] for row in own) for own in zip(*_by_replica(plan, steps[-1]), strict=True)]


def _by_replica(plan: Plan, step: list[Row]) -> list[list[Row]]:
    """A step's rows, those of each pipeline together."""
    return [step[first : first + plan.ranks] for first in range(0, len(step), plan.ranks)]


def _pairs(plan: Plan, steps: list[list[Row]]) -> list[list[Row]]:
    """What each pipeline did in each step."""
    return [own for step in steps for own in _by_replica(plan, step)]


def _spread(values: list[float]) -> dict[str, float | int] | None:
    if not values:
        return None
    low, high = np.percentile(values, [10, 90])
    return {"median": median(values), "p10": float(low), "p90": float(high), "n": len(values)}


def _time(plan: Plan, steps: list[list[Row]], attempt: Path) -> dict[str, list[float]] | None:
    """Where the traced step's time went, a list over the pipeline's ranks for each kind; see `accounting`.

    With replicas a rank's is the mean over them, which adds up to the step's wall time as each of them does.
    """
    traces = [read_spans(attempt, replica) for replica in range(plan.replicas)]
    whole = sum(map(len, plan.schedule.ranks))
    if not steps or any(len({span.action for span in spans}) != whole for spans in traces):
        return None
    wall = min(row["began_ns"] for row in steps[-1]), max(row["ended_ns"] for row in steps[-1])
    booked = []
    for replica, own in enumerate(_by_replica(plan, steps[-1])):
        clocks = {row["rank"]: step_clock(row) for row in own}
        booked.append(account(plan.schedule, traces[replica], read_asked(attempt, replica), clocks, wall))
    return {kind: [mean(own[rank][kind] for own in booked) / 1e6 for rank in range(plan.ranks)] for kind in KINDS}


def step_clock(row: Row) -> StepClock:
    """What `accounting` wants to know of a rank's row."""
    optimizer, recompute, reduction = (round(row[f"{key}_ms"] * 1e6) for key in ("optimizer", "recompute", "exposed"))
    return StepClock(row["began_ns"], row["ended_ns"], optimizer, recompute, reduction)


def _bubbles(plan: Plan, steps: list[list[Row]], spans: list[Span]) -> dict[str, float | None]:
    predicted = None
    if steps and spans:
        predicted = bubble_fraction(simulate(plan.schedule, costs.of_steps(plan.schedule, _pairs(plan, steps), spans)))
    return {
        "measured": median(mean(map(_bubble, _by_replica(plan, step))) for step in steps) if steps else None,
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
        return plan.device.costs(plan.workload, plan.batch_size / plan.replicas / plan.schedule.chunks)
    sizes = tuple(Fraction(size) for size in plan.partition.sizes)
    return Costs(forward=sizes, backward=sizes, weight=sizes)


def closed_form(plan: Plan) -> float | None:
    """The bubble by formula, or None where there is none for these costs."""
    form = closed_forms.bubble(plan.schedule, nominal_costs(plan))
    return None if form is None else float(form)


def _reduction(plan: Plan, steps: list[list[Row]], attempt: Path) -> dict[str, Any] | None:
    """The sum over the replicas: medians over the steps, of the rank for which it took longest, and the prediction.

    What is predicted is the step up to its optimizer: simulated with an emulated device's own
    times, else with the run's median action times and with what each stage's reduction took in
    the traced step from its last gradient on.
    """
    if plan.replicas == 1 or not steps:
        return None
    spans, taken = read_spans(attempt), read_reductions(attempt)
    figures = {
        key: median(max(row[key] for row in step) for step in steps)
        for key in ("all_reduce_ms", "exposed_ms", "reduced_bytes")
    }
    figures["measured_ms"] = median(max(row["step_ms"] - row["optimizer_ms"] for row in step) for step in steps)
    figures["predicted_ms"] = figures["predicted_exposed_ms"] = None
    given = nominal_costs(plan) if plan.is_emulated else costs.of_steps(plan.schedule, _pairs(plan, steps), spans)
    if times := given.reduction or after_last_gradient(plan.schedule, spans, taken):
        unit = 1 if given.reduction else 1e6
        predicted = simulate(plan.schedule, given)
        summed = reductions(plan.schedule, predicted, [time / unit for time in times])
        figures["predicted_ms"] = float(ends_at(predicted, summed))
        figures["predicted_exposed_ms"] = float(max(exposed(predicted, summed).values()))
    return figures


def _syncs(plan: Plan, steps: list[list[Row]]) -> dict[str, Any] | None:
    """Where two ways to sum take turns in one launch: their steps, and the median of the ratios within a turn."""
    if plan.replicas == 1 or plan.sync.name != "compare":
        return None
    times = {
        name: [max(row["step_ms"] for row in step) for step in steps if step[0]["sync"] == name]
        for name in ("ddp", "torch_ddp")
    }
    return {
        "step_ms": {name: _spread(values) for name, values in times.items()},
        "reduced_bytes": {row["sync"]: row["reduced_bytes"] for step in steps for row in step},
        "ratio": {"ddp/torch_ddp": _median_ratio(times["ddp"], times["torch_ddp"])},
    }
