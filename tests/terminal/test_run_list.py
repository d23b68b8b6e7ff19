"""The list of recorded runs: which columns stay where there is little room."""

from __future__ import annotations

import pytest
from rich.console import Console

from microp.terminal import columns, run_list

FIGURES = {"step_ms.median": 61.2, "step_ms.p10": 60.0, "step_ms.p90": 333.0, "bubble.measured": 0.211}


def run(schedule: str, chunks: int, minute: int) -> dict:
    asked = {"config.schedule.name": schedule, "config.chunks": chunks, "config.ranks": 2, "config.model.dim": 64}
    state = {"status": "failed" if minute else "finished", "disturbed": "spread 450 %, load 19.1" if minute else None}
    named = {
        "run_id": f"{schedule}-m{chunks}-k2-0123456{minute}",
        "attempt": "attempt-1",
        "started": 1.8e9 + 60 * minute,
    }
    return {**asked, **state, **named, **FIGURES, "peak_memory_mib": [0.0161, 0.212]}


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_disturbed_run_is_marked_at_every_width(monkeypatch, width):
    monkeypatch.setattr(run_list, "out", Console(width=width))
    rows = [run(schedule, chunks, minute) for minute, (schedule, chunks) in enumerate((("gpipe", 4), ("1f1b", 8)))]
    chosen, _ = run_list._default(rows)
    left_out = columns.fit(chosen, width).left_out
    assert not {"run", "status", "step ms", "disturbed"} & set(left_out)
    assert ("bubble" in left_out) <= ("p10 - p90" in left_out) <= (width < 120)
    [peaks] = [column for column in chosen if column.name == "peak MiB"]
    assert list(peaks.values) == ["0.21", "0.21"]
