"""Tables that fit: no row takes two lines, results are whole, and what has no room is named."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from microp.terminal import columns as columns_module
from microp.terminal.columns import PAGE, Column, number, show

PATHS = [f"/home/somebody/data/corpora/{name}/train/part-0001.txt" for name in ("books", "code", "mail")]
KEYS = [
    Column("schedule", ["gpipe", "1f1b", "zb_interleaved"], "left", 3, 8),
    Column("device.recompute_overlap_ms", ["1.5", "3", "10"], "right", 3, 8),
    Column("data.path", PATHS, "left", 3, 8),
]
RESULTS = [
    Column("step ms", ["928.8", "61.3", "7.0"], importance=5, about="step ms: a median."),
    Column("p10 - p90", ["446.8 - 4635.0", "60.0 - 66.1", "6.9 - 7.2"], importance=2, about="p10 - p90: of steps."),
    Column("bubble", ["0.123", "0.222", "-"], importance=4),
    Column("peak MiB", ["1.3 - 4.4", "2.0", "-"], importance=4),
]


def printed(columns: list[Column], width: int) -> list[str]:
    file = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_module, "out", Console(file=file, width=width, highlight=False))
        show(columns, "outputs/table.csv")
    return file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(24, "schedule, device.recompute_overlap_ms, data.path, p10 - p90"), (60, "p10 - p90"), (100, ""), (300, "")],
)
def test_rows_are_one_line_and_what_has_no_room_is_named_and_not_explained(width, left_out):
    lines = printed(KEYS + RESULTS, width)
    text = " ".join(" ".join(lines).split())
    assert all(cell_len(line) <= width for line in lines if len(line.split()) > 1)  # a word is never cut
    assert (f"left out, no room: {left_out} (whole in outputs/table.csv)" in text) == bool(left_out)
    assert ("p10 - p90: of steps." in text) == ("p10 - p90" not in left_out)
    assert text.endswith(PAGE)
    start = next(at for at, line in enumerate(lines) if "928.8" in line)
    for column in RESULTS:
        whole = all(value in line for value, line in zip(column.values, lines[start:], strict=False))
        assert whole == (column.name not in left_out.split(", "))
    assert (PATHS[1] in text) == (width == 300)
    assert ("… stands for what had no room (whole in outputs/table.csv)" in text) == (width == 100)


def test_a_value_is_printed_as_it_is():
    """Brackets are no markup for rich."""
    lines = printed([Column("device.per", ["[layer,row]", "[bold]"], "left")], 80)
    assert [line.strip() for line in lines] == ["device.per", "[layer,row]", "[bold]"]


def test_small_numbers_keep_two_digits():
    assert [number(value, ".1f") for value in (61.23, 0.041, 0.0, 1e-9)] == ["61.2", "0.041", "0.0", "1e-09"]


def test_a_key_without_which_rows_look_alike_stays():
    drain = Column("drain", ["fifo", "lifo", "-"], "left", 1, is_key=True)
    ranks = Column("ranks", ["2", "2", "4"], importance=2, is_key=True)
    schedule = Column("schedule", ["gpipe", "gpipe", "1f1b"], "left", 3, is_key=True)
    lines = printed([schedule, drain, ranks, Column("step ms", ["928.8", "61.3", "7.0"], importance=4)], 24)
    assert [line.rstrip() for line in lines[1:3]] == ["gpipe     fifo     928.8", "gpipe     lifo      61.3"]
    assert "left out, no room: ranks" in " ".join(lines)
