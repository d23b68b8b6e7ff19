"""`--help`, `--version` and `hydra.verbose`: every key is explained, from the one place where it is defined."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module

import pytest
from user import ROOT, SMALL, environment_of, microp

from microp.config.help_page import about_sweep, cost_helps, key_helps
from microp.config.schema import GROUPS, CostsConfig, is_fixed
from microp.system.places import sweep_names

HELPS = key_helps() | cost_helps()


def test_every_key_of_conf_has_a_line_of_help():
    top = re.findall(r"^(\w+):", (ROOT / "conf" / "base.yaml").read_text(), re.M)
    own = {
        f"{path.parent.name}.{key}"
        for path in (ROOT / "conf").glob("*/*.yaml")
        for key in re.findall(r"^(\w+):", path.read_text(), re.M)
        if key != "defaults" and path.parent.name in GROUPS and not is_fixed(path.parent.name, key)
    }
    costs = {f"costs.{key}" for key in CostsConfig.__dataclass_fields__}
    assert HELPS.keys() == {*top, *own, *costs, "output"} - {"defaults"}
    assert [key for key, text in HELPS.items() if not text] == []
    assert max(map(len, HELPS.values())) < 240


@pytest.mark.parametrize("columns", [80, 120])
def test_the_page_fits_its_width_and_has_every_key_and_sweep(columns, tmp_path):
    done = microp("--help", folder=tmp_path, COLUMNS=str(columns))
    assert done.returncode == 0, done.stderr
    for key in key_helps():
        assert re.search(rf"^ *{re.escape(key)}=", done.stdout, re.M), key
    for name in sweep_names():
        assert re.search(rf"^{name}\b", done.stdout, re.M), name
    assert max(map(len, done.stdout.splitlines())) < columns
    assert "checkpointing.segments=2\n" in done.stdout  # the other options do not use it
    priced = microp("--help", folder=tmp_path, program="microp.simulate", COLUMNS=str(columns))
    assert max(map(len, priced.stdout.splitlines())) < columns
    assert all(f"  {key}=" in priced.stdout for key in cost_helps())


def test_a_reader_that_has_seen_enough_ends_it_silently(tmp_path):
    """As `microp --help | head -1` does; the page is longer than a pipe holds back."""
    there, here = os.pipe()
    os.close(there)
    done = subprocess.run(
        [sys.executable, "-m", "microp.run", "--help"],
        env=environment_of(tmp_path, {}),
        cwd=tmp_path,
        stdout=here,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(here)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_readme_s_table_of_sweeps_is_what_their_files_say():
    rows = re.findall(
        r"^\| `(\w+)` \| ([^|]+) \| (\d+) \((?:quick: )?(\d+)\) \| (\S+) \((\S+)\) \|$",
        (ROOT / "sweeps" / "README.md").read_text(),
        re.M,
    )
    assert {row[0] for row in rows} == {name for name in sweep_names() if not name.endswith("_quick")} - {"first"}
    for name, question, points, quick_points, minutes, quick_minutes in rows:
        for each, number, time in ((name, points, minutes), (f"{name}_quick", quick_points, quick_minutes)):
            size = about_sweep(each)[1]
            assert size in (f"{number} points, {time} {unit} on two cores" for unit in ("minute", "minutes"))
        assert about_sweep(name)[0] == question


@pytest.mark.parametrize("name", sweep_names())
def test_every_stored_sweep_tells_its_question_its_points_and_its_minutes(name):
    question, size = about_sweep(name)
    assert re.fullmatch(r"\d+ points, [\d½]+ minutes? on two cores", size)
    assert "?" in question or name.endswith("_quick")


COMMANDS = (
    *("microp.check", "microp.dashboard", "microp.labs.__main__", "microp.labs.memory_wall", "microp.null_stages"),
    *("microp.runs", "microp.tracking", "analysis.__main__", "analysis.sweep"),
    "analysis.timeline",
)


@pytest.mark.parametrize("module", COMMANDS)
def test_help_fits_80_columns_and_a_wrong_option_is_one_line(module, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command = import_module(module)
    with pytest.raises(SystemExit, match="0"):
        command.main(["--help"])
    assert 40 < max(map(len, capsys.readouterr().out.splitlines())) < 80
    with pytest.raises(SystemExit, match="2"):
        command.main(["--nonsense"])
    said = capsys.readouterr()
    assert (said.err.count("\n"), said.err[:7], said.out) == (1, "error: ", "")


def test_a_lab_that_does_not_exist_is_told_with_those_that_do(capsys):
    with pytest.raises(SystemExit, match="2"):
        import_module("microp.labs.__main__").main(["nonsense"])
    assert "nonsense is not a lab: use one of monolith, memory_wall" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["run", "simulate", "order", "check", "null_stages", "tracking", "runs", "labs"])
def test_every_command_tells_its_version(program, tmp_path):
    done = microp("--version", folder=tmp_path, program=f"microp.{program}")
    assert (done.returncode, done.stdout[:7]) == (0, "microp "), done.stderr


def test_verbose_logs_the_steps_of_microp_and_of_hydra(tmp_path):
    quiet = microp(*SMALL, "chunks=2", "comms=threads", "tracking=disabled", folder=tmp_path)
    loud = microp(*SMALL, "chunks=2", "comms=threads", "tracking=disabled", "hydra.verbose=true", folder=tmp_path)
    for text in ("microp.sweep.hydra_callbacks  1 point is composed", "2 ranks start", "the ranks ended after"):
        assert text in loud.stderr
        assert text not in quiet.stderr
    assert "ms  hydra" in loud.stderr
