"""The rules across fields, the run's name, and the builders' keys."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from configs import config as configured
from configs import problems, warnings
from hydra import compose, initialize_config_dir

from microp.config import make_job, profile_command, read_config
from microp.config.config import plain, register, to_yaml, typed_folder
from microp.job import question_id, run_id
from microp.schedule import to_text
from microp.schedule.builders import gpipe
from microp.simulator import closed_forms
from microp.sweep.hydra_callbacks import speaks
from microp.system import CONF


@pytest.fixture
def composed():
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield lambda *overrides: read_config(compose("config", overrides=list(overrides)))


def test_defaults_are_those_of_the_readme(composed):
    config = composed()
    plan = make_job(config)
    assert problems(config) == []
    assert (plan.schedule.name, plan.ranks, plan.schedule.chunks) == ("gpipe", 2, 4)
    assert (plan.model.name, plan.model.layers, plan.partition.sizes) == ("mlp", 16, (8, 8))
    assert plan.rows == (64, 64, 64, 64)


def test_the_model_is_small_where_time_is_emulated_unless_its_size_is_given(composed):
    dims = [composed(*words).model.dim for words in ([], ["device=emulated"], ["device=emulated", "model.dim=512"])]
    assert dims == [512, 64, 512]
    assert composed("device=emulated", "model=gpt").model.dim == composed("model=gpt").model.dim


@pytest.mark.parametrize("option", sorted(CONF.glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_option_composes_and_names_itself(composed, option, tmp_path):
    group, name = option.parent.name, option.stem
    if (group, name) == ("partition", "sizes"):
        config = composed("partition=sizes", "partition.sizes=[1,15]")
    elif (group, name) == ("schedule", "file"):
        config = composed("schedule=file", "schedule.path=x")  # a path is not opened to compose
    elif (group, name) == ("device", "estimate"):
        config = composed("device=estimate", "device.tflops=50", "device.gb_per_s=1000")
    elif (group, name) == ("data", "tokens"):
        config = composed("data=tokens", "data.path=x")
    else:
        config = composed(f"{group}={name}", "replicas=2")  # one replica sums nothing
    node = getattr(config, group)
    said = node["name"] if isinstance(node, dict) else getattr(node, "name", None) or node.mode
    assert said == ("offline" if option.stem == "auto" and group == "tracking" else name)


def test_the_name_follows_from_the_question_alone(composed):
    plain = make_job(composed()).run_id
    assert plain.startswith("gpipe-m4-k2-")
    for same in (
        ["tracking=disabled"],
        ["output_dir=/elsewhere"],
        ["launch.shutdown_s=9"],
        ["chunks=4"],
        ["activation_limit=9"],
    ):
        assert make_job(composed(*same)).run_id == plain
    for other in (["seed=1"], ["repeat=1"], ["model.dim=64"], ["schedule.drain=lifo"], ["checkpointing=always"]):
        assert make_job(composed(*other)).run_id != plain


def test_saved_yaml_is_the_configuration(composed):
    import yaml

    saved = yaml.safe_load(to_yaml(composed("chunks=8")))
    assert saved["chunks"] == 8
    assert saved["model"] == {"name": "mlp", "layers": 16, "dim": 512, "dtype": "float32"}


def test_rows_are_spread(composed):
    assert make_job(composed("batch_size=9", "chunks=4")).rows == (3, 2, 2, 2)


def test_warnings(composed, monkeypatch):
    import os

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert warnings(composed()) == []
    [cores] = warnings(composed("ranks=3"))
    assert "ranks=3 compute on 2 cores: they take turns" in cores
    words = warnings(composed("ranks=2", "partition=skewed", "partition.share=0.99"))
    assert words == ["partition.share=0.99 of 16 layers is 16, but the other ranks need one each: rank 0 gets 15"]


OWN = """
import sys
from microp.schedule import Schedule
from microp.schedule.builders import gpipe
def bare(ranks, chunks, group=2): return gpipe(ranks, chunks, "fifo")
def chained(ranks, chunks):
    try: {}["inner"]
    except KeyError as error: raise RuntimeError("it fails") from error
def handled(ranks, chunks):
    try: {}["inner"]
    except KeyError: raise RuntimeError("it fails")
def nothing(ranks, chunks): pass
def own_class(ranks, chunks, group: Schedule = None): pass
"""


@pytest.fixture
def own(composed, monkeypatch, tmp_path):
    """Configurations with a builder of a user's own."""
    (tmp_path / "own_builders.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)

    def make(function: str, name: str = "mine", **keys):
        return replace(composed(), schedule={"name": name, "builder": f"own_builders.{function}", **keys})

    yield make
    sys.modules.pop("own_builders", None)


def test_a_parameter_without_annotation_takes_any_value(own):
    for value in (3, "three", [1, 2], None):
        assert problems(own("bare", group=value)) == []


@pytest.mark.parametrize(
    ("function", "keys", "line"),
    [
        ("chained", {}, " failed for ranks=2, chunks=4: RuntimeError: it fails, from KeyError: 'inner'"),
        ("handled", {}, " failed for ranks=2, chunks=4: RuntimeError: it fails, from KeyError: 'inner'"),
        (
            "missing",
            {},
            " cannot be imported: ModuleNotFoundError: No module named 'own_builders.missing'; 'own_builders' is not a "
            "package",
        ),
        ("nothing", {}, " returned None, not a Schedule: return one"),
    ],
)
def test_a_builder_that_fails_is_one_line(own, function, keys, line):
    assert problems(own(function, **keys)) == [f"schedule.builder=own_builders.{function}{line}"]
    assert len(problems(own("own_class", group=1))) == 1


def test_a_user_s_schedule_has_the_name_of_its_option_and_the_same_run_id(own):
    """The function says `gpipe`, for which there is a closed form."""
    config = own("bare")
    job = make_job(config)
    assert (job.schedule.name, job.schedule.ranks) == ("mine", gpipe(2, 4).ranks)
    asked, order = plain(config), to_text(gpipe(2, 4))
    assert (job.run_id, job.question_id) == (run_id(asked, order), question_id(asked, order))
    assert closed_forms.in_flight_peak(job.schedule) is None
    for name in ("gpipe", "1f1b_lifo", "v_min"):
        assert problems(own("bare", name)) == [
            f"schedule.name={name} is the name of one of microp's schedules, but builder=own_builders.bare is not "
            "microp's: choose another name"
        ]


def test_torchrun_must_start_as_many(composed, monkeypatch):
    config = composed()
    monkeypatch.setenv("RANK", "0")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "4")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert problems(config) == ["ranks=2, but torchrun started 4 processes: use ranks=4"]
    assert problems(replace(config, replicas=3)) == [
        "ranks=2 times replicas=3 is 6, but torchrun started 4 processes in all: let it start 6 (--nnodes times "
        "--nproc-per-node), or change ranks or replicas"
    ]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            "RANK=0",
            "but WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, which torchrun sets too, are missing or",
        ),  # as Kubernetes may set it
        (
            "RANK=0 WORLD_SIZE=two LOCAL_RANK=0 LOCAL_WORLD_SIZE=2",
            "but WORLD_SIZE, which torchrun sets too, is missing",
        ),
        ("RANK= WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", "RANK= is in the environment, but RANK, which"),
    ],
)
def test_an_environment_that_has_a_part_of_torchrun_s(composed, monkeypatch, environment, said):
    config = composed()
    for word in environment.split():
        monkeypatch.setenv(*word.split("="))
    assert speaks()
    found = problems(config)
    assert said in found[0] if said else found == []
    assert len(found) == bool(said)


def test_a_latency_needs_the_clock_of_one_host(composed, monkeypatch):
    config = composed("device=emulated", "device.latency_ms=1")
    assert problems(config) == []
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    assert problems(config) == [
        "device.latency_ms=1.0 needs all ranks on one host, whose clock they share: leave it out"
    ]


def test_an_activation_limit_refuses_and_changes_nothing_else(composed):
    assert composed().activation_limit is None
    assert problems(composed("activation_limit=4")) == []  # gpipe holds all 4 chunks
    [problem] = problems(composed("activation_limit=3"))
    sentence, *drawn = problem.splitlines()
    assert sentence.startswith("schedule 'gpipe': 0F3 is the first that makes rank 0 hold more than activation_limit=3")
    assert "[0F3]" in drawn[0]
    assert problems(composed("activation_limit=3", "schedule=1f1b")) == []
    assert problems(composed("activation_limit=0", "schedule=naive"))[0] == (
        "activation_limit=0 is below 1: use at least 1, or null for none"
    )


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("-m -cd own model=words", ["-cd", "own"]),
        ("--config-dir=own -cn first", ["-cd", "own"]),
        ("-q tests -p no:cacheprovider --collect-only", []),  # another program, here pytest
    ],
)
def test_printed_commands_name_the_typed_folder_of_options(typed, words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["microp", *typed.split()])
    assert typed_folder() == words
    assert " ".join(words) in profile_command(configured("model.dim=77"))
