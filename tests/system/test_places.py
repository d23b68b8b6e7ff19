"""Where microp's files are, which version it is, and what `-cn` finds."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest
from user import ROOT, microp, ran

import microp as package
from microp.system import places

STATED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
ANSWER = "from microp import run\ntry: run.main()\nexcept SystemExit as end: import sys; print(end.code, *sys.modules)"


def test_a_checkout_s_files_are_beside_the_package():
    assert (places.CONF, places.SWEEPS, places.CHECKOUT) == (ROOT / "conf", ROOT / "sweeps", ROOT)


def test_the_version_is_stated_once():
    assert package.__version__ == STATED
    with pytest.raises(AttributeError, match="microp"):
        package.no_such_name  # noqa: B018


def test_version_is_told_without_torch(tmp_path):
    done = subprocess.run([sys.executable, "-c", ANSWER, "--version"], cwd=ROOT, capture_output=True, text=True)
    line, end = done.stdout.splitlines()
    assert line.startswith(f"microp {STATED} (torch 2.")
    assert end.startswith("0 ")
    assert "torch" not in end.split()
    priced = microp("--version", folder=tmp_path, program="microp.simulate")
    assert (priced.returncode, priced.stdout) == (0, f"{line}\n")


def test_tab_completes_and_loads_no_torch():
    typed = {**os.environ, "COMP_LINE": "microp partition=bal"}
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from microp import run; run.main()"
    words = [sys.executable, "-c", code, "-sc", "query=bash"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=typed)
    assert "balanced" in done.stdout, done.stderr
    assert "torch" not in done.stdout.splitlines()[-1].split()


def test_a_sweep_of_one_s_own_may_stand_on_a_stored_one(tmp_path):
    (tmp_path / "first.yaml").write_text("defaults: [hop_latency_quick, _self_]\nsteps: 77\n")
    done = ran("-cd", ".", "-cn", "first", "-c", "job", folder=tmp_path)
    assert "steps: 77\n" in done.stdout
    assert "name: emulated\n" in done.stdout
