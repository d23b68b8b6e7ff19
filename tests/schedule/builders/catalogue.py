"""Every builder with every knob that changes its order, for tests that hold for all of them."""

import re
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from microp.schedule import Op, Schedule
from microp.schedule import builders as schedules
from microp.simulator import Costs, simulate

Builder = Callable[[int, int], Schedule]

LOOPED = {name: getattr(schedules, name) for name in ("interleaved", "breadth_first", "zb_interleaved", "gis")}

UNDIVIDED = (
    "1f1b naive gpipe eager_1f1b interleaved breadth_first 1f1b_v seq_1f1b"  # and chimera, which takes even numbers
)
PLAIN = "naive eager_1f1b zb_h1 zb_h2 zb_v dualpipe_v v_half v_min dualpipe chimera"  # called as their builders
BUILDERS: dict[str, list[Builder]] = {
    **{name: [getattr(schedules, name)] for name in PLAIN.split()},
    "gpipe": [schedules.gpipe, partial(schedules.gpipe, drain=schedules.Drain.lifo)],
    **{"1f1b": [schedules.one_f_one_b], "1f1b_v": [schedules.one_f_one_b_v]},
    **{name: [partial(builder, stages_per_rank=v) for v in (1, 2, 3)] for name, builder in LOOPED.items()},
    "two_bp": [partial(schedules.two_bp, of=of) for of in UNDIVIDED.split()],
}
BUILDERS["seq_1f1b"] = [
    partial(schedules.seq_1f1b, slices=s, stages_per_rank=v) for s, v in ((1, 1), (2, 1), (4, 1), (3, 2), (2, 3))
]
BUILDERS["seq_1f1b"] += [partial(schedules.seq_1f1b, slices=s, eager=True) for s in (1, 2, 4)]
BUILDERS["interleaved"] += [
    partial(schedules.interleaved, stages_per_rank=v, warmup=warmup, extra_warmup=extra)
    for v, warmup, extra in ((2, "single", 0), (3, "single", 1), (2, "double", 2))
]
BUILDERS["interleaved"].append(partial(schedules.interleaved, stages_per_rank=2, extra_warmup=1, overlap=True))
BUILDERS["breadth_first"].append(partial(schedules.breadth_first, drain=schedules.Drain.lifo))
EVERY = [builder for builders in BUILDERS.values() for builder in builders]


def label(value) -> str:
    """The id of a builder with its knobs, or of another parameter, in a test's name."""
    knobs = getattr(value, "keywords", {}).values()
    return "-".join([getattr(getattr(value, "func", value), "__name__", str(value)), *map(str, knobs)])


each_builder = pytest.mark.parametrize("builder", EVERY, ids=label)


def build(builder: Builder, ranks: int, chunks: int) -> Schedule:
    """With more chunks where the builder asks for them."""
    for numbers in ((ranks, chunks), (ranks, 2 * ranks), (ranks + ranks % 2, 2 * (ranks + ranks % 2))):
        try:
            return builder(*numbers)
        except ValueError:
            continue
    raise AssertionError(builder)


def lengths(name: str, most: int = 8) -> Iterator[tuple[int, int]]:
    """(ranks, chunks) on which the builder is defined: K in 1 .. 6 and 8, M in 1 .. 3K+2."""
    both_ends = name in ("dualpipe", "chimera")
    for ranks in (k for k in (1, 2, 3, 4, 5, 6, 8) if k <= most):
        for chunks in range(2 * ranks if name.startswith("dualpipe") else 1, 3 * ranks + 3):
            if not both_ends or ranks % 2 == chunks % 2 == 0:
                yield ranks, chunks


def held_peak(schedule: Schedule) -> list[int]:
    """For each rank the most (stage, microbatch) pairs between their F and their B or W."""
    peaks = []
    for row in schedule.ranks:
        now, peak = 0, 0
        for action in row:
            now += (action.op is Op.F) - (action.op in (Op.B, Op.W))
            peak = max(peak, now)
        peaks.append(peak)
    return peaks


def grid(schedule: Schedule) -> list[list[str]]:
    """The simulated timeline as the docstrings draw it: a cell a slot, every action one slot long.

    A full backward beside divided ones is two slots long, the second a `=`; `.` is a bubble.
    """
    ones = (1,) * schedule.stages
    spans = simulate(schedule, Costs(ones, ones, ones if schedule.input_gradients else ()))
    rows = [["."] * max(span.end for span in spans) for _ in schedule.ranks]
    for span in spans:
        one_stage = schedule.stages == len(schedule.ranks)
        rows[span.rank][span.start] = f"{'' if one_stage else span.stage}{span.op}{span.microbatch}"
        for slot in range(span.start + 1, span.end):
            rows[span.rank][slot] = "="
    return rows


def pictured(doc: str | None) -> list[list[str]]:
    """The cells that a docstring draws, rank by rank; the remark behind a row is left out."""
    rows = []
    for line in re.findall(r"rank \d+ +(.*)", doc or ""):
        words = line.split()
        cells = [re.fullmatch(r"\d*[FBIW]\d+|\.|=", word) is not None for word in words]
        rows.append(words[: cells.index(False) if False in cells else None])
    return rows
