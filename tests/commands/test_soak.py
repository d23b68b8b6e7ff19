"""The comparison by which `make soak` sees that something has been left; the rest of it runs for hours."""

from __future__ import annotations

import pytest
from soak.machine import MORE_MIB, Usage, grown

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
