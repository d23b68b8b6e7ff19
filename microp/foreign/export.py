"""Makes a profile of a trace, so that plans, prices and emulated runs know the machine that it is of.

::

    stage 0 ▒▒▒▒▒▒▒▒   stage 1 ▒▒▒▒▒▒▒▒      times of stages  ── fit ──►  first, inside and last layer, hop, overhead
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate, pairwise, product

import numpy as np

from microp import profiling
from microp.foreign.clocks import Aligned
from microp.foreign.reading import Lane
from microp.job import Workload
from microp.settings import NEVER, MlpSettings
from microp.simulator import Costs, LayerMemory

LAYERS = 8  # of a stage, if that is not known
LEAST = 1e-6  # milliseconds: the fit divides by times


def profile_of(
    aligned: Aligned, lanes: Sequence[Lane], costs: Costs, layers: Sequence[int], rows: int
) -> tuple[profiling.Profile, list[str]]:
    """Return the profile, and what had to be assumed.

    Args:
        costs: those of the trace, in milliseconds.
        layers: the number of layers of each stage; empty: LAYERS each.
        rows: the rows of a microbatch.
    """
    schedule, sizes = aligned.schedule, tuple(layers) or (LAYERS,) * aligned.schedule.stages
    model = MlpSettings("mlp", sum(sizes), 64, "float32")
    case = _case(aligned, sizes, rows, 1)
    samples = [
        each._replace(
            before=profiling.USUAL[each.op], ms=max(each.ms, LEAST)
        )  # one order tells little of what was before
        for factor in (1, 2)
        for each in profiling.samples_of(_case(aligned, sizes, rows, factor), model.kinds)
    ]
    if not any(each.op == profiling.FULL for each in samples):  # a backward and its W, one after the other
        pairs = product(*([each for each in samples if each.op == op] for op in (profiling.BACKWARD, profiling.WEIGHT)))
        same = [(back, after) for back, after in pairs if (back.kinds, back.rows) == (after.kinds, after.rows)]
        usual = profiling.USUAL[profiling.FULL]
        samples += [back._replace(op=profiling.FULL, before=usual, ms=back.ms + after.ms) for back, after in same]
    fitted, gaps = profiling.fit_times(samples, [], model.kinds), profiling.between(case)
    memory, device = dict.fromkeys(sorted(set(model.kinds)), LayerMemory(0)), "cuda" if len(lanes[0].kernels) else "cpu"
    profile = profiling.Profile(
        machine=profiling.Machine(device, "the machine of a trace", len(lanes), "", 1),
        model=model.identity,
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        batch_size=rows * schedule.chunks,
        ranks=len(schedule.ranks),
        **vars(fitted),
        crowded=(1.0, 1.0),
        transports={"shm": profiling.fit_transport([gaps])},
        optimizer=profiling.line([(0.0, ms) for _, ms in gaps.optimizer]),
        edges=(gaps.head, gaps.tail),
        memory={profiling.DIVIDED: memory, profiling.UNDIVIDED: memory},
    )
    workload = Workload(schedule, sizes, (rows,) * schedule.chunks, NEVER)
    priced = profiling.stage_costs(profile, model.kinds, workload, "shm")
    off = max(abs(mine / (own or 1) - 1) for mine, own in zip(priced.forward, costs.forward, strict=True))
    notes = [f"each stage has {LAYERS} layers, as --layers is not given"] * (not layers)
    return profile, [
        *notes,
        f"its layers are alike but for the first and the last: the forwards of the stages fit within {100 * off:.0f} %",
        "a layer's time is proportional to the rows of a microbatch, and its memory, which a trace does not tell, is 0",
        "a full backward takes as long as I and W" if schedule.input_gradients else "I and W take half of a B each",
    ]


def _case(aligned: Aligned, sizes: tuple[int, ...], rows: int, factor: int) -> profiling.Case:
    """Return the steps that ran the schedule's order as a case, with `factor` times the rows, and so the times."""
    schedule, times, steps = aligned.schedule, [], []
    cuts = [0, *accumulate(map(len, schedule.ranks))]
    order = [action for row in schedule.ranks for action in row]
    alike = [step for step, spans in aligned.spans.items() if [span.action for span in spans] == order]
    for rank, (first, last) in enumerate(pairwise(cuts)):
        spans = [aligned.spans[step][first:last] for step in alike]
        moments = np.array([[(each.wait_start, each.start, each.end) for each in row] for row in spans], np.int64)
        ends = [(aligned.ranks[step][rank], row[-1].end) for step, row in zip(alike, spans, strict=True)]
        times.append(moments * factor)
        steps.append(np.array([[row.began, end, row.ended - row.optimizer, row.ended] for row, end in ends], np.int64))
    return profiling.Case(schedule, sizes, rows * factor, NEVER, times, steps, [0] * len(schedule.ranks), 0.0)
