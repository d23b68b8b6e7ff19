"""Where microp's files are, which version it is, and what `-cn` finds."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.errors import MissingConfigException
from user import ROOT, microp

import microp as package
from microp.app import places, stored_sweeps

STATED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
ANSWER = "from microp import run\ntry: run.main()\nexcept SystemExit as end: import sys; print(end.code, *sys.modules)"


def test_a_checkout_s_files_are_beside_the_package():
    assert (places.CONF, places.SWEEPS, places.CHECKOUT) == (ROOT / "conf", ROOT / "sweeps", ROOT)


def test_analysis_is_found_where_one_stands_in_the_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", ["/usr/lib/nothing"])
    monkeypatch.chdir(ROOT)
    assert places.has_analysis()
    (tmp_path / "analysis").mkdir()  # somebody else's
    for folder in (tmp_path, tmp_path / "analysis"):
        monkeypatch.chdir(folder)
        assert not places.has_analysis()
    monkeypatch.setattr(sys, "path", [str(ROOT)])
    monkeypatch.chdir("/")
    assert places.has_analysis()


def test_the_version_is_stated_once():
    assert package.__version__ == STATED
    not_installed = [sys.executable, "-S", "-c", "import microp; print(microp.__version__)"]
    done = subprocess.run(not_installed, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == STATED, done.stderr
    with pytest.raises(AttributeError, match="microp"):
        package.no_such_name  # noqa: B018


def test_version_is_told_without_loading_anything(tmp_path):
    done = subprocess.run([sys.executable, "-c", ANSWER, "--version"], cwd=ROOT, capture_output=True, text=True)
    line, end = done.stdout.splitlines()
    assert line.startswith(f"microp {STATED} (torch 2.")
    assert end.startswith("0 ")
    assert not {"torch", "hydra", "numpy"} & set(end.split())
    priced = microp("--version", folder=tmp_path, program="microp.simulate")
    assert (priced.returncode, priced.stdout) == (0, f"{line}\n")


@pytest.mark.parametrize("words", [["--help"], ["-sc", "query=bash"]])
def test_help_and_tab_load_neither_torch_nor_numpy(words):
    typed = {**os.environ, "COMP_LINE": "microp partition=bal"}
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from microp import run; run.main()"
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, env=typed)
    assert "balanced" in done.stdout, done.stderr
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "microp.schedule" in loaded
    assert not {"torch", "numpy", "pandas", "microp.planner", "microp.simulator", "microp.store"} & loaded


def sources(monkeypatch, *words: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["microp", *words])
    path = ConfigSearchPathImpl()
    path.append("main", "conf")
    stored_sweeps.StoredSweeps().manipulate_search_path(path)
    return [element.path for element in path.get_path()]


def test_the_stored_sweeps_are_looked_at_last_and_only_for_a_name(monkeypatch):
    assert sources(monkeypatch, "-m", "chunks=1,2") == ["conf"]
    assert sources(monkeypatch, "-cn", "first") == ["conf", f"file://{ROOT / 'sweeps'}"]
    own = f"file://{Path.cwd() / 'own'}"
    assert sources(monkeypatch, "-cd", "own", "-cn", "first") == ["conf", own, f"file://{ROOT / 'sweeps'}"]


def test_a_sweep_of_one_s_own_may_stand_on_a_stored_one(tmp_path):
    (tmp_path / "first.yaml").write_text("defaults: [hop_latency_quick, _self_]\nsteps: 77\n")
    done = microp("-cd", ".", "-cn", "first", "-c", "job", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "steps: 77\n" in done.stdout
    assert "name: emulated\n" in done.stdout


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ("m_sensitivty", "stored sweeps with a similar name: m_sensitivity, m_sensitivity_quick"),
        ("zzz", "the stored sweeps: checkpoint_overhead, engine_speed, first, gradient_sync"),
        ("first", "'first' is a stored sweep of runs: microp -cn first"),
    ],
)
def test_a_name_that_is_not_found_is_followed_by_those_that_come_near(asked, line):
    missing = MissingConfigException(f"Cannot find primary config '{asked}'.", asked)
    assert (stored_sweeps.nearest(missing) or "").startswith(line)
    assert stored_sweeps.nearest(MissingConfigException("Could not find 'schedule/1f1c'", "schedule/1f1c")) is None
    assert stored_sweeps.nearest(None) is None


def test_a_wrong_name_is_bad_input(tmp_path):
    done = microp("-cn", "frist", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: -cn frist is not found; stored sweeps with a similar name: first\n"


def test_the_current_folder_is_searched_last(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/usr/lib/nothing"])
    for _ in range(2):
        places.see_current_folder()
        assert sys.path == ["/usr/lib/nothing", str(tmp_path)]
    monkeypatch.setattr(sys, "path", [""])
    places.see_current_folder()
    assert sys.path == [""]


@pytest.mark.parametrize("asked", ["m_sensitivity.parts", "m_sensitivity.parts.yaml"])
def test_the_parts_of_a_sweep_are_no_sweep(asked, tmp_path):
    assert not any("parts" in name for name in places.sweep_names())
    done = microp("-cn", asked, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"error: -cn {asked} is no sweep, but the parts of one: use -cn m_sensitivity\n"
    assert not (tmp_path / "outputs").exists()


def test_help_names_the_stored_sweeps(tmp_path):
    done = microp("--help", folder=tmp_path)
    lines = done.stdout.splitlines()
    assert all(
        any(line.split()[:1] == [name] for line in lines) for name in places.sweep_names() if "_quick" not in name
    )
    assert "  microp -m schedule=gpipe,1f1b chunks=4,8,16 " in done.stdout
