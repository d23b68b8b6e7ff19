"""Wrong commands and files, one for every rule: each is refused with exit code 2, and what is wrong is named.

`bad_input.txt` is the table. A line without indentation is a command, as after `microp` (`simulate ...` after
`python -m microp.simulate`); the words below it are in what it prints.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import bad_files
import pytest
from typed import nothing_starts, type_in

TABLE = Path(__file__).with_name("bad_input.txt")


def read_table() -> dict[str, list[str]]:
    """Read the table: command -> the words that its user reads."""
    cases: dict[str, list[str]] = {}
    command = ""
    for line in TABLE.read_text().splitlines():
        if line.startswith("  "):
            cases[command] += line.split()
        elif line and not line.startswith("#"):
            command = line
            assert command not in cases, f"twice in the table: {command}"
            cases[command] = []
    return cases


CASES = read_table()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of files that no command can use, in which commands are typed; no key for W&B is on this machine."""
    made, before = bad_files.make(tmp_path_factory.mktemp("bad")), Path.cwd()
    os.chdir(made)
    with pytest.MonkeyPatch.context() as patch, nothing_starts():
        patch.syspath_prepend(made)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield made
    os.chdir(before)
    for name in [name for name in sys.modules if name in ("own", "own_models", "own_broken", "own_exits")]:
        del sys.modules[name]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")


@pytest.mark.parametrize("command", CASES)
def test_a_wrong_command_is_refused_and_what_is_wrong_is_named(folder, command, capsys, monkeypatch):
    before = files(folder)
    code = type_in(folder, command, monkeypatch)
    said = capsys.readouterr()
    assert (code, said.out) == (2, ""), said
    assert "Traceback" not in said.err
    assert [word for word in CASES[command] if word not in said.err] == [], said.err
    assert files(folder) == before


def test_the_table_can_be_read():
    assert len(CASES) <= 200
