"""What a user sees in the terminal: messages, progress, tables of runs and of prices, the drawing of a step.

::

    rows of store ── swept: the keys that differ ──┐
                     results: the figures ─────────┴─► columns: fit the width ─► console

Names are imported when they are used, so that `--help` and TAB load no tables.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from microp.terminal.console import err, error, note, out, warn
    from microp.terminal.dry_run_table import TO_RUN, DryPoint, show_dry_points
    from microp.terminal.progress import Board
    from microp.terminal.run_table import show_runs

_MODULES = {
    "Board": "progress",
    "DryPoint": "dry_run_table",
    "TO_RUN": "dry_run_table",
    "err": "console",
    "error": "console",
    "note": "console",
    "out": "console",
    "show_dry_points": "dry_run_table",
    "show_runs": "run_table",
    "warn": "console",
}
__all__ = ["TO_RUN", "Board", "DryPoint", "err", "error", "note", "out", "show_dry_points", "show_runs", "warn"]


def __getattr__(name: str) -> Any:
    """Return a name of this package, imported from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
