"""Wrong commands and files, over every key of every group: each is refused with its message and exit code 2.

`bad_input.txt` is the table. A line without indentation is a command, as after `microp` (`simulate ...` after
`python -m microp.simulate`); the lines below it are its messages. `…` stands for any text.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import bad_files
import pytest
from typed import Terminal

from microp.app import ConfigError, stored_sweeps
from microp.app.errors import LONGEST
from microp.app.schema import GROUPS, SCHEMAS, CostsConfig, SimulateConfig

TABLE = Path(__file__).with_name("bad_input.txt")


def read_table() -> dict[str, list[str]]:
    """Read the table: command -> its messages."""
    found: dict[str, list[str]] = {}
    command = ""
    for line in TABLE.read_text().splitlines():
        if line.startswith("  "):
            found[command].append(line.strip())
        elif line and not line.startswith("#"):
            command = line
            assert command not in found, f"twice in the table: {command}"
            found[command] = []
    return found


CASES = read_table()


@pytest.fixture(scope="module")
def terminal(tmp_path_factory):
    """A terminal in a folder of files that no command can use."""
    folder, before = bad_files.make(tmp_path_factory.mktemp("bad")), Path.cwd()
    sys.path.append(str(folder))
    os.chdir(folder)
    opened = Terminal(folder)
    yield opened
    opened.close()
    os.chdir(before)
    sys.path.remove(str(folder))
    for name in [
        name for name in sys.modules if name.split(".")[0] in ("own", "own_models", "own_broken", "own_exits")
    ]:
        del sys.modules[name]


@pytest.fixture(scope="module", autouse=True)
def _no_account(tmp_path_factory):
    """No key for W&B is found on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


def as_pattern(message: str) -> str:
    return ".*".join(map(re.escape, message.split("…")))


@pytest.mark.parametrize("command", CASES)
def test_a_wrong_command_is_refused_with_its_message(terminal, command, capsys):
    code = terminal.type(command)
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    lines = [line.removeprefix("error: ") for line in said.err.splitlines() if not line.startswith("  rank ")]
    assert said.err.count("error: ") == len(lines)
    assert len(lines) == len(CASES[command])
    for line, message in zip(lines, CASES[command], strict=True):
        assert re.fullmatch(as_pattern(message), line), f"{line!r} is not {message!r}"
        assert line.isprintable()
        assert len(line) < LONGEST + 10


def test_nothing_was_written_or_executed(terminal):
    assert not {"outputs", "executed"} & {path.name for path in Path.cwd().iterdir()}


@pytest.mark.parametrize("name", ["../x", "sub/own", "/etc/own.yaml"])
def test_the_name_of_a_stored_sweep_is_no_path(name, monkeypatch):
    """It is a part of the name of the sweep's folder, which lies in the output folder."""
    monkeypatch.setattr(sys, "argv", ["microp", "-cn", name])
    with pytest.raises(ConfigError, match=f"^-cn {name.removesuffix('.yaml')} is a path and no name: use -cd .* -cn "):
        stored_sweeps.register()


def test_the_table_has_every_key_and_says_what_to_do():
    assert len(CASES) >= 300
    typed = " ".join(CASES)
    for schema in SCHEMAS.values():
        for field in fields(schema):
            assert field.name in typed or is_dataclass(field.type) or field.name in ("costs", "spare_last"), field.name
    for key in (*GROUPS, *(f"costs.{field.name}" for field in fields(CostsConfig)), *vars(SimulateConfig)):
        assert key in typed or key.startswith("_") or callable(getattr(SimulateConfig, key, None)), key
    without_remedy = [text for texts in CASES.values() for text in texts if ": " not in text]
    assert without_remedy == []
