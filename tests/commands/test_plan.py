"""`python -m microp.plan`: a table of plans, each with a command that runs."""

import json
import re
import shlex
from itertools import product

import pytest
from profiled import profile
from user import microp, ran, read

from microp.commands.planning import make_plan, search_words
from microp.config import ConfigError, compose_config, make_job, predict, read_config
from microp.config.config import read_composed
from microp.planner import ORDERS
from microp.records import write_profile
from microp.settings import MlpSettings
from microp.system import MIB

WORDS = ["device=emulated", "device.per=[layer,row]", "device.forward_ms=0.1", "device.backward_ms=0.2"]
SMALL = ["model.layers=4", "model.dim=32", "batch_size=8"]


def test_a_plan_says_what_to_run(tmp_path):
    words = [*WORDS, *SMALL, "ranks=2", "replicas=1,2", "chunks=range(2,5,2)", "memory_gib=1"]
    done = ran(*words, folder=tmp_path, program="microp.plan")
    [path] = (tmp_path / "outputs" / "plans").glob("plan-k2-b8-*.json")
    found = read(path)
    assert found["memory_gib"] == 1
    steps = [plan["step"] for plan in found["plans"]]
    assert steps == sorted(steps)
    assert {plan["chunks"] for plan in found["plans"]} <= {2, 4}
    told = f"run   microp -cd outputs/plans/{path.stem} -cn plan1\n"
    assert told in done.stdout
    assert re.findall(r"^plan\d+", done.stdout, re.M) == [f"plan{n}" for n in range(1, len(steps) + 1)]
    command = shlex.split(told)[2:]
    ran(*command, "steps=1", "warmup_steps=0", folder=tmp_path)
    [first] = (tmp_path / "outputs" / "runs").iterdir()
    whole = shlex.split(found["plans"][0]["command"])[1:]
    assert first.name in microp(*whole, "steps=1", "warmup_steps=0", "dry_run=true", folder=tmp_path).stdout


def test_what_a_plan_does_not_know_stands_above_it_and_its_file_finds_one_s_own_options(tmp_path):
    own = tmp_path / "own" / "device"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("defaults: [cpu]\nthreads: 1\n")
    words = ["-cd", "own", *SMALL, "device=mine", "ranks=2", "chunks=2,4", "schedule=1f1b"]
    done = ran(*words, folder=tmp_path, program="microp.plan")
    assert done.stderr.startswith("the times of this machine are not known: a row takes as long in a small microbatch")
    [folder] = (path for path in (tmp_path / "outputs" / "plans").iterdir() if path.is_dir())
    run = ran("-cd", str(folder), "-cn", "plan1", "dry_run=true", folder=tmp_path)
    assert "1 to run" in run.stdout
    refused = microp("-cd", str(folder), "-cn", "plan1", "device.memory_gib=0.00001", folder=tmp_path)
    assert f"python -m microp.plan -cd {tmp_path / 'own'} " in refused.stderr  # where the options are


def test_a_run_of_a_plan_for_another_machine_shows_no_memory_of_the_small_model_that_stands_in(tmp_path):
    made = write_profile(tmp_path, profile(MlpSettings("mlp", 4, 256, "float32")))
    words = [f"device={made}", "model.layers=4", "batch_size=8"]
    run = ran(*words, "steps=1", "warmup_steps=0", folder=tmp_path)
    assert run.stdout.count("MiB") == 1
    assert "No peak MiB where a small model stood in" in run.stdout
    [summary] = (tmp_path / "outputs" / "runs").glob("*/attempt-1/summary.json")
    found = read(summary)
    assert (found["peak_memory_mib"], found["predicted"]["peak_memory_mib"]) == (None, None)
    assert found["in_flight_peak"] == [4, 4]
    words += ["ranks=2", "schedule=gpipe", "chunks=4"]
    priced = ran(*words, "output=json", folder=tmp_path, program="microp.simulate")
    ran(*words, "partition=uniform", "checkpointing=never", folder=tmp_path, program="microp.plan")
    [path] = (tmp_path / "outputs" / "plans").glob("*.json")
    assert json.loads(priced.stdout)["peak_memory_mib"] == read(path)["plans"][0]["peak_memory_mib"]  # of the profile


def test_where_nothing_fits_it_says_by_how_much_and_what_would(tmp_path):
    words = [*WORDS, *SMALL, "ranks=2"]
    done = microp(*words, "memory_gib=0.00001", folder=tmp_path, program="microp.plan")
    assert done.returncode == 2
    assert done.stderr.startswith("error: memory_gib=1e-05 is too little for each of ")
    assert not (tmp_path / "outputs").exists()
    enough = re.search(r"more: use (memory_gib=\S+) \(", done.stderr).group(1)
    assert microp(*words, enough, folder=tmp_path, program="microp.plan").returncode == 0
    one = [*words, "schedule=gpipe", "chunks=2", "partition=uniform", "checkpointing=never"]
    little = microp(*one, "memory_gib=0.00001", folder=tmp_path, program="microp.plan").stderr
    assert "is too little for schedule=gpipe chunks=2, which needs " in little
    assert "(near it, other partitions are tried), or a smaller model" in little  # nor do more ranks or fewer rows help
    assert ran(*one, folder=tmp_path, program="microp.plan").stdout.startswith("1 candidate, 0 need too much memory; ")


@pytest.mark.parametrize("word", ["device.reduce_ms=1", "device.recompute_ms=1", "device.latency_ms=1", "sync=flat"])
def test_a_plan_uses_what_one_of_its_choices_may_use(word):
    assert compose_config(*search_words(["ranks=8", "device=emulated", word]), name="plan")
    with pytest.raises(ConfigError, match="steps=3 is not used by a plan: leave it out"):
        compose_config("steps=3", name="plan")


def test_a_plan_has_no_order_that_its_sums_over_replicas_refuse():
    typed = search_words([*SMALL, "ranks=4", "replicas=1,2", "schedule=zb_h1", "chunks=4", "sync=torch_ddp"])
    plan = make_plan(read_composed(compose_config(*typed, name="plan"))[0])
    assert {choice.replicas for choice in plan.space.choices() if plan.pricer.price(choice)} == {1}


GPT = ["model=gpt", "model.layers=8", "model.dim=32", "model.context=16", "batch_size=16"]


def test_of_every_order_time_and_memory_are_those_that_the_run_of_its_command_predicts(whole):
    """Policies and partitions take turns over the orders; --whole has all."""
    words = [*GPT, "ranks=4", "device=emulated", "device.forward_ms=1", "device.backward_ms=2", "device.pair_ms=2.5"]
    searched = ["schedule.stages_per_rank=2", "chunks=8", "checkpointing=never,except_last"]
    plan = make_plan(read_composed(compose_config(*search_words([*words, *searched]), name="plan"))[0])
    kinds, seen = [*product(("never", "except_last"), ("uniform", "balanced"))], set()
    asked = {(name, *kind) for turn, name in enumerate(ORDERS) for kind in (kinds if whole else [kinds[turn % 4]])}
    for choice in plan.space.choices():
        kind = choice.schedule, choice.checkpointing, choice.partition
        if kind not in asked or (priced := plan.pricer.price(choice)) is None:
            continue
        sizes = f"partition.sizes=[{','.join(map(str, priced.sizes))}]"
        config = read_config(compose_config(*words, *choice.words(), "partition=sizes", sizes))
        run = predict(config, make_job(config))
        assert [peak / MIB for peak in priced.peaks] == run.peak_memory_mib
        assert plan.pricer.forecast(priced).step == run.step_ms
        seen.add(kind)
    assert seen == asked
