"""The stored sweeps: every point is good, and a quick one is part of the whole."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
from grids import words_of
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from microp.app import CONF, make_job, read_config
from microp.app.config import register_schemas
from microp.app.help_page import about_sweep
from microp.app.hydra_internals import composer, expand
from microp.app.sweep_parts import PARTS, register_parts
from microp.app.wandb_grid import grids_over

SWEEPS = Path(__file__).parents[2] / "sweeps"
STORED = sorted(path.stem for path in SWEEPS.glob("*.yaml") if not path.name.endswith(PARTS))


@pytest.fixture(scope="module")
def points(whole):
    """What a command asks for in one launch, composed once: name -> (overrides, node) of each point not left out.

    A quick sweep is the whole one with other axes: a point of it is the whole one's with the same overrides.
    Without --whole these are the points of a quick sweep, and of the whole one some in which every value of every axis
    occurs.
    """
    register_schemas()
    register_parts(SWEEPS)
    with composer(CONF, SWEEPS) as hydra:

        @cache
        def sweep(name: str) -> DictConfig:
            config = hydra.sweep(name, ("repeat=0",))  # launches differ only in their number
            assert config.hydra.mode is RunMode.MULTIRUN
            return config

        @cache
        def all_points(name: str):
            quick = words_of_points(sweep(f"{name}_quick")) if f"{name}_quick" in STORED else []
            words = words_of_points(sweep(name))
            assert set(map(frozenset, quick)) <= set(map(frozenset, words))
            wanted = words if whole else quick + some(words)
            with pytest.MonkeyPatch.context() as patch:  # the others are not composed
                patch.setattr(BasicSweeper, "split_arguments", staticmethod(lambda *_, **__: [wanted]))
                return {frozenset(overrides): (list(overrides), node) for overrides, node in expand(sweep(name))}

        @cache
        def asked(name: str):
            found = all_points(name.removesuffix("_quick"))
            if name.endswith("_quick"):
                quick, other = sweep(name), sweep(name.removesuffix("_quick"))
                assert without_axes(quick) == without_axes(other)
                found = {words: found[words] for words in map(frozenset, words_of_points(quick))}
            return [(overrides, node) for overrides, node in found.values() if not node.skip]

        yield asked


def some(points: list[list[str]]) -> list[list[str]]:
    """Points in which every value of every axis occurs, in a random order."""
    left, found = {word for words in points for word in words}, []
    for words in random.Random(0).sample(points, len(points)):
        if not left.isdisjoint(words):
            found.append(words)
            left.difference_update(words)
    return found


def without_axes(config: DictConfig) -> dict:
    """What a sweep is without the values of its axes, and without what it was composed from."""
    plain = OmegaConf.to_container(config, resolve=False)
    own = plain.pop("hydra")
    return {**plain, "sweeper": {**own["sweeper"], "params": sorted(own["sweeper"]["params"])}}


def words_of_points(config: DictConfig) -> list[list[str]]:
    """The overrides of each point of a sweep."""
    axes = [f"{key}={values}" for key, values in config.hydra.sweeper.params.items()]
    [points] = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(axes), max_batch_size=None)
    return points


@pytest.mark.parametrize("name", [name for name in STORED if not name.endswith("_quick")])
def test_every_point_is_good_and_a_quick_sweep_is_part_of_the_whole(points, name):
    assert (SWEEPS / f"{name}.yaml").read_text().startswith("# "), "what it asks"
    configs = {frozenset(words): read_config(node) for words, node in points(name)}
    found = {words: make_job(config).run_id for words, config in configs.items()}  # a wrong one is refused
    assert not any(config.batch_size % config.chunks for config in configs.values()), "uneven microbatches"
    if f"{name}_quick" in STORED:
        quick = {found[frozenset(words)] for words, _ in points(f"{name}_quick")}  # equal points are one run
        assert quick < set(found.values())
        assert about_sweep(f"{name}_quick")[1].startswith(f"{len(quick)} points, ")


@pytest.mark.parametrize("name", STORED)
def test_the_grids_for_w_and_b_ask_for_the_points_of_the_sweep(points, name):
    """By their words, of which an agent composes the same points."""
    asked = [words for words, _ in points(name)]
    grids = grids_over(name, [tuple(words) for words in asked], (), name)
    assert sorted(words for grid in grids for words in words_of(grid.to_yaml())) == sorted(asked)
