"""The builders: `(ranks, chunks, <own settings>) -> Schedule`, one function per order. No other code writes an order.

Every builder limits its warmup, so that fewer chunks than ranks work too. In the pictures all
actions take the same time, and `.` is a bubble. If a rank holds several stages, each action
names its stage.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from inspect import signature
from typing import Any

from microp.schedule.builders.bidirectional import chimera, dualpipe
from microp.schedule.builders.building_block import one_f_one_b_v, v_half, v_min
from microp.schedule.builders.file import from_file
from microp.schedule.builders.gpipe import Drain, breadth_first, gpipe, naive
from microp.schedule.builders.interleaved import Warmup, gis, interleaved, zb_interleaved
from microp.schedule.builders.one_f_one_b import eager_1f1b, one_f_one_b, seq_1f1b, zb_h1, zb_h2
from microp.schedule.builders.two_bp import builder_of, two_bp
from microp.schedule.builders.v_shaped import dualpipe_v, zb_v
from microp.schedule.schedule import Schedule

ORDERS: Mapping[str, Callable[..., Schedule]] = {  # an option of group schedule -> its builder
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "eager_1f1b": eager_1f1b,
    "interleaved": interleaved,
    "breadth_first": breadth_first,
    "zb_h1": zb_h1,
    "zb_h2": zb_h2,
    "zb_interleaved": zb_interleaved,
    "zb_v": zb_v,
    "v_half": v_half,
    "v_min": v_min,
    "dualpipe_v": dualpipe_v,
    "1f1b_v": one_f_one_b_v,
    "gis": gis,
    "two_bp": two_bp,
    "seq_1f1b": seq_1f1b,
    "dualpipe": dualpipe,
    "chimera": chimera,
}
LOOPED = ("interleaved", "breadth_first", "zb_interleaved", "gis")  # with a number of stages per rank to choose
V_SHAPED = ("zb_v", "v_half", "v_min", "dualpipe_v", "1f1b_v")  # with two stages per rank


def orders(ranks: int, chunks: int, stages_per_rank: int, **knobs: Any) -> Iterator[Schedule]:
    """Yield the order of each builder that takes these knobs; `stages_per_rank` is for those that let one choose it."""
    for name, build in ORDERS.items():
        looped = {"stages_per_rank": stages_per_rank} if name in LOOPED else {}
        # with one stage per rank these are the same as others
        if knobs.keys() <= signature(build).parameters.keys() and looped.get("stages_per_rank") != 1:
            with suppress(ValueError):  # it is not for these ranks and chunks
                yield build(ranks, chunks, **looped, **knobs)
