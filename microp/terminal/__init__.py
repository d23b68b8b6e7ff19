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
    from microp.terminal.run_rows import Row, read_row, write_csv
    from microp.terminal.run_table import show_runs

_MODULES = {
    "Board": "progress",
    "DryPoint": "dry_run_table",
    "Row": "run_rows",
    "TO_RUN": "dry_run_table",
    "err": "console",
    "error": "console",
    "note": "console",
    "out": "console",
    "read_row": "run_rows",
    "show_dry_points": "dry_run_table",
    "show_runs": "run_table",
    "warn": "console",
    "write_csv": "run_rows",
}
__all__ = [
    "TO_RUN",
    "Board",
    "DryPoint",
    "Row",
    "err",
    "error",
    "note",
    "out",
    "read_row",
    "show_dry_points",
    "show_runs",
    "warn",
    "write_csv",
]


def __getattr__(name: str) -> Any:
    """Return a name of this package, imported from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
