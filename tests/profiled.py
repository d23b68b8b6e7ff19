"""Made-up measurements of a profile: cases whose times follow exactly from known times of layers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from microp.config import compose_config, machine_of, read_config
from microp.profiling import DIVIDED, UNDIVIDED, Case, Machine, Profile, Transport
from microp.profiling.profile import After
from microp.records import write_profile
from microp.schedule import Schedule
from microp.settings import NEVER, MlpSettings
from microp.simulator import LayerMemory, Size, costs_of, simulate
from microp.trace import Spans

BEGIN, OPTIMIZER, STEPS = 1_000_000, 250_000, 3  # nanoseconds; steps that are equal


def case(layers, sizes: Sequence[int], schedule: Schedule, rows: float, checkpointing=NEVER, **costs: Any) -> Case:
    """A case that was simulated: the times of layers in milliseconds, as `costs_of` takes them."""
    spans = simulate(schedule, costs_of(layers, sizes, schedule, checkpointing, **costs))
    return traced(spans, sizes, schedule, rows, checkpointing)


def traced(spans: Spans, sizes: Sequence[int], schedule: Schedule, rows: float, checkpointing=NEVER) -> Case:
    """A case that was measured as these spans, in milliseconds."""
    times, steps = [], []
    for rank in range(len(schedule.ranks)):
        own = spans.rank == rank
        moments = np.stack([spans.wait_start[own], spans.start[own], spans.end[own]], axis=1).astype(float)
        whole = np.round(moments * 1e6).astype(np.int64) + BEGIN
        end = int(whole[-1, 2])
        times.append(np.stack([whole] * STEPS))
        steps.append(np.array([[BEGIN, end, end, end + OPTIMIZER]] * STEPS))
    return Case(schedule, tuple(sizes), rows, checkpointing, times, steps, [2**20] * len(times), rows * 1024)


MACHINE = Machine("cpu", "a processor", 2, "2.13.0", 1)


def profile(model: MlpSettings, machine: Machine = MACHINE, **changed: Any) -> Profile:
    """A profile: each layer takes 1 ms and 0.1 ms per row for F, twice that for a full backward."""
    rows = (8.0, 64.0)
    once = tuple(1 + 0.1 * each for each in rows)
    times = dict.fromkeys(("forward", "backward", "weight", "recompute"), once)
    times["full"] = tuple(2 * each for each in once)
    memory = {kind: LayerMemory(2**20, Size(0, 1024), Size(0, 512)) for kind in set(model.kinds)}
    given = {
        **{"machine": machine, "model": vars(model), "date": "2026-11-22T12:00:00+00:00"},
        **{"batch_size": 64, "ranks": 2},
    }
    given |= {"rows": rows, "layers": dict.fromkeys(sorted(set(model.kinds)), times)}
    given |= {"fixed": dict.fromkeys(times, (0.0, 0.0)), "checkpointed": (0.8, 0.9), "alone": (0.9, 1.0)}
    given |= {"after": {"forward": dict.fromkeys(("backward", "optimizer"), After((0.5, 0.5), (1.1, 1.1)))}}
    given |= {"transports": {"shm": Transport(0.02, 0.1, 0.01, 0.0), "gloo": Transport(0.1, 0.5, 0.05, 0.0)}}
    given |= {"optimizer": (0.2, 0.1), "edges": (0.05, 0.05), "peak_gflops": 50.0}
    given |= {"memory": dict.fromkeys((DIVIDED, UNDIVIDED), memory), "spread": {"forward": 0.02}}
    return Profile(**{**given, **changed})


def written(folder, *typed: str, **changed) -> Profile:
    """A made-up profile of the model that was typed, on this machine."""
    config = read_config(compose_config(*typed))
    made = profile(config.model, machine_of("cpu", config.device.threads), **changed)
    write_profile(folder / "profiles", made)
    return made
