"""Lab 7: GPipe. All microbatches forward, then all backward: ranks overlap, the bubble is at both ends.

::

    rank 0  F0 F1 F2 F3 .. .. .. .. .. .. B0 B1 B2 B3        idle: (K-1) / (M+K-1)
    rank 1  .. F0 F1 F2 F3 .. .. .. .. B0 B1 B2 B3 ..        Huang et al., arXiv 1811.06965

The optimizer steps when all M are through: the gradients are the whole batch's.
"""

from __future__ import annotations

from microp.labs.pipeline import show


def main() -> dict[str, list[float]]:
    """Run it, draw it, measure it."""
    return show(
        "gpipe",
        "More microbatches shrink the bubble, K=4: M=4 3/7, M=32 3/35. But all M are kept until their backward.",
    )


if __name__ == "__main__":
    main()
