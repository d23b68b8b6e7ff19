"""Lab 8: 1F1B. Backwards run as soon as they can: the same bubble, and fewer microbatches in flight.

::

    rank 0  F0 F1 F2 F3 .. .. .. B0 .. B1 .. B2 .. B3   in flight on rank r:
    rank 3  .. .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. .. ..   at most K - r, for any M

Narayanan et al., arXiv 2104.04473.
"""

from __future__ import annotations

from functools import partial

from microp.labs.pipeline import show
from microp.system import run_command

LESSON = (
    "GPipe is idle as long, but keeps all M microbatches on every rank (python -m microp.labs 7 chunks={5} ranks={6}). "
    "Here rank r keeps at most K - r, or all M if they are fewer: more microbatches shrink the bubble and the memory."
)
main = partial(show, "one_f_one_b", __doc__, LESSON)


if __name__ == "__main__":
    run_command(main)
