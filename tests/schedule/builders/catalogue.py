"""Every builder with every knob that changes its order, for tests that hold for all of them."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, product

import pytest

from microp.schedule import Op, Schedule
from microp.schedule import builders as schedules
from microp.simulator import Costs, simulate

Builder = Callable[[int, int], Schedule]

LOOPED = {name: getattr(schedules, name) for name in ("interleaved", "breadth_first", "zb_interleaved", "gis")}


def grouped(ranks: int, chunks: int, stages_per_rank: int, more: int) -> Schedule:
    """GIS with the largest group, K, for `more` = 2, or one in the middle."""
    least = -(-ranks // 2)
    return schedules.gis(ranks, chunks, stages_per_rank, least + (ranks - least) * more // 2)


# and chimera, which takes even numbers
UNDIVIDED = "1f1b naive gpipe eager_1f1b interleaved breadth_first 1f1b_v seq_1f1b"
PLAIN = "naive eager_1f1b zb_h1 zb_h2 zb_v dualpipe_v v_half v_min dualpipe chimera"  # called as their builders
BUILDERS: dict[str, list[Builder]] = {
    **{name: [getattr(schedules, name)] for name in PLAIN.split()},
    "gpipe": [schedules.gpipe, partial(schedules.gpipe, drain=schedules.Drain.lifo)],
    **{"1f1b": [schedules.one_f_one_b], "1f1b_v": [schedules.one_f_one_b_v]},
    **{name: [partial(builder, stages_per_rank=v) for v in (1, 2, 3)] for name, builder in LOOPED.items()},
    "two_bp": [partial(schedules.two_bp, of=of) for of in UNDIVIDED.split()],
}
BUILDERS["seq_1f1b"] = [
    partial(schedules.seq_1f1b, slices=s, stages_per_rank=v) for s, v in product((1, 2, 3, 4), (1, 2, 3))
]
BUILDERS["gis"] += [partial(grouped, stages_per_rank=v, more=more) for v, more in product((2, 3), (1, 2))]
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


def lengths(name: str, most: int = 8, whole: bool = False) -> Iterator[tuple[int, int]]:
    """(ranks, chunks) on which the builder is defined: K in 1 .. 8, M in 1 .. 3K+2; from K = 5 on around multiples.

    There `whole` has every M.
    """
    both_ends = name in ("dualpipe", "chimera")
    for ranks in range(1, most + 1):
        for chunks in range(2 * ranks if name.startswith("dualpipe") else 1, 3 * ranks + 3):
            if (whole or ranks < 5 or (chunks + 1) % ranks < 4) and (not both_ends or ranks % 2 == chunks % 2 == 0):
                yield ranks, chunks


def held_peak(schedule: Schedule, *ends: Op) -> list[int]:
    """For each rank the most (stage, microbatch) pairs between their F and their end, B or W if none is given."""
    counts = ([(op is Op.F) - (op in (ends or (Op.B, Op.W))) for op, *_ in row] for row in schedule.ranks)
    return [max(accumulate(row)) for row in counts]


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
