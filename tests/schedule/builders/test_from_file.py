"""A schedule from a user's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from microp.schedule import builders as schedules
from microp.schedule import to_text, to_torch_csv

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
