"""A run is seen in W&B while it runs, and W&B can neither delay nor disturb it."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from test_wandb_mirror import OFFLINE, history, inspect, last_summary, made, recorded

from microp.store import Follower, mirror, read_rows, write_json
from microp.store.wandb_mirror import WandbRun, follow

__all__ = ["recorded"]  # the fixture


@pytest.fixture
def running(recorded, tmp_path):
    """An attempt that has written its first row, and a function that writes a step more, and at last the end."""
    attempt = Path(shutil.copytree(recorded, tmp_path / "runs" / "test" / "attempt-1"))
    status = json.loads((attempt / "status.json").read_text())
    lines = {path: path.read_text().splitlines(keepends=True) for path in attempt.glob("steps.rank*.jsonl")}
    for path, rows in lines.items():
        path.write_text(rows.pop(0))
    (attempt / "summary.json").unlink()
    write_json(attempt / "status.json", {**status, "status": "running"})

    def go_on() -> None:
        for path, rows in lines.items():
            if rows:
                with path.open("a") as file:
                    file.write(rows[0][:40])  # a reader may come in the middle of a row
                    file.flush()
                    file.write(rows.pop(0)[40:])
        if not any(lines.values()):
            shutil.copy(recorded / "summary.json", attempt / "summary.json")
            write_json(attempt / "status.json", status)

    return attempt, go_on


def test_rows_are_logged_while_they_are_written(running, recorded, tmp_path, monkeypatch):
    attempt, go_on = running
    monkeypatch.setattr("microp.store.wandb_mirror.POLL_S", 0)
    looks, real = [], WandbRun.log_new_rows

    def looked(self):
        real(self)
        if self.uid == "r1-0123abcd":
            looks.append(self._run.step)

    def is_alive() -> bool:
        go_on()
        return True

    monkeypatch.setattr(WandbRun, "log_new_rows", looked)
    opened = follow(attempt, OFFLINE, tmp_path, is_alive)
    assert looks == [2, 3, 4, 5]
    assert not (attempt / "tracked.json").exists()
    mirror(attempt, OFFLINE, tmp_path, opened)
    assert made(tmp_path) == ["r0-0123abcd", "r1-0123abcd", "summary-0123abcd"]
    assert sorted(json.loads((attempt / "tracked.json").read_text())) == ["rank0", "rank1", "summary"]
    expected = mirrored_later(recorded, tmp_path / "later")
    for name in made(tmp_path):
        records = inspect(tmp_path, name)
        charts = [{k: v for k, v in item.items() if k != "_runtime"} for item in history(records)]
        assert charts[: len(read_rows(recorded, 0))] == expected[name][0]
        assert last_summary(records)["step_ms"] == expected[name][1]


def mirrored_later(recorded, folder) -> dict:
    """The charts and the step time of each W&B run that is made after the run."""
    attempt = Path(shutil.copytree(recorded, folder / "runs" / "test" / "attempt-1"))
    mirror(attempt, OFFLINE, folder)
    found = {}
    for name in made(folder):
        records = inspect(folder, name)
        charts = [{k: v for k, v in item.items() if k != "_runtime"} for item in history(records)]
        found[name] = charts[: len(read_rows(recorded, 0))], last_summary(records)["step_ms"]
    return found


def test_a_run_whose_process_has_gone_is_closed_as_failed(running, tmp_path, monkeypatch):
    attempt, _ = running
    monkeypatch.setattr("microp.store.wandb_mirror.POLL_S", 0)
    alive = iter([True, False])
    assert follow(attempt, OFFLINE, tmp_path, lambda: next(alive)) is None
    assert not (attempt / "tracked.json").exists()
    [code] = [record["exit"]["exit_code"] for record in inspect(tmp_path, "r0-0123abcd") if "exit" in record]
    assert code == 1


def test_a_server_that_is_away_does_not_hold_the_run_up(running, monkeypatch):
    attempt, go_on = running
    config = (attempt / "config.yaml").read_text()
    (attempt / "config.yaml").write_text(config.replace("mode: offline", "mode: online"))
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(Follower, "patience_s", 2.0)
    follower = Follower(attempt)
    for _ in range(4):
        go_on()
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"http://127\.0\.0\.1:9 took more than 2 s after the run"):
        follower.wait()
    assert time.monotonic() - began < 20
    assert Follower.patience_s == 5
    assert "127.0.0.1:9" in follower.log.read_text()
    assert made(attempt.parents[2], "run") == []  # nothing that `wandb leet` shows as running for ever
    assert follower._process.poll() is not None


def test_a_process_that_failed_is_started_again_and_its_error_is_the_message(running):
    attempt, go_on = running
    (attempt / "config.yaml").write_text("[]")
    follower = Follower(attempt)
    follower._process.wait()
    for _ in range(4):
        go_on()
    with pytest.raises(RuntimeError, match=r"^[^:]*config.yaml cannot be read"):
        follower.wait()
    assert follower.log.read_text().count("Traceback") == 2
