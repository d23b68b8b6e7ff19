"""What makes two runs the same: run ids and question ids."""

import copy
from pathlib import Path

import pytest

from microp.config import compose_config, job_of, read_config
from microp.config.config import plain
from microp.job import Job, identity
from microp.schedule import to_text
from microp.schedule.builders import gpipe, one_f_one_b

GOLDEN = {  # overrides -> the run id that they have always had
    "": "gpipe-m4-k2-55b3113b",
    "schedule=1f1b chunks=8": "1f1b-m8-k2-4515b895",
    "schedule=interleaved ranks=4 chunks=8": "interleaved-m8-k4-e29eacc0",
    "device=emulated ranks=4 model.dim=64 model.layers=4 batch_size=64 "
    "device.per=[layer,row] device.latency_ms=1.5": "gpipe-m4-k4-e38e800f",
    "model=gpt batch_size=32": "gpipe-m4-k2-d23083ab",
    "replicas=2 sync=compare ranks=1 chunks=1": "gpipe-m1-k1-r2-c9364ba5",
    "partition=skewed partition.share=0.8": "gpipe-m4-k2-1ee8bbdf",
    "partition=sizes partition.sizes=[4,12]": "gpipe-m4-k2-a0778ca0",
    "schedule=gpipe schedule.drain=lifo checkpointing=except_last": "gpipe-m4-k2-8d5e861b",
    "schedule=zb_v checkpointing=segments checkpointing.segments=3 engine.batch_weights=true": "zb_v-m4-k2-0a285e6a",
    "device=emulated model.dim=512 device.forward_ms=20 device.backward_ms=[40,30]": "gpipe-m4-k2-bf01c19e",
    "repeat=2": "gpipe-m4-k2-f42bcdf1",
    "engine=compare comms=gloo device.threads=2": "gpipe-m4-k2-ed1ab2c8",
    "schedule=v_half ranks=4 chunks=8 data=synthetic tracking=disabled seed=5 again=true": "v_half-m8-k4-30200f1a",
}


DEFAULT_THEN = ["model.dim=512", "batch_size=256"]


@pytest.mark.parametrize(("overrides", "run_id"), GOLDEN.items(), ids=GOLDEN.values())
def test_old_results_stay_found(overrides: str, run_id: str) -> None:
    then = [] if "emulated" in overrides or "gpt" in overrides else DEFAULT_THEN
    assert job_of(*then, *overrides.split()).run_id == run_id


def test_old_results_of_one_s_own_data_stay_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tokens.bin").write_bytes(b"\0\1" * 500)
    tokens = ("data=tokens", "model=gpt", "model.vocabulary=300", "batch_size=32")
    for words, run_id in ((tokens, "gpipe-m4-k2-11259ad8"), (DEFAULT_THEN, "gpipe-m4-k2-d0d15da0")):
        assert job_of("data.path=tokens.bin", *words).run_id == run_id


@pytest.fixture(scope="module")
def job() -> Job:
    return job_of()


ASKED = [
    *("ranks=4", "chunks=8", "replicas=2", "batch_size=128", "steps=7", "warmup_steps=2", "learning_rate=0.01"),
    *("seed=1", "schedule=1f1b", "schedule.drain=lifo", "partition=skewed", "model=gpt", "model.dim=64"),
    *("checkpointing=always", "engine=compare", "data=synthetic", "device=emulated", "device.threads=2"),
    *("comms=gloo", "comms=shm", "comms=tcp", "dtype=bf16", "compile=true"),
]


def test_every_other_question_has_another_id_and_launches_of_one_share_it(job: Job) -> None:
    jobs = [job, *(job_of(word) for word in ASKED)]
    assert len({each.question_id for each in jobs}) == len({each.run_id for each in jobs}) == len(jobs)
    launches = [job_of(f"repeat={repeat}") for repeat in (0, 1, 2)]
    assert {each.question_id for each in launches} == {job.question_id}
    assert len({each.run_id for each in launches}) == 3
    assert launches[0].run_id == job.run_id


def test_the_same_time_is_the_same_question_however_it_is_written(job: Job) -> None:
    config, order = plain(read_config(compose_config("device=emulated"))), to_text(job.schedule)

    def ids(**times):
        changed = {**config, "device": {**config["device"], **times}}
        return identity.run_id(changed, order), identity.question_id(changed, order)

    assert ids() == ids(forward_ms=5, backward_ms=10) == ids(forward_ms=5.0, backward_ms=10.0)
    for key in ("forward_ms", "backward_ms", "weight_ms", "recompute_ms", "reduce_ms"):
        assert ids(**{key: 20}) == ids(**{key: 20.0}) != ids(**{key: 20.5})
        assert ids(**{key: [5, 10.0, 2.5]}) == ids(**{key: [5.0, 10, 2.5]}) != ids(**{key: [5, 10, 2.6]})
    assert ids(weight_ms=0) == ids(weight_ms=0.0) != ids(weight_ms=None)


def test_how_replicas_are_kept_equal_is_asked_only_where_there_are_some(job: Job) -> None:
    one_replica = plain(read_config(compose_config())) | {"sync": {"name": "flat", "all_reduce": "auto"}}
    assert identity.question_id(one_replica, to_text(job.schedule)) == job.question_id
    assert len({job_of("replicas=2", f"sync={sync}").question_id for sync in ("ddp", "flat")}) == 2


HOW = (
    *("comms.timeout_s=7", "tracking=online", "tracking=disabled", "tracking.tags=[mine]", "launch=slurm"),
    *("output_dir=elsewhere", "activation_limit=99", "again=true", "skip=true", "parallel=true"),
    *("dry_run=true", "fail_fast=true"),
)


@pytest.mark.parametrize("word", HOW)
def test_where_how_and_whether_it_runs_is_not_asked(job: Job, word: str) -> None:
    config, order = plain(read_config(compose_config(word))), to_text(job.schedule)
    assert config != plain(read_config(compose_config()))
    assert (identity.run_id(config, order), identity.question_id(config, order)) == (job.run_id, job.question_id)


def test_another_order_in_the_same_file_is_another_question(tmp_path) -> None:
    path, found = tmp_path / "mine.txt", []
    for schedule in (gpipe(2, 3), one_f_one_b(2, 3), gpipe(2, 3)):
        path.write_text(to_text(schedule))
        found.append(job_of("schedule=file", f"schedule.path={path}", "chunks=3"))
    for first, other, again in zip(*((each.run_id, each.question_id) for each in found), strict=True):
        assert first == again != other


def test_an_input_gradient_counts_as_a_backward_only_beside_a_weight_gradient() -> None:
    config = plain(read_config(compose_config()))
    orders = ["0F0 0I0 0W0", "0F0 0B0 0W0", "0F0 0I0", "0F0 0B0"]  # the second as the first was written once
    ids = [identity.run_id(config, f"# microp schedule mine\n{order}\n") for order in orders]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_a_key_that_is_added_later_asks_nothing_new_at_its_default(monkeypatch) -> None:
    config, order = plain(read_config(compose_config())), to_text(gpipe(2, 4))
    before = identity.run_id(config, order), identity.question_id(config, order)
    later = copy.deepcopy(config)
    later |= {"shape": None, "made": {"up": {"later": [1, 2]}}}
    later["model"]["bias"] = True
    monkeypatch.setattr(identity, "ADDED", {**identity.ADDED, "shape": None, "model.bias": True, "made.later": [1, 2]})
    assert (identity.run_id(config, order), identity.question_id(config, order)) == before  # it lacks the keys
    for group, key, value in (("model", "bias", False), ("made", "up", {"later": [1]}), (None, "shape", 3)):
        changed = copy.deepcopy(later)
        (changed if group is None else changed[group])[key] = value
        assert identity.run_id(changed, order) != before[0]
        assert identity.question_id(changed, order) != before[1]
    del later["made"]
    assert (identity.run_id(later, order), identity.question_id(later, order)) == before
