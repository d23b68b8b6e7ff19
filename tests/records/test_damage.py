"""A damaged record costs its run alone, and whoever reads many runs leaves it out and names the file.

One run is made, and copied once for each record and damage. Each reader is then asked once about all of them.
"""

import shutil
from itertools import product
from pathlib import Path

import pytest
from stored import amend, spoil

import microp
from analysis import __main__ as report
from analysis import page, timeline
from microp import runs, tracking
from microp.commands.interface import ConfigError, Run
from microp.records import RecordError, check_attempt, finished, read_reductions, read_spans, write_json
from microp.records.sweep_plan import read_plan
from microp.results import Store, load_runs, load_steps

WORDS = ["schedule=1f1b", "chunks=3", "replicas=2", "comms=threads", "tracking=disabled", "steps=2", "warmup_steps=1"]
TINY = ["model.layers=2", "model.dim=8", "batch_size=6"]
RECORDS = [f"{name}.json" for name in ("status", "summary", "env", "error.rank1")] + ["config.yaml", "schedule.txt"]
RECORDS += ["steps.rank1.jsonl", "spans.rank2.jsonl", "reductions.rank3.jsonl"]
DAMAGES = ["cut", "empty", "missing", "not-text", "no-keys"]
UNSEEN = {  # nothing tells how many errors and sums were written
    ("error.rank1.json", "missing"),
    *product(["reductions.rank3.jsonl"], ["cut", "empty", "missing"]),
}
CASES = sorted({*product(RECORDS, DAMAGES)} - UNSEEN)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The outputs folder with a run that is whole, and another one for each damage to each record."""
    outputs = tmp_path_factory.mktemp("made") / "outputs"
    good = microp.measure(*WORDS, *TINY, f"output_dir={outputs}").folder
    for record, how in CASES:
        copy = Path(shutil.copytree(good, outputs / "runs" / f"{record}-{how}" / "attempt-1"))
        if record.startswith("error"):
            write_json(copy / record, {"message": "rank 1 died", "lost_peer": False, "time": 1.0})
        spoil(copy / record, how)
    for how in DAMAGES:
        plan = {"schema_version": 2, "name": "mine", "points": [{"run_id": "a", "overrides": ["chunks=3"]}]}
        (outputs / "sweeps" / how).mkdir(parents=True)
        write_json(outputs / "sweeps" / how / "plan.json", plan)
        spoil(outputs / "sweeps" / how / "plan.json", how)
    return outputs


def files(outputs: Path) -> list[str]:
    """The damaged files."""
    return sorted(str(outputs / "runs" / f"{record}-{how}" / "attempt-1" / record) for record, how in CASES)


def named(sentences: list[str]) -> list[str]:
    """The files with which sentences begin; each sentence is one line and tells what to do."""
    assert not [sentence for sentence in sentences if "\n" in sentence or "run its command again" not in sentence]
    return sorted(sentence.split(" cannot be read (")[0] for sentence in sentences)


def good_run(outputs: Path) -> Path:
    [run] = (outputs / "runs").glob("1f1b-m3-*")
    return run


def test_load_runs_leaves_them_out_and_lists_them(made):
    with pytest.warns(UserWarning, match=f"^{len(CASES)} attempts are left out: ") as warned:
        frame = load_runs(made)
    assert len(warned) == 1
    assert frame["run_id"].tolist() == [good_run(made).name]
    assert named(frame.attrs["unreadable"]) == files(made)


def test_the_report_lists_them(made):
    store = Store(made)
    assert store.runs()["run_id"].tolist() == [good_run(made).name]
    told = [reason for reason in page.without_result(store) if "/sweeps/" not in reason]
    assert named(told) == files(made)
    plans = [reason for reason in store.unreadable if "/sweeps/" in reason]
    assert len(plans) == len(DAMAGES) - 1  # without the one that is missing
    assert all("plan.json cannot be read" in reason and reason.endswith("run its sweep again") for reason in plans)
    assert store.plans == []


def test_a_timeline_names_the_file_tracking_goes_on_and_a_sweep_runs_the_point_again(made, capsys):
    [path] = made.glob("runs/spans.rank2.jsonl-cut/attempt-1/spans.rank2.jsonl")
    with pytest.raises(SystemExit, match="2"):
        timeline.main([str(path.parent)])
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith(f"error: {path} cannot be read (")
    assert tracking.main([str(made)]) == 1
    said = capsys.readouterr()
    assert said.out.strip().endswith("attempt-1: disabled")
    assert named([line.split(": ", 1)[1] for line in said.err.splitlines()]) == files(made)
    assert finished(good_run(made)) == good_run(made) / "attempt-1"
    assert [finished(Path(path).parents[1]) for path in files(made)] == [None] * len(CASES)


def test_an_older_attempt_stands_in_for_a_damaged_one(made, tmp_path):
    """The damaged attempt is named until a newer one has finished."""
    run = tmp_path / "run"
    for number in (1, 2, 3):
        copy = Path(shutil.copytree(good_run(made) / "attempt-1", run / f"attempt-{number}"))
        amend(copy / "status.json", started=float(number))
    (run / "attempt-2" / "config.yaml").write_text("")
    assert load_runs(run).attrs["unreadable"] == []
    (run / "attempt-3" / "status.json").unlink()
    with pytest.warns(UserWarning, match="^2 attempts are left out: .*attempt-3/status.json cannot be read"):
        frame = load_runs(run)
    assert frame["attempt"].tolist() == ["attempt-1"]
    assert named(frame.attrs["unreadable"]) == [f"{run}/attempt-2/config.yaml", f"{run}/attempt-3/status.json"]


@pytest.mark.parametrize("row", ["{}", "[1]", '{"rank": 0, "op": "X", "stage": 0, "microbatch": 0, "start_ns": 1}'])
def test_an_odd_row_of_a_trace_is_a_record_error(tmp_path, row):
    for path, read in (
        (tmp_path / "spans.rank0.jsonl", read_spans),
        (tmp_path / "reductions.rank0.jsonl", read_reductions),
    ):
        path.write_text(row + "\n")
        with pytest.raises(RecordError, match=rf"^{path} cannot be read .*$"):
            read(tmp_path)


def test_the_timeline_of_an_attempt_that_failed_shows_what_was_measured(made, tmp_path, capsys):
    """One rank left no trace, and there are no times of the whole step."""
    attempt = Path(shutil.copytree(good_run(made) / "attempt-1", tmp_path / "run" / "attempt-1"))
    (attempt / "spans.rank1.jsonl").unlink()
    amend(attempt / "summary.json", status="failed", time_ms=None)
    amend(attempt / "status.json", status="failed")
    assert timeline.main([str(attempt), "--report", str(tmp_path / "report")]) == 0
    said = capsys.readouterr().out
    assert "measured: the last measured step" in said
    assert "replayed" not in said


def test_every_reader_refuses_a_newer_attempt(made, tmp_path):
    """Its records with a version have version 99, and other names for all else."""
    attempt = Path(shutil.copytree(good_run(made) / "attempt-1", tmp_path / "runs" / "run" / "attempt-1"))
    write_json(attempt / "summary.json", {"schema_version": 99, "all": "new"})
    for path in attempt.glob("*.jsonl"):
        path.write_text('{"schema_version": 99, "all": "new"}\n')
    for read in (read_spans, read_reductions, load_steps, check_attempt, Run):
        with pytest.raises(
            (RecordError, ConfigError), match="schema_version=99, and this microp reads up to 3: update microp"
        ):
            read(attempt)
    with pytest.warns(UserWarning, match="1 attempt is left out: .*schema_version=99"):
        assert load_runs(attempt).empty
    assert finished(attempt.parent) is None
    plan = {"name": "mine", "points": [{"run_id": "a", "overrides": WORDS}]}
    write_json(tmp_path / "plan.json", {"schema_version": 2, **plan})
    assert read_plan(tmp_path / "plan.json").name == "mine"
    write_json(tmp_path / "plan.json", {"schema_version": 4, **plan})
    with pytest.raises(RecordError, match="schema_version=4"):
        read_plan(tmp_path / "plan.json")


def test_a_folder_that_was_moved_is_read_mirrored_drawn_and_tidied_up(tmp_path, monkeypatch, capsys):
    """It was recorded under an absolute path, which is gone, and has another name now."""
    before, moved = tmp_path / "before" / "outputs", tmp_path / "after" / "copied"
    microp.measure(*WORDS, *TINY, "replicas=1", f"output_dir={before}")
    moved.parent.mkdir()
    shutil.move(before, moved)
    monkeypatch.chdir(moved.parent)
    [run] = (moved / "runs").iterdir()

    assert finished(run) == run / "attempt-1"
    for main, words in (
        (runs.main, ["copied"]),
        (timeline.main, ["copied", "--report", "copied/report"]),
        (tracking.main, ["copied", "--mode", "offline"]),
        (report.main, ["copied"]),
    ):
        assert main(words) == 0
    said = capsys.readouterr().out
    assert run.name in said
    assert "mirrored rank0, rank1, summary" in said
    assert list((moved / "report").glob("timeline-1f1b-m3-k2-*.svg"))
    assert len(list((moved / "wandb").glob("offline-run-*"))) == 3
    assert "1f1b, M=3, K=2" in (moved / "report" / "report.html").read_text()
    assert runs.main(["copied", "schedule=1f1b", "--delete", "--yes"]) == 0
    assert not [*(moved / "runs").iterdir(), *(moved / "wandb").glob("*run-*")]
