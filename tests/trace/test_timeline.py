"""Timelines as text: what is drawn is read back, and must be what the spans say."""

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from math import ceil
from random import Random

import pytest
from catalogue import BUILDERS, build
from drawn import equal, random_cases

from microp.schedule import Schedule
from microp.schedule.builders import Drain, gpipe, interleaved
from microp.simulator import Costs, simulate
from microp.trace import UNITS, Reduction, Span, plain, reductions, timeline
from microp.trace.cells import FILL, IDLE, REDUCED, SHORT

BOX = re.compile(r"(\d*)(?:(F)(\d*)-*|([BI])(\d*)=*|(W)(\d*)~*)|[-=~]|[R·]")


def drawn(panels, columns: int = 100, **options) -> list[str]:
    """The lines of a timeline; spans alone are those of a simulation."""
    panels = panels if isinstance(panels, dict) else {"simulated": panels}
    return plain(timeline(panels, columns, scale=options.pop("scale", UNITS), **options)).splitlines()


def rank_rows(lines: list[str]) -> list[str]:
    """What stands between the bars of each rank."""
    return [line.split("|")[1] for line in lines if line.startswith("rank ")]


def test_a_timeline():
    spans = simulate(gpipe(2, 2), equal(2, 4, 6))
    assert drawn(spans, columns=39) == [
        "simulated 30 units of the costs, bubble",
        "0.333",
        "",
        "rank 0 |F0--F1--··········B0====B1====|",
        "rank 1 |····F0--F1--B0====B1====······|",
        "        └0        └10       └20     30┘",
        "simulated: with the given costs",
        "F-- forward   B== backward   · idle",
        "F3: microbatch 3",
        "time: first action's start to last",
        "one's end",
        "bubble: idle / (ranks x time)",
    ]


def test_a_stage_is_named_where_a_rank_holds_several():
    lines = drawn(simulate(interleaved(2, 2), equal(4, 4, 8)), columns=9 + 60)
    assert rank_rows(lines)[0].startswith("0F0-0F1-2F0-2F1-")
    assert "1F3: stage 1, microbatch 3\n" in "\n".join(lines)
    lines = drawn(simulate(gpipe(2, 2, Drain.lifo), equal(2, 4, 6)), columns=120)
    assert "F3: microbatch 3 (of microbatches in slices: slice 3 of all)" in "\n".join(lines)


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 11])
def test_of_many_ranks_the_first_and_the_last_are_shown(rows):
    spans = simulate(gpipe(12, 2), equal(12, 1, 2))
    whole, short = ([line for line in drawn(spans, rows=n) if "rank" in line[:20]] for n in (12, rows))
    first, last = (rows + 1) // 2, rows // 2
    assert short == [*whole[:first], f"  ... {12 - rows} ranks ...", *whole[12 - last :]]
    assert drawn(spans, rows=13) == drawn(spans, rows=12)


def every_kind() -> Iterator[tuple[Schedule, Costs]]:
    """All builders, and schedules and costs that nobody would draw."""
    random = Random(12)
    for builders in BUILDERS.values():
        for builder in builders:
            schedule = build(builder, 3, 12 // build(builder, 3, 12).slices)
            times = (tuple(random.randint(1, 9) for _ in range(schedule.stages)) for _ in range(3))
            yield schedule, Costs(*times, latency=random.choice((0, Fraction(1, 3), 2)))
    yield from random_cases(12, 60)


@pytest.mark.parametrize("columns", [29, 79, 80, 200])
def test_what_is_drawn_is_what_the_spans_say(columns):
    named = 0
    for schedule, costs in every_kind():
        spans = simulate(schedule, costs)
        lines = drawn(spans, columns)
        assert max(map(len, lines)) <= columns
        rows = rank_rows(lines)
        assert len(rows) == len(schedule.ranks)
        total = max(span.end for span in spans)
        for rank, text in enumerate(rows):
            assert len(text) == columns - len("rank 0 ||")
            check_row(text, [s for s in spans if s.rank == rank], len(text) / float(total), schedule)
            named += len(re.findall(r"[FBIW]\d", text))
    assert named > 0


def check_row(text: str, spans: list[Span], scale: float, schedule: Schedule) -> None:
    """Every box is an action at its place, and every action that runs in the middle of a column is a box.

    A shorter one is a box of one column where nothing else is, if the row has room for all.

    Of the boxes of an op those with room for the row's longest name carry theirs, or none does.
    """
    place = {s: (float(s.start) * scale, float(s.end) * scale) for s in spans if s.end > s.start}
    column = {s: (ceil(left - 0.5), ceil(right - 0.5)) for s, (left, right) in place.items()}
    boxes = list(BOX.finditer(text))
    whole = [box for box in boxes if any(left <= box.start() < box.end() <= right for left, right in column.values())]
    staged = schedule.stages > len(schedule.ranks)
    longest = max(len(str(span.action) if staged else str(span.action).lstrip("0123456789")) for span in place)
    carries = {op: [bool(box[3] or box[5] or box[7]) for box in whole if op in box[0]] for op in "FBIW"}
    assert "".join(box[0] for box in boxes) == text
    for box in boxes:
        first, end = box.span()
        stage, op, number = box[1] or "", box[2] or box[4] or box[6], box[3] or box[5] or box[7]
        inside = [s for s, (left, right) in place.items() if first <= (left + right) / 2 < end and right - left > SHORT]
        if box[0] == IDLE:
            assert not any(left < first < right for left, right in column.values())
            assert not inside or 2 * len(spans) > len(text)
        elif box not in whole:
            assert (op, end - first, 2 * len(spans) <= len(text)) == (inside[0].op, 1, True)
        else:
            [span] = [s for s, (left, right) in column.items() if left <= first < end <= right]
            left, right = column[span]
            assert box[0][-1].isalnum() or box[0][-1] == FILL[span.op]
            assert op in (span.op, None)
            assert (first, end) == (left, right), "it is drawn from its start to its end"
            if number:  # it is this very action's, and whole
                assert number == str(span.microbatch)
                assert stage == (str(span.stage) if staged else "")
                assert place[span][1] - place[span][0] >= longest + staged - 1e-5
                assert sum(carries[op]) >= 0.9 * len(carries[op])
            else:
                assert stage == ""
    assert len(whole) == sum(right > left for left, right in column.values())


def test_sums_over_the_replicas_are_shown_where_the_rank_is_idle():
    schedule = gpipe(2, 2)
    spans = simulate(schedule, equal(2, 4, 6))
    sums = reductions(schedule, spans, [6, 8])
    lines = drawn(spans, columns=9 + 36, sums={"simulated": sums})
    assert rank_rows(lines) == ["F0--F1--··········B0====B1====RRRRRR", "····F0--F1--B0====B1====RRRRRRRR····"]
    assert "30 units of the costs, bubble 0.333; 36 with the sums" in " ".join(lines[:2])
    assert any(line.endswith("36┘") for line in lines)
    short = drawn(spans, columns=9 + 30, sums={"simulated": [Reduction(1, 1, Fraction(251, 10), Fraction(252, 10))]})
    assert rank_rows(short)[1] == "····F0--F1--B0====B1====·R····"
    assert "R sum over replicas or copies" in "\n".join(short)
    hidden = drawn(spans, columns=9 + 30, sums={"simulated": [Reduction(0, 0, 19, 20)]})
    assert REDUCED not in rank_rows(hidden)[0]


@pytest.mark.parametrize("length", [Fraction(1, 300), 1, 7, 63, 1027, 123_456_789])
@pytest.mark.parametrize("columns", [1, 30, 80, 200])
def test_the_axis_runs_from_0_to_the_end(columns, length):
    [axis] = [line for line in drawn(simulate(gpipe(1, 1), equal(1, length, 2 * length)), columns) if "└" in line]
    room = max(20, columns - len("rank 0 ||"))
    marks = [(at - 8, label) for at, label in ((m.start(), m[1]) for m in re.finditer(r"└(\S+)", axis))]
    assert marks[0] == (0, "0")
    assert re.search(r"(\S+)┘$", axis)[1] == (f"{float(3 * length):.4g}" if 3 * length < 1000 else str(3 * length))
    assert len(axis) == 8 + room + 1
    for at, label in marks:
        assert at == pytest.approx(float(Fraction(label) / (3 * length)) * room, abs=0.51)
    steps = {round(float(Fraction(b[1]) - Fraction(a[1])), 9) for a, b in pairwise(marks)}
    assert len(steps) <= 1 or length > 1000
