"""Computes the numbers of a whole run, measured and replayed, from its rows and spans.

Four bubbles, all idle over total (GPipe's definition):

| key | meaning |
|---|---|
| `bubble.measured` | the median over the measured steps |
| `predicted.bubble` | known before the run: from an emulated device's nominal times, or from a profile |
| `replayed.bubble` | simulated with the run's own action times of each stage, its hops and the engine's own time |
| `bubble.closed_form` | the formula, with an emulated device's times; else with equal layers, F = I = W, free hops |

`predicted.step_ms` and `replayed.step_ms` are those steps with the sums over the replicas and the optimizer.

If there were several hosts, the moments in all rows are on the clock of the first. `hosts.json` lists each host with
its ranks and its residual, the most by which its clock may be wrong: half of the time of the quickest message there and
back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from microp.job import Job
from microp.records import snapshots
from microp.records.records import PEAKS, SCHEMA_VERSION, Row, read_json, read_rows, read_spans
from microp.records.replays import Replay, by_replica, replay_run
from microp.settings import EmulatedSettings
from microp.simulator import Costs, closed_forms, nominal_costs, nominal_optimizer, simulate
from microp.trace import KINDS, StepClock, account, early_receive, ends_at, exposed, idle_fraction, makespan, reductions

HOSTS = "hosts.json"
_KNOWN = ("step_ms", "bubble", "peak_memory_mib", "at_peak_ms", "stand_in")  # before the run
Step = list[Row]  # the rows of one step, rank by rank


def summarise(job: Job, attempt: Path, status: str) -> dict[str, Any]:
    """Return the content of an attempt's `summary.json`; numbers that need a step that was not reached are None."""
    rows = [read_rows(attempt, number) for number in range(job.processes)]
    steps = _complete_steps(rows, "measured", job.engines[0])
    if compared := _syncs(job, steps):
        steps = [step for step in steps if step[0]["sync"] == "ddp"]
    memory = _complete_steps(rows, "memory", job.engines[0])
    losses = _losses(job, steps)
    step_ms = _slowest(steps, "step_ms")
    replayed = replay_run(job, steps, attempt)
    form = closed_forms.bubble(job.schedule, _costs(job))
    known = read_json(path) if (path := attempt / "predicted.json").exists() else {}
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": job.run_id,
        "question_id": job.question_id,
        "status": status,
        "schedule": job.schedule.name,
        "chunks": job.schedule.chunks,
        "ranks": job.ranks,
        "replicas": job.replicas,
        "sync": job.sync.name if job.replicas > 1 else None,
        "syncs": compared,
        "partition": list(job.partition.sizes),
        "checkpointing": job.checkpointing.name,
        "model": job.model.name,
        "device": job.device.name,
        "shared_gpu": job.device.is_shared,
        "comms": job.backend,
        "hosts": _hosts(job, attempt),
        "batch_size": job.batch_size,
        "seed": job.seed,
        "engine": job.engine.name,
        "engines": _engines(job, rows),
        "steps": len(steps),
        "resumed": snapshots.about(job.resumed, attempt) if job.resumed else None,
        "step_ms": _spread(step_ms),
        "between_steps_ms": _between_steps(rows, job.engines[0]),
        "samples_per_s": job.batch_size / median(step_ms) * 1e3 if steps and job.counts_rows else None,
        "bubble": {
            "measured": median(mean(map(_bubble, by_replica(job, step))) for step in steps) if steps else None,
            "closed_form": None if form is None else float(form),
        },
        "predicted": {key: known.get(key) for key in _KNOWN},
        "replayed": replayed.numbers,
        "reduction": _reduction(job, steps, replayed),
        **{peak: _per_rank(job, memory, peak) for peak in PEAKS},
        **(dict.fromkeys(set(PEAKS) - {"in_flight_peak"}) if known.get("stand_in") else {}),  # its memory is its own
        "utilisation": _utilisation(job, steps, memory),
        "time_ms": _time(job, steps, attempt),
        "actions": len(steps) * job.replicas * sum(map(len, job.schedule.ranks)),
        "overruns": sum(row["overruns"] for step in steps for row in step),
        "nominal": _nominal(job, steps),
        "queued": _queued(steps),
        "loss": {"first": losses[0], "last": losses[-1]} if losses else None,
    }


# --- steps and their rows --------------------------------------------------------------------------


def _complete_steps(rows: list[list[Row]], phase: str, engine: str) -> list[Step]:
    """Return the ranks' rows of each step of `phase` by `engine` that every rank finished."""
    wanted = [[row for row in of_rank if row["phase"] == phase and row["engine"] == engine] for of_rank in rows]
    return [list(step) for step in zip(*wanted, strict=False)]


def _slowest(steps: list[Step], key: str) -> list[float]:
    """Return the largest value over the ranks, for each step."""
    return [max(row[key] for row in step) for step in steps]


def _spread(values: list[float]) -> dict[str, float | int] | None:
    if not values:
        return None
    low, high = np.percentile(values, [10, 90])
    return {"median": median(values), "p10": float(low), "p90": float(high), "n": len(values)}


def _queued(steps: list[Step]) -> float | None:
    """Return the share of the steps in which a rank could have run and had no core, of the rank that had to most."""
    if not steps or any(row.get("queued_ms") is None for step in steps for row in step):
        return None
    times = [[sum(row[key] for row in rank) for key in ("queued_ms", "step_ms")] for rank in zip(*steps, strict=True)]
    return float(max(queued / whole for queued, whole in times))


def _median_ratio(times: list[float], others: list[float]) -> float | None:
    ratios = [time / other for time, other in zip(times, others, strict=False)]
    return median(ratios) if ratios else None


def _per_rank(job: Job, steps: list[Step], key: str) -> list[float] | None:
    """Return one value per rank of the pipeline, the largest over the replicas, from the last step, if it has them."""
    if not steps or any(key not in row for row in steps[-1]):
        return None
    return [max(row[key] for row in same_rank) for same_rank in zip(*by_replica(job, steps[-1]), strict=True)]


def _costs(job: Job) -> Costs:
    """Return the costs for the formulas: an emulated device's times, else F = I = W = layers."""
    return nominal_costs(job.device, job.workload)


# --- the numbers -----------------------------------------------------------------------------------


def _bubble(pipeline: Step) -> float:
    """Return the idle fraction of one pipeline in one step, from its ranks' rows."""
    total_ms = (max(row["last_end_ns"] for row in pipeline) - min(row["first_start_ns"] for row in pipeline)) / 1e6
    return float(idle_fraction([row["compute_ms"] for row in pipeline], total_ms))


def _losses(job: Job, steps: list[Step]) -> list[float | None]:
    """Return the loss of the whole batch in each step, the sum over replicas and copies; None if not finite."""
    last_ranks = {job.schedule.placement[stage] for stage in job.schedule.ends[1]}
    parts = [[row["loss"] for row in step if row["rank"] in last_ranks] for step in steps]
    return [None if None in losses else sum(losses) for losses in parts]


def _between_steps(rows: list[list[Row]], engine: str) -> float | None:
    """Return the median time from the end of the step before to the start of a measured step, in ms, on rank 0's clock.

    Between two steps a rank writes its row, saves a snapshot if asked, loads a batch, and waits for the others.
    """
    gaps = [
        (step[0]["began_ns"] - before[0]["began_ns"]) / 1e6 - max(row["step_ms"] for row in before)
        for before, step in pairwise(zip(*rows, strict=False))
        if step[0]["phase"] == "measured" and step[0]["engine"] == engine
    ]
    return median(gaps) if gaps else None


def _utilisation(job: Job, steps: list[Step], memory: list[Step]) -> dict[str, list[float]] | None:
    """Return how busy each rank's GPU was, in per cent, by its actions and by nvidia-smi; None without the latter."""
    by_driver = _per_rank(job, memory, "smi_percent")
    if by_driver is None or not steps:
        return None
    shares = [[100 * row["compute_ms"] / row["step_ms"] for row in step] for step in steps]
    return {"actions": [median(of_rank) for of_rank in zip(*shares, strict=True)], "nvidia_smi": by_driver}


def _nominal(job: Job, steps: list[Step]) -> dict[str, float] | None:
    """Return by which factor a step outlasts its nominal times, and the real work's share of them; None without any.

    A step is counted with its optimizer, which takes its real time or longer, and without the sums over the replicas.
    """
    if not (isinstance(job.device, EmulatedSettings) and steps and job.engines[0] == "microp"):
        return None
    costs, rows = _costs(job), job.workload.rows
    if "row" in job.device.per and not costs.shares and len({*rows}) > 1:
        costs = replace(costs, shares=tuple(count / job.workload.mean_rows for count in rows))
    spans = simulate(job.schedule, costs)
    optimizer = nominal_optimizer(job.device, job.workload.layers, job.schedule.copies)
    last = spans.per_rank(spans.end, np.maximum)
    nominal = float(max(end + sum(optimizer[s] for s in job.schedule.stages_of(rank)) for rank, end in last.items()))
    taken = median(max(row["step_ms"] - row["exposed_ms"] for row in step) for step in steps)
    work, whole = (sum(row[key] for step in steps for row in step) for key in ("work_ms", "compute_ms"))
    return {"step": taken / nominal, "work": work / whole} if nominal and whole else None


def _time(job: Job, steps: list[Step], attempt: Path) -> dict[str, list[float]] | None:
    """Return the traced step's time by kind, in ms, each a list over the pipeline's ranks; see `trace.account`.

    With replicas it is the mean over them. The kinds of a rank add up to the wall time of the step.
    """
    traces = [read_spans(attempt, replica) for replica in range(job.replicas)]
    whole = sum(map(len, job.schedule.ranks))
    if not steps or any(len(spans) != whole for spans in traces):
        return None
    wall = min(row["began_ns"] for row in steps[-1]), max(row["ended_ns"] for row in steps[-1])
    booked = []
    has_sums = job.replicas > 1 or job.schedule.copies > 1 or bool(job.model.tied_weights)  # else it is the host's time
    for spans, pipeline in zip(traces, by_replica(job, steps[-1]), strict=True):
        clocks = {
            row["rank"]: StepClock(
                row["began_ns"],
                row["ended_ns"],
                round(row["optimizer_ms"] * 1e6),
                round(row["recompute_ms"] * 1e6),
                round(row["exposed_ms"] * 1e6) * has_sums,
            )
            for row in pipeline
        }
        booked.append(account(job.schedule, spans, clocks, wall))
    return {kind: [mean(times[rank][kind] for times in booked) / 1e6 for rank in range(job.ranks)] for kind in KINDS}


# --- replicas, engines and hosts -------------------------------------------------------------------


def _reduction(job: Job, steps: list[Step], replay: Replay) -> dict[str, Any] | None:
    """Return the times of the sum over the replicas, measured (medians of the slowest rank) and simulated.

    The times are those of the step up to its optimizer. On an emulated device its nominal times are
    simulated. On other devices the run's own action times are simulated, and each stage's sum
    takes as long as in the traced step, from the stage's last gradient on.
    """
    if job.replicas == 1 or not steps:
        return None
    figures: dict[str, Any] = {
        key: median(_slowest(steps, key)) for key in ("all_reduce_ms", "exposed_ms", "reduced_bytes")
    }
    figures["measured_ms"] = median(max(row["step_ms"] - row["optimizer_ms"] for row in step) for step in steps)
    figures["simulated_ms"] = figures["simulated_exposed_ms"] = None
    spans, sum_ms = replay.spans, replay.sum_ms
    if job.device.is_emulated:
        costs = _costs(job)
        spans, sum_ms = simulate(job.schedule, costs), costs.reduction or sum_ms
    if spans is not None and sum_ms:
        sums = reductions(job.schedule, spans, sum_ms)
        figures["simulated_ms"] = float(ends_at(spans, sums))
        figures["simulated_exposed_ms"] = float(max(exposed(spans, sums).values()))
    return figures


def _syncs(job: Job, steps: list[Step]) -> dict[str, Any] | None:
    """Return the step times of two ways to sum in turn, and the median ratio within a turn; None for one way."""
    if job.replicas == 1 or job.sync.name != "compare":
        return None
    ways = ("ddp", "torch_ddp")
    times = {name: _slowest([step for step in steps if step[0]["sync"] == name], "step_ms") for name in ways}
    return {
        "step_ms": {name: _spread(values) for name, values in times.items()},
        "reduced_bytes": {row["sync"]: row["reduced_bytes"] for step in steps for row in step},
        "ratio": {"ddp/torch_ddp": _median_ratio(times["ddp"], times["torch_ddp"])},
    }


def _engines(job: Job, rows: list[list[Row]]) -> dict[str, Any] | None:
    """Return each engine's time of forward and backward, and the median ratios within a turn; None for one engine."""
    if job.engine.name != "compare":
        return None
    times = {e: _slowest(_complete_steps(rows, "measured", e), "pipeline_ms") for e in job.engines}
    if job.device.is_emulated:
        times["limit"] = [float(makespan(simulate(job.schedule, _costs(job))))] * len(times["microp"])
    pairs = [(a, b) for a, b in (("microp", "limit"), ("torch", "limit"), ("torch", "microp")) if {a, b} <= set(times)]
    return {
        "pipeline_ms": {engine: _spread(values) for engine, values in times.items()},
        "ratio": {f"{a}/{b}": _median_ratio(times[a], times[b]) for a, b in pairs},
        "torch_schedule": job.torch_schedule.name if "torch" in times else None,
    }


def _hosts(job: Job, attempt: Path) -> dict[str, Any] | None:
    """Return what a summary holds of the hosts; None if there was one, or if the rows were not gathered."""
    path = attempt / HOSTS
    if not path.exists():
        return None
    hosts = read_json(path)
    early = max(early_receive(job.schedule, read_spans(attempt, replica)) for replica in range(job.replicas))
    return {
        "names": [host["host"] for host in hosts],
        "ranks": [host["ranks"] for host in hosts],
        "clock_residual_ms": max(host["clock_residual_ns"] for host in hosts) / 1e6,
        "early_receive_ms": early / 1e6,
    }


def clocks_text(summary: Mapping[str, Any]) -> str:
    """Return a caption about the clocks of a run's hosts; empty if there was one host."""
    if not (hosts := summary.get("hosts")):
        return ""
    early = hosts["early_receive_ms"]
    check = f"a receive ends {early:.3f} ms before" if early else "no receive ends before"
    residual = f"clocks of {len(hosts['names'])} hosts, ±{hosts['clock_residual_ms']:.3f} ms"
    return f"{residual}: {check} its send begins"
