"""Lab 7: GPipe. All forwards, then all backwards: ranks overlap, and idle while the pipeline fills and drains.

::

    rank 0  F0 F1 F2 F3 .. .. .. .. .. .. B0 B1 B2 B3        idle: (K-1) / (M+K-1)
    rank 1  .. F0 F1 F2 F3 .. .. .. .. B0 B1 B2 B3 ..        Huang et al., arXiv 1811.06965

The optimizer steps after all M microbatches, so its gradients are those of the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from microp.labs.pipeline import show
from microp.system import run_command


def main(arguments: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Run GPipe on four ranks, draw and measure a step, and return what `show` returns."""
    return show(
        "gpipe",
        __doc__,
        arguments,
        "More microbatches shrink the bubble: with K = 4 it is 3/7 for M = 4 and 3/35 for M = 32 (chunks=32).\n"
        "But a rank keeps the activations of all M microbatches until their backwards.",
    )


if __name__ == "__main__":
    run_command(main)
