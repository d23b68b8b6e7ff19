"""The step that a single run ends with: drawn if it is whole and small."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from user import until

from microp.records import TracedStep
from microp.schedule.builders import gpipe, zb_v
from microp.simulator import for_stages, simulate
from microp.terminal import Board, console, progress, run_table
from microp.trace import plain, timeline

SUMMARY = {"status": "finished", "ranks": 2, "replicas": 1, "actions": 2 * 2 * 2 * 10, "steps": 10}


@pytest.fixture(autouse=True)
def step(monkeypatch):
    """A step in place of the run's files."""
    schedule = gpipe(2, 2)
    spans = simulate(schedule, for_stages(2, forward=4_000_000, backward=6_000_000))
    found = TracedStep(schedule, {"replayed": spans, "measured": spans}, {})
    monkeypatch.setattr(run_table, "read_traced_step", lambda folder, summary: found)
    monkeypatch.setattr(console, "out", Console(width=39))
    monkeypatch.setattr(run_table, "out", console.out)


def shown(capsys, **changes) -> list[str]:
    run_table.show_step(Path("nowhere"), {**SUMMARY, **changes})
    return capsys.readouterr().out.splitlines()


def test_the_measured_step_is_drawn_below_a_header_of_both(capsys):
    lines = shown(capsys)
    assert lines[:6] == [
        "",
        "replayed 30 ms, bubble 0.333",
        "measured 30 ms (+0.0 %), bubble 0.333",
        "",
        "rank 0 |F0--F1--··········B0====B1====|",
        "rank 1 |····F0--F1--B0====B1====······|",
    ]
    assert sum("|" in line for line in lines) == 2
    assert "replica" not in "".join(lines)
    assert "replica 0 of 2" in " ".join(shown(capsys, replicas=2)[:4])
    predicted = {"step_ms": 31.0, "bubble": 0.25, "peak_memory_mib": [1.0, 1.0]}
    assert "predicted 31 ms, bubble 0.250" in shown(capsys, predicted=predicted)


@pytest.mark.parametrize(
    "changes",
    [{"status": "failed"}, {"status": "interrupted"}, {"ranks": 9}, {"actions": 10 * 4001}],
    ids=["failed", "interrupted", "many ranks", "many actions"],
)
def test_a_step_that_is_not_whole_or_large_is_not_drawn(changes, capsys):
    assert shown(capsys, **changes) == []


def test_colours_add_nothing_but_colours(capsys, monkeypatch):
    spans = simulate(zb_v(4, 8), for_stages(8, forward=1, backward=1, weight=1))
    lines = timeline({"measured": spans}, 120)
    monkeypatch.setattr(console, "out", Console(width=60, force_terminal=True, color_system="256"))
    console.draw(lines)
    shown = capsys.readouterr().out
    assert shown.count("\x1b[0m") > 100
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == plain(lines) + "\n"
    assert len(set(re.findall(r";48;5;(\d+)m", shown))) == 2 * 3  # three ops, and two stages of a rank


def test_only_new_rows_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "POLL_S", 0.005)
    rows, seen, board = tmp_path / "steps.rank0.jsonl", [], Board()
    monkeypatch.setattr(board._progress, "update", lambda _, **changes: seen.append(changes.get("completed")))
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
    board.close()
    assert seen[-1] == 9
    assert max(each for each in seen[:-1] if each is not None) == 5


def test_a_notebook_without_widgets_shows_the_steps_as_text(tmp_path, monkeypatch):
    shown = []
    place = SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))
    fake = SimpleNamespace(display=lambda *_, **__: place)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=fake))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    monkeypatch.setattr(console.err, "is_jupyter", True)
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    board, rows = Board(), tmp_path / "steps.rank0.jsonl"
    rows.write_text("{}\n" * 3)
    board.open([10])
    with board.point("run", 10, rows):
        until(lambda: "run: 3/10 steps" in shown)
    board.close()
    assert shown[-1] == ""


def test_a_point_weighs_its_steps_in_the_bar_of_a_sweep(tmp_path):
    board = Board()
    board.open([10, 30])
    with board.point("run", 10, tmp_path / "none"):
        pass
    [sweep] = board._progress.tasks
    assert sweep.completed / sweep.total == 0.25
    assert sweep.fields["done"] == "1/2 points"
    board.skip()  # another process ran the second
    assert sweep.completed == sweep.total
    board.close()
