"""Traces of other programs: read, aligned, recorded as runs, and priced under other orders.

::

    files ── read_lanes ──► Lane ── make_steps ──► Steps ── align ──► Aligned ──┬── record      a run folder
             names.yaml     ranges of a rank       whole steps        one clock ├── what_if     another order's price
                                                                                └── profile_of  a profile
"""

from microp.foreign.clocks import Aligned, align
from microp.foreign.export import profile_of
from microp.foreign.marking import marked
from microp.foreign.names import Names, TraceError
from microp.foreign.reading import Lane, read_lanes
from microp.foreign.recording import record, step_rows
from microp.foreign.steps import UNKNOWN, make_steps
from microp.foreign.whatif import what_if
