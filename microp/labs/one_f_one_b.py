"""Lab 8: 1F1B. A backward as soon as one is possible: the same bubble, and fewer microbatches in flight.

::

    rank 0  F0 F1 F2 F3 .. .. .. B0 .. B1 .. B2 .. B3        in flight on rank r: K - r at most,
    rank 3  .. .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. .. ..        however large M is

Narayanan et al., arXiv 2104.04473.
"""

from __future__ import annotations

from microp.labs.pipeline import show


def main() -> dict[str, list[float]]:
    """Run it, draw it, measure it."""
    return show("1f1b", "The same idle time as GPipe's; the last rank keeps one microbatch, not M.")


if __name__ == "__main__":
    main()
