"""Lab 8: 1F1B. Backwards run as soon as they can: the same bubble, and fewer microbatches in flight.

::

    rank 0  F0 F1 F2 F3 .. .. .. B0 .. B1 .. B2 .. B3   in flight on rank r:
    rank 3  .. .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. .. ..   at most K - r, for any M

Narayanan et al., arXiv 2104.04473.
"""

from __future__ import annotations

from collections.abc import Sequence

from microp.labs.pipeline import show
from microp.system import run_command


def main(arguments: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Run 1F1B on four ranks, draw and measure a step, and return what `show` returns."""
    return show(
        "one_f_one_b",
        __doc__,
        arguments,
        "GPipe is idle as long, but keeps all M microbatches on every rank (python -m microp.labs 7 chunks=8). Here "
        "rank r keeps at most K - r: more microbatches shrink the bubble and the memory.",
    )


if __name__ == "__main__":
    run_command(main)
