"""Every record × every damage × every reader: it costs that run and no more, and the file is named.

One run is made, and copied once for each record and damage. Each reader is then asked once about all of them.
"""

from __future__ import annotations

import json
import os
import shutil
from itertools import product
from pathlib import Path

import pytest

import microp
from analysis import overview, timeline
from microp import runs, tracking
from microp.app import planned
from microp.store import RecordError, Store, check_attempt, checksums, load_runs, write_json

WORDS = ["schedule=1f1b", "chunks=3", "replicas=2", "comms=threads", "tracking=disabled", "steps=2", "warmup_steps=1"]
TINY = ["model.layers=2", "model.dim=8", "batch_size=6"]
RECORDS = [
    "status.json",
    "summary.json",
    "config.yaml",
    "env.json",
    "schedule.txt",
    "steps.rank1.jsonl",
    "spans.rank2.jsonl",
    "reductions.rank3.jsonl",
    "error.rank1.json",
]
FORMS = {
    "a-list": b"[1, 2]\n",
    "no-keys": b"{}\n",
    "other-types": b'{"status": 3, "ranks": "two", "bubble": 1, "phase": 7, "op": "X", "lost_peer": 1}\n',
}
DAMAGES = ["cut", "a-line-less", "empty", "missing", "pipe", "not-text", "nested", *FORMS]
UNSEEN = {  # what an older microp left cannot tell these from a whole record
    ("config.yaml", "a-line-less"),
    ("error.rank1.json", "missing"),
    ("schedule.txt", "missing"),  # it is read from the trace, as of the first version
}

CASES = [
    (old, record, how)
    for old, record, how in product((False, True), RECORDS, DAMAGES)
    if not (old and (record, how) in UNSEEN)
]


def damage(path: Path, how: str) -> None:
    """Damage a file; of another form it is at least as long as before."""
    content = path.read_bytes()
    path.unlink()
    if how == "missing":
        return
    if how == "pipe":
        os.mkfifo(path)
        return
    if how in FORMS:
        rows = path.suffix == ".jsonl"
        form = FORMS[how] * (1 + len(content) // len(FORMS[how])) if rows else FORMS[how].ljust(len(content) + 1)
    lines = content.splitlines(keepends=True)
    simple = {"cut": content[: len(content) // 2], "a-line-less": b"".join(lines[:-1]), "empty": b""}
    odd = {"not-text": b"\xff\xfe\x00" * len(content), "nested": b"[" * (3000 + len(content))}
    path.write_bytes(form if how in FORMS else {**simple, **odd}[how])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The outputs folder with a run that is whole, and another one for each damage to each record."""
    outputs = tmp_path_factory.mktemp("made") / "outputs"
    good = microp.measure(*WORDS, *TINY, f"output_dir={outputs}").folder
    for old, record, how in CASES:
        copy = Path(shutil.copytree(good, run_of(outputs, record, how, old) / "attempt-1"))
        status = json.loads((copy / "status.json").read_text())
        if record.startswith("error"):
            write_json(copy / record, {"message": "rank 1 died", "lost_peer": False, "time": 1.0})
            status |= {"status": "failed", "message": "rank 1 died", "files": checksums(copy)}
        write_json(copy / "status.json", {key: status[key] for key in status if not (old and key == "files")})
        damage(copy / record, how)
    for how in DAMAGES:
        plan = {"schema_version": 2, "name": "mine", "points": [{"run_id": "a", "overrides": ["chunks=3"]}]}
        (outputs / "sweeps" / how).mkdir(parents=True)
        write_json(outputs / "sweeps" / how / "plan.json", plan)
        damage(outputs / "sweeps" / how / "plan.json", how)
    return outputs


def run_of(outputs: Path, record: str, how: str, old: bool) -> Path:
    return outputs / "runs" / f"{record}-{how}{'-old' if old else ''}"


def files(outputs: Path) -> list[str]:
    """The damaged files."""
    return sorted(str(run_of(outputs, record, how, old) / "attempt-1" / record) for old, record, how in CASES)


def named(sentences: list[str]) -> list[str]:
    """The files with which sentences begin; each sentence is one line and tells what to do."""
    assert not [sentence for sentence in sentences if "\n" in sentence or "run its command again" not in sentence]
    return sorted(sentence.split(" cannot be read (")[0] for sentence in sentences)


def good_run(outputs: Path) -> Path:
    [run] = (outputs / "runs").glob("1f1b-m3-*")
    return run


def test_load_runs_leaves_them_out_and_lists_them(made):
    with pytest.warns(UserWarning, match=f"^{len(CASES)} attempts are left out: "):
        frame = load_runs(made)
    assert frame["run_id"].tolist() == [good_run(made).name]
    assert named(frame.attrs["unreadable"]) == files(made)


def test_the_report_lists_them(made):
    store = Store(made)
    assert store.runs()["run_id"].tolist() == [good_run(made).name]
    told = [reason for reason in overview.without_result(store) if "/sweeps/" not in reason]
    assert named(told) == files(made)
    plans = [reason for reason in store.unreadable if "/sweeps/" in reason]
    assert len(plans) == len(DAMAGES) - 1  # without the one that is missing
    assert all("plan.json cannot be read" in reason and reason.endswith("run its sweep again") for reason in plans)


def test_the_list_of_runs_names_them(made, capsys):
    assert runs.main([str(made), "-n", "0"]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert good_run(made).name in lines
    assert f"1 run in {made}" in lines
    assert sorted(part.split(" cannot be read")[0] for part in lines.split("left out: ")[1:]) == files(made)
    assert runs.main([str(made)]) == 0
    assert f"{len(CASES) - 5} more cannot be read: -n 0 names them" in " ".join(capsys.readouterr().out.split())


def test_a_timeline_names_the_file(made, capsys):
    for path in files(made):
        with pytest.raises(SystemExit, match="2"):
            timeline.main([str(Path(path).parent)])
        said = capsys.readouterr()
        assert said.err.startswith(f"error: {path} cannot be read ("), path
        assert said.out == ""
        assert said.err.count("\n") == 1


def test_tracking_names_the_file_and_goes_on(made, capsys):
    assert tracking.main([str(made)]) == 1
    said = capsys.readouterr()
    assert said.out.strip().endswith("attempt-1: disabled")
    lines = [line.split(": ", 1)[1] for line in said.err.splitlines()]
    assert named(lines) == files(made)


def test_a_sweep_runs_the_point_again(made):
    assert planned.finished(good_run(made)) == good_run(made) / "attempt-1"
    assert [planned.finished(Path(path).parents[1]) for path in files(made)] == [None] * len(CASES)


def test_an_older_attempt_stands_in_for_a_damaged_one(made, tmp_path):
    """The damaged attempt is named until a newer one has finished."""
    run = tmp_path / "run"
    for number in (1, 2, 3):
        copy = Path(shutil.copytree(good_run(made) / "attempt-1", run / f"attempt-{number}"))
        status = json.loads((copy / "status.json").read_text())
        write_json(copy / "status.json", {**status, "started": float(number)})
    (run / "attempt-2" / "config.yaml").write_text("")
    assert load_runs(run).attrs["unreadable"] == []
    (run / "attempt-3" / "status.json").unlink()
    with pytest.warns(UserWarning, match="^2 attempts are left out: .*attempt-3/status.json cannot be read"):
        frame = load_runs(run)
    assert frame["attempt"].tolist() == ["attempt-1"]
    assert named(frame.attrs["unreadable"]) == [f"{run}/attempt-2/config.yaml", f"{run}/attempt-3/status.json"]


def test_a_record_that_a_person_edited_is_read(made, tmp_path):
    """Its checksum is another one, but its form is right."""
    attempt = Path(shutil.copytree(good_run(made) / "attempt-1", tmp_path / "run" / "attempt-1"))
    config = (attempt / "config.yaml").read_text()
    (attempt / "config.yaml").write_text(config.replace("project: microp", "project: another"))
    check_attempt(attempt)
    assert load_runs(tmp_path)["config.tracking.project"].tolist() == ["another"]


def test_a_file_is_checked_again_when_it_has_changed(made, tmp_path):
    attempt = Path(shutil.copytree(good_run(made) / "attempt-1", tmp_path / "run" / "attempt-1"))
    check_attempt(attempt)
    damage(attempt / "spans.rank0.jsonl", "cut")
    with pytest.raises(RecordError, match=r"spans.rank0.jsonl cannot be read \(it has [0-9]+ bytes, and [0-9]+ were"):
        check_attempt(attempt)
