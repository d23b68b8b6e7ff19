"""Orders side by side: the best named schedule, the searched one, and the solver's, over the best lower bound.

    python -m analysis.orders --solver 20

Unequal stages with random whole costs, from seed 0 on; every case under a cap. No run is needed. The solver's column
says `proven` only where the order's price is a lower bound of every order's, CP-SAT's or our own; otherwise `gap` is
that to the best of these bounds.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pandas as pd

from analysis import plot
from analysis.command import command_parser, read_report, save
from analysis.exhibit import Exhibit
from microp.orders import Problem, lower_bounds, search, with_solver
from microp.simulator import Costs
from microp.system import run_command

CASES = [  # ranks, chunks, stages per rank, cap in pairs per rank
    (2, 8, 1, 2),
    (4, 8, 1, 3),
    (4, 8, 1, 4),
    (4, 16, 1, 4),
    (8, 16, 1, 8),
    (8, 32, 1, 8),
    (2, 8, 2, 4),
    (3, 6, 2, 5),
    (4, 8, 2, 8),
]
FARTHEST = 30  # percent; what is farther above the bound is drawn there, with its number
KINDS = {"named": "best named schedule", "found": "searched", "solver": "CP-SAT"}


def main(arguments: list[str] | None = None) -> int:
    """Search for orders with and without OR-Tools, and write a table and a figure."""
    parser = command_parser("analysis.orders", main.__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="of each search (default: 5)")
    parser.add_argument(
        "--solver", type=float, default=20, help="seconds of CP-SAT in each case; 0: none (default: 20)"
    )
    parser.add_argument("--cases", type=int, default=len(CASES), help="number of cases, from the first (default: all)")
    options, folder = read_report(parser, arguments)
    try:
        rows = [case(seed, options.seconds, options.solver) for seed in range(min(options.cases, len(CASES)))]
    except ValueError as error:  # no OR-Tools
        parser.error(str(error))
    table = pd.DataFrame(rows)
    print(table.to_string(index=False, float_format="{:.4g}".format))
    save([Exhibit("orders", "Orders over their bounds", "", draw(table), table, table.head(0))], folder)
    return 0


def case(seed: int, seconds: float, solver_seconds: float) -> dict[str, Any]:
    """Return the row of one case."""
    ranks, chunks, loops, cap = CASES[seed]
    random, stages = Random(seed), ranks * loops
    forward, backward, weight = (tuple(random.randint(5, 15) for _ in range(stages)) for _ in range(3))
    costs = Costs(forward, backward, weight, latency=1)
    problem = Problem(tuple(stage % ranks for stage in range(stages)), chunks, costs, cap)
    found = search(problem, seconds)
    name = min(found.named, key=lambda each: found.named[each], default=None)
    bounds = lower_bounds(problem)
    row = {
        **{"K": ranks, "M": chunks, "v": loops, "cap": cap, "bound": bounds.best},
        **{"best named": name or "-", "named": found.named[name] if name else float("nan")},
        **{"found": found.makespan, "by": found.method, "seconds": found.seconds},
    }
    if solver_seconds:
        better, solved = with_solver(problem, found, solver_seconds)
        least = float(max(bounds.best, solved.bound))
        row |= {"solver": better.makespan, "proven": better.proven, "gap": better.makespan / least - 1}
        row |= {"solver s": solved.seconds, "variables": solved.size[0], "constraints": solved.size[1]}
    return row


def draw(table: pd.DataFrame) -> Any:
    """Return a figure: for each case, how far the orders are above the best lower bound of our own."""
    figure, axes = plot.sheet()
    axis = axes[0, 0]
    names = [f"K={row.K} M={row.M} v={row.v} cap={row.cap}" for row in table.itertuples()]
    for marker, (kind, label) in zip("osx", KINDS.items(), strict=True):
        if kind in table:
            above = 100 * (table[kind] / table["bound"] - 1)
            axis.plot(above.clip(upper=FARTHEST), names, marker, label=label, fillstyle="none")
            for name, value in zip(names, above, strict=True):
                if value > FARTHEST:
                    axis.annotate(f"{value:.0f} % ", (FARTHEST, name), ha="right", va="center")
    axis.invert_yaxis()
    plot.titled(axis, x="makespan over the best own lower bound, %", y="")
    plot.legend(figure)
    return figure


if __name__ == "__main__":
    run_command(main)
