"""Gives each of two orders that were compared its own limit: on paper their bubbles differ before anything runs.

::

    microp  zb_h1    C x makespan / busiest rank      C: the busiest rank's compute in a step, without waiting
    torch   1f1b     C x makespan / busiest rank      makespan: of the order, simulated with the job's costs

With real compute C is the measured limit over its factor (M+K-1)/M, and the costs are those of the closed forms:
equal layers, F = B = W and free hops. On an emulated device the limit of an order is its simulated makespan.
"""

from __future__ import annotations

from statistics import median

from microp.job import Job
from microp.schedule import Schedule
from microp.simulator import Costs, nominal_costs, simulate
from microp.trace import makespan


def own_limits_ms(job: Job, limit_ms: list[float]) -> dict[str, float] | None:
    """Return engine -> the limit of the order that it ran, in ms; None if both ran the same order.

    Args:
        job: a job with `engine=compare`.
        limit_ms: the limit in each measured step.
    """
    orders = {"microp": job.schedule, "torch": job.torch_schedule}
    if "torch" not in job.engines or not limit_ms or job.schedule.ranks == job.torch_schedule.ranks:
        return None
    costs = nominal_costs(job.device, job.workload, job.mean_rows)
    if job.is_emulated:
        return {engine: float(makespan(simulate(order, costs))) for engine, order in orders.items()}
    alone_ms = median(limit_ms) * job.schedule.chunks / (job.schedule.chunks + job.ranks - 1)
    return {engine: alone_ms * _over_busiest(order, costs) for engine, order in orders.items()}


def _over_busiest(order: Schedule, costs: Costs) -> float:
    """Return the makespan of the order over the load of its busiest rank."""
    work = [costs.forward[stage] + costs.full_backward(stage) for stage in range(order.stages)]
    loads = [sum(work[stage] for stage in order.stages_of(rank)) for rank in range(len(order.ranks))]
    return float(makespan(simulate(order, costs)) / (order.chunks * max(loads)))
