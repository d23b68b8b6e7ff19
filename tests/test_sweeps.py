"""The stored sweeps: every point is good, a quick one is part of the whole, and W&B's files ask for the same points."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import yaml
from hydra.types import RunMode

from microp.app.hydra_adapter import composer
from microp.app.stored_sweeps import PARTS, register_parts
from microp.config import CONF, read, register_schemas, run_id
from microp.points import expand
from microp.rules import validate

SWEEPS = Path(__file__).parent.parent / "sweeps"
STORED = sorted(path.stem for path in SWEEPS.glob("*.yaml") if not path.name.endswith(PARTS))
WANDB = sorted((SWEEPS / "wandb").glob("*.yaml"))
EXPERIMENTS = sorted({yaml.safe_load(path.read_text())["command"][7] for path in WANDB})


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


def grid(path: Path) -> list[frozenset[str]]:
    """The words that W&B's agent would give each run for `${args_no_hyphens}`."""
    parameters = yaml.safe_load(path.read_text())["parameters"]
    values = [[f"{name}={value}" for value in parameter["values"]] for name, parameter in parameters.items()]
    return [frozenset(words) for words in product(*values)]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_files_for_w_and_b_ask_for_the_same_points(points, name):
    stored = [words for words, _ in points(name)]
    files = [path for path in WANDB if yaml.safe_load(path.read_text())["command"][7] == name]
    asked = [words for path in files for words in grid(path)]
    assert sorted(map(sorted, asked)) == sorted(map(sorted, stored))


@pytest.mark.parametrize("path", WANDB, ids=lambda path: path.stem)
def test_a_file_for_w_and_b_is_what_its_agent_expects(path):
    sweep = yaml.safe_load(path.read_text())
    assert sweep["method"] == "grid"
    assert (SWEEPS.parent / sweep["program"]).exists()
    assert sweep["command"][:7] == ["${env}", "${interpreter}", "-m", "microp.run", "-cd", "sweeps", "-cn"]
    assert sweep["command"][8:] == ["hydra.mode=RUN", "tracking=online", "${args_no_hyphens}"]
    assert sweep["name"] == path.stem
