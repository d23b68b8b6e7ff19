"""The builders: `(ranks, chunks, <own settings>) -> Schedule`, one function per order. No other code writes an order.

Every builder limits its warmup, so that fewer chunks than ranks work too. In the pictures all
actions take the same time, and `.` is a bubble. If a rank holds several stages, each action
names its stage.
"""

from microp.schedule.builders.breadth_first import breadth_first
from microp.schedule.builders.dualpipe_v import dualpipe_v
from microp.schedule.builders.eager_1f1b import eager_1f1b
from microp.schedule.builders.file import from_file
from microp.schedule.builders.gpipe import Drain, gpipe
from microp.schedule.builders.interleaved import interleaved
from microp.schedule.builders.naive import naive
from microp.schedule.builders.one_f_one_b import one_f_one_b
from microp.schedule.builders.v_half import v_half
from microp.schedule.builders.v_min import v_min
from microp.schedule.builders.zb_h1 import zb_h1
from microp.schedule.builders.zb_h2 import zb_h2
from microp.schedule.builders.zb_interleaved import zb_interleaved
from microp.schedule.builders.zb_v import zb_v

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
