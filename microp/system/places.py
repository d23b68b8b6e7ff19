"""Finds microp's own files, and tells its version.

::

    installed   site-packages/microp/conf   site-packages/microp/sweeps    (the build puts them there)
    checkout    conf                        sweeps                         (next to microp/)
"""

from __future__ import annotations

import platform
import sys
import tomllib
from importlib import metadata
from itertools import takewhile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def find(name: str) -> Path:
    """Return the folder of that name: the one inside the package if there is one, else the one next to it."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


CONF = find("conf")
SWEEPS = find("sweeps")
CHECKOUT = None if CONF.parent == PACKAGE else PACKAGE.parent  # None if microp is installed


def sweep_names() -> list[str]:
    """Return the names of the stored sweeps."""
    return sorted(path.stem for path in SWEEPS.glob("*.yaml"))


def about_sweep(name: str) -> list[str]:
    """Return what the file of a stored sweep says of itself: its question first, its points and minutes last."""
    lines = takewhile(lambda line: line.startswith("# "), (SWEEPS / f"{name}.yaml").read_text().splitlines())
    return [line.removeprefix("# ") for line in lines]


def see_current_folder() -> None:
    """Let Python import modules of the current folder, for a user's own builders; `python -m` does so anyway.

    The folder is the last one that is searched, so that a file in it cannot hide an installed module.
    Rank processes inherit the list.
    """
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        sys.exit("error: the current folder has been removed: change to another one")
    if not {"", here} & set(sys.path):
        sys.path.append(here)


def installed_version() -> str:
    """Return microp's version, which is written only in pyproject.toml.

    A checkout's own file is read, because a checkout need not be installed and its metadata may be older.
    """
    if CHECKOUT is None:
        return metadata.version("microp")
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def answer_version() -> None:
    """Print the versions of microp, torch and Python and end with exit code 0, if `--version` was typed.

    Otherwise Hydra would answer with its own version.
    """
    if "--version" not in sys.argv[1:]:
        return
    torch, python = metadata.version("torch"), platform.python_version()
    print(f"microp {installed_version()} (torch {torch}, Python {python})")
    raise SystemExit(0)
