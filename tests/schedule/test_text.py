"""Both text forms, torch's reading of what is written, a user's file, and what is said of errors."""

import csv
import re
from itertools import product
from pathlib import Path

import pytest
from catalogue import EVERY, Builder, build, label

from microp.schedule import Action, Op, Schedule, from_text, from_torch_csv, to_text, to_torch_csv, validate
from microp.schedule import builders as schedules


@pytest.mark.parametrize("builder", EVERY, ids=label)
def test_torch_reads_and_accepts_what_is_written(builder: Builder) -> None:
    from torch.distributed.pipelining import schedules as torch_schedules  # takes 2 s, and is not needed to collect

    schedule = build(builder, 3, 6)
    rows = csv.reader(to_torch_csv(schedule).splitlines())
    actions = {rank: [torch_schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}
    ranks = len(schedule.ranks)
    placement = torch_schedules._validate_schedule(actions, ranks, schedule.stages, schedule.units // schedule.copies)
    assert placement == schedule.placement


def test_files_of_a_time_without_i_are_read_with_it() -> None:
    old = "# microp schedule mine chunks=2 ranks=1\n0F0 0F1 0B0 0B1 0W1\n"
    assert to_text(from_text(old)).splitlines()[1] == "0F0 0F1 0B0 0I1 0W1"


def test_the_two_spellings() -> None:
    schedule = schedules.zb_h1(2, 2)
    assert to_text(schedule).splitlines()[0] == "# microp schedule zb_h1 chunks=2 ranks=2"
    assert to_text(schedule).splitlines()[1:] == ["0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1F1 1I1 1W0 1W1"]
    assert to_torch_csv(schedule) == "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n"
    frozen = schedule.without_weight_gradients([1])
    assert to_text(frozen).splitlines()[1:] == ["0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1F1 1I1"]
    assert from_text(to_text(frozen)) == frozen == from_torch_csv(to_torch_csv(frozen), frozen.name)


def test_torch_csv_with_idle_slots_overlaps_and_communication() -> None:
    text = (
        "0F0,0SEND_F0,0F1,,,0RECV_B0,0B0,0B1,0REDUCE_GRAD\r\n"
        ",1RECV_F0,1UNSHARD,1F0,(1F1;1B0)OVERLAP_F_B, 1SEND_B0,1B1\r\n\r\n"
    )
    schedule = from_torch_csv(text, "mine")
    gpipe = schedules.gpipe(2, 2)
    assert schedule == Schedule("mine", 2, gpipe.ranks, pairs=frozenset([Action(Op.F, 1, 1)]))
    assert schedule.apart == Schedule("mine", 2, gpipe.ranks)
    validate(schedule)


HEAD = "# microp schedule x chunks=1 ranks="


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: expected '# microp schedule"),
        ("# microp schedule x chunks=2\n", "line 1, column 1: expected '# microp schedule"),
        (f"{HEAD}2\n0F0 0B0\n", "line 1, column 1: ranks=2, but 1 rows"),
        (f"{HEAD}1\n\n  0F 0B0\n", "line 3, column 3: '0F' is not an action"),
        (",,\n", "line 1, column 1: found no action"),
        ("0F0,0B0\n1F0,1Q0\n", "line 2, column 5: '1Q0' is not an action"),
        ("0F0,,0X0\n", "line 1, column 6: '0X0' is not an action"),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_torch_csv(text, "x") if "," in text else from_text(text)


MINE = schedules.zb_h1(2, 3)


@pytest.mark.parametrize("write", [to_text, to_torch_csv])
def test_either_form_is_recognised_and_must_be_of_the_same_size(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "mine.csv"
    path.write_text(write(MINE))
    schedule = schedules.from_file(2, 3, str(path))
    assert schedule.ranks == MINE.ranks
    assert (schedule.name, schedule.chunks) == ("file", 3)
    with pytest.raises(ValueError, match=r"^path=.*mine.csv is a schedule for ranks=2 chunks=3, .*: set ranks=2 .*=3$"):
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
def test_what_a_spreadsheet_saves_is_read(tmp_path, write) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "mine.csv"
    for separator, quotes, encoding in product(",;\t", (False, True), ("utf-8", "utf-8-sig", "utf-16")):
        path.write_bytes(saved(write(MINE), separator, quotes=quotes).encode(encoding))
        assert schedules.from_file(2, 3, str(path)).ranks == MINE.ranks, (separator, quotes, encoding)


def test_a_row_in_one_quoted_cell_and_a_mistake_in_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    text = "\ufeff" + "".join(f'"{line}"\n' for line in to_text(MINE).splitlines()) + '""\n'
    path.write_text(text)
    assert schedules.from_file(2, 3, str(path)).ranks == MINE.ranks
    path.write_text(text.replace("0F1", "0G1"))
    with pytest.raises(ValueError, match=r"line 2, column 6: '?0G1"):
        schedules.from_file(2, 3, str(path))
