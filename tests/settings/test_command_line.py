"""A command whose standard output or standard error cannot be written does its work, and says so at its end."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from microp.settings import run_command
def command():
    for number in range(3):
        print("line", number, "x" * 100_000)
        print("note", number, file=sys.stderr, flush=True)
    open("done", "w").close()
    ENDS
run_command(command)
"""
NOTES = ["note 0", "note 1", "note 2"]
FULL = (
    "error: standard output (/dev/full) cannot be written (No space left on device): what was printed there is lost, "
    "what was recorded is kept; send it to a terminal, or to a file that has room"
)
READ_ONLY = FULL.replace("/dev/full", "/dev/null").replace("No space left on device", "Bad file descriptor")


def command(ends: str) -> list[str]:
    return [sys.executable, "-c", CODE.replace("ENDS", ends)]


def begin(folder: Path, ends: str = "pass", **streams) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen(command(ends), cwd=folder, env=environment, text=True, **given)


@pytest.mark.parametrize(
    ("ends", "code", "last"),
    [
        ("pass", 1, [FULL]),
        ("return 0", 1, [FULL]),
        ("return 3", 3, [FULL]),
        ("sys.exit(2)", 2, [FULL]),
        ("sys.exit('error: in words')", 1, [FULL, "error: in words"]),
        ("raise KeyboardInterrupt", 130, [FULL]),
    ],
)
def test_a_full_disk_behind_standard_output_is_told_at_the_end(ends, code, last, tmp_path):
    with Path("/dev/full").open("w") as full:
        program = begin(tmp_path, ends, stdout=full)
    _, err = program.communicate()
    assert (program.returncode, err.splitlines()) == (code, NOTES + last)
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize(("ends", "code"), [("pass", 0), ("return 3", 3), ("raise KeyboardInterrupt", 130)])
def test_the_exit_code_of_a_command_that_can_print(ends, code, tmp_path):
    program = begin(tmp_path, ends)
    out, err = program.communicate()
    assert (program.returncode, err.splitlines(), len(out.splitlines())) == (code, NOTES, 3)


def test_a_file_that_is_open_for_reading_alone(tmp_path):
    with Path(os.devnull).open() as null:
        program = begin(tmp_path, stdout=null)
    _, err = program.communicate()
    assert (program.returncode, err.splitlines()) == (1, [*NOTES, READ_ONLY])


def test_standard_error_that_is_full_shows_in_the_exit_code(tmp_path):
    with Path("/dev/full").open("w") as full:
        program = begin(tmp_path, stderr=full)
        out, _ = program.communicate()
        assert (program.returncode, len(out.splitlines())) == (1, 3)
        program = begin(tmp_path, stdout=full, stderr=full)
    assert program.wait() == 1
    assert (tmp_path / "done").exists()


def test_a_reader_that_has_seen_enough_costs_nothing(tmp_path):
    there, here = os.pipe()
    os.close(there)
    program = begin(tmp_path, stdout=here)
    os.close(here)
    _, err = program.communicate()
    assert (program.returncode, err.splitlines()) == (0, NOTES)
    assert (tmp_path / "done").exists()


def test_a_slow_reader_of_a_pipe_that_does_not_block_gets_all(tmp_path):
    there, here = os.pipe()
    fcntl.fcntl(here, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(here, False)
    program = begin(tmp_path, stdout=here)
    os.close(here)
    with os.fdopen(there) as reading:
        lines = reading.read().splitlines()
    _, err = program.communicate()
    assert (program.returncode, err.splitlines(), len(lines)) == (0, NOTES, 3)


def test_every_command_is_run_so():
    files = [path for folder in ("microp", "analysis") for path in (ROOT / folder).rglob("*.py")]
    mains = {path: text for path in files if '\nif __name__ == "__main__":\n' in (text := path.read_text())}
    assert len(mains) > 30
    without = [path for path, text in mains.items() if "run_command(" not in text]
    assert without == []
