"""Runs that obey the model exactly: what they leave on disk, and their rows, for tests of the figures."""

from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd

from microp.records import LAUNCH, RankRecorder, write_schedule
from microp.schedule import Schedule
from microp.simulator import Costs, simulate
from microp.trace import MOMENTS, bubble_fraction, busy, in_flight_peak, makespan


class Made:
    """A store of given rows."""

    def __init__(self, rows: list[dict[str, Any]] | pd.DataFrame) -> None:
        self.frame = pd.DataFrame(rows)
        self.rows: list[dict[str, Any]] = []
        self.schedules = ()  # all

    def runs(self, name: str | None = None) -> pd.DataFrame:
        return self.frame.copy()

    def missing(self, name: str) -> list[str]:
        return []

    points = missing


def by_stem(exhibits: list) -> dict:
    return {exhibit.stem: exhibit for exhibit in exhibits}


_numbers = count()  # the ids of runs


_simulated = cache(simulate)


def _write(folder: Path, schedule: Schedule, costs: Costs, slower: float) -> Path:
    """Write what a run leaves to a new folder, and return it."""
    place = folder / f"trace-{next(_numbers)}"
    place.mkdir()
    write_schedule(place, schedule)
    spans = _simulated(schedule, costs)
    for rank, busy_ms in busy(spans).items():
        of_rank = [span for span in spans if span.rank == rank]
        actions: dict[str, list[float]] = {}
        for span in of_rank:
            actions.setdefault(f"{span.stage}{span.op}", []).append(float(span.end - span.start))
        recorder = RankRecorder(place, rank)
        rebuilt = sum(float(costs.recomputation(span.action)) for span in of_rank if span.op in "BI")
        means = {key: sum(times) / len(times) for key, times in actions.items()}
        step = {"phase": "measured", "engine": "microp", "action_ms": means, "recompute_ms": rebuilt}
        ends = {"first_start_ns": 0, "last_end_ns": round(float(makespan(spans)) * slower * 1e6)}
        recorder.step({**step, "compute_ms": float(busy_ms), **ends})
        in_ns = [{key: round(float(getattr(span, key)) * 1e6) for key in MOMENTS} for span in of_rank]
        recorder.spans(0, [span._replace(**moments) for span, moments in zip(of_rank, in_ns, strict=True)])
        recorder.close()
    return place


_shared = cache(_write)


def run(
    folder: Path, schedule: Schedule, costs: Costs, slower: float = 1.0, shared: bool = False, **changes: Any
) -> dict[str, Any]:
    """The row of a run whose actions last as long as `costs` say, in ms, and its trace below `folder`.

    Its step is `slower` than that. `shared` runs with the same trace have it in one folder: nothing there may change.
    """
    place = (_shared if shared else _write)(folder, schedule, costs, slower)
    name, spans = str(next(_numbers)), _simulated(schedule, costs)
    total, in_flight = float(makespan(spans)) * slower, in_flight_peak(spans)
    row = {"run_id": name, "question": name, "folder": str(place), "schedule": schedule.name, "steps": 1, LAUNCH: 0}
    row |= {"chunks": schedule.chunks, "ranks": len(schedule.ranks), "replicas": 1, "batch_size": 16}
    row |= {"model": "mlp", "device": "emulated", "partition": [4] * schedule.stages, "checkpointing": "never"}
    row |= {f"step_ms.{key}": total for key in ("median", "p10", "p90")} | {"samples_per_s": 16e3 / total}
    row |= {"bubble.measured": float(bubble_fraction(spans)), "in_flight_peak": list(in_flight.values())}
    row |= {"peak_activation_mib": list(map(float, in_flight.values())), "disturbed": False}
    row |= {"config.model.name": "mlp", "config.model.layers": 4 * schedule.stages, "config.model.dim": 64}
    row |= {"config.model.dtype": "float32", "config.checkpointing.segments": 0, "config.device.per": []}
    row |= {"config.checkpointing.spare_last": False, "config.device.latency_ms": float(costs.latency)}
    row |= {"env.commit": "none", "env.processor": "a machine", "env.cores": 2}
    return {**row, **changes}
