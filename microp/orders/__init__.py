"""Searches for orders under a memory cap, with lower bounds that tell how good they are. It needs no torch.

::

    Problem ── rules, beam ─► improve ─► an order          bounds, solver ─► no order is shorter than this
"""

from microp.orders.bounds import lower_bounds
from microp.orders.problem import Problem
from microp.orders.search import Found, named_schedules, search, with_solver
from microp.orders.solver import Solved, solve
