"""Lab 6: a pipeline without a schedule. One microbatch at a time: who works, works alone.

::

    rank 0  F0 .. .. .. .. .. .. B0 │F1
    rank 1  .. F0 .. .. .. .. B0 .. │..
    rank 2  .. .. F0 .. .. B0 .. .. │..        busy: 1 / K of the time
    rank 3  .. .. .. F0 B0 .. .. .. │..
"""

from __future__ import annotations

from microp.labs.pipeline import show


def main() -> dict[str, list[float]]:
    """Run it, draw it, measure it."""
    return show("naive", "More ranks make the model fit, and nothing faster: each is busy a K-th of the time.")


if __name__ == "__main__":
    main()
