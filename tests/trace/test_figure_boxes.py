"""The texts of a timeline's figure can be read: names are in their boxes, and nothing is cut or lies on another."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from costs_helper import equal
from matplotlib.figure import Figure
from PIL import Image

from microp.schedule import Schedule, builders
from microp.simulator import Costs, simulate
from microp.trace import COLOURS, figure, makespan, picture
from tests.boxes import drawn_texts, faults_of

SCHEDULES = {
    "one microbatch": builders.gpipe(2, 1),
    "1f1b": builders.one_f_one_b(4, 8),
    "many microbatches": builders.one_f_one_b(4, 64),
    "many ranks": builders.gpipe(16, 16),
    "two stages per rank": builders.interleaved(4, 8, 2),
    "split": builders.zb_v(4, 8),
}


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved; nothing is written."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    return figures


def spans_of(schedule: Schedule) -> Any:
    stages = schedule.stages
    return simulate(
        schedule, Costs((5,) * stages, (5,) * stages, (5,) * stages) if schedule.split else equal(stages, 5, 10)
    )


TITLES = ("a title", "a-schedule-with-a-long-name-m8-k4-1a3d5336, attempt-12: last measured step " * 2)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_timeline_can_be_read(name, drawn, whole):
    """One and two panels with a short and a long title; without `--whole` the schedules take turns."""
    spans, number = spans_of(SCHEDULES[name]), list(SCHEDULES).index(name)
    for turn, (title, panels) in enumerate(product(TITLES, (("replayed", "measured"), ("measured",)))):
        if whole or turn == number % 4:
            figure(dict.fromkeys(panels, spans), title, Path("unused"))
            sheet = drawn[-1]
            texts = drawn_texts(sheet)
            assert list(faults_of(sheet, texts)) == []
            assert len(sheet.axes) == len(panels)
            for axis in sheet.axes:
                names_are_in_their_boxes(axis, {id(text) for text in texts}, SCHEDULES[name])


def names_are_in_their_boxes(axis, shown: set[int], schedule: Schedule) -> None:
    boxes = [path.get_extents(bars.get_transform()) for bars in axis.collections for path in bars.get_paths()]
    x0, y0, x1, y1 = np.array([box.extents for box in boxes]).T
    actions = {str(action.microbatch) for row in schedule.ranks for action in row}
    texts = [text for text in axis.texts if id(text) in shown]
    for text in texts:
        own = text.get_window_extent()
        assert ((x0 <= own.x0) & (own.x1 <= x1) & (y0 <= own.y0) & (own.y1 <= y1)).any(), text
        assert text.get_text().lstrip("FBW") in actions
    if schedule is SCHEDULES["one microbatch"]:
        assert any(text.get_text() == "F0" for text in texts)


@pytest.mark.parametrize("name", ["1f1b", "two stages per rank", "split"])
def test_a_picture_has_the_colour_of_each_action_at_its_time(name, tmp_path):
    schedule = SCHEDULES[name]
    spans = spans_of(schedule)
    picture({"measured": spans}, tmp_path / "a.png")
    found = Image.open(tmp_path / "a.png").convert("RGB")
    coloured = {tuple(bytes.fromhex(each[1:])) for pair in COLOURS.values() for each in pair}
    wide, high = found.size
    columns = [x for x in range(wide) if any(found.getpixel((x, y)) in coloured for y in range(high))]
    left, per_unit = columns[0], (columns[-1] + 2 - columns[0]) / float(makespan(spans))
    rows = {y for y in range(high) if any(found.getpixel((x, y)) in coloured for x in range(wide))}
    bars = [y for y in sorted(rows) if rows >= {*range(y - 12, y + 13)}]  # the middles of bars of 25 rows
    assert len(bars) == len(schedule.ranks)
    for span in spans:
        middle = left + round(float(span.start + span.end) / 2 * per_unit)
        colour = tuple(bytes.fromhex(COLOURS[span.op][0][1:]))
        assert found.getpixel((middle, bars[span.rank])) == colour, span
