"""Every attempt of a command is in W&B when the command has ended, and W&B costs no run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from user import SMALL, microp, read

from microp.config import compose_config, read_config
from microp.points import attempt as attempt_module

TRACKED = ["rank0", "rank1", "summary"]
WORDS = ["-m", "chunks=2,3", *SMALL, "comms=shm", "tracking=offline"]


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


def test_all_points_of_a_sweep_are_mirrored_when_it_ends(tmp_path):
    done = microp(*WORDS, folder=tmp_path)
    assert (done.returncode, "warning" in done.stderr) == (0, False), done.stderr
    assert left_in(tmp_path) == []
    attempts = sorted((tmp_path / "outputs" / "runs").glob("*/attempt-1"))
    assert [sorted(read(attempt / "tracked.json")) for attempt in attempts] == [TRACKED, TRACKED]
    assert len(list((tmp_path / "outputs" / "wandb").glob("offline-run-*"))) == 6


@pytest.mark.parametrize(
    ("code", "why"),
    [("raise SystemExit(1)", "see {attempt}/tracking.log"), ("import time; time.sleep(60)", "took more than 1 s")],
)
def test_a_process_that_fails_or_hangs_is_a_warning(code, why, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(attempt_module, "END_S", 1)
    config = read_config(compose_config(f"output_dir={tmp_path}", "tracking=offline"))
    attempt = tmp_path / "runs" / "test" / "attempt-1"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    attempt_module.mirror_ended(attempt, "finished", config, process)
    assert process.returncode is not None
    said = " ".join(capsys.readouterr().err.split())
    assert "W&B failed for test/attempt-1 (" in said
    assert why.format(attempt=attempt) in said
    assert f"To mirror it later: python -m microp.tracking {tmp_path}" in said
