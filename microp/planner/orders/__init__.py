"""Searches for an order with F, B and W free, from costs and a memory cap.

::

    Problem ─┬─ search ────────► Found: the best order, lower bounds, the named schedules beside it
             ├─ solve ─────────► the same with OR-Tools' CP-SAT, for small problems, proven or not
             └─ lower_bounds

    problem   microbatches are alike, so an order is one merge of lanes per rank
    rules, beam, improve   three ways to find one
"""

from microp.planner.orders.bounds import Bounds, lower_bounds
from microp.planner.orders.noise import Noisy, judge
from microp.planner.orders.problem import Memory, Problem, pairs
from microp.planner.orders.search import Found, named_schedules, search, with_solver
from microp.planner.orders.solver import Solved, solve

__all__ = [
    "Bounds",
    "Found",
    "Memory",
    "Noisy",
    "Problem",
    "Solved",
    "judge",
    "lower_bounds",
    "named_schedules",
    "pairs",
    "search",
    "solve",
    "with_solver",
]
