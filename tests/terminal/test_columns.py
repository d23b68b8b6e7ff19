"""Tables that fit: no heading is cut, no row takes two lines, and what has no room is named."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from microp.terminal.columns import Column, fit, paragraph, shorten, show

PATHS = [f"/home/somebody/data/corpora/{name}/train/part-0001.txt" for name in ("books", "code", "mail")]
SIZES = ["[" + ",".join(map(str, [first, *range(1, 16)])) + "]" for first in (4, 40, 400)]
SWEPT = [
    Column("schedule", ["gpipe", "1f1b", "zb_interleaved"], "left", 9),
    Column("device.recompute_overlap_ms", ["1.5", "3", "10"], importance=9),
    Column("data.path", PATHS, "left", 9, 16),
    Column("partition.sizes", SIZES, "left", 9, 12),
]
RESULTS = [
    Column("step ms", ["928.8", "61.3", "7.0"], importance=5),
    Column("p10 - p90", ["446.8 - 4635.0", "60.0 - 66.1", "6.9 - 7.2"], importance=2),
    Column("samples/s", ["1,234", "12", "4"], importance=3),
    Column("bubble", ["0.123", "0.222", "-"], importance=4),
    Column("peak MiB", ["1.3 - 4.4", "2.0", "-"], importance=1),
]


def printed(columns, width, whole="outputs/table.csv"):
    file = io.StringIO()
    kept = show(Console(file=file, width=width, highlight=False), columns, whole)
    return kept, file.getvalue().splitlines()


@pytest.mark.parametrize("columns", [SWEPT + RESULTS, SWEPT, RESULTS, SWEPT[:1] + RESULTS], ids=len)
@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 200, 300])
def test_every_line_fits_and_every_row_is_one_line(columns, width):
    table, left_out, _ = fit(columns, width)
    kept = [column for column in columns if column.name not in left_out]
    assert kept
    headings = 2 if any(set(" ._") & set(column.name) for column in kept) else 1
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(table)
    lines = console.file.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    assert 3 < len(lines) + 1 <= 3 + headings + 1
    top = "".join(lines[:-3])
    for column in kept:
        for word in re.sub("([._])", r"\1 ", column.name).split():
            assert word in top  # whole, perhaps in two lines
        if column.shortest is None:
            for value, line in zip(column.values, lines[-3:], strict=True):
                assert value in line


def test_with_room_everything_is_whole_and_on_one_line():
    kept, lines = printed(SWEPT + RESULTS, 300)
    assert kept == [column.name for column in SWEPT + RESULTS]
    assert len(lines) == 4
    assert lines[0].split("  ")[0] == "schedule"
    assert PATHS[1] in lines[2]
    assert SIZES[2] in lines[3]


def test_first_headings_are_broken_then_values_shortened_then_columns_left_out():
    """The columns that matter least are left out first, and named in the order of the table."""
    kept, lines = printed([Column("model.dim", ["64"]), Column("step ms", ["7"])], 13)
    assert lines == ["model.  step", "   dim    ms", "    64     7"]
    assert kept == ["model.dim", "step ms"]
    kept, lines = printed(SWEPT + RESULTS, 160)
    assert len(kept) == 9
    assert "…" in lines[2]
    assert lines[-1] == "… stands for what had no room (whole in outputs/table.csv)"
    kept, lines = printed(SWEPT + RESULTS, 100)
    assert kept == [column.name for column in SWEPT + RESULTS if column.name not in ("p10 - p90", "peak MiB")]
    assert lines[-1] == "left out, no room: p10 - p90, peak MiB (whole in outputs/table.csv)"
    kept, lines = printed(SWEPT + RESULTS, 80)
    assert kept == ["schedule", "device.recompute_overlap_ms", "data.path", "partition.sizes", "step ms", "bubble"]


def test_two_values_that_differ_are_never_shortened_to_the_same():
    for limit in range(8, 60):
        short = shorten(PATHS, limit)
        if short is not None:
            assert len(set(short)) == 3
            assert max(map(len, short)) <= limit
    assert shorten(["aaaaaaaaaa", "aaaaabaaaa"], 5) is None
    assert shorten(["short", "a" * 20], 9) == ["short", "aaaa…aaaa"]
    assert shorten(["same" * 9] * 2, 9) == ["same…same"] * 2


def test_a_value_is_printed_as_it_is():
    """Brackets are no markup for rich."""
    _, lines = printed([Column("device.per", ["[layer,row]", "[bold]"], "left")], 80)
    assert [line.strip() for line in lines] == ["device.per", "[layer,row]", "[bold]"]


def test_a_paragraph_is_wrapped_between_words_and_keeps_paths():
    file = io.StringIO()
    paragraph(Console(file=file, width=30, highlight=False), f"the whole table is in {PATHS[0]} and nowhere else")
    lines = [line.strip() for line in file.getvalue().splitlines()]
    assert lines == ["the whole table is in", PATHS[0], "and nowhere else"]
