"""Predicts from a profile, and chooses: balanced partitions, what fits into memory, plans. It needs no torch.

::

    Case ──── fit_times ──► Profile ── forecast ──► the step, the bubble and the memory of a run
    Loads ── cut ─────────► the partition whose busiest rank has the least to do
    Task ─── partition ───► the same, refined for a schedule by simulation
    Ranks                   the memory of ranks, for any partition of the same layers
    Pricer ─┬ search ─────► the plans that no other one beats in both time and memory
            └ advice ─────► what fits into a rank's memory instead
"""

from microp.planner.advice import advice, fill_text
from microp.planner.balance import NoRoomError, Task
from microp.planner.choices import LOOPED, ORDERS, PARTITIONS, POLICIES, Choice, Priced, Pricer, Subject, shortest
from microp.planner.crowded import crowded_factors
from microp.planner.cuts import Cut, Loads, Room, cut
from microp.planner.fit import Fitted, fit_times, fit_transport, line
from microp.planner.forecast import Forecast, forecast, optimizer_times, peak_memory_mib, stage_costs
from microp.planner.held import Part, Ranks
from microp.planner.matching import model_problem
from microp.planner.prices import LayerPrices, NominalPrices, Prices, ProfilePrices
from microp.planner.profile import DIVIDED, TORCH, UNDIVIDED, After, Machine, Profile, Transport
from microp.planner.profile_file import read_plain
from microp.planner.row_factors import numbers_of_rows, row_factors
from microp.planner.samples import Between, Case, Sample, between, samples_of
from microp.planner.search import Found, Space, front_of, search, what_binds

__all__ = [
    "DIVIDED",
    "LOOPED",
    "ORDERS",
    "PARTITIONS",
    "POLICIES",
    "TORCH",
    "UNDIVIDED",
    "After",
    "Between",
    "Case",
    "Choice",
    "Cut",
    "Fitted",
    "Forecast",
    "Found",
    "LayerPrices",
    "Loads",
    "Machine",
    "NoRoomError",
    "NominalPrices",
    "Part",
    "Priced",
    "Pricer",
    "Prices",
    "Profile",
    "ProfilePrices",
    "Ranks",
    "Room",
    "Sample",
    "Space",
    "Subject",
    "Task",
    "Transport",
    "advice",
    "between",
    "crowded_factors",
    "cut",
    "fill_text",
    "fit_times",
    "fit_transport",
    "forecast",
    "front_of",
    "line",
    "model_problem",
    "numbers_of_rows",
    "optimizer_times",
    "peak_memory_mib",
    "read_plain",
    "row_factors",
    "samples_of",
    "search",
    "shortest",
    "stage_costs",
    "what_binds",
]
