"""The rules across fields, the run's name, and the builders' keys."""

import os
import sys
from dataclasses import replace

import pytest
from configs import config, problems, warnings
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from loaded import load, load_once
from omegaconf import OmegaConf

from microp.config import compose_config, job_of, make_job, plain, profile_command, read_config, typed_folder
from microp.config.config import composer, register
from microp.job import question_id, run_id
from microp.schedule import to_text
from microp.schedule.builders import gpipe, interleaved, two_bp
from microp.simulator import closed_forms
from microp.system import CONF


def test_the_model_is_small_where_time_is_emulated_and_a_batch_keeps_a_core_busy_unless_sizes_are_given():
    dims = [config(*words).model.dim for words in ([], ["device=emulated"], ["device=emulated", "model.dim=512"])]
    assert dims == [256, 64, 512]
    assert config("device=emulated", "model=gpt").model.dim == config("model=gpt").model.dim
    rows = [config(*words).batch_size for words in ([], ["model=gpt"], ["device=emulated"], ["batch_size=9"])]
    assert rows == [8192, 32, 256, 9]


NEEDS = {  # what an option cannot do without; a path is not opened to compose
    "partition=sizes": ["partition.sizes=[1,15]"],
    "schedule=file": ["schedule.path=x"],
    "device=estimate": ["device.tflops=50", "device.gb_per_s=1000"],
    "data=tokens": ["data.path=x"],
}


OPTIONS = [sorted(f"{group.name}={path.stem}" for path in group.glob("*.yaml")) for group in sorted(CONF.glob("*/"))]


@pytest.mark.parametrize("turn", range(max(map(len, OPTIONS))))
def test_every_option_composes_and_names_itself(turn):
    """The options of all groups side by side, which takes a third of the compositions."""
    chosen = [options[turn % len(options)] for options in OPTIONS]
    composed = config("replicas=2", *chosen, *(word for option in chosen for word in NEEDS.get(option, [])))
    for option in chosen:  # one replica sums nothing
        group, _, name = option.partition("=")
        node = getattr(composed, group)
        said = node["name"] if isinstance(node, dict) else getattr(node, "name", None) or node.mode
        assert said == ("offline" if option == "tracking=auto" else name)


def test_defaults_are_those_of_the_readme(monkeypatch):
    job = make_job(config())
    assert (job.schedule.name, job.ranks, job.schedule.chunks) == ("gpipe", 2, 4)
    assert (job.model.name, job.model.layers, job.partition.sizes) == ("mlp", 16, (8, 8))
    assert job.rows == (2048, 2048, 2048, 2048)
    assert make_job(config("batch_size=9", "chunks=4")).rows == (3, 2, 2, 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert warnings(config()) == []
    [cores] = warnings(config("ranks=3"))
    assert "ranks=3 compute on 2 cores: they take turns" in cores


OWN = """
from microp.schedule.builders import builder_of, gpipe
def of_another(ranks, chunks, of, **keys): return builder_of(of)(ranks, chunks, **keys)
def f(ranks, chunks, group=2): return gpipe(ranks, chunks, "fifo")
"""


def test_a_user_s_schedule_has_the_name_of_its_option_and_the_same_run_id(monkeypatch, tmp_path):
    """The function says `gpipe`, for which there is a closed form."""
    (tmp_path / "own_builders.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"builder": "own_builders.f", "group": "a parameter without a type takes any value"}
    asked = replace(config(), schedule={"name": "mine", **own})
    job = make_job(asked)
    assert (job.schedule.name, job.schedule.ranks) == ("mine", gpipe(2, 4).ranks)
    order = to_text(gpipe(2, 4))
    assert (job.run_id, job.question_id) == (run_id(plain(asked), order), question_id(plain(asked), order))
    assert closed_forms.in_flight_peak(job.schedule) is None
    [problem] = problems(replace(asked, schedule={"name": "1f1b_lifo", **own}))
    assert problem.startswith("schedule.name=1f1b_lifo is the name of one of microp's schedules")
    derived = job_of("schedule=two_bp", "schedule.of=own_builders.f", "schedule.group=3").schedule
    assert (derived.name, derived.ranks) == ("two_bp_own_builders.f", two_bp(2, 4, of="gpipe").ranks)
    assert closed_forms.held_peak(derived) is None
    (tmp_path / "schedule").mkdir()
    (tmp_path / "schedule" / "mine.yaml").write_text("name: mine\nbuilder: own_builders.of_another\nof: interleaved\n")
    words = "schedule=mine", "schedule.stages_per_rank=3"
    derived = make_job(read_config(compose_config(*words, folder=tmp_path))).schedule
    assert (derived.name, derived.ranks) == ("mine", interleaved(2, 4, 3).ranks)


def test_what_is_typed_for_one_point_is_not_there_in_the_next_one():
    before, words = config("schedule=1f1b"), ("schedule=1f1b", "model.dim=64", "optimizer.betas=[0.8,0.9]")
    config(*words).optimizer.betas.clear()
    assert (config(*words).model.dim, config(*words).optimizer.betas) == (64, [0.8, 0.9])
    assert config("schedule=1f1b") == before


def test_the_commands_of_the_tests_compose_as_hydra_does():
    """But for a name of Hydra's that nothing reads; the second command copies what the first one has composed."""
    register()
    with composer():
        loader = GlobalHydra.instance().config_loader()
        for words in (["chunks=8", "schedule=zb_h1", "hydra.verbose=true"], ["schedule=zb_h1", "hydra.verbose=true"]):
            given = {"config_name": "config", "run_mode": RunMode.RUN, "overrides": [*words, "model.dim=64", "seed=3"]}
            ours, hydras = load_once(loader, **given), load(loader, **given)
            ours.hydra.job.override_dirname = hydras.hydra.job.override_dirname
            assert OmegaConf.to_container(ours, resolve=False) == OmegaConf.to_container(hydras, resolve=False)
        with pytest.raises(ConfigCompositionException, match="nosuch"):
            load_once(loader, **{**given, "overrides": [*words, "nosuch=1"]})


def test_2bp_has_the_keys_of_the_schedule_that_it_is_of_and_the_run_ids_that_it_had():
    looped = ("schedule=two_bp", "schedule.of=interleaved", "schedule.stages_per_rank=3")
    assert job_of(*looped).schedule.ranks == two_bp(2, 4, of="interleaved", stages_per_rank=3).ranks
    assert job_of(*looped[:2]).run_id == "two_bp-m4-k2-fdde273a"


def test_a_latency_needs_the_clock_of_one_host(monkeypatch):
    asked = config("device=emulated", "device.latency_ms=1")
    assert problems(asked) == []
    for word in ["RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1"]:
        monkeypatch.setenv(*word.split("="))
    [problem] = problems(asked)
    assert problem.startswith("device.latency_ms=1.0 needs all ranks on one host")


def test_a_rank_that_torchrun_has_not_started_is_refused(monkeypatch):
    """Each of the processes would run the whole run."""
    monkeypatch.setenv("RANK", "1")
    [problem] = problems(config())
    assert problem.startswith("RANK is in the environment, but not all that torchrun sets")


def test_an_activation_limit_refuses_and_changes_nothing_else():
    assert problems(config("activation_limit=4")) == []  # gpipe holds all 4 chunks
    [problem] = problems(config("activation_limit=3"))
    sentence, *drawn = problem.splitlines()
    assert sentence.startswith("schedule 'gpipe': 0F3 is the first that makes rank 0 hold more than activation_limit=3")
    assert "[0F3]" in drawn[0]
    assert problems(config("activation_limit=3", "schedule=1f1b")) == []


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
    assert " ".join(words) in profile_command(config("model.dim=77"))
