"""The builders: `(ranks, chunks, <own knobs>) -> Schedule`, one function an order, and nothing else spells one.

Every builder clamps its warmup, so that fewer chunks than ranks work too. Pictures are drawn
with every action as long as every other; `.` is a bubble. Where a rank holds several stages,
each action names its own.
"""

from microp.schedules.breadth_first import breadth_first
from microp.schedules.dualpipe_v import dualpipe_v
from microp.schedules.eager_1f1b import eager_1f1b
from microp.schedules.file import from_file
from microp.schedules.gpipe import Drain, gpipe
from microp.schedules.interleaved import interleaved
from microp.schedules.naive import naive
from microp.schedules.one_f_one_b import one_f_one_b
from microp.schedules.v_half import v_half
from microp.schedules.v_min import v_min
from microp.schedules.zb_h1 import zb_h1
from microp.schedules.zb_h2 import zb_h2
from microp.schedules.zb_interleaved import zb_interleaved
from microp.schedules.zb_v import zb_v

__all__ = [
    "Drain",
    "breadth_first",
    "dualpipe_v",
    "eager_1f1b",
    "from_file",
    "gpipe",
    "interleaved",
    "naive",
    "one_f_one_b",
    "v_half",
    "v_min",
    "zb_h1",
    "zb_h2",
    "zb_interleaved",
    "zb_v",
]
