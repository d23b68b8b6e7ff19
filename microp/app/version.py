"""The version of microp, and the answer to `--version`. Nothing heavy is imported here: it is looked up, not loaded."""

from __future__ import annotations

import platform
import sys
import tomllib
from importlib import metadata

from microp.app.places import CHECKOUT


def version() -> str:
    """Return microp's version, which is stated in pyproject.toml and nowhere else.

    A checkout is asked itself: it need not be installed, and what was noted when it was may be old.
    """
    if CHECKOUT is None:
        return metadata.version("microp")
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def answer() -> None:
    """Print the versions of microp, torch and Python and end with exit code 0, if `--version` was typed.

    Without this Hydra would answer, with its own version.
    """
    if "--version" not in sys.argv[1:]:
        return
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "missing"
    print(f"microp {version()} (torch {torch}, Python {platform.python_version()})")
    raise SystemExit(0)
