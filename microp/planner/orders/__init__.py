"""Searches for an order with F, B and W free, from costs and a memory cap.

::

    Problem ─┬─ search ────────► Found: the best order, lower bounds, the named schedules beside it
             ├─ solve ─────────► the same with OR-Tools' CP-SAT, for small problems, proven or not
             └─ lower_bounds

    problem   the times of `simulate` as a table; an order is one merge of lanes per rank
    rules, improve   two ways to find one

Bounds and solver know every order, by a price that is at most that of `simulate`. So an order whose price is as low as
a bound is the optimum; the solver's own value is never more than such a bound.
"""

from microp.planner.orders.bounds import Bounds, lower_bounds
from microp.planner.orders.problem import Memory, Problem, pairs
from microp.planner.orders.search import Found, named_schedules, search, with_solver
from microp.planner.orders.solver import Solved, solve
