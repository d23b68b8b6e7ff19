"""A schedule from a user's file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from microp.schedule import builders as schedules
from microp.schedule import to_text, to_torch_csv

MINE = schedules.zb_h1(2, 3)


@pytest.mark.parametrize("write", [to_text, to_torch_csv])
def test_either_form_is_recognised_and_must_be_of_the_same_size(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "mine.csv"
    path.write_text(write(MINE))
    schedule = schedules.from_file(2, 3, str(path))
    assert schedule.ranks == MINE.ranks
    assert (schedule.name, schedule.chunks) == ("file", 3)
    with pytest.raises(
        ValueError, match=r"^path=.*mine.csv is a schedule for ranks=2 chunks=3, .*: set ranks=2 chunks=3$"
    ):
        schedules.from_file(4, 8, str(path))


def test_a_mistake_and_a_file_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for content, said in (
        (b"0F0,0B0\n1F0,1G0\n", r"^path=.*mine.csv: line 2, column 5: '1G0' is not an action"),
        (b"\xff\xfe\x00", "mine.csv cannot be read: it is not text"),
        (None, r"^path=.*mine.csv cannot be read: No such file"),
    ):
        (tmp_path / "mine.csv").write_bytes(content) if content else (tmp_path / "mine.csv").unlink()
        with pytest.raises(ValueError, match=said):
            schedules.from_file(2, 1, str(tmp_path / "mine.csv"))


def saved(text: str, separator: str, *, quotes: bool, width: int = 9) -> str:
    """The text as a spreadsheet saves it: rows of one width, cells that may be quoted, and an empty last row."""
    rows = [re.split("[ ,]", line) for line in text.splitlines()]
    cells = [[*row, *[""] * (width - len(row))] for row in [*rows, []]]
    mark = '"' if quotes else ""
    return "".join(separator.join(f"{mark}{cell}{mark}" for cell in row) + "\r\n" for row in cells)


@pytest.mark.parametrize("write", [to_text, to_torch_csv])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("quotes", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_what_a_spreadsheet_saves_is_read(tmp_path, write, separator, quotes, encoding) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "mine.csv"
    path.write_bytes(saved(write(MINE), separator, quotes=quotes).encode(encoding))
    assert schedules.from_file(2, 3, str(path)).ranks == MINE.ranks


def test_a_row_in_one_quoted_cell_and_a_mistake_in_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    text = "\ufeff" + "".join(f'"{line}"\n' for line in to_text(MINE).splitlines()) + '""\n'
    path.write_text(text)
    assert schedules.from_file(2, 3, str(path)).ranks == MINE.ranks
    path.write_text(text.replace("0F1", "0G1"))
    with pytest.raises(ValueError, match=r"line 2, column 6: '?0G1"):
        schedules.from_file(2, 3, str(path))
