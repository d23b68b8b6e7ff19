"""What the machine refuses during a command is one line with path and remedy, and what was done is kept."""

import csv
import json
import os
import re
import signal
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from namespace import Mounts
from user import SMALL, alone, microp

from microp import records
from microp.points import attempt as attempt_module
from microp.points import sweep
from microp.records import recorder

FEW = [*SMALL, "chunks=2", "tracking=disabled"]
THREADS = [*FEW, "comms=threads"]
NO_SPACE = OSError(28, "No space left on device")


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """Run a command in this process and folder: its exit code, what it printed and what it reported."""
    monkeypatch.chdir(tmp_path)

    def command(*words: str) -> tuple[int, str, list[str]]:
        done = microp(*words, folder=tmp_path)
        progress = re.compile(r"(\d/\d )?gpipe-|warning: |no profile of |measures one|makes one| ")
        return done.returncode, done.stdout, [each for each in done.stderr.splitlines() if not progress.match(each)]

    return command


def status() -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(Path("outputs/runs").glob("*/*/status.json"))]


@pytest.mark.parametrize(
    ("place", "words"), [("there", []), ("link", ["-m", "seed=1,2"]), ("there/outputs", []), ("x" * 300, [])], ids=str
)
def test_an_output_folder_that_cannot_be_made_is_refused(place, words, typed, tmp_path):
    (tmp_path / "there").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    code, out, errors = typed(*words, *THREADS, f"output_dir={place}")
    assert (code, out, len(errors)) == (2, "", 1)
    assert errors[0].startswith(f"error: output_dir={place[:50]}")
    assert " cannot be written (" in errors[0]
    assert errors[0].endswith("): choose another folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "there"]


def test_an_error_outside_of_the_ranks_is_recorded_and_stops_the_sweep(typed, monkeypatch):
    monkeypatch.setattr(attempt_module, "changed_data", Mock(side_effect=ZeroDivisionError("no steps\nat all")))
    code, _, errors = typed("-m", "seed=1,2", *THREADS)
    said = "error: the sweep stops: ZeroDivisionError: no steps at all (HYDRA_FULL_ERROR=1 shows where)"
    assert (code, errors) == (1, [said])
    [left] = status()
    assert left["status"] == "failed"
    assert left["message"] == "outside of the ranks: ZeroDivisionError: no steps at all"


def test_a_signal_before_the_first_rank_ends_the_command_with_a_line(typed, monkeypatch):
    monkeypatch.setattr(sweep, "make_job", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    said = ["error: interrupted: what has been recorded is in the run's folder; of a sweep the same command goes on"]
    assert typed(*THREADS) == (130, "", said)


def test_rows_that_find_no_room_are_blamed_on_the_disk(typed, monkeypatch):
    """Without a disk that is full: the fourth row of each file fails."""
    step = recorder.RankRecorder.step

    def failing(recorder_of_rank, row):
        if row["step"] == 3:
            raise recorder.unwritable(Path("outputs/steps"), NO_SPACE)
        step(recorder_of_rank, row)

    monkeypatch.setattr(recorder.RankRecorder, "step", failing)
    code, _, [error] = typed(*THREADS)
    assert code == 1
    assert error.startswith("error: rank ")
    assert ", writing its rows, step 3: outputs/steps cannot be written (No space left on device): free some" in error
    [left] = status()
    assert left["status"] == "failed"
    assert f"error: {left['message']}" == error
    [attempt] = Path("outputs/runs").glob("*/attempt-1")
    assert (attempt / "steps.rank0.jsonl").read_text().count("\n") == 3
    assert not list(attempt.glob(".*"))


def test_a_finished_point_runs_again_for_the_weights_that_it_did_not_leave(typed, monkeypatch, tmp_path):
    """The sweep, which has a variable in its overrides, finds its points."""
    monkeypatch.setenv("SCRATCH", str(tmp_path / "outputs"))
    words = ["-m", "seed=1,2", *THREADS, "output_dir='${oc.env:SCRATCH}'", "learning_rate='${calc:1/8}'"]
    assert typed(*words)[0] == 0
    finished = (0, ["2 of 2 points are finished already; again=true runs them again"])
    assert typed(*words)[::2] == finished
    assert typed(*words, "snapshot.final=true")[0] == 0
    assert len(list(Path("outputs").glob("runs/*/attempt-2/weights.pt"))) == 2
    assert typed(*words, "snapshot.every=1")[::2] == finished


def test_an_attempt_that_cannot_be_opened_ends_the_command_in_a_line(typed, monkeypatch):
    monkeypatch.setattr(records, "write_text", Mock(side_effect=recorder.unwritable(Path("a/status.json"), NO_SPACE)))
    code, out, [error] = typed(*THREADS)
    assert (code, out) == (1, "")
    assert error.startswith("error: a/status.json cannot be written (No space left on device): free ")


CHAINED = """
def schedule(ranks, chunks):
    try:
        return helper()
    except KeyError as error:
        raise RuntimeError("it fails") from error
def helper(): return {}["inner"]
"""


def test_the_traceback_of_what_a_user_wrote_is_shown_if_asked_for(tmp_path):
    (tmp_path / "chained.py").write_text(CHAINED)
    (tmp_path / "schedule").mkdir()
    (tmp_path / "schedule" / "mine.yaml").write_text("name: mine\nbuilder: chained.schedule\n")
    words = ("-cd", ".", "schedule=mine")
    short = microp(*words, folder=tmp_path)
    assert (short.returncode, short.stderr.count("\n")) == (2, 1)
    assert "failed for ranks=2, chunks=4: it fails" in short.stderr
    done = microp(*words, folder=tmp_path, HYDRA_FULL_ERROR="1")
    assert (done.returncode, done.stderr.endswith(short.stderr)) == (2, True)
    assert re.search(r'chained.py", line \d+, in helper\n', done.stderr)


def test_a_full_disk_stops_the_sweep_and_the_same_command_goes_on_when_there_is_room(tmp_path):
    """The disk is too small, and then it is made larger."""
    (tmp_path / "full").mkdir()
    words = [word for word in FEW if not word.startswith("steps=")]
    with Mounts(tmp_path) as mounts, tempfile.TemporaryDirectory() as tmp:  # a socket's path has at most 107 letters

        def run(*more: str) -> tuple[int, str, list[str]]:
            where = {"folder": tmp_path, "inside": mounts.pid, "TMPDIR": tmp}
            done = alone(*more, *words, "output_dir=full", **where)
            said = re.sub(r"^no profile of .*?\bmakes\s+one\n", "", done.stderr, flags=re.DOTALL | re.MULTILINE)
            return done.returncode, done.stdout, said.splitlines()

        mounts.run("mount -t tmpfs -o size=400k none full; mount -t tmpfs none /dev/shm")
        first = run("-m", "steps=3,500,4")
        mounts.run("cp -r full kept; mount -o remount,size=50m full")
        again = run("-m", "steps=3,500,4")
        mounts.run("cp $(ls -d full/sweeps/* | tail -1)/table.csv .; ls -A /dev/shm > shm")
        torch_s = ("torchinductor", "pytorch-errorfile")  # its cache; a rank may have had time to write why
        assert [path for path in Path(tmp).iterdir() if not path.name.startswith(torch_s)] == []

    code, out, errors = first
    assert code == 1
    assert out.startswith("finished: "), errors
    assert errors[-1].startswith("error: the sweep stops: ")
    assert ": full/runs/gpipe-m2-k2-" in errors[-1]
    assert "(No space left on device): free some room, or choose another output_dir; the same command" in errors[-1]
    assert not [line for line in errors if "Traceback" in line or "torch" in line]
    assert [line[:4] for line in errors if line[1:2] == "/"] == ["1/3 ", "2/3 "]  # the third has no room either
    kept = tmp_path / "kept" / "runs"
    states = [json.loads(path.read_text())["status"] for path in kept.glob("*/*/status.json")]
    assert sorted(states) == ["finished", "running"]  # later read as killed
    rows = [path.read_text().splitlines(keepends=True) for path in kept.glob("*/*/steps.rank*.jsonl")]
    assert len(rows) == 4
    assert len([json.loads(line) for lines in rows for line in lines if line.endswith("\n")]) > 100
    assert not list(kept.rglob(".*"))  # no drafts

    code, out, errors = again
    assert (code, errors[0]) == (0, "1 of 3 points are finished already; again=true runs them again")
    assert out.startswith("3 finished")
    assert [row["status"] for row in csv.DictReader((tmp_path / "table.csv").open())] == ["finished"] * 3
    assert (tmp_path / "shm").read_text() == ""
