"""What a user sees in the terminal: messages, progress, tables of runs and of prices, the drawing of a step.

::

    rows of store ── swept: the keys that differ ──┐
                     results: the figures ─────────┴─► columns: fit the width ─► console
"""

from microp.terminal.columns import Column, counted, extremes, paragraph
from microp.terminal.columns import show as show_columns
from microp.terminal.console import err, out
from microp.terminal.progress import Board, bar, clock, read_store
from microp.terminal.run_table import show_runs, show_step, swept_columns
