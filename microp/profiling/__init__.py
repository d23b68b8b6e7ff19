"""Measured times of layers: what a profile runs, the fit, its file, what it predicts. It needs no torch.

::

    Case ── samples_of ─► fit_times ──► Profile ── forecast ──► step, bubble and memory of a run
"""

from microp.profiling.fit import fit_times, fit_transport, line
from microp.profiling.forecast import (
    Forecast,
    forecast,
    last_ends,
    last_optimizer,
    optimizer_times,
    peak_memory_mib,
    stage_costs,
)
from microp.profiling.profile import (
    DIVIDED,
    TIMES,
    TORCH,
    UNDIVIDED,
    Machine,
    Profile,
    Transport,
    model_problem,
    read_plain,
    to_plain,
)
from microp.profiling.samples import FEWEST, USUAL, Case, Sample, between, samples_of
