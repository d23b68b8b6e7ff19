"""Makespans that are known without simulating: one function a schedule, by its name.

With K ranks, M microbatches, f_i and x_i the forward and full backward of stage i,
t_i = f_i + x_i, and c one hop (asynchronous latency):

| schedule | makespan of a step | exact |
|---|---|---|
| naive | M (sum t_i + 2 (K-1) c) | always |
| gpipe, gpipe_lifo | sum t_i + (M-1) (max f + max x) + 2 (K-1) c | equal stages: always; unequal: c = 0 |
| 1f1b | (M+K-1) t + 2 c ((K-1) + floor((M-1)(K-1)/K)) | equal stages |
| 1f1b, stage j rho times the others | j t + M rho t + max(0, k(t - rho f)) + max(0, k(t - rho x)) | M >= K, c = 0 |

k = K-1-j. Bubbles are 1 - M sum t_i / (K makespan): GPipe's definition (arXiv 1811.06965, section 2.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from microp.costs import Costs


def _naive(chunks: int, costs: Costs) -> Any:
    hops = 2 * (len(costs.forward) - 1) * costs.latency
    return chunks * (sum(costs.forward) + sum(costs.backward) + hops)


def _gpipe(chunks: int, costs: Costs) -> Any | None:
    if costs.latency and not _are_equal(costs):
        return None
    once = sum(costs.forward) + sum(costs.backward)
    hops = 2 * (len(costs.forward) - 1) * costs.latency
    return once + (chunks - 1) * (max(costs.forward) + max(costs.backward)) + hops


def _one_f_one_b(chunks: int, costs: Costs) -> Any | None:
    ranks = len(costs.forward)
    if not _are_equal(costs):
        return None if costs.latency or chunks < ranks else _one_heavy_stage(chunks, costs)
    hops = 2 * costs.latency * ((ranks - 1) + (chunks - 1) * (ranks - 1) // ranks)
    return (chunks + ranks - 1) * (costs.forward[0] + costs.backward[0]) + hops


def _one_heavy_stage(chunks: int, costs: Costs) -> Any | None:
    ranks = len(costs.forward)
    heavy = max(range(ranks), key=lambda stage: costs.forward[stage])
    light = [stage for stage in range(ranks) if stage != heavy]
    f, x = costs.forward[light[0]], costs.backward[light[0]]
    heavy_f, heavy_x = costs.forward[heavy], costs.backward[heavy]
    alike = all((costs.forward[s], costs.backward[s]) == (f, x) for s in light)
    if not alike or heavy_f * x != heavy_x * f:  # scaled by one factor rho
        return None
    after = ranks - 1 - heavy
    t, heavy_t = f + x, heavy_f + heavy_x
    wait = max(0, after * (t - heavy_f)) + max(0, after * (t - heavy_x))
    return heavy * t + chunks * heavy_t + wait


def _are_equal(costs: Costs) -> bool:
    return len(set(costs.forward)) == 1 and len(set(costs.backward)) == 1


_MAKESPANS: dict[str, Callable[[int, Costs], Any | None]] = {
    "naive": _naive,
    "gpipe": _gpipe,
    "gpipe_lifo": _gpipe,
    "1f1b": _one_f_one_b,
}


def makespan(name: str, chunks: int, costs: Costs) -> Any | None:
    """The makespan of the schedule `name` on one stage a rank, or None where no form is known."""
    form = _MAKESPANS.get(name)
    return form(chunks, costs) if form else None


def bubble(name: str, chunks: int, costs: Costs) -> Any | None:
    """The bubble fraction that follows from `makespan`, or None where no form is known."""
    total = makespan(name, chunks, costs)
    if total is None:
        return None
    work = chunks * (sum(costs.forward) + sum(costs.backward))
    return 1 - work / (len(costs.forward) * total)
