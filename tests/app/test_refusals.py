"""What the machine refuses during a command is one line with path and remedy, and what was done is kept."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
import shlex
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from namespace import Mounts, run_script
from user import SMALL, microp, start

from microp import app, run, worker
from microp.app import attempt as attempt_module
from microp.app import hydra_app, sweep
from microp.model import Stage
from microp.settings.launch import no_loopback
from microp.store import recorder
from microp.store.files import Lines

FEW = [*SMALL, "chunks=2", "tracking=disabled"]
THREADS = [*FEW, "comms=threads"]
NO_SPACE = OSError(28, "No space left on device")


@pytest.fixture
def typed(tmp_path, monkeypatch, capsys):
    """Run a command in this process and folder: its exit code, what it printed and what it reported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hydra_app.PointsCallback, "began", False)
    monkeypatch.setattr(sweep, "_open", [])

    def command(*words: str) -> tuple[int, str, list[str]]:
        monkeypatch.setattr(sys, "argv", ["microp", *words])
        GlobalHydra.instance().clear()
        code = 0
        try:
            run.main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            GlobalHydra.instance().clear()
        said = capsys.readouterr()
        progress = re.compile(r"(\d/\d )?gpipe-|warning: |no profile of ")
        return code, said.out, [line for line in said.err.splitlines() if not progress.match(line)]

    return command


def status(folder: str = "*") -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(Path("outputs/runs").glob(f"{folder}/*/status.json"))]


@pytest.mark.parametrize("words", [[], ["-m", "seed=1,2"]], ids=["run", "sweep"])
@pytest.mark.parametrize("what", ["file", "broken link", "below a file"])
def test_an_output_folder_that_cannot_be_made_is_refused(what, words, typed, tmp_path):
    place = {"file": "there", "broken link": "link", "below a file": "there/outputs"}[what]
    (tmp_path / "there").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    code, out, errors = typed(*words, *THREADS, f"output_dir={place}")
    assert (code, out, len(errors)) == (2, "", 1)
    assert errors[0].startswith(f"error: output_dir={place} cannot be written (")
    assert errors[0].endswith("): choose another folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "there"]


def test_too_few_file_descriptors_are_refused(typed, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (79, 79))
    code, out, errors = typed(*FEW)
    said = "error: 2 ranks need 80 file descriptors, and a process may have 79: raise the limit, for example with "
    assert (code, out, errors) == (2, "", [f"{said}ulimit -n 4096"])


def test_a_host_that_cannot_reach_itself_is_refused(typed, monkeypatch):
    def failing(_):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", failing)
    no_loopback.cache_clear()
    code, out, [error] = typed(*FEW)
    no_loopback.cache_clear()
    assert (code, out) == (2, "")
    assert error.startswith("error: 127.0.0.1 cannot be reached (Network is unreachable), ")


def test_a_folder_that_has_been_removed_is_told(tmp_path):
    command = f"mkdir x; cd x; rmdir ../x; exec {shlex.join([sys.executable, '-m', 'microp.run', *FEW])}"
    done = start(["sh", "-c", command], tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        "error: the current folder has been removed: change to another one\n",
    )


@pytest.mark.parametrize("words", [[], ["-m", "again=true"]], ids=["run", "sweep"])
def test_a_clock_that_is_set_back_hides_no_attempt(words, typed, monkeypatch):
    assert typed(*words, *THREADS)[0] == 0
    began, calls = time.time(), count()
    monkeypatch.setattr(time, "time", lambda: began - 3600 * next(calls))
    code, out, errors = typed(*words, *THREADS)
    assert (code, errors) == (0, [])
    assert out.startswith("finished: ")
    assert sorted(path.name for path in Path("outputs/runs").glob("*/attempt-*")) == ["attempt-1", "attempt-2"]


def test_an_error_outside_of_the_ranks_costs_one_point(typed, monkeypatch):
    """It is told at once, with the traceback's file and the command of this point; the sweep goes on."""
    summarise, calls = attempt_module.summarise, []

    def failing(*given):
        calls.append(given)
        if len(calls) <= 2:  # the summary, and the summary of the failed attempt
            raise ZeroDivisionError("no steps\nat all")
        return summarise(*given)

    monkeypatch.setattr(attempt_module, "summarise", failing)
    code, out, errors = typed("-m", "seed=1,2", *THREADS)
    assert code == 1
    first, log, again = errors
    assert first.startswith("error: outputs/runs/gpipe-m2-k2-")
    assert first.endswith("/attempt-1: outside of the ranks: ZeroDivisionError: no steps at all")
    assert "ZeroDivisionError: no steps" in Path(log.removeprefix("log    ")).read_text()
    assert again == f"again  python -m microp.run seed=1 {shlex.join(THREADS)}"
    assert "finished: " in out
    monkeypatch.setattr(attempt_module, "summarise", summarise)
    done, out, errors = typed(*shlex.split(again)[4:])
    assert (done, errors) == (0, []), errors
    assert sorted(each["status"] for each in status()) == ["failed", "finished", "finished"]


def test_a_signal_before_the_first_rank_ends_the_command_with_a_line(typed, monkeypatch):
    monkeypatch.setattr(sweep, "make_job", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    said = ["error: interrupted: what has been recorded is in the run's folder"]
    assert typed(*THREADS) == (130, "", said)


def test_of_a_key_that_is_given_twice_the_last_value_counts_and_a_line_says_so(typed):
    code, _, errors = typed(*THREADS, "chunks=4", "chunks=4", "dry_run=true")
    assert (code, errors) == (0, ["chunks=2 chunks=4: chunks=4 counts"])


def test_a_layer_that_ends_the_process_of_all_ranks_fails_its_rank(typed, monkeypatch):
    forward = Stage.forward

    def leaving(stage, microbatch, x):
        if threading.current_thread() is not threading.main_thread() and stage.batch.step == 2:
            os._exit(0)
        return forward(stage, microbatch, x)

    monkeypatch.setattr(Stage, "forward", leaving)
    code, _, errors = typed(*THREADS)
    assert code == 1
    assert errors[0].endswith("rank 0, action 0F0, step 2: SystemExit: 0")


def test_a_sweep_keeps_no_configuration_of_the_points_that_have_run(typed, monkeypatch):
    """Hydra keeps what each point returns until the last one has run."""
    Plugins.instance()  # it imports its launchers anew
    launcher = import_module("hydra._internal.core_plugins.basic_launcher").BasicLauncher
    launch, returned = launcher.launch, []

    def launching(*given, **named):
        returned.extend(launch(*given, **named))
        return returned

    monkeypatch.setattr(launcher, "launch", launching)
    assert typed("-m", "seed=1,2", *THREADS)[0] == 0
    assert [(each.cfg, each.hydra_cfg) for each in returned] == [(None, None)] * 2


def test_the_machine_s_refusal_stops_the_sweep_and_the_same_command_goes_on(typed, monkeypatch):
    """Here the launcher cannot start the ranks of the second point."""
    run_threads, calls = worker.run_threads, []

    def refusing(*given):
        calls.append(given)
        if len(calls) == 2:
            raise OSError(24, "Too many open files")
        run_threads(*given)

    monkeypatch.setattr(worker, "run_threads", refusing)
    code, out, errors = typed("-m", "seed=1,2,3", *THREADS)
    assert code == 1
    assert errors[-1].startswith("error: the sweep stops: too few file descriptors for a pipe: a process may have ")
    assert not any("Traceback" in line for line in errors)
    assert "1 finished, 1 failed" in out
    assert len(calls) == 2
    code, out, errors = typed("-m", "seed=1,2,3", *THREADS)
    assert (code, errors) == (0, ["1 of 3 points are finished already; again=true runs them again"])
    assert out.startswith("3 finished")


def test_rows_that_find_no_room_are_blamed_on_the_disk(typed, monkeypatch):
    """Without a disk that is full: the fourth row of each file fails."""
    add = Lines.add

    def failing(lines, text):
        if json.loads(text)["step"] == 3:
            raise recorder.unwritable(lines._path, NO_SPACE, len(text))
        add(lines, text)

    monkeypatch.setattr(Lines, "add", failing)
    code, _, [error] = typed(*THREADS)
    assert code == 1
    assert error.startswith("error: rank ")
    assert ", writing its rows, step 3: no room in " in error
    assert "; the rows that are missing take about " in error
    [left] = status()
    assert left["status"] == "failed"
    assert f"error: {left['message']}" == error
    [attempt] = Path("outputs/runs").glob("*/attempt-1")
    assert (attempt / "steps.rank0.jsonl").read_text().count("\n") == 3
    assert not list(attempt.glob(".*"))


def test_a_snapshot_that_finds_no_room_stops_the_sweep(typed, monkeypatch):
    """The first point finishes, the second one meets a full disk, the third one is not tried."""
    fsync, is_full = os.fsync, []

    def failing(descriptor):
        if is_full:
            raise NO_SPACE
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    run_threads = worker.run_threads

    def filling(*given):
        run_threads(*given)
        is_full.append(True)

    monkeypatch.setattr(worker, "run_threads", filling)
    code, out, errors = typed("-m", "seed=1,2,3", *THREADS, "snapshot.every=2")
    assert code == 1
    assert "1 finished, 1 failed" in out
    assert re.match(
        r"error: the sweep stops: rank \d, saving the training, step 2: no room in .*/step-2 \(", errors[-1]
    )
    is_full.clear()
    monkeypatch.setattr(worker, "run_threads", run_threads)
    assert typed("-m", "seed=1,2,3", *THREADS, "snapshot.every=2")[0] == 0


def test_a_sweep_of_one_point_without_a_snapshot_starts_at_its_beginning(typed):
    words = [*THREADS, "snapshot.every=2", "snapshot.resume=true"]
    assert typed("-m", *words)[0] == 0
    code, out, [error] = typed(*words)
    assert (code, out) == (2, "")
    assert error.startswith("error: snapshot.resume=true, but outputs/runs/gpipe-m2-k2-")


def test_a_finished_point_runs_again_for_the_weights_that_it_did_not_leave(typed):
    words = ["-m", "seed=1,2", *THREADS]
    assert typed(*words)[0] == 0
    assert list(Path("outputs").rglob("weights.pt")) == []
    code, out, errors = typed(*words, "snapshot.final=true", "dry_run=true")
    assert (code, errors) == (0, [])
    assert "2 to run" in out
    assert typed(*words, "snapshot.final=true")[0] == 0
    assert len(list(Path("outputs").glob("runs/*/attempt-2/weights.pt"))) == 2
    for more in ([], ["snapshot.final=true"], ["snapshot.every=1"]):
        assert typed(*words, *more)[2] == ["2 of 2 points are finished already; again=true runs them again"]


def test_an_attempt_that_cannot_be_opened_leaves_nothing(typed, monkeypatch):
    def failing(path, text):
        raise recorder.unwritable(path, NO_SPACE, len(text))

    monkeypatch.setattr(attempt_module, "write_text", failing)
    code, out, [error] = typed(*THREADS)
    assert (code, out) == (1, "")
    assert error.startswith("error: no room in ")
    assert "/status.json (" in error
    assert list(Path("outputs/runs").glob("*/attempt-*")) == []


IN_TURN = """
import runpy, sys
def run(*words):
    sys.argv = list(words)
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, words
"""


def test_a_command_whose_input_and_output_are_closed_runs(tmp_path):
    """What is opened next would else get the number of standard output, and the ranks would have none."""
    drawing = 'run("analysis.timeline", "outputs")\n'
    program = f'{IN_TURN}run("microp.run", *{FEW})\nprint("ran", file=sys.stderr)\n{drawing}'
    program += f'sys.stdout = open("drawn", "w", encoding="ascii")\n{drawing}'  # a locale that lacks what is drawn
    done = start(["sh", "-c", f"exec {shlex.join([sys.executable, '-c', program])} <&- >&-"], tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert done.stderr.endswith("\nran\n"), "the drawings said something"
    [attempt] = (tmp_path / "outputs" / "runs").glob("*/attempt-1")
    assert json.loads((attempt / "status.json").read_text())["status"] == "finished"
    assert (tmp_path / "outputs" / "report").is_dir()
    assert "F0" in (tmp_path / "drawn").read_text()


@pytest.mark.parametrize("words", [[], ["-m", "seed=1,2"]], ids=["run", "sweep"])
def test_standard_output_that_is_full_costs_no_run(words, typed, monkeypatch):
    with Path("/dev/full").open("w") as full:
        for name in ("stdout", "__stdout__"):
            monkeypatch.setattr(sys, name, full)
        code, _, [error] = typed(*words, *THREADS)
    assert code == 1
    assert error.startswith("error: standard output (/dev/full) cannot be written (No space left on device): what was ")
    assert [each["status"] for each in status()] == ["finished"] * (2 if words else 1)
    assert len(list(Path("outputs/sweeps").glob("*/table.csv"))) == (1 if words else 0)


# --- disks of the test's own, real ranks ---------------------------------------------------------


def run_among(mounts: Mounts, number: int, *words: str, folder: Path, **how: str) -> None:
    """Run a command among these mounts, and write down how it ended and what it said."""
    done = microp(*words, folder=folder, inside=mounts.pid, **how)
    for kind, text in (("code", str(done.returncode)), ("out", done.stdout), ("err", done.stderr)):
        (folder / f"{kind}{number}").write_text(text)


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """What a sweep left on a disk that was too small, that was made larger, and that then became read-only."""
    folder = tmp_path_factory.mktemp("disk")
    for name in ("full", "tmp"):
        (folder / name).mkdir()
    words = [word for word in FEW if not word.startswith("steps=")]
    with Mounts(folder) as mounts:

        def run(number: int, *more: str) -> None:
            run_among(mounts, number, *more, *words, folder=folder, TMPDIR=str(folder / "tmp"))

        mounts.run("mount -t tmpfs -o size=300k none full; mount -t tmpfs none /dev/shm")
        run(1, "-m", "steps=3,500,4", "output_dir=full")
        mounts.run("cp -r full kept; mount -o remount,size=50m full")
        run(2, "-m", "steps=3,500,4", "output_dir=full")
        mounts.run("cp $(ls -d full/sweeps/* | tail -1)/table.csv .; ls -A /dev/shm > shm; mount -o remount,ro full")
        run(3, "output_dir=full")
        mounts.run("mount -t tmpfs -o ro none /dev/shm")
        run(4)
        mounts.run("umount /dev/shm; mount -t tmpfs -o size=24k none /dev/shm")
        run(5)
        mounts.run("ls -A /dev/shm >> shm")
    return folder


def test_a_disk_that_is_full_of_wandb_s_files_costs_the_mirror_alone(tmp_path):
    """W&B itself prints hundreds of lines, and no error tells that a file was cut."""
    (tmp_path / "full").mkdir()
    with Mounts(tmp_path) as mounts:
        mounts.run("mount -t tmpfs -o size=60k none full")
        words = [*SMALL, "chunks=2", "comms=threads", "tracking=offline", "tracking.dir=full"]
        run_among(mounts, 1, *words, folder=tmp_path)
        mounts.run("mount -o remount,size=50m full")
        run_among(mounts, 2, folder=tmp_path, program="microp.tracking")
        mounts.run("find full -name '*.wandb' > mirrored")
    code, out, [_, *wrapped] = said(tmp_path, 1)  # the first line is the progress
    assert (code, out[:8]) == (0, "finished")
    assert re.fullmatch(
        r"warning: W&B failed for \S+/attempt-1 \(no room in \S+/full for full/wandb \(16 KiB needed, .* free\): "
        r"free some, or set tracking.dir to another folder\), which is finished and recorded\. "
        r"To mirror it later: python -m microp.tracking outputs",
        " ".join(wrapped),
    )
    code, out, errors = said(tmp_path, 2)
    assert (code, errors) == (0, [])
    assert re.fullmatch(r"1/1 outputs/runs/\S+/attempt-1: mirrored (rank0, )?(rank1, )?summary\n", out)
    assert len((tmp_path / "mirrored").read_text().splitlines()) == 3


def test_a_system_without_proc_is_refused(tmp_path):
    script = f"mount -t tmpfs none /proc; exec {shlex.join([sys.executable, '-m', 'microp.run', *FEW])}"
    done = run_script(script, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    said = "error: /proc is not mounted, through which ranks find each other: mount it, with mount -t proc proc /proc"
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [said]


def said(disk: Path, number: int) -> tuple[int, str, list[str]]:
    code, out, errors = ((disk / f"{kind}{number}").read_text() for kind in ("code", "out", "err"))
    without_note = re.sub(r"^no profile of .*?\bmakes\s+one\n", "", errors, flags=re.DOTALL | re.MULTILINE)
    return int(code), out, without_note.splitlines()


def test_a_full_disk_stops_the_sweep_and_keeps_what_was_written(disk):
    code, out, errors = said(disk, 1)
    assert code == 1
    assert "1 finished, 1 failed" in out
    assert errors[-1].startswith("error: the sweep stops: rank ")
    assert f"no room in {disk / 'full'} for full/runs/gpipe-m2-k2-" in errors[-1]
    assert " B free): free some, or choose another output_dir; the same command then goes on; " in errors[-1]
    assert not [line for line in errors if "Traceback" in line or "torch" in line]
    assert [line[:4] for line in errors if line[1:2] == "/"] == ["1/3 ", "2/3 "]  # the third has no room either
    kept = [json.loads(path.read_text()) for path in (disk / "kept" / "runs").glob("*/*/status.json")]
    assert sorted(each["status"] for each in kept) == ["failed", "finished"]
    rows = [path.read_text() for path in (disk / "kept" / "runs").glob("*/*/steps.rank*.jsonl")]
    assert len(rows) == 4
    assert all(json.loads(line) for text in rows for line in text.splitlines())
    assert sum(text.count("\n") for text in rows) > 100
    assert not list((disk / "kept").rglob(".*"))  # no drafts


def test_the_same_command_goes_on_when_there_is_room(disk):
    code, out, errors = said(disk, 2)
    assert (code, errors[0]) == (0, "1 of 3 points are finished already; again=true runs them again")
    assert out.startswith("3 finished")
    assert [row["status"] for row in csv.DictReader((disk / "table.csv").open())] == ["finished"] * 3


def test_a_read_only_disk_is_refused_before_anything_starts(disk):
    code, out, errors = said(disk, 3)
    assert (code, out) == (2, "")
    assert errors == ["error: output_dir=full cannot be written (Read-only file system): choose another folder"]


def test_semaphores_that_cannot_be_made_are_named(disk):
    code, _, errors = said(disk, 4)
    assert code == 1
    assert errors[-1].startswith("error: /dev/shm/a semaphore cannot be written (Read-only file system): ")
    assert "or use comms=threads" in errors[-1]
    assert len([line for line in errors if line.startswith("error: ")]) == 1


def test_too_little_room_for_all_semaphores_is_named(disk):
    """There is room for six, and two ranks share nine with the launcher."""
    code, _, errors = said(disk, 5)
    assert code == 1
    needed = "error: no room in /dev/shm for /dev/shm/a semaphore (36 KiB needed, 0 B free): free some, "
    assert errors[-1] == f"{needed}or use comms=threads; the same command then goes on"
    assert not [line for line in errors if "Traceback" in line]


def test_nothing_is_left_in_the_temporary_folders(disk):
    left = {path.name.partition("_")[0] for path in (disk / "tmp").iterdir()}
    assert left <= {"torchinductor"}  # torch's cache, one per user
    assert (disk / "shm").read_text() == ""


def test_a_sweep_ends_with_ctrl_c_that_was_lost_in_a_point(typed, monkeypatch):
    ran = []

    def point(config):
        ran.append(config.chunks)
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(app, "run_point", point)
    code, _, errors = typed("-m", *SMALL, "tracking=disabled", "chunks=2,3")
    assert (code, ran) == (130, [2])
    assert errors == ["error: interrupted: what has been recorded is in the run's folder"]


def test_what_ctrl_c_left_half_done_in_an_attempt_is_interrupted(typed, monkeypatch, tmp_path):
    def half_done(*_):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise RuntimeError("the ranks' server has ended")

    monkeypatch.setattr(worker, "run_threads", half_done)
    code, _, errors = typed("-m", "chunks=2,3", *SMALL, "tracking=disabled", "comms=threads")
    assert (code, errors[-1]) == (130, "error: interrupted: what has been recorded is in the run's folder")
    [attempt] = tmp_path.glob("outputs/runs/*/*")
    assert json.loads((attempt / "status.json").read_text())["status"] == "interrupted"
