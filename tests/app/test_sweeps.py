"""The stored sweeps: every point is good, and a quick one is part of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from configs import problems
from hydra.types import RunMode

from microp.app import CONF, make_job, read_config
from microp.app.config import register_schemas
from microp.app.help_page import about_sweep
from microp.app.hydra_internals import composer, expand
from microp.app.sweep_parts import PARTS, register_parts

SWEEPS = Path(__file__).parents[2] / "sweeps"
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
    found = {make_job(config).run_id: config for config in (read_config(node) for _, node in points(name, "repeat=0"))}
    assert [problem for config in found.values() for problem in problems(config)] == []
    assert not any(config.batch_size % config.chunks for config in found.values()), "uneven microbatches"
    if f"{name}_quick" in STORED:
        quick = {make_job(read_config(node)).run_id for _, node in points(f"{name}_quick")}  # equal points are one run
        assert about_sweep(f"{name}_quick")[1].startswith(f"{len(quick)} points, ")
        assert quick < found.keys()
