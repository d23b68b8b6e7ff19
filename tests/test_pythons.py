"""The Python versions and systems that README names."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from configs import config, problems

from microp.app import make_job

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("python", ["python3.11", "python3.12", "python3.13"])
def test_every_file_compiles_without_a_warning(python, tmp_path):
    program = shutil.which(python)
    if program is None or subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} is not on this machine")
    code = (
        "import pathlib, sys\n"
        "for path in pathlib.Path(sys.argv[1]).rglob('*.py'): compile(path.read_text(), str(path), 'exec')"
    )
    for folder in ("microp", "analysis"):
        command = [program, "-W", "error", "-c", code, str(ROOT / folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_without_shared_memory_ranks_talk_over_gloo(monkeypatch):
    """As on macOS, whose Python has no memfd_create."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert make_job(config()).backend == "gloo"
    assert problems(config("comms=shm")) == ["comms=shm needs Linux: use comms=gloo"]
