"""The builders: `(ranks, chunks) -> Schedule`, one function an order, and nothing else spells one.

Every builder clamps its warmup, so that fewer chunks than ranks work too. Pictures are
drawn with a forward as long as a backward; `.` is a bubble.
"""

from microp.schedules.gpipe import Drain, gpipe
from microp.schedules.naive import naive
from microp.schedules.one_f_one_b import one_f_one_b

__all__ = ["Drain", "gpipe", "naive", "one_f_one_b"]
