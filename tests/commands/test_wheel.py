"""The wheel: what is in it, and that a microp installed from it starts in any folder.

::

    checkout ── sdist ── wheel ─► a new environment, which sees this one's packages but not its microp
    checkout ── editable ───────► likewise, in the folder above a checkout called microp
"""

import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from user import ROOT, SMALL

BUILD = ["wheel", "--no-build-isolation", "--no-deps", "--no-index", "--quiet"]


def pip(*words: object) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from the checkout with the tools of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    pip(*BUILD, "--wheel-dir", folder, ROOT)
    [file] = folder.glob("*.whl")
    return file


def environment(place: Path, folder: Path, *words: object):
    """Return a function that runs a program, in `folder`, of a new environment into which pip installed these words."""
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    [packages] = place.glob("lib/python*/site-packages")
    # A .pth file that lies in a folder named here is not read, so that this environment's own microp stays unknown.
    (packages / "borrowed.pth").write_text("\n".join(site.getsitepackages()))
    pip("--python", python, "install", "--no-deps", "--no-index", "--quiet", *words)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB", "PYTHON"))}

    def run(program: str, *words: str, **environment: str):
        own = {**kept, "COLUMNS": "160", "HOME": str(folder), **environment}
        command = [python.parent / program, *words]
        return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=300)

    return run


def test_it_holds_microp_alone_with_its_files_and_is_pure_python(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names} == {"microp", f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"}
    for folder in ("conf", "sweeps"):
        stored = {f"microp/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert stored == {name for name in names if name.startswith(f"microp/{folder}/")}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "microp").rglob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}


def test_installed_it_runs_a_stored_sweep_by_its_name_with_its_own_files(wheel, tmp_path):
    run = environment(tmp_path / "environment", tmp_path, wheel)
    words = ["chunks=2", "comms=threads", "tracking=disabled"]
    done = run("microp", "-cn", "first", *SMALL, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 finished, the same in all: ")
    assert "python -m analysis" not in done.stdout, "a hint at what is not installed"
    query = run("microp", "-sc", "query=bash", COMP_LINE="microp schedule=zb_h")
    assert query.stdout.split() == ["schedule=zb_h1", "schedule=zb_h2"]
    code = "from microp.system import places; print(places.CONF, places.SWEEPS, places.CHECKOUT)"
    conf, sweeps, checkout = run("python", "-c", code).stdout.split()
    assert conf.endswith("site-packages/microp/conf")
    assert sweeps.endswith("site-packages/microp/sweeps")
    assert checkout == "None"
    assert not conf.startswith(tuple(site.getsitepackages()))


def test_above_a_checkout_python_finds_the_package_and_nothing_else_of_it(tmp_path):
    """`import microp` found the checkout's folder, an empty namespace package."""
    unneeded = shutil.ignore_patterns(".venv", ".git", ".*_cache", "__pycache__", "outputs")
    shutil.copytree(ROOT, tmp_path / "microp", symlinks=True, ignore=unneeded)
    options = ("--no-build-isolation", "--editable", tmp_path / "microp")
    run = environment(tmp_path / "environment", tmp_path, *options)
    names = ("analysis", "tests", "conf", "sweeps")
    code = f"""
from importlib.util import find_spec
import microp
print([name for name in {names} if find_spec(name)], round(microp.price('ranks=32', 'chunks=4').bubble, 3))
"""
    assert run("python", "-c", code).stdout == "[] 0.886\n"
    assert run("microp", "--version").stdout.startswith("microp ")
