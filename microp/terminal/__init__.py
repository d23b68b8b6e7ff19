"""What a user sees in the terminal: messages, progress, tables of runs and of prices, the drawing of a step.

::

    rows of store ── swept: the keys that differ ──┐
                     results: the figures ─────────┴─► columns: fit the width ─► console
"""

from microp.terminal.console import err, error, note, out, warn
from microp.terminal.dry_run_table import TO_RUN, DryPoint, show_dry_points
from microp.terminal.progress import Board
from microp.terminal.run_table import show_runs
