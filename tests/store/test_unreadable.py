"""Commands on damaged records end with a sentence and no traceback; `test_damage` has every record and damage."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from test_versions import RECORDED, RUN, WORDS
from user import microp

from microp.store import (
    RecordError,
    Store,
    load_runs,
    read_plan,
    read_reductions,
    read_schedule,
    read_spans,
    read_status,
    read_summary,
)

BROKEN = {
    "missing": None,
    "empty": "",
    "cut short": '{"run_id": "zb',
    "a list": "[1, 2]",
    "a number": "7",
    "null": "null",
    "no keys": "{}",
    "other types": '{"schema_version": "two", "status": 3, "started": "then", "bubble": 1, "points": 4}',
    "not text": b"\xff\xfe\x00",
    "a tab": "{\t:",
    "nested": "[" * 3000,
}


@pytest.fixture
def outputs(tmp_path):
    """An outputs folder with two runs; the tests break the second one, which is called `broken`."""
    for run in (RUN, "broken"):
        shutil.copytree(RECORDED / RUN, tmp_path / "outputs" / "runs" / run)
    return tmp_path / "outputs"


def damage(path: Path, content: str | bytes | None) -> None:
    path.unlink()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("how", BROKEN)
def test_readers_raise_nothing_but_record_errors(outputs, how):
    attempt = outputs / "runs" / "broken" / "attempt-1"
    for name, read in (("summary.json", read_summary), ("status.json", read_status), ("schedule.txt", read_schedule)):
        (attempt / name).touch()
        damage(attempt / name, BROKEN[how])
        if name == "schedule.txt" and how == "missing":
            continue  # it is read from the trace, beside a summary that is broken
        with pytest.raises(RecordError, match="cannot be read"):
            read(attempt)


@pytest.mark.parametrize("kind", ["spans", "reductions"])
@pytest.mark.parametrize(
    "row", ["{}", "[1]", '{"rank": 0, "op": "X", "stage": 0, "microbatch": 0, "start_ns": 1}', '{"rank": "0"}']
)
def test_an_odd_row_of_a_trace_is_a_record_error(tmp_path, kind, row):
    path = tmp_path / f"{kind}.rank0.jsonl"
    path.write_text(row + "\n")
    with pytest.raises(RecordError, match="cannot be read") as refused:
        (read_spans if kind == "spans" else read_reductions)(tmp_path)
    assert str(refused.value).startswith(f"{path} ")
    assert "\n" not in str(refused.value)


def test_a_timeline_and_a_report_name_an_odd_trace(outputs):
    path = outputs / "runs" / "broken" / "attempt-1" / "spans.rank1.jsonl"
    damage(path, "{}\n")
    for folder, program, code in ((path.parent, "analysis.timeline", 2), (outputs, "analysis", 0)):
        done = microp(str(folder), folder=outputs.parent, program=program)
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        assert f"{path} cannot be read" in done.stderr


def test_two_runs_that_are_left_out_are_one_warning(outputs):
    for run in (RUN, "broken"):
        damage(outputs / "runs" / run / "attempt-1" / "summary.json", "{")
    with pytest.warns(UserWarning, match=r"^2 attempts are left out: .*summary.json cannot be read") as warned:
        load_runs(outputs)
    assert len(warned) == 1


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_plan_is_left_out_and_named(tmp_path, how):
    plan = tmp_path / "sweeps" / "1_mine" / "plan.json"
    plan.parent.mkdir(parents=True)
    plan.touch()
    damage(plan, BROKEN[how])
    with pytest.raises(RecordError, match=re.escape(str(plan))):
        read_plan(plan)
    assert Store(tmp_path).plans == []
    assert [str(plan) in reason for reason in Store(tmp_path).unreadable] == [True] * (how != "missing")


def test_a_run_without_any_readable_attempt_does_not_stop_the_report(outputs):
    damage(outputs / "runs" / "broken" / "attempt-1" / "config.yaml", "")
    done = microp(str(outputs), folder=outputs.parent, program="analysis")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "broken/attempt-1/config.yaml cannot be read" in done.stderr
    alone = microp("outputs", folder=outputs.parent, program="analysis.rank_time")
    assert alone.returncode == 0, alone.stderr
    assert "broken/attempt-1/config.yaml cannot be read" in alone.stderr


def test_the_timeline_of_an_attempt_that_failed_shows_what_was_measured(outputs):
    """One rank left no trace, and there are no times of the whole step."""
    attempt = outputs / "runs" / "broken" / "attempt-1"
    (attempt / "spans.rank1.jsonl").unlink()
    for name, changes in (
        ("summary.json", {"status": "failed", "time_ms": None}),
        ("status.json", {"status": "failed"}),
    ):
        path = attempt / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    done = microp(str(attempt), folder=outputs.parent, program="analysis.timeline")
    assert done.returncode == 0, done.stderr
    assert "measured: the last measured step" in done.stdout
    assert "replayed" not in done.stdout


def test_a_point_whose_record_is_broken_is_run_again(outputs):
    damage(outputs / "runs" / RUN / "attempt-1" / "spans.rank1.jsonl", '{"rank": 1')
    done = microp("-m", *WORDS, "tracking=disabled", folder=outputs.parent)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "finished already" not in done.stderr
    assert (outputs / "runs" / RUN / "attempt-2" / "summary.json").exists()
