"""The grids for W&B ask for exactly the points of a stored sweep."""

from __future__ import annotations

import random
import time
from itertools import product
from pathlib import Path

import pytest
import yaml
from grids import words_of
from hydra.core.override_parser.overrides_parser import OverridesParser

from microp import wandb_grid
from microp.app import CONF
from microp.app.hydra_internals import expand
from microp.app.wandb_grid import divide, grids_of

OWN = """
defaults: [config, mine: a, override device: emulated, _self_]
skip: ${calc:'"${schedule.name}" == "naive" and ${chunks} > 2'}
hydra:
  mode: MULTIRUN
  sweeper:
    params:
      mine: a,b
      learning_rate: 1e-3,0.50
      chunks: range(2,4)
      engine.batch_weights: true,false
      activation_limit: null,9
      data.path: "'x y'"
      device.per: "[layer],[layer,row]"
      schedule: gpipe,naive
"""


def parsed(words):
    """Words as Hydra reads them, in any order."""
    read = [OverridesParser.create().parse_override(word) for word in words]
    return frozenset((each.key_or_group, repr(each.value())) for each in read)


def test_points_left_out_are_divided_as_one_would_by_hand():
    grids = [grid.axes for grid in grids_of("checkpoint_overhead_quick")]
    same = {"repeat": [0], "model": ["mlp", "gpt"], "chunks": [8]}
    assert grids == [
        {**same, "schedule": ["gpipe", "1f1b"], "checkpointing": ["never", "except_last", "always", "segments"]},
        {**same, "schedule": ["gpipe_lifo"], "checkpointing": ["never", "except_last"]},
    ]


@pytest.mark.parametrize(
    ("drawn", "boxes"),
    [
        ("xxx xxx", ["xxx xxx"]),
        ("xxx ..x", ["xxx ...", "... ..x"]),
        ("xxx xxx xx.", ["xxx xxx ...", "... ... xx."]),
        ("x.. .x. ..x", ["x.. ... ...", "... .x. ...", "... ... ..x"]),
        ("xx. xx. ..x", ["xx. xx. ...", "... ... ..x"]),
        ("x", ["x"]),
    ],
)
def test_points_are_divided_into_few_products(drawn, boxes):
    def points(text):
        return frozenset(
            (str(row), str(column))
            for row, line in enumerate(text.split())
            for column, mark in enumerate(line)
            if mark == "x"
        )

    assert set(divide(points(drawn))) == set(map(points, boxes))


@pytest.mark.parametrize("seed", range(5))
def test_any_points_are_divided_in_time(seed):
    """Every point is in one piece, and every piece is a product."""
    drawn = random.Random(seed)
    points = frozenset(drawn.sample(sorted(product("abcd", "abc", "abc", "ab", "ab", "ab")), 200))
    began = time.perf_counter()
    pieces = divide(points)
    assert time.perf_counter() - began < 10
    assert sorted(point for piece in pieces for point in piece) == sorted(points)
    assert all(piece == frozenset(product(*map(set, zip(*piece, strict=True)))) for piece in pieces)


def test_a_file_is_what_wandb_expects(tmp_path, capsys):
    assert wandb_grid.main(["hop_latency", "--output", str(tmp_path / "grids" / "mine.yaml")]) == 0
    assert capsys.readouterr().out == f"wandb sweep {tmp_path}/grids/mine.yaml\n"
    grid = yaml.safe_load((tmp_path / "grids" / "mine.yaml").read_text())
    assert grid == {
        "name": "hop_latency",
        "description": "the stored sweep hop_latency",
        "program": "microp/run.py",
        "method": "grid",
        "metric": {"name": "step_ms", "goal": "minimize"},
        "command": [
            *("${env}", "${interpreter}", "-m", "microp.run", "-cn", "hop_latency"),
            *("hydra.mode=RUN", "tracking=online", "${args_no_hyphens}"),
        ],
        "parameters": {
            "repeat": {"values": [0, 1, 2]},
            "chunks": {"values": [8, 16, 32]},
            "device.latency_ms": {"values": [0, 1, 2, 3]},
            "schedule": {"values": ["gpipe", "1f1b", "eager_1f1b"]},
        },
    }
    assert (CONF.parent / grid["program"]).exists()


def test_a_folder_gets_a_file_for_each_grid(tmp_path, capsys):
    assert wandb_grid.main(["partition_skew_quick", "--output", str(tmp_path)]) == 0
    names = ["partition_skew_quick_1", "partition_skew_quick_2"]
    assert [path.stem for path in sorted(tmp_path.iterdir())] == names
    assert [yaml.safe_load((tmp_path / f"{name}.yaml").read_text())["name"] for name in names] == names
    assert wandb_grid.main(["partition_skew_quick"]) == 0
    assert len(list(yaml.safe_load_all(capsys.readouterr().out.split("wandb sweep")[-1].partition("\n")[2]))) == 2


def test_one_part():
    [grid] = grids_of("partition_skew_quick", "k2")
    assert grid.name == "partition_skew_quick_k2"
    assert grid.axes["partition_skew"] == ["k2"]
    assert grid.axes["partition.share"] == [0.5, 0.8, 0.95]


def test_a_sweep_of_your_own_with_values_of_every_kind(tmp_path, monkeypatch):
    expanded = []

    def expand_once(config):
        """The points, which take some time to compose; kept for the comparison."""
        expanded.extend(found := expand(config))
        return found

    monkeypatch.setattr("microp.app.wandb_grid.expand", expand_once)
    (tmp_path / "own.yaml").write_text(OWN)
    (tmp_path / "own.parts.yaml").write_text("")
    (tmp_path / "mine.parts.yaml").write_text("a: {ranks: 2}\nb: {ranks: 4}\n")
    first, second = grids_of("own", own=tmp_path)
    assert first.command[4:] == ("-cd", str(tmp_path), "-cn", "own")
    assert first.axes == {
        "mine": ["a", "b"],
        "learning_rate": [0.001, 0.5],
        "chunks": [2],
        "engine.batch_weights": [True, False],
        "activation_limit": ["null", 9],
        "data.path": ["'x y'"],
        "device.per": ["[layer]", "[layer,row]"],
        "schedule": ["gpipe", "naive"],
    }
    assert second.axes == {**first.axes, "chunks": [3], "schedule": ["gpipe"]}
    stored = [words for words, node in expanded if not node.skip]
    asked = [words for grid in (first, second) for words in words_of(grid.to_yaml())]
    assert len(asked) == len(stored) == 96
    assert set(map(parsed, asked)) == set(map(parsed, stored))


REFUSED = {
    "m_sensitivty": "m_sensitivty is not a stored sweep: did you mean m_sensitivity or m_sensitivity_quick?",
    "m_sensitivity.parts": "m_sensitivity.parts is not a stored sweep: did you mean m_sensitivity",
    "zzz": "zzz is not a stored sweep: there are checkpoint_overhead, ",
    "partition_skew_quick --part k3": "k3 is not a part of partition_skew_quick: there are k4, k2",
    "first --part k4": "first does not go over parts: leave --part out",
    "partition_skew_quick --output {}/grid.yaml": "2 grids need a file each, but --output=",
    "first --output /proc/none": "cannot write /proc/none: ",
    "one -cd {}": "one has no hydra.sweeper.params for a grid",
    "wrong -cd {}": "batch_size",
    "lost -cd {}": "Could not find 'schedule/nowhere'",
    "first -cd {}/none": "none is not a folder",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_made_is_told_with_exit_code_2(tmp_path: Path, capsys, words):
    (tmp_path / "one.yaml").write_text("defaults: [config, _self_]\n")
    sweep = "hydra: {mode: MULTIRUN, sweeper: {params: {chunks: '1,2'}}}\n"
    (tmp_path / "wrong.yaml").write_text(f"defaults: [config, _self_]\nbatch_size: many\n{sweep}")
    (tmp_path / "lost.yaml").write_text(f"defaults: [config, override schedule: nowhere, _self_]\n{sweep}")
    assert wandb_grid.main(words.format(tmp_path).split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert REFUSED[words] in said.err
