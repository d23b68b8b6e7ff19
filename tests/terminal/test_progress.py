"""How far a run is, read from the rows that its first rank writes."""

from __future__ import annotations

import time

from microp.terminal import Board, progress
from microp.terminal.progress import TimeLeft


def until(condition, timeout_s: float = 10):
    """Wait until a condition holds."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_only_new_rows_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "POLL_S", 0.005)
    rows, seen, board = tmp_path / "steps.rank0.jsonl", [], Board()
    update = board._progress.update

    def watched(task, **changes):
        seen.append(changes.get("completed"))
        update(task, **changes)

    monkeypatch.setattr(board._progress, "update", watched)
    board.open([9])
    with board.point("run", 9, rows):  # the file is not there yet
        until(lambda: 0 in seen)
        rows.write_text("a row\n" * 3 + "half")
        until(lambda: 3 in seen)
        with rows.open("r+") as file:
            file.write("\n" * 18)  # instead of what has been read
            file.seek(0, 2)
            file.write(" a row\nrow\n")
        until(lambda: 5 in seen)
        rows.unlink()
        time.sleep(0.05)
    board.close()
    assert seen[-1] == 9
    assert max(each for each in seen[:-1] if each is not None) == 5


def test_predicted_points_take_their_prediction_and_what_others_took_beyond_theirs():
    left = TimeLeft([10, 10, 100], [5.0, 50.0, 500.0])
    assert left.seconds() == 555
    assert left.seconds(elapsed=2.0, done=1) == 553
    assert left.seconds(elapsed=9.0, done=9) == 550  # the first takes longer than predicted, the others do not
    left.end(7.0)
    assert left.seconds() == 52 + 502  # two seconds to start and to end
    left.end(None)  # another process ran it
    assert left.seconds() == 502


def test_without_predictions_a_step_takes_what_steps_have_taken():
    left = TimeLeft([10, 20])
    assert left.seconds(elapsed=3.0) is None
    assert left.seconds(elapsed=4.0, done=2) == 56  # 2 s a step
    left.end(30.0)
    assert left.seconds(elapsed=6.0) == 54


def test_points_with_and_without_a_prediction():
    left = TimeLeft([10, 10, 10], [1.0])
    assert left.seconds() is None
    left.end(4.0)
    left.add(5, 2.0)
    assert left.seconds() == 4 + 4 + (2 + 3)
    for _ in range(4):
        left.end(1.0)
    assert left.seconds() == 0
