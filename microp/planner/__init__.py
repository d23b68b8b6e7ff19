"""Chooses: balanced partitions, what fits into memory, plans. It needs no torch.

::

    Loads ── cut ─────────► the partition whose longest stage is shortest
    Task ─── partition ───► the same, refined for a schedule by simulation
    Pricer ─┬ search ─────► the plans that no other one beats in both time and memory
            └ advice ─────► what fits into a rank's memory instead
"""

from microp.planner.advice import advice, fill_text
from microp.planner.balance import NoRoomError, Task, cut
from microp.planner.choices import KNOBS, ORDERS, POLICIES, Choice, Priced, Pricer, Subject
from microp.planner.prices import EstimatedPrices, LayerPrices, Loads, NominalPrices, Prices, ProfilePrices
from microp.planner.search import Found, Space, search, what_binds
