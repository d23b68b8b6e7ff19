"""Finds microp's own files, and tells its version.

::

    installed   site-packages/microp/conf   site-packages/microp/sweeps    (the build puts them there)
    checkout    conf                        sweeps                         (next to microp/)
"""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata
from pathlib import Path

import microp

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


def about_sweep(name: str) -> tuple[str, str]:
    """Return the question of a stored sweep, and its points and minutes if its file tells them."""
    [comment] = re.findall(r"\A((?:#.*\n)*)", (SWEEPS / f"{name}.yaml").read_text())
    size = re.search(r"^# (\d+ points, .*?)\.?$", comment, re.M)
    return comment.partition("\n")[0].removeprefix("#").strip(), size[1] if size else ""


def see_current_folder() -> None:
    """Let Python import modules of the current folder, for a user's own builders; `python -m` does so anyway.

    The folder is the last one that is searched, so that a file in it cannot hide an installed module.
    Rank processes inherit the list.
    """
    if not {"", here := str(Path.cwd())} & set(sys.path):
        sys.path.append(here)


def answer_version() -> None:
    """Print the versions of microp, torch and Python and end with exit code 0, if `--version` was typed.

    Otherwise Hydra would answer with its own version.
    """
    if "--version" not in sys.argv[1:]:
        return
    torch, python = metadata.version("torch"), platform.python_version()
    print(f"microp {microp.__version__} (torch {torch}, Python {python})")
    raise SystemExit(0)
