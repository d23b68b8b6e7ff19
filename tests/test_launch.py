"""Ranks start, fail and end as they should: real processes, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ranks as rank_code
from conftest import make_plan

from microp import launch
from microp.records import read_json, read_rows
from microp.schedules import gpipe, one_f_one_b

TESTS = Path(__file__).parent


def alive(pid: int) -> bool:
    """Running, and not a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_rank_is_named_and_ends_the_others(tmp_path):
    plan = make_plan(schedule=one_f_one_b(3, 4), steps=50)
    began = time.monotonic()
    with pytest.raises(launch.RankError, match="rank 2 was killed by SIGKILL"):
        launch.run_elastic(plan, tmp_path, 3, rank_code.die)
    assert time.monotonic() - began < 15
    assert [row["step"] for row in read_rows(tmp_path, 0)] == [0, 1]  # no row is lost


def test_a_failed_action_names_rank_action_and_step(tmp_path):
    plan = make_plan(schedule=gpipe(2, 4), steps=50)
    expected = "rank 1, action 1F1, step 2: the layer is broken"
    with pytest.raises(launch.RankError, match=expected):
        launch.run_elastic(plan, tmp_path, 3, rank_code.raise_in_action)
    error = read_json(tmp_path / "error.rank1.json")
    assert error["message"] == expected
    assert "ValueError: the layer is broken" in error["traceback"]
    assert [row["step"] for row in read_rows(tmp_path, 1)] == [0, 1]


def test_a_rank_that_does_not_answer(tmp_path):
    results = launch.run_elastic(make_plan(timeout_s=1), tmp_path, 3, rank_code.never_send)
    assert results[1] == "rank 1 waited 1 s for 0F0 from rank 0 (step 0)"


def test_ranks_with_different_plans_refuse(tmp_path):
    results = launch.run_elastic(make_plan(), tmp_path, 3, rank_code.different_plans)
    assert all("different configurations" in message for message in results.values())


def test_a_failed_thread_is_named(tmp_path, monkeypatch):
    from microp.stage import Stage

    forward = Stage.forward

    def failing(stage, microbatch, x):
        if x is not None and microbatch == 1:
            raise ValueError("the layer is broken")
        return forward(stage, microbatch, x)

    monkeypatch.setattr(Stage, "forward", failing)
    with pytest.raises(launch.RankError, match="rank 1, action 1F1, step 0: the layer is broken"):
        launch.run_threads(make_plan(), tmp_path)


def test_signal_handlers_are_put_back(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    launch.run_elastic(make_plan(), tmp_path, 3)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_ranks_end_with_their_parent(how, tmp_path):
    code = (
        "from pathlib import Path; from conftest import make_plan; import ranks; from microp import launch\n"
        f"launch.run_elastic(make_plan(), Path({str(tmp_path)!r}), 3, ranks.sleep_on)"
    )
    script = tmp_path / "parent.py"
    script.write_text("if __name__ == '__main__':\n    " + code.replace("\n", "\n    "))
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    parent = subprocess.Popen([sys.executable, script], env=environment, stderr=subprocess.DEVNULL)
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    wait_for(lambda: all(file.exists() and file.read_text() for file in files), 60)
    pids = [int(file.read_text()) for file in files]
    assert all(alive(pid) for pid in pids)
    parent.send_signal(how)
    parent.wait(15)
    wait_for(lambda: not any(alive(pid) for pid in pids), 10)


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.05)


def test_no_port_is_used_twice(monkeypatch):
    """torch fails on a port that one of its earlier stores had; the system gives ports out again."""

    class Store:
        given = iter([5, 5, 5, 7])

        def __init__(self, *_: object, **__: object) -> None:
            self.port = next(self.given)

    monkeypatch.setattr(launch, "TCPStore", Store)
    monkeypatch.setattr(launch, "_ports", set())
    assert [launch._meeting_place().port for _ in range(2)] == [5, 7]
