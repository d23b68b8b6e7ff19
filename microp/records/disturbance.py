"""Says why a run's timing was disturbed: its steps spread widely, the machine was busy, or work outlasted its time.

::

    summary.json  step_ms  median 928.8, p10 446.8, p90 4635.0   ──► spread 451 %
                  overruns 12, actions 640                       ──► 12 overruns
                  nominal: step 1.043, work 0.31                 ──► 1.043 x nominal, 31 % real work
                  shared_gpu                                     ──► shared GPU
                  queued 0.19                                    ──► queued 19 %
    env.json      load  start 2.1, end 9.1; cores 2              ──► load 9.1
                  parallel                                       ──► parallel

Linux counts how long a rank could have run and had no core. Other systems have the load average alone: the number of
processes that want a core, in the mean over about a minute, in which a short run's neighbours are not seen, and what
ran before it is. The run's own ranks are taken off: the machine is busy if the load is above the number of cores, or
of ranks if they are more.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from microp.records.statistics import WIDE_STEPS

MARGIN = 0.5  # processes; the launcher and the system want a core now and then


# of the steps' time: on an idle machine at most .025, with gloo's threads .08, beside others .17 to .6
FEW_QUEUED = 0.1
FEW_OVERRUNS = 0.01  # of the actions: what they add to a step is seen in `nominal`, if it is much
OVER_NOMINAL = 1.02  # of an emulated device's step
MOSTLY_WORK = 0.5  # the share of real work in an emulated action from which that is why it takes too long


class Disturbance(NamedTuple):
    """One reason not to trust a run's times."""

    kind: str  # `spread`, `queued`, `load`, `shared`, `parallel`, `overruns` or `nominal`; a key of `DISTURBANCES`
    text: str  # the reason in a word and a number, for a table


DISTURBANCES = {
    "spread": f"from p10 to p90 the steps spread over more than {100 * WIDE_STEPS:.0f} % of their median",
    "queued": f"a rank could have run and had no core in more than {100 * FEW_QUEUED:.0f} % of the steps' time (not of "
    f"emulated devices whose steps took at most {OVER_NOMINAL} times their nominal time)",
    "load": "processes that wanted a core (load average), more than the cores or the ranks, whichever are more: where "
    "the system does not say what was queued, and likewise not of emulated devices",
    "shared": "ranks shared a GPU (device.share=true): they took turns and sent through the host's memory",
    "parallel": "other points of its sweep ran at the same time on the same cores (parallel=true)",
    "overruns": "actions, or sums over replicas or copies, took longer than their nominal time, more than one in a "
    "hundred actions, so they measure the machine and not the schedule (give longer times, or a smaller model)",
    "nominal": f"the steps took more than {OVER_NOMINAL} times their nominal time; where the real work's share is "
    "large, it takes part (use model.dim=64, or longer times), else the machine was busy or the times are short",
}


def disturbances(summary: Mapping[str, Any], env: Mapping[str, Any]) -> list[Disturbance]:
    """Return why the timing of a run was disturbed, by its `summary.json` and `env.json`; nothing if none is known."""
    found: list[Disturbance] = []
    if not (step := summary.get("step_ms")):
        return found
    is_nominal = (nominal := summary.get("nominal")) is not None and nominal["step"] <= OVER_NOMINAL
    if nominal and not is_nominal:  # first, as a table has room for one
        share = f"{100 * nominal['work']:.0f} % real work"
        found.append(Disturbance("nominal", f"{nominal['step']:.3f} x nominal, {share}"))
    if (spread := (step["p90"] - step["p10"]) / step["median"]) > WIDE_STEPS:
        found.append(Disturbance("spread", f"spread {100 * spread:.0f} %"))
    if not is_nominal:
        found += _busy(summary, env)
    if summary.get("shared_gpu"):
        found.append(Disturbance("shared", "shared GPU"))
    if env.get("parallel") and summary.get("device") != "emulated":  # of which the overruns are counted
        found.append(Disturbance("parallel", "parallel"))
    if (overruns := summary.get("overruns") or 0) > FEW_OVERRUNS * (summary.get("actions") or 0):
        found.append(Disturbance("overruns", f"{overruns} overrun{'' if overruns == 1 else 's'}"))
    return found


def _busy(summary: Mapping[str, Any], env: Mapping[str, Any]) -> list[Disturbance]:
    """Return whether others wanted the ranks' cores."""
    if (queued := summary.get("queued")) is not None:
        return [Disturbance("queued", f"queued {100 * queued:.0f} %")] if queued > FEW_QUEUED else []
    loads = [value for value in (env.get("load") or {}).values() if value is not None]
    most = max(env.get("cores") or 1, summary["ranks"] * summary["replicas"]) + MARGIN
    return [Disturbance("load", f"load {max(loads):.1f}")] if loads and max(loads) > most else []


def load_average() -> float | None:
    """Return the load average of the last minute; None if the system has none."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
