"""The rules across fields, the run's name, and the builders' keys."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from dataclasses import replace

import pytest
from configs import config as configured
from configs import problems, warnings
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from microp.app import CONF, ConfigError, compose_config, make_job, read_config
from microp.app.config import plain, register_schemas, to_yaml
from microp.app.hydra_app import raising
from microp.app.hydra_internals import typed_folder
from microp.app.hydra_pace import QuickLoader
from microp.app.interrupts import watched
from microp.app.profiles import profile_command
from microp.job import question_id, run_id
from microp.schedule import to_text
from microp.schedule.builders import gpipe
from microp.simulator import closed_forms


@pytest.fixture
def composed():
    register_schemas()
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
    elif (group, name) == ("data", "tokens"):
        config = composed("data=tokens", "data.path=x")
    else:
        config = composed(f"{group}={name}", "replicas=2")  # one replica sums nothing
    node = getattr(config, group)
    said = node["name"] if isinstance(node, dict) else getattr(node, "name", None) or node.mode
    assert said == ("offline" if option.stem == "auto" and group == "tracking" else name)


OTHERS = (
    *("", "model=gpt schedule=1f1b", "model=gpt schedule=zb_v checkpointing=segments partition=skewed"),
    "device=emulated comms=threads tracking=disabled launch=slurm",
    "replicas=2 sync=naive data=synthetic engine=torch",
)


def test_options_that_were_merged_for_other_configurations_are_merged_as_hydra_does(monkeypatch):
    """Keys in their order, types, values and interpolations; nothing of a configuration is part of the next one."""

    def merged_twice(loader, defaults, repo):
        quick, anew = merge(loader, defaults, repo), type(repo)(repo.delegate)  # files as they were read
        hydras = ConfigLoaderImpl._compose_config_from_defaults_list(loader, defaults, anew)
        assert described(quick) == described(hydras)
        found.append(quick)
        return quick

    merge, found = QuickLoader._compose_config_from_defaults_list, []
    monkeypatch.setattr(QuickLoader, "_compose_config_from_defaults_list", merged_twice)
    monkeypatch.setattr(QuickLoader, "_merged", {})
    for words in OTHERS[::-1] + OTHERS:
        compose_config(*words.split())
    assert len(found) == 2 * len(OTHERS)


def described(node, parent=None):
    """All that a configuration holds, with the type, the key and the flags of each of its parts."""
    assert parent is None or node._get_parent() is parent
    about = {key: value for key, value in vars(node._metadata).items() if key != "resolver_cache"}  # has the time
    content = node._value()
    if isinstance(content, dict):
        return about, [(key, described(each, node)) for key, each in content.items()]
    return about, [described(each, node) for each in content] if isinstance(content, list) else content


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


def test_a_builder_s_keys_are_its_signature(composed):
    config = composed()
    wrong = replace(config, schedule={**config.schedule, "speed": 3})
    assert problems(wrong) == ["schedule.speed is not a key of schedule=gpipe: leave it out"]
    lost = replace(config, schedule={"name": "mine", "builder": "microp.schedule.builders.nothing"})
    assert "schedule.builder=microp.schedule.builders.nothing cannot be imported" in problems(lost)[0]


OWN = """
import sys
from microp.schedule import Schedule
from microp.schedule.builders import gpipe
def bare(ranks, chunks, group=2): return gpipe(ranks, chunks, "fifo")
def divides(ranks, chunks): return 1 / 0
def exits(ranks, chunks): sys.exit("two\\nlines")
def exits_silently(ranks, chunks): raise SystemExit
def exits_with_0(ranks, chunks): raise SystemExit(0)
def nothing(ranks, chunks): pass
def number(ranks, chunks): return 3
def odd(ranks, chunks, group: "NoSuchType" = 2): pass
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
        ("divides", {}, " failed for ranks=2, chunks=4: ZeroDivisionError: division by zero"),
        ("exits", {}, " failed for ranks=2, chunks=4: SystemExit: two lines"),
        ("exits_silently", {}, " failed for ranks=2, chunks=4: SystemExit"),
        ("exits_with_0", {}, " failed for ranks=2, chunks=4: SystemExit"),  # what W&B makes of the one above
        ("nothing", {}, " returned None, not a Schedule: return one"),
        ("number", {}, " returned a value of type int, not a Schedule: return one"),
        ("odd", {"group": 1}, " has a signature that cannot be read: NameError: name 'NoSuchType' is not defined"),
    ],
)
def test_a_builder_that_fails_is_one_line(own, function, keys, line):
    assert problems(own(function, **keys)) == [f"schedule.builder=own_builders.{function}{line}"]
    [missing] = problems(own("missing"))
    assert missing.startswith("schedule.builder=own_builders.missing cannot be imported: ")
    assert missing.isprintable()
    assert len(problems(own("own_class", group=1))) == 1


def test_an_option_needs_a_builder_and_a_name(own):
    for key in ("name", "builder"):
        config = own("bare")
        del config.schedule[key]
        assert problems(config) == [f"schedule.{key} has no value: give each option of schedule a name and a builder"]


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
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert problems(config) == ["ranks=2, but torchrun started 4 processes: use ranks=4"]
    assert problems(replace(config, replicas=3)) == [
        "ranks=2 times replicas=3 is 6, but torchrun started 4 processes in all: let it start 6 (--nnodes times "
        "--nproc-per-node), or change ranks or replicas"
    ]


def test_a_latency_needs_the_clock_of_one_host(composed, monkeypatch):
    config = composed("device=emulated", "device.latency_ms=1")
    assert problems(config) == []
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    assert problems(config) == [
        "device.latency_ms=1.0 needs all ranks on one host, whose clock they share: leave it out"
    ]


def test_a_missing_value_is_told_by_key(composed):
    with pytest.raises(ConfigError, match="partition.sizes has no value"):
        composed("partition=sizes")


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
    with pytest.raises(ConfigError, match="activation_limit=many is not an integer"):
        composed("activation_limit=many")


@pytest.mark.parametrize("words", [["chunks=2000000000"], ["ranks=2000000000"], ["chunks=2000000000", "ranks=16"]])
def test_a_typo_is_refused_before_it_is_built(composed, words):
    [problem] = problems(composed(*words))
    assert problem.startswith(words[0])


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


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (KeyError("_flags_cache"), KeyboardInterrupt),
        (SystemExit(1), KeyboardInterrupt),  # of a sweep with a point that failed
        (OSError("the disk is full"), OSError),
    ],
)
def test_what_ctrl_c_left_half_made_counts_as_ctrl_c(error, shown):
    """Omegaconf was copying a configuration; an error of the machine is said, though."""

    def half_made():
        with suppress(KeyboardInterrupt):  # lost, as in a destructor
            signal.raise_signal(signal.SIGINT)
        raise error

    with pytest.raises(shown), watched(), raising():
        half_made()


def test_a_bug_does_not_count_as_ctrl_c():
    with pytest.raises(KeyError), watched(), raising():
        raise KeyError("a bug")
