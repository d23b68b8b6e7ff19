"""Tables that fit: no row takes two lines, results are whole, and what has no room is named."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from microp.terminal.columns import Column, number, paragraph, show

PATHS = [f"/home/somebody/data/corpora/{name}/train/part-0001.txt" for name in ("books", "code", "mail")]
KEYS = [
    Column("schedule", ["gpipe", "1f1b", "zb_interleaved"], "left", 3, 8),
    Column("device.recompute_overlap_ms", ["1.5", "3", "10"], "right", 3, 8),
    Column("data.path", PATHS, "left", 3, 8),
]
RESULTS = [
    Column("step ms", ["928.8", "61.3", "7.0"], importance=5),
    Column("p10 - p90", ["446.8 - 4635.0", "60.0 - 66.1", "6.9 - 7.2"], importance=2),
    Column("bubble", ["0.123", "0.222", "-"], importance=4),
    Column("peak MiB", ["1.3 - 4.4", "2.0", "-"], importance=4),
]


def printed(columns, width):
    file = io.StringIO()
    kept = show(Console(file=file, width=width, highlight=False), columns, "outputs/table.csv")
    return kept, file.getvalue().splitlines()


@pytest.mark.parametrize("width", [30, 60, 80, 120, 300])
def test_rows_are_one_line_and_results_are_whole(width):
    kept, lines = printed(KEYS + RESULTS, width)
    assert max(map(cell_len, lines)) <= width
    start = next(at for at, line in enumerate(lines) if "928.8" in line)
    for column in RESULTS:
        for value, line in zip(column.values, lines[start:], strict=False):
            assert (value in line) or column.name not in kept
    left_out = [column.name for column in KEYS + RESULTS if column.name not in kept]
    assert ", ".join(left_out) in " ".join(lines)
    assert ("left out, no room: " in " ".join(lines)) == bool(left_out)


def test_with_room_everything_is_whole_then_values_are_cut_then_columns_go():
    kept, lines = printed(KEYS + RESULTS, 300)
    assert (len(kept), len(lines)) == (7, 4)
    assert PATHS[1] in lines[2]
    kept, lines = printed(KEYS + RESULTS, 100)
    assert len(kept) == 7
    assert "/home/s" in lines[-2]
    assert lines[-1] == "… stands for what had no room (whole in outputs/table.csv)"
    assert printed(KEYS + RESULTS, 60)[0] == [
        "schedule",
        "device.recompute_overlap_ms",
        "data.path",
        "step ms",
        "bubble",
        "peak MiB",
    ]
    assert printed(KEYS + RESULTS, 50)[0] == [
        "schedule",
        "device.recompute_overlap_ms",
        "step ms",
        "bubble",
        "peak MiB",
    ]
    assert printed(KEYS + RESULTS, 24)[0] == ["step ms", "bubble", "peak MiB"]


def test_a_value_is_printed_as_it_is():
    """Brackets are no markup for rich."""
    _, lines = printed([Column("device.per", ["[layer,row]", "[bold]"], "left")], 80)
    assert [line.strip() for line in lines] == ["device.per", "[layer,row]", "[bold]"]


def test_a_paragraph_is_wrapped_between_words_and_keeps_paths():
    file = io.StringIO()
    paragraph(Console(file=file, width=30, highlight=False), f"the whole table is in {PATHS[0]} and nowhere else")
    lines = [line.strip() for line in file.getvalue().splitlines()]
    assert lines == ["the whole table is in", PATHS[0], "and nowhere else"]


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (61.23, ".1f", "61.2"),
        (0.041, ".1f", "0.041"),
        (0.0, ".1f", "0.0"),
        (1e-9, ".1f", "1e-09"),
        (4180.9, ",.0f", "4,181"),
    ],
)
def test_small_numbers_keep_two_digits(value, form, text):
    assert number(value, form) == text
