"""Runs that obey the model exactly: what they leave on disk, and their rows, for tests of the figures."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd

from microp.records import LAUNCH
from microp.schedule import Schedule, to_text
from microp.simulator import Costs, kind_of, simulate
from microp.trace import MOMENTS, bubble_fraction, busy, in_flight_peak, makespan


class Made:
    """A store of given rows."""

    def __init__(self, rows: list[dict[str, Any]] | pd.DataFrame) -> None:
        self.rows = pd.DataFrame(rows)

    def runs(self, name: str | None = None) -> pd.DataFrame:
        return self.rows.copy()

    def missing(self, name: str) -> list[str]:
        return []


def by_stem(exhibits: list) -> dict:
    return {exhibit.stem: exhibit for exhibit in exhibits}


def saves(exhibits: list, folder: Path) -> None:
    """Every figure can be drawn, and says how many runs it is of."""
    for exhibit in exhibits:
        assert all(file.stat().st_size for file in exhibit.save(folder))
        assert "From " in exhibit.full_caption()


_numbers = count()  # the ids of runs


@cache
def _left(schedule: Schedule, costs: Costs, slower: float) -> tuple[dict[str, str], dict[str, Any]]:
    """The files that such a run leaves, by their names, and what its row says of its times."""
    spans = simulate(schedule, costs)
    total, ranks = float(makespan(spans)) * slower, len(schedule.ranks)
    in_flight, computed = in_flight_peak(spans), busy(spans)
    files = {"schedule.txt": to_text(schedule)}
    for rank in range(ranks):
        own = [span for span in spans if span.rank == rank]
        actions: dict[str, list[float]] = {}
        for span in own:
            actions.setdefault(f"{span.stage}{kind_of(schedule, span.action)}", []).append(float(span.end - span.start))
        again = sum(float(costs.recomputation(s.action)) for s in own if s.op == "B")
        step = {
            "phase": "measured",
            "engine": "microp",
            "action_ms": {key: sum(times) / len(times) for key, times in actions.items()},
            "recompute_ms": again,
            "compute_ms": float(computed[rank]),
            "first_start_ns": 0,
            "last_end_ns": total * 1e6,
        }
        files[f"steps.rank{rank}.jsonl"] = json.dumps(step) + "\n"
        rows = [
            {"rank": rank, "op": s.op, "stage": s.stage, "microbatch": s.microbatch}
            | {f"{key}_ns": round(float(getattr(s, key)) * 1e6) for key in MOMENTS}
            for s in own
        ]
        files[f"spans.rank{rank}.jsonl"] = "\n".join(map(json.dumps, rows)) + "\n"
    times = {
        "step_ms.median": total,
        "step_ms.p10": total,
        "step_ms.p90": total,
        "samples_per_s": 16e3 / total,
        "bubble.measured": float(bubble_fraction(spans)),
        "peak_activation_mib": [float(in_flight[rank]) for rank in range(ranks)],
        "in_flight_peak": [in_flight[rank] for rank in range(ranks)],
    }
    return files, times


def _write(folder: Path, schedule: Schedule, costs: Costs, slower: float) -> Path:
    """Write the files of a run to a new folder, and return it."""
    place = folder / f"trace-{next(_numbers)}"
    place.mkdir()
    for name, text in _left(schedule, costs, slower)[0].items():
        (place / name).write_text(text)
    return place


_shared = cache(_write)


def run(
    folder: Path, schedule: Schedule, costs: Costs, slower: float = 1.0, shared: bool = False, **changes: Any
) -> dict[str, Any]:
    """The row of a run whose actions last as long as `costs` say, in ms, and its trace below `folder`.

    Args:
        slower: what its step takes longer than that.
        shared: whether runs with the same trace have it in one folder, in which nothing may then be changed.
    """
    place = (_shared if shared else _write)(folder, schedule, costs, slower)
    name = str(next(_numbers))
    row = {
        "run_id": name,
        "question": name,
        "folder": str(place),
        "schedule": schedule.name,
        "chunks": schedule.chunks,
        "ranks": len(schedule.ranks),
        "replicas": 1,
        "model": "mlp",
        "device": "emulated",
        "batch_size": 16,
        "partition": [4] * schedule.stages,
        "checkpointing": "never",
        "steps": 1,
        **deepcopy(_left(schedule, costs, slower)[1]),
        "disturbed": False,
        LAUNCH: 0,
        "config.model.name": "mlp",
        "config.model.layers": 4 * schedule.stages,
        "config.model.dim": 64,
        "config.model.dtype": "float32",
        "config.checkpointing.segments": 0,
        "config.checkpointing.spare_last": False,
        "config.device.per": [],
        "config.device.latency_ms": float(costs.latency),
        "env.commit": "none",
        "env.processor": "a machine",
        "env.cores": 2,
    }
    return {**row, **changes}
