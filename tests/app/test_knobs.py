"""What was asked is what is recorded: keys that do not exist or that nothing uses, and names that cannot be set."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hydra.types import RunMode

from microp.app import CONF, ConfigError, compose_config, job_of, make_job, read_config
from microp.app.config import read_composed, register_schemas, what_runs
from microp.app.hydra_internals import composer, expand
from microp.app.hydra_loader import current
from microp.app.hydra_pace import copied
from microp.app.knobs import Knobs, unused
from microp.app.schema import FIXED, GROUPS, Config
from microp.app.sweep import SweepCallback

OPTIONS = sorted((path.parent.name, path.stem) for path in CONF.glob("*/*.yaml") if path.parent.name in GROUPS)
NEEDED = {each: [] for each in OPTIONS} | {
    ("partition", "sizes"): [("partition.sizes", "[1,15]")],
    ("schedule", "file"): [("schedule.path", "x")],
}


def refused(*words: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        compose_config(*words)
    return error.value.problems


def points(*words: str):
    """The points of `microp -m WORDS`: their settings, with what is said of all."""
    register_schemas()
    with composer(CONF) as hydra:
        knobs, found = Knobs(), []
        for overrides, node in expand(hydra.sweep("config", words)):
            knobs.add(overrides, read_composed(node))
            found.append(read_config(node))
        return found, knobs.problems, knobs.notes


# --- keys that do not exist ----------------------------------------------------------------------

ABSENT = {
    "+foo=1": "foo is not a key of a run: see all keys with --help",
    "++foo=1": "foo is not a key of a run: see all keys with --help",
    "+chunk=1": "chunk is not a key of a run: did you mean chunks?",
    "+model.foo=3": "model.foo is not a key of model=mlp: its keys are layers, dim, dtype",
    "+experiment=x": "experiment is not a key of a run: for a stored sweep use -cn NAME",
    "+experiment=m_sensitivty": "experiment is not a key of a run: for a stored sweep use -cn m_sensitivity",
    "experiment=m_sensitivity": "experiment is not a key of a run: for a stored sweep use -cn m_sensitivity",
    "+name=hybrid": "name is not a key of a run: for a stored sweep use -cn hybrid",
    "schedul=1f1b": "schedul is not a key of a run: did you mean schedule?",
    "m_sensitivity": "m_sensitivity is not an override: for the stored sweep of that name use -cn m_sensitivity",
    "+schedule.stages_per_rank=2": "schedule.stages_per_rank=2 is not used by schedule=gpipe: "
    "use schedule=breadth_first or interleaved or zb_interleaved",
    "costs.forward=3": "costs.forward is not a key of a run: it is one of python -m microp.simulate, "
    "which prices a schedule",
    "seed=null": "seed=null: seed needs a value: give one, or leave the key out for its default",
    "model=null": "model=null: model needs an option: use one of gpt, mlp",
    "~seed": "~seed takes away a key that every run needs: leave ~seed out",
    "~model": "~model takes away a key that every run needs: leave ~model out",
    "~model.dim": "~model.dim takes away a key that every run needs: leave ~model.dim out",
    "~schedule.drain": "~schedule.drain takes away a key that every run needs: leave ~schedule.drain out",
    "device.name=gpu": "device.name=gpu cannot be set, it says which option was chosen: use one of cpu, cuda, emulated",
    "device.name=cuda": "device.name=cuda cannot be set, it says which option was chosen: use device=cuda",
    "tracking.mode=online": "tracking.mode=online cannot be set, it says which option was chosen: use tracking=online",
}


@pytest.mark.parametrize("word", ABSENT)
def test_a_key_that_does_not_exist_or_is_taken_away_is_refused(word):
    assert refused(word) == [ABSENT[word]]


def test_the_function_of_an_option_cannot_be_set():
    [problem] = refused("schedule.builder=microp.schedule.builders.one_f_one_b")
    assert problem.endswith("it says which option was chosen: use schedule=1f1b")
    [problem] = refused("partition.builder=mine.own")
    assert problem.startswith("partition.builder=mine.own cannot be set")


def test_all_problems_of_the_overrides_are_told():
    words = ("foo=1", "chunks=abc", "schedule=gpip", "~seed", "partition.share=0.8", "device.name=gpu")
    found = refused(*words)
    assert len(found) == len(words)
    for begin in (
        "schedule=gpip is",
        "foo is",
        "chunks=abc is",
        "partition.share=0.8 is",
        "~seed takes",
        "device.name",
    ):
        assert sum(problem.startswith(begin) for problem in found) == 1


EVERY = {
    "chunks=four ranks=0 model.dim=7 schedule=1f1b schedule.drain=lifo steps=-1": 5,
    "foo=1 chunks=four ranks=0 ~seed checkpointing.segments=3": 5,
    "chunks=four batch_size=2": 1,  # the default of chunks is more than 2, but nobody asked for it
    "schedule=gpip schedule.stages_per_rank=4 ranks=0": 2,  # the key may be one of the schedule that was meant
}


@pytest.mark.parametrize("words", EVERY)
def test_what_is_wrong_without_the_refused_overrides_is_told_too_but_no_consequence_of_them(words):
    with pytest.raises(ConfigError) as error:
        compose_config(*words.split())
    found = SweepCallback.all_problems(error.value)
    assert len(found) == EVERY[words]
    assert sum(word in problem for word in words.split() for problem in found) >= EVERY[words] - 1


def test_the_points_of_a_sweep_are_refused_likewise():
    with pytest.raises(ConfigError) as error:
        points("+foo=1,2", "chunks=2,abc", "device.name=gpu", "~seed")
    assert [problem.split(maxsplit=1)[0] for problem in error.value.problems] == [
        *("foo", "~seed", "device.name=gpu", "chunks=abc")
    ]
    with pytest.raises(ConfigError) as error:
        points("chunks=2,abc", "ranks=0", "schedule=gpipe,gpip")
    assert sorted(problem.split()[0] for problem in SweepCallback.all_problems(error.value)) == [
        *("chunks=abc", "ranks=0", "schedule=gpip")
    ]


# --- knobs that are not used ---------------------------------------------------------------------

NOT_USED = {
    "partition=uniform partition.share=.8": "partition.share=.8 is not used by partition=uniform: use partition=skewed",
    "checkpointing.segments=3": "checkpointing.segments=3 is not used by checkpointing=never: "
    "use checkpointing=segments",
    "checkpointing=always checkpointing.segments=1": "checkpointing.segments=1 is not used by checkpointing=always: "
    "use checkpointing=segments",
    "device.forward_ms=5": "device.forward_ms=5 is not used by device=cpu: use device=emulated",
    "device=emulated ranks=1 device.latency_ms=1": "device.latency_ms=1 is not used by ranks=1: use ranks=2 or more",
    "device=emulated device.recompute_ms=1": "device.recompute_ms=1 is not used by checkpointing=never: "
    "use checkpointing=always",
    "device=emulated device.reduce_ms=1": "device.reduce_ms=1 is not used by replicas=1: use replicas=2 or more",
    "sync=flat": "sync=flat is not used by replicas=1: use replicas=2 or more",
    "sync.bucket_mb=5": "sync.bucket_mb=5 is not used by replicas=1: use replicas=2 or more",
    "replicas=2 sync=torch_ddp sync.first_bucket_mb=2": "sync.first_bucket_mb=2 is not used by sync=torch_ddp, "
    "where it is 1: use sync=ddp",
    "engine.batch_weights=true": "engine.batch_weights=true is not used by schedule=gpipe, which has no W: "
    "use one with W, for example schedule=zb_h1",
    "engine=torch engine.batch_weights=true": "engine.batch_weights=true is not used by engine=torch: "
    "use engine=microp",
    "data=synthetic data.path=x": "data.path=x is not used by data=synthetic: use data=text or tokens",
    "model.heads=2": "model.heads=2 is not used by model=mlp: use model=gpt",
    "comms=threads launch.shutdown_s=9": "launch.shutdown_s=9 is not used by comms=threads: use comms=auto",
    "tracking=disabled tracking.project=x": "tracking.project=x is not used by tracking=disabled: use tracking=offline",
}


@pytest.mark.parametrize("words", NOT_USED)
def test_a_knob_that_a_run_does_not_use_is_refused_with_the_option_that_would(words):
    assert refused(*words.split()) == [NOT_USED[words]]


SOME = {
    "partition=uniform,skewed": "partition.share=0.7",
    "schedule=1f1b,interleaved": "schedule.stages_per_rank=4",
    "checkpointing=never,segments": "checkpointing.segments=4",
    "replicas=1,2": "sync.bucket_mb=5",
    "data=synthetic,text": "data.path=/dev/null",
    "schedule=gpipe,zb_h1": "engine.batch_weights=true",
    "device=cpu,emulated": "device.latency_ms=2",
}


@pytest.mark.parametrize("axis", SOME)
def test_a_knob_that_only_some_points_use_is_not_asked_of_the_others(axis):
    """The first point does not use it: it is the configuration, and has the ids, as if the knob had not been typed."""
    word, first = SOME[axis], axis.partition(",")[0]
    (without, with_it), problems, [note] = points(axis, word)
    assert problems == []
    assert note.startswith(f"{word.partition('=')[0]} is not used by {first}")
    assert without == read_config(compose_config(first))
    if not first.startswith("data"):
        assert make_job(without).run_id == job_of(first).run_id
    assert with_it != read_config(compose_config(axis.replace(f"={first.partition('=')[2]},", "=")))


def test_a_knob_that_no_point_of_a_sweep_uses_is_refused():
    _, problems, notes = points("checkpointing=never,always", "checkpointing.segments=3", "replicas=1", "sync=ddp")
    assert sorted(problems) == [
        "checkpointing.segments=3 is not used by checkpointing=never: use checkpointing=segments",
        "sync=ddp is not used by replicas=1: use replicas=2 or more",
    ]
    assert notes == []


def test_a_knob_in_a_file_counts_as_if_it_were_typed():
    asked = read_composed(compose_config())
    knobs = Knobs()
    knobs.add([], replace(asked, checkpointing=replace(asked.checkpointing, segments=3)))
    assert knobs.problems == ["checkpointing.segments=3 is not used by checkpointing=never: use checkpointing=segments"]


# --- every key, every option ---------------------------------------------------------------------

VALUES = {"partition.sizes": "[1,15]", "tracking.tags": "[a]", "data.path": "/dev/null"} | {
    "device.per": "[row]",
    "device.speed": "[1,1]",
    "launch.options": "[--exclusive]",
    "launch.setup": "[true]",
    "optimizer.betas": "[0.8,0.9]",
}
FREE = {
    "output_dir",
    "launch.partition",
    "launch.account",
    "tracking.project",
    "tracking.entity",
    "tracking.dir",
}  # any text will do


@pytest.fixture(scope="module")
def composed():
    """Every option of every group, composed once: (group, option) -> (configuration, the chosen options)."""
    register_schemas()
    with composer(CONF):
        loader, found = current(), {}
        for group, option in OPTIONS:
            words = [f"{group}={option}", *(f"{key}={value}" for key, value in NEEDED[group, option])]
            node = loader.load_configuration("config", [*words, "replicas=2"], RunMode.RUN)
            found[group, option] = node, dict(node.hydra.runtime.choices)
        yield loader, found


def knobs_of(node, group: str) -> set[str]:
    return {f"{group}.{key}" for key in node[group]} - {f"{group}.{key}" for key in FIXED}


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_has_a_knob_or_says_that_it_does_not_use_it(composed, group):
    loader, found = composed
    options = [option for each, option in OPTIONS if each == group]
    every = sorted(set().union(*(knobs_of(found[group, option][0], group) for option in options)))
    words = [f"{key}={VALUES.get(key, 1)}" for key in every]
    for option in options:
        node, choices = copied(found[group, option])
        loader.apply(node, choices, words)
        assert knobs_of(node, group) == knobs_of(found[group, option][0], group)
        knobs, asked = Knobs(), read_composed(node)
        knobs.add(words, asked)
        silent = {problem.partition("=")[0] for problem in knobs.problems} ^ (set(every) - knobs_of(node, group))
        assert silent <= unused(asked).keys()  # its own, but only used together with other keys


def test_a_wrong_value_of_any_key_is_refused(composed):
    (loader, found), taken = composed, set()
    for (group, option), (node, choices) in found.items():
        keys = sorted(knobs_of(node, group))
        if (group, option) == ("model", "mlp"):
            keys += sorted(field.name for field in fields(Config) if field.name not in GROUPS)
        for key in keys:
            tried, knobs = copied(node), Knobs()
            try:
                loader.apply(tried, choices, [f"{key}=abc"])
                asked = read_composed(tried)
                make_job(what_runs(asked))
            except ConfigError:
                continue
            knobs.add([f"{key}=abc"], asked)
            if not knobs.problems:
                taken.add(key)
    assert taken <= FREE
