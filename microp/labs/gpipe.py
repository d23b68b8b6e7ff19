"""Lab 7: GPipe. All forwards, then all backwards: ranks overlap, and idle while the pipeline fills and drains.

::

    rank 0  F0 F1 F2 F3 .. .. .. .. .. .. B0 B1 B2 B3     idle:
    rank 1  .. F0 F1 F2 F3 .. .. .. .. B0 B1 B2 B3 ..     (K-1) / (M+K-1)

Huang et al., arXiv 1811.06965. The optimizer steps after all M microbatches, with the whole batch's gradients.
"""

from __future__ import annotations

from functools import partial

from microp.labs.pipeline import show
from microp.system import run_command

LESSON = (
    "More and smaller microbatches shrink the bubble, (K-1) / (M+K-1): it is {0}/{1} for chunks={2}, and {0}/{3} "
    "for chunks={4}.\nBut a rank keeps the activations of all M microbatches, which is the whole batch for any M."
)
main = partial(show, "gpipe", __doc__, LESSON)


if __name__ == "__main__":
    run_command(main)
