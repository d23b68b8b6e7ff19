"""Every command that a command prints is accepted as it is printed."""

from __future__ import annotations

import re
import shlex

import pytest
from user import microp

SMALL = ["model.layers=4", "model.dim=32", "batch_size=8"]
TIMES = ["device=emulated", "device.per=[layer,row]", "device.forward_ms=0.1", "device.weight_ms=0.1"]
KNOBS = ["device.latency_ms=1", "device.recompute_ms=0.1", "device.reduce_ms=1", "device.full_ms=0.3", "sync=flat"]
PRINTED = {  # a command -> its words
    "plan": [*SMALL, *TIMES, *KNOBS, "ranks=2", "chunks=2,4", "replicas=1,2", "checkpointing=never,always"],
    "plan ": ["model=gpt", "model.vocabulary=300", "model.dim=32", "model.layers=2", "ranks=2", "chunks=2"],
    "order": [*SMALL, *TIMES, "ranks=2", "chunks=3", "schedule=zb_h1", "device.full_ms=0.3", "search.seconds=0.1"],
    "order ": [
        "ranks=18",
        "chunks=40",
        "batch_size=32",
        "schedule=zb_h1",
        "costs.backward=3",
        "costs.forward=3",
        "search.seconds=0.1",
    ],
    "simulate": [*SMALL, "partition=balanced"],
    "run": [*SMALL, "steps=1", "warmup_steps=0", "partition=balanced", "model.layers=5"],
}


def commands(text: str) -> list[list[str]]:
    """Return the commands in a text, each as its words; a remedy may stand inside a sentence."""
    found = re.findall(r"(?:^|\s)((?:python -m )?microp(?:\.\w+)? [^:]*?)(?= makes one| measures|\n|$)", text, re.M)
    return [shlex.split(each.removeprefix("python -m ")) for each in found]


@pytest.mark.parametrize("command", PRINTED)
def test_a_printed_command_is_not_refused(command, tmp_path):
    done = microp(*PRINTED[command], folder=tmp_path, program=f"microp.{command.strip()}")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stderr.split())
    found = commands(done.stdout) + commands(text)
    assert found or command == "simulate"
    for program, *words in found:
        module = {"microp": "microp.run"}.get(program, program)
        only_checked = ["dry_run=true"] if module == "microp.run" else ["--cfg", "job"]
        again = microp(*words, *only_checked, folder=tmp_path, program=module)
        assert again.returncode == 0, (words, again.stderr)
