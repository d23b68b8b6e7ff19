"""Runs whole grids of which the test suite runs a part: there, models, modes or schedules take turns."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

from user import ROOT

from tests.soak.machine import Machine, Result

FILES = (
    "analysis/test_partial_sweeps",
    "analysis/test_readable",
    "app/test_interface",
    "app/test_pricing",
    "app/test_sweeps",
    "engine/test_bf16",
    "engine/test_compiled",
    "engine/test_equality",
    "engine/test_own_model",
    "planner/test_orders_proofs",
    "replicas/test_replicas",
    "schedule/test_validation",
    "simulator/test_calibration",
    "app/test_slurm_cluster",
    "trace/test_figure_boxes",
    "worker/test_faults",
    "worker/test_launch",
    "worker/test_snapshot",
)


def run(machine: Machine, _times: int) -> Iterator[Result]:
    """Run these files of the suite once with all combinations."""
    for name in FILES:
        result = Result(name, "all cases", "", notes="the time of the tests")
        began, folder = time.monotonic(), machine.folder / "grids"
        command = [sys.executable, "-m", "pytest", "--whole", f"--basetemp={folder}", f"tests/{name}.py"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        problems = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if done.returncode and not problems:
            problems.append(f"exit code {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
        result.add(problems, time.monotonic() - began)
        yield result
