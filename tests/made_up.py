"""Runs that obey the model exactly: what they leave on disk, and their rows, for tests of the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from microp.schedule import Schedule, to_text
from microp.simulator import Costs, kind_of, simulate
from microp.store import LAUNCH
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


def run(folder: Path, schedule: Schedule, costs: Costs, slower: float = 1.0, **changes: Any) -> dict[str, Any]:
    """The row of a run whose actions last as long as `costs` say, in ms, and its trace below `folder`.

    Args:
        slower: what its step takes longer than that.
    """
    spans = simulate(schedule, costs)
    total, ranks = float(makespan(spans)) * slower, len(schedule.ranks)
    in_flight = in_flight_peak(spans)
    place = folder / str(len(list(folder.iterdir())))
    place.mkdir()
    (place / "schedule.txt").write_text(to_text(schedule))
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
            "compute_ms": float(busy(spans)[rank]),
            "first_start_ns": 0,
            "last_end_ns": total * 1e6,
        }
        (place / f"steps.rank{rank}.jsonl").write_text(json.dumps(step) + "\n")
        rows = [
            {"rank": rank, "op": s.op, "stage": s.stage, "microbatch": s.microbatch}
            | {f"{key}_ns": round(float(getattr(s, key)) * 1e6) for key in MOMENTS}
            for s in own
        ]
        (place / f"spans.rank{rank}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    row = {
        "run_id": place.name,
        "question": place.name,
        "folder": str(place),
        "schedule": schedule.name,
        "chunks": schedule.chunks,
        "ranks": ranks,
        "replicas": 1,
        "model": "mlp",
        "device": "emulated",
        "batch_size": 16,
        "partition": [4] * schedule.stages,
        "checkpointing": "never",
        "steps": 1,
        "step_ms.median": total,
        "step_ms.p10": total,
        "step_ms.p90": total,
        "samples_per_s": 16e3 / total,
        "bubble.measured": float(bubble_fraction(spans)),
        "peak_activation_mib": [float(in_flight[rank]) for rank in range(ranks)],
        "in_flight_peak": [in_flight[rank] for rank in range(ranks)],
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
