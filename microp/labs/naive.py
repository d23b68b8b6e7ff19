"""Lab 6: the naive pipeline. One microbatch at a time, so only one rank works at any moment.

::

    rank 0  F0 .. .. .. .. .. .. B0 │F1
    rank 1  .. F0 .. .. .. .. B0 .. │..
    rank 2  .. .. F0 .. .. B0 .. .. │..        busy: 1 / K of the time
    rank 3  .. .. .. F0 B0 .. .. .. │..
"""

from __future__ import annotations

from functools import partial

from microp.labs.pipeline import show
from microp.system import run_command

LESSON = "More ranks hold a larger model but are not faster: each rank is busy 1/K of the time."
main = partial(show, "naive", __doc__, LESSON)


if __name__ == "__main__":
    run_command(main)
