"""Finds microp's own files.

::

    installed   site-packages/microp/conf   site-packages/microp/sweeps    (the build puts them there)
    checkout    conf                        sweeps                         (next to microp/)
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
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


def has_analysis() -> bool:
    """Return whether `python -m analysis.timeline`, typed in the current folder, would find that module.

    `python -m` searches the current folder first; the `microp` command, which calls this, searches it last.
    """
    found = PathFinder.find_spec("analysis", [str(Path.cwd()), *sys.path])
    folders = (found and found.submodule_search_locations) or []
    return any((Path(folder) / "timeline.py").is_file() for folder in folders)
