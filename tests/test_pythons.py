"""The Python versions and systems that README names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from configs import config, problems
from user import pages

from microp.config import make_job

ROOT = Path(__file__).parents[1]


def test_set_up_installs_the_tested_torch_first_and_the_package_asks_for_no_upper_bound():
    """A bound in the package takes a newer torch away; without a range set-up finds a CUDA build of gigabytes."""
    readme, makefile = pages(), (ROOT / "Makefile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [each for each in project["dependencies"] if each.startswith("torch")] == ["torch>=2.11"]
    [tested] = re.findall(r"^TORCH \?= (.+)$", makefile, re.M)
    assert set(re.findall(r"pip install '(torch[^']*)'", readme)) == {tested}
    for text, torch in ((readme, f"pip install '{tested}'"), (makefile, "'$(TORCH)'")):
        assert text.index(torch) < text.index("'.[dev]'")


def test_the_pythons_that_are_asked_for_are_those_of_the_readme():
    readme, makefile = pages(), (ROOT / "Makefile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == f">={versions[0]},<3.{int(versions[-1][2:]) + 1}"
    assert readme.count(f"Python {versions[0]} to {versions[-1]}") == 1
    assert f"microp needs Python {versions[0]} to {versions[-1]}" in makefile


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
