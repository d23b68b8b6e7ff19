"""Lab 6: the naive pipeline. One microbatch at a time, so only one rank works at any moment.

::

    rank 0  F0 .. .. .. .. .. .. B0 │F1
    rank 1  .. F0 .. .. .. .. B0 .. │..
    rank 2  .. .. F0 .. .. B0 .. .. │..        busy: 1 / K of the time
    rank 3  .. .. .. F0 B0 .. .. .. │..
"""

from __future__ import annotations

from collections.abc import Sequence

from microp.labs.pipeline import show
from microp.system import run_command


def main(arguments: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Run the naive schedule on four ranks, draw and measure a step, and return what `show` returns."""
    return show(
        "naive",
        __doc__,
        arguments,
        "More ranks hold a larger model but are not faster: each rank is busy 1/K of the time.",
    )


if __name__ == "__main__":
    run_command(main)
