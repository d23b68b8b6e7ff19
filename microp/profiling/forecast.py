"""Predicts a run from a profile, before it starts.

::

    Profile + Workload ── stage_costs ──► Costs ── simulate_on_cores ──► spans ──► step_ms, bubble, memory
    nominal times ── nominal_costs ─────► Costs ── simulate ───────────► spans ──► step_ms, bubble

A step is its actions, the sums over the replicas, the optimizer, and what the engine does before and after them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from microp.job import Workload
from microp.profiling.profile import Profile, Transport
from microp.profiling.samples import before, op_of
from microp.schedule import Schedule
from microp.settings import NEVER, DeviceSettings
from microp.simulator import (
    Costs,
    LayerMemory,
    LayerTimes,
    Ranks,
    costs_of,
    simulate,
    simulate_on_cores,
    slowed,
    weight_bytes,
)
from microp.system import MIB
from microp.trace import Spans, bubble_fraction, reductions


class Forecast(NamedTuple):
    """What is known of a run before it starts; None for what is not."""

    step_ms: float | None  # of a step, with its optimizer
    bubble: float | None  # idle over total time of the ranks, from the first start to the last end
    peak_memory_mib: list[float] | None  # each rank's peak of live tensors
    source: str  # where the times come from
    stand_in: str | None = None  # how the model that ran differs from the profile's, whose times the actions last
    at_peak_ms: float | None = None  # of the operations of a step if each rank reached the profile's peak, no bubble


def stage_costs(profile: Profile, kinds: Sequence[int], workload: Workload, backend: str, replicas: int = 1) -> Costs:
    """Return the costs of a workload's stages, in milliseconds, while all ranks compute.

    `kinds` has the kind of each layer of the model. If the profile lacks the transport `backend`, its first one counts.
    """
    schedule, sizes = workload.schedule, workload.layers
    rows = workload.mean_rows
    shares = _shares_after(workload)
    stage_of = [stage for stage, size in enumerate(sizes) for _ in range(size)]
    keeps = not workload.checkpointing.segments
    layers = list(zip([*kinds] * schedule.copies, stage_of, strict=True))
    times = {(kind, stage): profile.layer_times(kind, rows, shares[stage], keeps) for kind, stage in set(layers)}
    transport = profile.transport(backend)
    boundary_mib = profile.boundary_bytes(rows) / MIB / schedule.slices
    overhead = transport.overhead + transport.overhead_per_mib * boundary_mib
    return costs_of(
        [times[layer] for layer in layers],
        sizes,
        schedule,
        workload.checkpointing,
        fixed=[  # every slice takes it whole
            LayerTimes(*(schedule.slices * time for time in profile.fixed_times(rows, own, keeps))) for own in shares
        ],
        latency=transport.latency + transport.per_mib * boundary_mib,
        overhead=(overhead,) * schedule.stages,
        reduction=sum_times(profile, kinds, workload, transport, replicas)
        if max(replicas, schedule.copies) > 1
        else (),
    )


def sum_times(
    profile: Profile, kinds: Sequence[int], workload: Workload, transport: Transport, replicas: int
) -> list[float]:
    """Return the time of the sum of each stage's gradients over the replicas and copies, in milliseconds.

    A rank sums one part of the gradients and sends it to the others, or passes parts around a ring: in both it sends
    twice the share of the others. Copies send each other all. It is an estimate from the times of hops; no sum was
    measured for the profile.
    """
    weights = weight_bytes(profile.layer_memory(kinds, bool(workload.schedule.input_gradients)), workload.layers)
    over_replicas, over_copies = 2 * (replicas - 1) / replicas, workload.schedule.copies - 1
    sent = over_replicas + over_copies
    hops = 2 * (replicas > 1) + over_copies
    return [hops * transport.latency + transport.per_mib * sent * nbytes / MIB for nbytes in weights]


def speed_of(profile: Profile, rows: float, replicas: int = 1) -> Callable[[int], float]:
    """Return the rule of `simulate_on_cores`: how fast a rank computes beside others, over its speed in the profile.

    Replicas compute at the same time. More ranks than cores have equal shares of them; what taking turns costs is left
    out, because it changes from hour to hour (lab book, 2026-11-23).
    """
    alone, together, cores = 1 / profile.alone_at(rows), profile.ranks, profile.machine.cores

    def speed(in_a_pipeline: int) -> float:
        computing = in_a_pipeline * replicas
        if computing > cores:
            return cores / computing
        if computing >= together or together == 1:
            return 1.0
        return alone + (1 - alone) * (computing - 1) / (together - 1)

    return speed


def forecast(
    profile: Profile,
    kinds: Sequence[int],
    workload: Workload,
    backend: str,
    batch: tuple[float, float],
    replicas: int = 1,
    device: DeviceSettings | None = None,
) -> Forecast:
    """Return the prediction of a run, in which `replicas` run the workload, on a machine of the profile's kind.

    Args:
        kinds: the kind of each layer of the model.
        batch: as in `Ranks`.
        device: an emulated device if every rank has a device like that of the profile; None: ranks share the cores.
    """
    rows = workload.mean_rows
    costs = stage_costs(profile, kinds, workload, backend, replicas)
    if device is None:
        spans = simulate_on_cores(workload.schedule, costs, speed_of(profile, rows, replicas))
    else:
        spans = simulate(workload.schedule, slowed(costs, device, workload.schedule))
    layers = profile.layer_memory(kinds, bool(workload.schedule.input_gradients))
    ends, optimizer = last_ends(workload.schedule, spans, costs), optimizer_times(profile, workload, layers)
    return Forecast(
        step_ms=sum(profile.edges) + last_optimizer(workload.schedule, ends, optimizer),
        bubble=float(bubble_fraction(spans)),
        peak_memory_mib=peak_memory_mib(workload, layers, batch) if workload.schedule.slices == 1 else None,
        source=profile.path,
    )


def last_optimizer(schedule: Schedule, ends: Mapping[int, float], times: Sequence[float]) -> float:
    """Return when the last rank has ended its optimizer's step, which takes `times` on each stage's weights."""
    return max(end + sum(times[stage] for stage in schedule.stages_of(rank)) for rank, end in ends.items())


def optimizer_times(profile: Profile, workload: Workload, layers: Sequence[LayerMemory]) -> list[float]:
    """Return the time of the optimizer's step on each stage's weights; a rank's fixed part is shared by its stages."""
    fixed, per_mib = profile.optimizer
    placement, schedule = workload.schedule.placement, workload.schedule
    return [
        fixed / len(schedule.stages_of(placement[stage])) + per_mib * nbytes / MIB
        for stage, nbytes in enumerate(weight_bytes(layers, workload.layers))
    ]


def last_ends(schedule: Schedule, spans: Spans, costs: Costs) -> dict[int, float]:
    """Return rank -> the end of its last action, or of its last sum over the replicas."""
    ends = {int(rank): float(spans.end[spans.rank == rank].max()) for rank in sorted(set(spans.rank.tolist()))}
    for reduction in reductions(schedule, spans, costs.reduction) if costs.reduction else ():
        ends[reduction.rank] = max(ends[reduction.rank], float(reduction.end))
    return ends


def peak_memory_mib(workload: Workload, layers: Sequence[LayerMemory], batch: tuple[float, float]) -> list[float]:
    """Return each rank's peak: weights, the optimizer's state, the batch, gradients, activations and mailboxes."""
    return [peak / MIB for peak in Ranks(workload, layers, batch).peaks(workload.layers)]


def _shares_after(workload: Workload) -> list[dict[str, dict[str, float]]]:
    """Return, for each stage and op, the share of its actions that its rank runs after each op, or the optimizer.

    A recomputation counts as a part of its backward.
    """
    schedule = workload.schedule
    counts = [defaultdict[str, Counter[str]](Counter) for _ in range(schedule.stages)]
    for row in schedule.ranks:
        for position, action in enumerate(row):
            counts[action.stage][op_of(schedule, NEVER, action)][before(row, position)] += 1
    return [
        {op: {what: count / own.total() for what, count in own.items()} for op, own in of_stage.items()}
        for of_stage in counts
    ]
