"""Chooses: balanced partitions, what fits into memory, plans. It needs no torch.

::

    Task ─── partition ───► the partition that makes a schedule's step short, by simulation
    Pricer ─┬ search ─────► the plans that no other one beats in both time and memory
            └ advice ─────► what fits into a rank's memory instead
"""

from microp.planner.advice import advice, fill_text, other_sizes
from microp.planner.balance import Task
from microp.planner.choices import KNOBS, ORDERS, POLICIES, Choice, Priced, Pricer, Subject
from microp.planner.prices import EstimatedPrices, NominalPrices, Prices, ProfilePrices
from microp.planner.search import Found, Space, search, what_binds
