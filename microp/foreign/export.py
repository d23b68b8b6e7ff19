"""Makes a profile of a trace, so that plans, prices and emulated runs know the machine that it is of.

::

    stage 0 ▒▒▒▒▒▒▒▒   stage 1 ▒▒▒▒▒▒▒▒      times of stages  ── fit ──►  first, inside and last layer, hop, overhead
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import accumulate

import numpy as np

from microp.foreign.clocks import Aligned
from microp.foreign.reading import Lane
from microp.job import Workload
from microp.profiling import (
    DIVIDED,
    UNDIVIDED,
    Case,
    Machine,
    Profile,
    between,
    fit_times,
    fit_transport,
    line,
    samples_of,
    stage_costs,
)
from microp.schedule import Schedule
from microp.settings import NEVER, MlpSettings
from microp.simulator import LayerMemory
from microp.trace import MOMENTS

LAYERS = 8  # of a stage, if that is not known


def profile_of(
    schedule: Schedule, aligned: Aligned, lanes: Sequence[Lane], layers: Sequence[int], rows: float
) -> tuple[Profile, list[str]]:
    """Return the profile, and what had to be assumed.

    Args:
        layers: the number of layers of each stage; empty: LAYERS each.
        rows: the rows of a microbatch.
    """
    sizes = tuple(layers) or (LAYERS,) * schedule.stages
    model = MlpSettings("mlp", sum(sizes), 64, "float32")
    case = _case(schedule, aligned, sizes, rows)
    kinds, gaps = model.kinds, between(case)
    fitted = fit_times(samples_of(case, kinds), [], kinds)
    memory = {kind: LayerMemory(0) for kind in sorted(set(kinds))}
    device = "cuda" if any(len(lane.kernels) for lane in lanes) else "cpu"
    profile = Profile(
        machine=Machine(device, "the machine of a trace", len(lanes), "", 1),
        model=model.identity,
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        batch_size=round(rows * schedule.chunks),
        ranks=len(schedule.ranks),
        rows=fitted.rows,
        layers=fitted.layers,
        fixed=fitted.fixed,
        after=fitted.after,
        checkpointed=fitted.checkpointed,
        alone=fitted.alone,
        crowded=(1.0,) * len(fitted.rows),
        transports={"shm": fit_transport([gaps])},
        optimizer=line([(0.0, ms) for _, ms in gaps.optimizer]),
        edges=(gaps.head, gaps.tail),
        memory={DIVIDED: memory, UNDIVIDED: memory},
        spread=fitted.spread,
    )
    costs = stage_costs(profile, kinds, Workload(schedule, sizes, (round(rows),) * schedule.chunks, NEVER), "shm")
    notes = [
        f"a stage has {LAYERS} layers (--layers 10,12 tells how many)" if not layers else "",
        "a layer's time is proportional to the rows of a microbatch",
        "memory is not in a trace and counts as 0",
        ""
        if schedule.input_gradients
        else "no backward was divided: I and W take half of a B each, as their FLOPs are equal",
        f"equal layers fit the forwards of the stages to {100 * _misfit(aligned, costs.forward):.0f} %",
    ]
    return replace(profile, **_at_two(profile)), [note for note in notes if note]


def _case(schedule: Schedule, aligned: Aligned, sizes: tuple[int, ...], rows: float) -> Case:
    """Return the steps that ran the schedule's order as the case of a profile."""
    times, steps = [], []
    alike = [
        step
        for step, ranks in aligned.ranks.items()
        if tuple(tuple(each.action for each in rank.actions) for rank in ranks) == schedule.ranks
    ]
    cuts = [0, *accumulate(map(len, schedule.ranks))]
    for rank in range(len(schedule.ranks)):
        part = slice(cuts[rank], cuts[rank + 1])
        spans = [aligned.spans[step][part] for step in alike]
        of_rank = [aligned.ranks[step][rank] for step in alike]
        moments = [[[getattr(s, m) for m in (MOMENTS[0], *MOMENTS[2:])] for s in row] for row in spans]
        times.append(np.array(moments, np.int64))
        ends = [row[-1].end for row in spans]
        each = zip(of_rank, ends, strict=True)
        steps.append(np.array([[row.began, end, row.ended - row.optimizer, row.ended] for row, end in each], np.int64))
    return Case(schedule, sizes, rows, NEVER, times, steps, [0] * len(schedule.ranks), 0.0)


def _misfit(aligned: Aligned, forward: Sequence[float]) -> float:
    """Return by how much the forward of a stage differs from its mean in the trace, the most over the stages."""
    taken: list[list[float]] = [[] for _ in forward]
    for spans in aligned.spans.values():
        for span in spans:
            if span.op == "F":
                taken[span.stage].append((span.end - span.start) / 1e6)
    return max(abs(cost / (float(np.median(own)) or 1) - 1) for cost, own in zip(forward, taken, strict=True))


def _at_two(profile: Profile) -> dict[str, object]:
    """Return the columns of a profile for twice the rows too: times twice as long, factors the same."""

    def doubled(times: dict[str, tuple[float, ...]], factor: float = 2.0) -> dict[str, tuple[float, ...]]:
        return {name: (value, factor * value) for name, (value,) in times.items()}

    return {
        "rows": (profile.rows[0], 2 * profile.rows[0]),
        "layers": {kind: doubled(dict(times)) for kind, times in profile.layers.items()},
        "fixed": doubled(dict(profile.fixed)),
        "after": {
            name: {
                what: after._replace(added=(after.added[0], 2 * after.added[0]), factor=after.factor * 2)
                for what, after in own.items()
            }
            for name, own in profile.after.items()
        },
        **{name: getattr(profile, name) * 2 for name in ("checkpointed", "alone", "crowded")},
    }
