"""The stored sweeps: every point is good, and a quick one is part of the whole."""

from collections.abc import Sequence
from functools import cache
from itertools import product
from math import prod
from pathlib import Path

import pytest
import yaml
from configs import sweep_of
from omegaconf import DictConfig, OmegaConf

from microp.config import make_job, read_config
from microp.config.config import compose_points, composer, register
from microp.system.places import about_sweep, sweep_names

SWEEPS = Path(__file__).parents[2] / "sweeps"
STORED = sweep_names()


@pytest.fixture(scope="module", autouse=True)
def _composes():
    register()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["microp", "-cn", "first"])  # else stored sweeps are not looked for
        with composer():
            yield


@cache
def stored(name: str) -> DictConfig:
    """What Hydra composes for `microp -cn NAME`, before its points."""
    return sweep_of(name=name)


@cache
def axes_of(name: str) -> dict[str, list[str]]:
    """The axes of a stored sweep in one launch: key -> the words that a point can have."""
    params = OmegaConf.to_container(stored(name).hydra.sweeper.params)
    axes = {key: [f"{key}={value}" for value in str(values).split(",")] for key, values in params.items()}
    return {**axes, "repeat": ["repeat=0"]}  # launches differ only in their number


def runs(name: str, words: Sequence[str]) -> set[str]:
    """The runs of a stored sweep's points, with these words for its axes, that are not left out."""
    config = stored(name)
    config.hydra.overrides.task = list(words)
    composed = compose_points(config)
    assert not any(point.problems for point in composed)
    configs = [read_config(point.config) for point in composed if not point.config.skip]
    assert not any(config.batch_size % config.chunks for config in configs), "uneven microbatches"
    return {make_job(config).run_id for config in configs}  # a wrong one is refused


def some_of(axes: dict[str, list[str]]) -> list[list[str]]:
    """Words for points in which every value of every axis occurs."""
    longest = max(map(len, axes.values()))
    return [[words[turn % len(words)] for words in axes.values()] for turn in range(longest)]


@pytest.mark.parametrize("name", [name for name in STORED if not name.endswith("_quick")])
def test_the_points_are_good_and_a_quick_sweep_is_part_of_the_whole(name, whole):
    """Of some points in which every value of every axis occurs; with `--whole` of all, and those of a quick sweep."""
    assert (SWEEPS / f"{name}.yaml").read_text().startswith("# "), "what it asks"
    axes = axes_of(name)
    if f"{name}_quick" in STORED:
        quick = axes_of(f"{name}_quick")
        assert quick.keys() == axes.keys()
        assert all(set(words) <= set(axes[key]) for key, words in quick.items())
        points = int(about_sweep(f"{name}_quick")[1].partition(" points, ")[0])
        assert 0 < points <= prod(map(len, quick.values()))  # `skip` leaves some out
        assert not whole or len(runs(f"{name}_quick", ["repeat=0"])) == points
    for words in product(*axes.values()) if whole else some_of(axes):
        runs(name, words)


def test_the_example_for_w_and_b_asks_for_the_points_of_the_sweep_that_it_names():
    """The words that W&B's agent gives each run of the grid are those of a point."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args  # takes 2 s, and few tests need it

    parameters = yaml.safe_load((SWEEPS / "wandb" / "first.yaml").read_text())["parameters"]
    chosen = product(*(parameter["values"] for parameter in parameters.values()))
    named = [{key: {"value": value} for key, value in zip(parameters, values, strict=True)} for values in chosen]
    given = [create_sweep_command_args({"args": point})["args_no_hyphens"] for point in named]
    axes = {key: words for key, words in axes_of("first").items() if key != "repeat"}
    assert sorted(map(sorted, given)) == sorted(map(sorted, product(*axes.values())))
    assert about_sweep("first")[1].startswith(f"{len(given)} points, ")
