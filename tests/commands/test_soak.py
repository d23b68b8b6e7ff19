"""The comparison by which `make soak` sees that something has been left; the rest of it runs for hours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from soak.machine import MORE_MIB, Machine, Usage, grown

HELD = Usage(200.0, 12, 3, 1)


def looks(names: int = 5, **changes: float):
    """Three looks; the last one has these changes."""
    usages = [HELD, HELD, HELD._replace(**changes)]
    return [
        {"usage": {"the command": each._asdict()}, "names": {"temporary files": names if number == 2 else 5}}
        for number, each in enumerate(usages)
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"descriptors": 13}, ["the command: descriptors grew from 12 to 13"]),
        ({"threads": 4}, ["the command: threads grew from 3 to 4"]),
        ({"segments": 2}, ["the command: segments grew from 1 to 2"]),
        ({"memory_mib": 200 + MORE_MIB}, []),
        ({"memory_mib": 209.0}, ["the command: memory grew from 200 to 209 MiB"]),
        ({"names": 6}, ["temporary files grew from 5 to 6"]),
        ({"descriptors": 11, "names": 4}, []),
    ],
)
def test_what_has_grown_is_told(changes, said):
    assert grown(looks(**changes), 1) == said


def test_a_helper_that_was_not_there_is_told():
    found = looks()
    found[-1]["usage"]["wandb"] = HELD._asdict()
    assert grown(found, 1) == ["wandb is new"]


def test_what_another_program_s_launcher_leaves_is_not_counted(tmp_path):
    """As the test suite beside a soak does; the names tell the launcher."""
    soak = Machine("a mark that no process has", tmp_path, tmp_path, {os.getpid()})
    names = [f"sem.microp-0-{pid}-test" for pid in (os.getpid(), os.getppid())]
    paths = [Path("/dev/shm", name) for name in names]
    before = soak.left()
    try:
        for path in paths:
            path.touch()
        assert soak.left().shared - before.shared == {names[0]}
    finally:
        for path in paths:
            path.unlink()
