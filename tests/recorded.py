"""What a small real sweep leaves on disk, for tests of the report."""

import json
import shutil
from pathlib import Path

from user import ran

from microp.records import LAUNCH
from microp.results import Store

SMALL = ["model.layers=4", "model.dim=32", "batch_size=8", "steps=3", "warmup_steps=1", "tracking=disabled"]
SWEPT = ["schedule=gpipe,1f1b", "chunks=2,4", "repeat=0,1"]


def write_plan(outputs: Path, folder: str, name: str, points: dict[str, list[str]]) -> None:
    """A sweep's plan.json: run id -> overrides."""
    plan = {"name": name, "command": [], "points": [{"run_id": i, "overrides": o} for i, o in points.items()]}
    (outputs / "sweeps" / folder).mkdir(parents=True)
    (outputs / "sweeps" / folder / "plan.json").write_text(json.dumps(plan))


def small_sweep(folder: Path) -> Path:
    """Run four points in two launches each below `folder`; gives the outputs folder.

    They are planned twice: as m_sensitivity, with one point more that is missing, and their first launches as `config`.
    """
    ran("-m", *SMALL, *SWEPT, folder=folder)
    outputs = folder / "outputs"
    shutil.rmtree(outputs / "sweeps")
    rows = Store(outputs).runs().to_dict("records")
    points = {r["run_id"]: [f"schedule={r['schedule']}", f"chunks={r['chunks']}", f"repeat={r[LAUNCH]}"] for r in rows}
    assert len(points) == 8
    write_plan(outputs, "2026-01-01_m_sensitivity", "m_sensitivity", {**points, "not-there": ["chunks=8", "a=[1,2]"]})
    own = {run_id: overrides for run_id, overrides in points.items() if "repeat=0" in overrides}
    write_plan(outputs, "2026-01-02_config", "config", own)
    return outputs
