"""A sweep's attempts are mirrored to W&B by a process of their own, and no step is measured meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from user import SMALL, begin, microp, read

from microp.app import compose_config, mirrors, read_config
from microp.settings import TrackingSettings
from microp.store import read_rows
from microp.worker import MirrorProcess

TRACKED = ["rank0", "rank1", "summary"]
WORDS = ["-m", "chunks=2,3", *SMALL, "comms=shm", "tracking=offline"]
OFFLINE = TrackingSettings("offline", "microp", None, None, [], False, False)


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> list[Path]:
    """The attempts of a sweep of two points, in the order in which they were run."""
    folder = tmp_path_factory.mktemp("swept")
    done = microp(*WORDS, folder=folder)
    assert (done.returncode, "warning" in done.stderr) == (0, False), done.stderr
    assert left_in(folder) == []
    return sorted((folder / "outputs" / "runs").glob("*/attempt-1"))


def left_in(folder: Path) -> list[str]:
    """The processes that have this folder and do not end: of a command, its ranks and helpers."""
    deadline = time.monotonic() + 60
    while (left := list(_in(folder))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _in(folder: Path) -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                yield f"{process.name} {(process / 'cmdline').read_text()}"
        except OSError:  # it has ended
            continue


def test_a_point_is_mirrored_before_the_first_step_of_the_next_one(swept):
    first, second = swept
    assert [sorted(read(attempt / "tracked.json")) for attempt in swept] == [TRACKED, TRACKED]
    began = min(row["ended"] - row["step_ms"] / 1e3 for rank in range(2) for row in read_rows(second, rank)[:1])
    assert (first / "tracked.json").stat().st_mtime < began
    assert len(list(first.parents[2].glob("wandb/offline-run-*"))) == 6


@pytest.mark.parametrize(("how", "mirrored"), [(signal.SIGKILL, None), (signal.SIGINT, TRACKED)])
def test_a_launcher_that_is_ended_leaves_no_process(how, mirrored, tmp_path):
    """After Ctrl-C it waits for the mirror that has begun."""
    command = begin(*WORDS, folder=tmp_path)
    runs = tmp_path / "outputs" / "runs"
    while not list(runs.glob("gpipe-m3-*")):
        time.sleep(0.01)
    os.kill(command.pid, how)
    _, err = command.communicate()
    assert left_in(tmp_path) == []
    assert "Traceback" not in err
    if mirrored:
        [first] = runs.glob("gpipe-m2-*/attempt-1")
        assert (command.returncode, sorted(read(first / "tracked.json"))) == (130, mirrored)


@pytest.fixture
def attempt(swept, tmp_path) -> Path:
    """A finished attempt that has not been mirrored."""
    copy = Path(shutil.copytree(swept[0], tmp_path / "runs" / "test" / "attempt-1"))
    (copy / "tracked.json").unlink()
    return copy


def test_what_cannot_be_mirrored_is_a_warning_and_the_next_attempt_is_mirrored(attempt, tmp_path, capsys, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    config = read_config(compose_config(f"output_dir={tmp_path}", "tracking=offline"))
    broken = Path(shutil.copytree(attempt, attempt.with_name("attempt-2")))
    (broken / "summary.json").write_text("[]")
    several = mirrors.Mirrors()

    several.begin(attempt, "finished", config)
    os.kill(several._process._process.pid, signal.SIGKILL)
    several.begin(broken, "finished", config)
    assert "W&B failed for test/attempt-1 (its process ended), which is finished" in said(capsys)
    assert list(tmp_path.glob("wandb/offline-run-*")) == []

    several.begin(attempt, "finished", config)
    [own] = temporary.glob(f"microp-*-{os.getpid()}-*")  # a killed launcher's is removed by its pid
    text = said(capsys)
    assert "W&B failed for test/attempt-2 (" in text
    assert "summary.json" in text
    assert f"To mirror it later: python -m microp.tracking {tmp_path}" in text

    assert several.answer() is not None
    several.finish()
    assert list(own.glob("*wandb-media")) != []
    several.close()
    assert list(temporary.iterdir()) == []
    assert several.answer() is None
    assert sorted(read(attempt / "tracked.json")) == TRACKED
    assert said(capsys) == ""


def said(capsys) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_nobody_waits_for_a_process_that_is_stopped(attempt, tmp_path):
    process = MirrorProcess()
    process.begin(attempt, OFFLINE, tmp_path)
    process.stop()
    assert not (attempt / "tracked.json").exists()
    assert list(tmp_path.glob("wandb/offline-run-*")) == []
