"""Which keys tell the points of a command apart, and what is the same in all of them."""

from __future__ import annotations

import pytest

from microp.app.config import compose_config, plain, read_config
from microp.store import differing, flatten, same, swept


def configs(*points: str):
    return [plain(read_config(compose_config(*point.split()))) for point in points]


SWEPT = {
    ("model.dim=64", "model.dim=128"): {"model.dim": ["64", "128"]},
    ("engine=microp", "engine=torch"): {"engine": ["microp", "torch"]},
    ("learning_rate=1e-3", "learning_rate=1e-5"): {"learning_rate": ["0.001", "1e-05"]},
    ("data.path=a.txt", ""): {"data.path": ["a.txt", "null"]},
    ("schedule=gpipe", "schedule=1f1b"): {"schedule": ["gpipe", "1f1b"]},
    ("schedule=gpipe schedule.drain=lifo", "schedule=gpipe"): {"schedule.drain": ["lifo", "fifo"]},
    ("checkpointing=never", "checkpointing=always"): {"checkpointing": ["never", "always"]},
    ("partition=sizes partition.sizes=[4,12]", "partition=sizes partition.sizes=[8,8]"): {
        "partition.sizes": ["[4,12]", "[8,8]"]
    },
    ("schedule=zb_h1 engine.batch_weights=true", "schedule=zb_h1"): {"engine.batch_weights": ["true", "false"]},
    ("tracking=offline", "tracking=disabled"): {"tracking": ["offline", "disabled"]},
    ("seed=1 repeat=1", "seed=2 repeat=2"): {"seed": ["1", "2"], "repeat": ["1", "2"]},
    ("chunks=4", "chunks=4"): {},
    # gpt's heads follow from the option; a width that is swept does not
    ("model=mlp", "model=gpt"): {"model": ["mlp", "gpt"]},
    ("model=mlp model.dim=64", "model=mlp model.dim=32", "model=gpt"): {
        "model": ["mlp", "mlp", "gpt"],
        "model.dim": ["64", "32", "64"],
    },
    ("model=mlp", "model=gpt model.heads=2", "model=gpt model.heads=4"): {
        "model": ["mlp", "gpt", "gpt"],
        "model.heads": ["-", "2", "4"],
    },
}


@pytest.mark.parametrize("points", SWEPT, ids=" | ".join)
def test_the_columns_are_the_keys_that_differ(points):
    found = swept(configs(*points), typed=["seed=1"])
    assert found == SWEPT[points]
    assert list(found) == list(SWEPT[points])


def test_columns_come_in_the_order_in_which_they_were_typed_and_the_launch_last():
    points = configs("chunks=2 ranks=2 model.dim=64", "chunks=4 ranks=1 model.dim=32 repeat=1")
    assert list(swept(points)) == ["ranks", "chunks", "model.dim", "repeat"]
    assert list(swept(points, ["repeat=0", "model.dim=64", "chunks=2"])) == ["model.dim", "chunks", "ranks", "repeat"]


def test_every_key_that_differs_also_those_that_an_option_implies():
    points = configs("schedule=gpipe", "schedule=interleaved")
    assert differing(points) == ["schedule.name", "schedule.builder", "schedule.drain", "schedule.stages_per_rank"]
    assert flatten({"a": {"b": {"c": [1, {"d": 2}]}}, "e": None}) == {"a.b.c": [1, {"d": 2}], "e": None}


def test_what_is_the_same_is_what_was_typed_and_what_matters():
    points = configs("schedule=1f1b chunks=2 seed=3 output_dir=x", "schedule=1f1b chunks=4 seed=3 output_dir=x")
    typed = ["schedule=1f1b", "chunks=2", "seed=3", "output_dir=x", "tracking=offline"]
    assert " ".join(same(points, typed, 200)) == (
        "schedule=1f1b ranks=2 model=mlp device=cpu comms=auto batch_size=256 partition=uniform "
        "checkpointing=never seed=3"
    )
    assert " ".join(same(points, typed, 50)) == "schedule=1f1b ranks=2 model=mlp device=cpu seed=3"
    assert same(points, typed, 1) == ["schedule=1f1b", "ranks=2", "seed=3"]  # the shape, and what was typed
