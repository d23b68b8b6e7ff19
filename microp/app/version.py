"""Gives the version of microp and answers `--version`, without imports that take time."""

from __future__ import annotations

import platform
import sys
import tomllib
from importlib import metadata

from microp.app.places import CHECKOUT


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
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "missing"
    print(f"microp {installed_version()} (torch {torch}, Python {platform.python_version()})")
    raise SystemExit(0)
