"""The stored sweeps: every point is good, and a quick one is part of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.types import RunMode

from microp.app.hydra_adapter import composer
from microp.app.stored_sweeps import PARTS, register_parts
from microp.config import CONF, read, register_schemas, run_id
from microp.points import expand
from microp.rules import validate

SWEEPS = Path(__file__).parent.parent / "sweeps"
STORED = sorted(path.stem for path in SWEEPS.glob("*.yaml") if not path.name.endswith(PARTS))


@pytest.fixture(scope="module")
def points():
    """What a command asks for, composed: name, words -> (overrides, node) of each point that is not left out."""
    register_schemas()
    register_parts(SWEEPS)
    with composer(CONF, SWEEPS) as hydra:

        def compose(name: str, *words: str):
            config = hydra.sweep(name, words)
            assert config.hydra.mode is RunMode.MULTIRUN
            return [(frozenset(overrides), node) for overrides, node in expand(config) if not node.skip]

        yield compose


@pytest.mark.parametrize("name", [name for name in STORED if not name.endswith("_quick")])
def test_every_point_is_good_and_a_quick_sweep_is_part_of_the_whole(points, name):
    """The launches of a question differ only in their number: one is looked at."""
    assert (SWEEPS / f"{name}.yaml").read_text().startswith("# "), "what it asks"
    found = {run_id(config): config for config in (read(node) for _, node in points(name, "repeat=0"))}
    assert [problem for config in found.values() for problem in validate(config)] == []
    assert not any(config.batch_size % config.chunks for config in found.values()), "uneven microbatches"
    if f"{name}_quick" in STORED:
        assert {run_id(read(node)) for _, node in points(f"{name}_quick")} < found.keys()
