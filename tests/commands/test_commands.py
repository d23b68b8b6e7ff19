"""More of what a user types: replicas, help, completion, the self-check."""

from __future__ import annotations

import json

from user import BIN, ROOT, SMALL, microp, read, start


def test_replicas_leave_rows_of_their_own(tmp_path):
    done = microp(*SMALL, "ranks=2", "replicas=2", "chunks=2", "schedule=1f1b", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    [attempt] = (tmp_path / "outputs" / "runs").glob("1f1b-m2-k2-r2-*/attempt-1")
    for number in range(4):
        rows = [json.loads(line) for line in (attempt / f"steps.rank{number}.jsonl").read_text().splitlines()]
        assert {(row["replica"], row["rank"]) for row in rows} == {divmod(number, 2)}
        assert all(row["reduced_bytes"] > 0 and row["all_reduce_ms"] > 0 <= row["exposed_ms"] for row in rows)
        sums = [json.loads(line) for line in (attempt / f"reductions.rank{number}.jsonl").read_text().splitlines()]
        assert all(row["start_ns"] < row["end_ns"] for row in sums)
    summary = read(attempt / "summary.json")
    assert (summary["replicas"], summary["sync"]) == (2, "ddp")
    assert summary["reduction"]["simulated_ms"] > 0
    drawn = microp(str(attempt), folder=tmp_path, program="analysis.timeline")
    assert drawn.returncode == 0, drawn.stderr
    assert "reduction" in drawn.stdout


def test_help_names_the_groups(tmp_path):
    done = microp("--help", folder=tmp_path)
    assert done.returncode == 0
    for option in (ROOT / "conf").glob("*/*.yaml"):
        assert f"    {option.stem} " in done.stdout
    assert "One forward, one backward" in done.stdout
    assert "chunks=4 " in done.stdout
    assert "schema" not in done.stdout


def test_tab_completion_can_be_installed(tmp_path):
    done = start([BIN / "microp", "-sc", "install=bash"], tmp_path)
    assert done.returncode == 0
    assert "complete " in done.stdout


def test_check(tmp_path):
    done = microp(folder=tmp_path, program="microp.check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("pass") == 5
