"""Broken, empty and missing files of an attempt are named in a sentence, and keep nothing else from being read."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path

import pytest
from test_versions import RECORDED, RUN, WORDS
from user import microp

from microp import tracking
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


@pytest.mark.parametrize("name", ["summary.json", "status.json", "config.yaml", "env.json"])
@pytest.mark.parametrize("how", BROKEN)
def test_a_run_with_a_broken_file_is_left_out_and_the_file_is_named(outputs, name, how):
    path = outputs / "runs" / "broken" / "attempt-1" / name
    damage(path, BROKEN[how])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        runs, known = load_runs(outputs), Store(outputs)
    assert [str(each.message).startswith("1 run is left out: ") for each in warned] == [True] * len(
        runs.attrs["unreadable"]
    )
    if (name, how) in (("status.json", "missing"), ("env.json", "no keys"), ("env.json", "other types")):
        assert runs.attrs["unreadable"] == []  # without a status it is no attempt, and env.json needs no key
        return
    assert runs["run_id"].tolist() == known.runs()["run_id"].tolist() == [RUN]
    [sentence] = runs.attrs["unreadable"]
    assert sentence.startswith(f"{path} ")
    assert sentence.endswith("run its command again")
    assert "\n" not in sentence


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
    with pytest.warns(UserWarning, match=r"^2 runs are left out: .*summary.json cannot be read") as warned:
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


@pytest.mark.parametrize("name", ["summary.json", "status.json"])
def test_a_timeline_needs_a_readable_attempt(outputs, name):
    attempt = outputs / "runs" / "broken" / "attempt-1"
    damage(attempt / name, "{")
    done = microp(str(attempt), folder=outputs.parent, program="analysis.timeline")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    both = microp(str(outputs / "runs" / RUN), folder=outputs.parent, program="analysis.timeline")
    assert both.returncode == 0, both.stderr


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


@pytest.mark.parametrize("name", ["config.yaml", "status.json", "env.json"])
def test_an_attempt_that_cannot_be_mirrored_does_not_stop_the_others(outputs, name, capsys):
    damage(outputs / "runs" / "broken" / "attempt-1" / name, "{")
    assert tracking.main([str(outputs), "--mode=offline"]) == 1
    said = capsys.readouterr()
    assert f"{RUN}/attempt-1: mirrored" in said.out
    assert f"broken/attempt-1/{name} cannot be read" in said.err


@pytest.mark.parametrize("name", ["summary.json", "status.json"])
def test_a_point_whose_record_is_broken_is_run_again(outputs, name):
    damage(outputs / "runs" / RUN / "attempt-1" / name, "{")
    done = microp("-m", *WORDS, "tracking=disabled", folder=outputs.parent)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "finished already" not in done.stderr
    assert (outputs / "runs" / RUN / "attempt-2" / "summary.json").exists()
