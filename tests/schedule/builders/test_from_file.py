"""A schedule from a user's file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from catalogue import held_peak, lengths, pictured

from microp.schedule import builders as schedules
from microp.schedule import to_text, to_torch_csv
from microp.schedule.builders import building_block
from microp.simulator import Costs, simulate
from microp.trace import makespan

MINE = schedules.zb_h1(2, 3)


@pytest.mark.parametrize("write", [to_text, to_torch_csv])
def test_either_form_is_recognised(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "mine.csv"
    path.write_text(write(MINE))
    schedule = schedules.from_file(2, 3, str(path))
    assert schedule.ranks == MINE.ranks
    assert (schedule.name, schedule.chunks) == ("file", 3)


@pytest.mark.parametrize("write", [to_text, to_torch_csv])
def test_other_ranks_or_chunks_are_refused_with_what_to_set(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "mine.csv"
    path.write_text(write(MINE))
    with pytest.raises(
        ValueError, match=r"^path=.*mine.csv is a schedule for ranks=2 chunks=3, .*: set ranks=2 chunks=3$"
    ):
        schedules.from_file(4, 8, str(path))


def test_a_mistake_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("0F0,0B0\n1F0,1G0\n")
    with pytest.raises(ValueError, match=r"^path=.*mine.csv: line 2, column 5: '1G0' is not an action"):
        schedules.from_file(2, 1, str(path))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^path=.*none.csv cannot be read: No such file"):
        schedules.from_file(2, 1, str(tmp_path / "none.csv"))
    (tmp_path / "picture.png").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="cannot be read: it is not text"):
        schedules.from_file(2, 1, str(tmp_path / "picture.png"))


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


# --- the V-shaped schedules -----------------------------------------------------------------------


LIMIT = {"v_half": lambda ranks: 2 * (ranks // 2 + 1), "v_min": lambda ranks: 2 * (-(-(ranks - 1) // 3) + 1)}


def test_repeat_sorts_by_slot() -> None:
    repeated = building_block.repeat("v", [(0, 3, 4, 7), (1, 2, 5, 6)], chunks=2)
    assert [" ".join(map(str, row)) for row in repeated.ranks] == [
        # slot 0   3   4   6   7   9   10  13
        "0F0 3F0 3B0 0F1 0B0 3F1 3B1 0B1",
        # slot 1   2   5   6   7   8   11  12
        "1F0 2F0 2B0 1B0 1F1 2F1 2B1 1B1",
    ]


def test_the_module_draws_the_block_of_v_min() -> None:
    rows = pictured(building_block.__doc__)
    starts = [[row.index(name) for name in ("F0", "F1", "B1", "B0")] for row in rows]
    assert starts == [[0, 3, 4, 7], [1, 2, 5, 6]]


@pytest.mark.parametrize("name", LIMIT)
def test_no_rank_holds_more_than_the_limit_and_one_reaches_it(name: str) -> None:
    for ranks, chunks in lengths(name):
        peak = max(held_peak(getattr(schedules, name)(ranks, chunks)))
        assert peak <= LIMIT[name](ranks)
        assert chunks < 2 * ranks or peak == LIMIT[name](ranks)


@pytest.mark.parametrize(
    ("name", "bubble"), [("v_half", {4: 5, 5: 11, 6: 11, 7: 17}), ("v_min", {2: 3, 3: 5, 4: 11, 6: 17})]
)
def test_published_bubbles(name: str, bubble: dict[int, int]) -> None:
    for ranks, slots in bubble.items():
        for chunks in (2 * ranks, 2 * ranks + 1, 5 * ranks):
            schedule = getattr(schedules, name)(ranks, chunks)
            spans = simulate(schedule, Costs(*[(1,) * (2 * ranks)] * 3))
            assert makespan(spans) == 6 * chunks + slots
