"""Records of the first version are still read, and those of a newer microp are named and left out.

`version_1/` holds one attempt that microp recorded before records had a `schema_version`, made by
`python -m microp.run -m schedule=zb_v chunks=4 steps=2 warmup_steps=1 model.dim=32 model.layers=4 batch_size=8`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from user import microp

from microp import tracking
from microp.app import Run, job_of
from microp.schedule.builders import zb_v
from microp.store import (
    RecordError,
    Store,
    load_runs,
    load_steps,
    read_plan,
    read_reductions,
    read_rows,
    read_schedule,
    read_spans,
    read_summary,
    write_json,
)

RUN = "zb_v-m4-k2-9fba154a"
RECORDED = Path(__file__).parent / "version_1"
WORDS = ["schedule=zb_v", "chunks=4", "steps=2", "warmup_steps=1", "model.dim=32", "model.layers=4", "batch_size=8"]


@pytest.fixture
def outputs(tmp_path):
    """An outputs folder with the recorded attempt."""
    shutil.copytree(RECORDED, tmp_path / "outputs" / "runs")
    return tmp_path / "outputs"


@pytest.fixture
def attempt(outputs):
    return outputs / "runs" / RUN / "attempt-1"


def change(path: Path, **changes) -> None:
    write_json(path, {**json.loads(path.read_text()), **changes})


def test_a_run_without_a_key_that_was_added_later_has_its_default(outputs):
    """So that it pairs with newer runs that have the default."""
    [row] = Store(outputs).rows
    config = row["config"]
    assert (config["dtype"], config["compile"], config["optimizer"]["name"]) == (None, False, "adam")


# --- version 1 -----------------------------------------------------------------------------------


def test_a_summary_of_version_1_has_the_names_of_version_2(attempt):
    old, new = json.loads((attempt / "summary.json").read_text()), read_summary(attempt)
    assert "schema_version" not in old
    assert new["schema_version"] == 1
    assert new["replayed"] == {"step_ms": None, "bubble": old["bubble"]["predicted"]}
    assert new["bubble"] == {key: old["bubble"][key] for key in ("measured", "closed_form")}
    same = old.keys() - {"bubble"}
    assert {key: new[key] for key in same} == {key: old[key] for key in same}


def test_sums_of_version_1_have_the_names_of_version_2(attempt):
    change(attempt / "summary.json", reduction={"exposed_ms": 1.0, "predicted_ms": 2.0, "predicted_exposed_ms": 3.0})
    assert read_summary(attempt)["reduction"] == {
        "exposed_ms": 1.0,
        "simulated_ms": 2.0,
        "simulated_exposed_ms": 3.0,
    }


def test_its_run_and_its_question_are_those_of_a_new_run(attempt):
    job = job_of(*WORDS)
    assert job.run_id == RUN
    assert read_summary(attempt)["question_id"] == job.question_id == job_of(*WORDS, "repeat=1").question_id


def test_its_schedule_and_its_waits_are_read_from_the_trace(attempt):
    assert read_schedule(attempt) == zb_v(2, 4)
    rows = [json.loads(line) for line in (attempt / "spans.rank0.jsonl").read_text().splitlines()]
    first = next(iter(read_spans(attempt)))
    assert [first.wait_start, first.ready, first.start, first.end] == [
        rows[0][f"{moment}_ns"] for moment in ("asked", "ready", "start", "end")
    ]


def test_an_attempt_of_version_1_that_failed_has_no_question(attempt):
    """Its ranks may have left a part of the trace, from which the order cannot be told."""
    for name in ("summary.json", "status.json"):
        change(attempt / name, status="failed")
    for path in attempt.glob("spans.*"):
        path.unlink()
    assert read_summary(attempt)["question_id"] is None
    assert load_runs(attempt.parents[1])["status"].tolist() == ["failed"]


def test_load_runs_and_load_steps_read_it(outputs, attempt):
    runs = load_runs(outputs)
    assert runs.attrs["unreadable"] == []
    [row] = runs.to_dict("records")
    assert (row["run_id"], row["status"], row["question"]) == (RUN, "finished", job_of(*WORDS).question_id)
    assert row["replayed.bubble"] > 0
    assert row["config.schedule.builder"] == "microp.schedules.zb_v"
    assert load_steps(attempt)["phase"].tolist() == ["warmup", "measured", "measured", "memory"] * 2


def test_the_report_and_the_timeline_draw_it(outputs, attempt):
    done = microp(str(outputs), folder=outputs.parent, program="analysis")
    assert done.returncode == 0, done.stderr
    files = {path.name for path in (outputs / "report").iterdir()}
    assert {"report.html", "replayed-measured.csv", "rank-time.csv"} <= files
    drawn = microp(str(attempt), folder=outputs.parent, program="analysis.timeline")
    assert drawn.returncode == 0, drawn.stderr
    assert drawn.stdout.index("replayed: ") < drawn.stdout.index("measured: ")
    assert "predicted" not in drawn.stdout
    assert (outputs / "report" / f"timeline-{RUN}-attempt-1.svg").exists()


def test_it_is_mirrored(outputs, attempt):
    done = microp(str(outputs), "--mode=offline", folder=outputs.parent, program="microp.tracking")
    assert done.returncode == 0, done.stderr
    assert f"1/1 {attempt}: mirrored" in done.stdout
    assert sorted(json.loads((attempt / "tracked.json").read_text())) == ["rank0", "rank1", "summary"]


def test_a_sweep_that_is_typed_again_finds_it_finished(outputs, attempt):
    done = microp("-m", *WORDS, "repeat=0,1", "tracking=disabled", folder=outputs.parent)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 points are finished already" in done.stderr
    assert done.stdout.startswith("2 finished, the same in all: ")
    assert [path.name for path in attempt.parent.iterdir()] == ["attempt-1"]
    runs = load_runs(outputs)
    assert (len(runs), runs["question"].nunique()) == (2, 1)  # two launches of one question, of two versions
    assert sorted(runs["schema_version"]) == [1, 2]
    assert microp(str(outputs), folder=outputs.parent, program="analysis").returncode == 0


# --- a newer version -----------------------------------------------------------------------------


def test_a_summary_of_a_newer_version_is_refused_in_one_sentence(attempt):
    change(attempt / "summary.json", schema_version=3)
    with pytest.raises(RecordError) as refused:
        read_summary(attempt)
    assert str(refused.value) == (
        f"{attempt / 'summary.json'} has schema_version=3, and this microp reads up to 2: update microp"
    )


def test_runs_of_a_newer_version_are_left_out_and_named(outputs, attempt):
    other = outputs / "runs" / "another" / "attempt-1"
    shutil.copytree(attempt, other)
    change(other / "summary.json", schema_version=3)
    with pytest.warns(UserWarning, match="1 attempt is left out: .*schema_version=3"):
        runs = load_runs(outputs)
    assert runs["run_id"].tolist() == [RUN]
    [reason] = runs.attrs["unreadable"]
    assert "schema_version=3" in reason
    assert Store(outputs).unreadable == [reason]
    assert Store(outputs).runs()["run_id"].tolist() == [RUN]
    done = microp(str(outputs), folder=outputs.parent, program="analysis")
    assert done.returncode == 0, done.stderr
    assert f"left out: {reason}" in done.stderr.splitlines()


def of_version_99(attempt: Path) -> None:
    """Every record that has a version gets version 99, and other names for all else."""
    write_json(attempt / "summary.json", {"schema_version": 99, "all": "new"})
    for path in attempt.glob("*.jsonl"):
        path.write_text('{"schema_version": 99, "all": "new"}\n')


def test_every_reader_refuses_a_newer_attempt(outputs, attempt):
    of_version_99(attempt)
    (attempt / "reductions.rank0.jsonl").write_text('{"schema_version": 99}\n')
    run = Run(attempt)
    reads = [
        lambda: read_rows(attempt, 0),
        lambda: read_spans(attempt),
        lambda: read_reductions(attempt),
        lambda: load_steps(attempt),
        lambda: run.steps,
        lambda: run.spans,
        lambda: run.summary,
    ]
    for read in reads:
        with pytest.raises(RecordError, match="schema_version=99, and this microp reads up to 2: update microp"):
            read()


def test_a_newer_attempt_is_neither_drawn_nor_mirrored(outputs, attempt, capsys):
    of_version_99(attempt)
    drawn = microp(str(attempt), folder=outputs.parent, program="analysis.timeline")
    assert drawn.returncode == 2
    assert "Traceback" not in drawn.stderr
    assert "schema_version=99" in drawn.stderr.splitlines()[-1]
    for _ in range(2):
        assert tracking.main([str(outputs), "--mode=offline"]) == 1
        said = capsys.readouterr()
        assert "mirrored" not in said.out
        [line] = said.err.splitlines()
        assert "schema_version=99" in line
    assert not (attempt / "tracked.json").exists()


def test_rows_of_a_newer_version_alone_leave_the_run_out(outputs, attempt):
    path = attempt / "steps.rank1.jsonl"
    path.write_text('{"schema_version": 99}\n')
    with pytest.warns(UserWarning, match="schema_version=99"):
        assert load_runs(outputs).empty
    assert tracking.main([str(outputs), "--mode=offline"]) == 1


def test_a_point_with_a_record_of_a_newer_version_is_run_again(outputs, attempt):
    change(attempt / "summary.json", schema_version=3)
    done = microp("-m", *WORDS, "tracking=disabled", folder=outputs.parent)
    assert done.returncode == 0, done.stderr
    assert "finished already" not in done.stderr
    assert sorted(path.name for path in attempt.parent.glob("attempt-*")) == ["attempt-1", "attempt-2"]


def test_a_plan_of_a_newer_version_is_refused(tmp_path):
    plan = {"name": "mine", "points": [{"run_id": RUN, "overrides": WORDS}]}
    for version in (1, 2):
        write_json(tmp_path / "plan.json", plan if version == 1 else {"schema_version": version, **plan})
        assert read_plan(tmp_path / "plan.json").name == "mine"
    write_json(tmp_path / "plan.json", {"schema_version": 3, **plan})
    with pytest.raises(RecordError, match="schema_version=3"):
        read_plan(tmp_path / "plan.json")
