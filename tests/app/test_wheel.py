"""The wheel: what is in it, and that a microp installed from it starts in any folder.

::

    checkout ── sdist ── wheel ─► a new environment, which sees this one's packages but not its microp
    checkout ── editable ───────► likewise; commands start in the folder above a checkout called microp
"""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from user import ROOT, SMALL

BUILD = ["wheel", "--no-build-isolation", "--no-deps", "--no-index", "--quiet"]


def pip(*words: object) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pip", *map(str, words)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from the checkout with the tools of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    pip(*BUILD, "--wheel-dir", folder, ROOT)
    [file] = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A function that runs a program of an environment into which the wheel was installed, in a folder of its own."""
    return environment(tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("elsewhere"), wheel)


@pytest.fixture(scope="module")
def above(tmp_path_factory):
    """The same for a checkout called microp, installed as editable, in the folder above it."""
    folder = tmp_path_factory.mktemp("above")
    unneeded = shutil.ignore_patterns(".venv", ".git", ".*_cache", "__pycache__", "outputs")
    shutil.copytree(ROOT, folder / "microp", symlinks=True, ignore=unneeded)
    options = ("--no-build-isolation", "--editable")
    return environment(tmp_path_factory.mktemp("environment"), folder, *options, folder / "microp")


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
        return subprocess.run(
            [python.parent / program, *words],
            cwd=folder,
            env={**kept, "COLUMNS": "160", "HOME": str(folder), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )

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


def test_the_wheel_of_the_sdist_is_the_same(wheel, tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        sdist.extractall(tmp_path, filter="data")
    pip(*BUILD, "--wheel-dir", tmp_path, next(tmp_path.glob("microp-*/")))
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_a_sweep(installed):
    done = installed("microp", "-m", "schedule=gpipe,1f1b", *SMALL, "chunks=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 finished, the same in all: ")
    assert "wandb leet" in done.stdout
    assert "analysis" not in done.stdout, "a hint at what is not installed"


def test_a_price(installed):
    done = installed("python", "-m", "microp.simulate", "schedule=1f1b", "output=json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["in_flight_peak"] == [2, 1]


def test_a_stored_sweep_by_name(installed):
    done = installed("microp", "-cn", "hop_latency_quick", "--cfg", "job")
    assert done.returncode == 0, done.stderr
    assert "name: emulated\n" in done.stdout


def test_the_installed_files_are_those_that_are_used(installed):
    code = "from microp.app import places; print(places.CONF, places.SWEEPS, places.CHECKOUT)"
    conf, sweeps, checkout = installed("python", "-c", code).stdout.split()
    assert conf.endswith("site-packages/microp/conf")
    assert sweeps.endswith("site-packages/microp/sweeps")
    assert checkout == "None"
    assert not conf.startswith(tuple(site.getsitepackages()))


def test_version_and_completion(installed):
    told = installed("microp", "--version")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("microp ")
    install = installed("microp", "-sc", "install=bash")
    assert install.stdout.rstrip().endswith("hydra_bash_completion microp")
    query = installed("microp", "-sc", "query=bash", COMP_LINE="microp schedule=zb_h")
    assert query.stdout.split() == ["schedule=zb_h1", "schedule=zb_h2"]


def test_above_a_checkout_python_finds_the_package_and_nothing_else_of_it(above):
    """`import microp` found the checkout's folder, an empty namespace package."""
    assert above("python", "-c", "import microp; print(microp.__file__)").stdout.endswith("microp/__init__.py\n")
    names = ("analysis", "tests", "conf", "sweeps")
    code = f"from importlib.util import find_spec; print([name for name in {names} if find_spec(name)])"
    assert above("python", "-c", code).stdout == "[]\n"


def test_above_a_checkout_commands_and_its_interface_work(above):
    assert above("python", "-c", "import microp; print(round(microp.price('ranks=4').bubble, 3))").stdout == "0.429\n"
    assert above("microp", "--version").stdout.startswith("microp ")
    done = above("python", "-m", "microp.run", *SMALL, "steps=2")
    assert done.returncode == 0, done.stderr
