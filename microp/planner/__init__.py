"""Predicts from a profile, and chooses: balanced partitions, what fits into memory, plans. It needs no torch.

::

    Case ──── fit_times ──► Profile ── forecast ──► the step, the bubble and the memory of a run
    Loads ── cut ─────────► the partition whose busiest rank has the least to do
    Task ─── balanced ────► the same, refined for a schedule by simulation
    Ranks                   the memory of ranks, for any partition of the same layers
"""

from microp.planner.balance import Task, balanced
from microp.planner.cuts import Cut, Loads, Room, cut
from microp.planner.fit import Fitted, fit_times, fit_transport, line
from microp.planner.forecast import Forecast, forecast, peak_memory_mib, stage_costs
from microp.planner.held import Part, Ranks
from microp.planner.prices import LayerPrices, NominalPrices, Prices
from microp.planner.profile import DIVIDED, UNDIVIDED, Machine, Profile, Transport, model_problem, read_plain
from microp.planner.samples import Between, Case, Sample, between, samples_of

__all__ = [
    "DIVIDED",
    "UNDIVIDED",
    "Between",
    "Case",
    "Cut",
    "Fitted",
    "Forecast",
    "LayerPrices",
    "Loads",
    "Machine",
    "NominalPrices",
    "Part",
    "Prices",
    "Profile",
    "Ranks",
    "Room",
    "Sample",
    "Task",
    "Transport",
    "balanced",
    "between",
    "cut",
    "fit_times",
    "fit_transport",
    "forecast",
    "line",
    "model_problem",
    "peak_memory_mib",
    "read_plain",
    "samples_of",
    "stage_costs",
]
