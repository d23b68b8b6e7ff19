"""Chooses: balanced partitions, what fits into memory, plans. It needs no torch.

::

    Loads ── cut ──► the partition whose busiest rank has the least to do
"""

from microp.planner.cuts import Cut, Loads, Room, cut

__all__ = ["Cut", "Loads", "Room", "cut"]
