"""Traces of other programs: read, aligned, recorded as runs, and priced under other orders.

::

    files ── read_lanes ──► Lane ── make_steps ──► Traced ── align ──► Traced ──┬── record      a run folder
             names.yaml     ranges of a rank       whole steps      one clock   ├── what_if     another order's price
                                                                                └── profile_of  a profile
"""

from microp.foreign.pricing import Answer, profile_of, what_if
from microp.foreign.reading import TraceError, read_lanes, read_names
from microp.foreign.recording import record, step_rows
from microp.foreign.steps import FOREIGN, Traced, align, make_steps
