"""Chooses: balanced partitions, what fits into memory, plans. It needs no torch.

::

    Loads ── cut ─────────► the partition whose busiest rank has the least to do
    Task ─── balanced ────► the same, refined for a schedule by simulation
    Ranks                   the memory of ranks, for any partition of the same layers
"""

from microp.planner.balance import Task, balanced
from microp.planner.cuts import Cut, Loads, Room, cut
from microp.planner.held import Part, Ranks
from microp.planner.prices import LayerPrices, NominalPrices, Prices

__all__ = ["Cut", "LayerPrices", "Loads", "NominalPrices", "Part", "Prices", "Ranks", "Room", "Task", "balanced", "cut"]
