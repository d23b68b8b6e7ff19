"""A training that goes on from a snapshot is the one that was never stopped, bit for bit, on any ranks."""

import errno
import multiprocessing
import os
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import CHECKPOINTING, gpt, mlp, small_job
from own_data import kept_order
from own_model import own_job, settings_of, with_extra_state

from microp.job import Job, Snapshot
from microp.records import WriteError, read_json, read_rows, snapshots
from microp.schedule import skewed
from microp.schedule.builders import gpipe, interleaved, one_f_one_b, zb_h1, zb_v
from microp.settings import AS_WRITTEN, Computing, EngineSettings, SnapshotSettings
from microp.worker import RankError, run_threads

EVERY_2 = SnapshotSettings("disk", 2, 9, False, None, True)
STEPS = 6  # one warm-up step and five measured ones; the step for memory comes after them
MODELS = {"mlp": mlp, "gpt": gpt}  # gpt has dropout


def job_of(name: str, **changes) -> Job:
    given = {"model": MODELS[name](), "steps": STEPS - 1, "snapshot": EVERY_2, "backend": "threads"}
    return small_job(**{**given, **changes})


def run(job: Job, attempt: Path) -> dict[int, float]:
    attempt.mkdir(parents=True)
    run_threads(job, attempt)
    losses: dict[int, float] = {}
    for rank in range(job.processes):
        for row in read_rows(attempt, rank):
            losses[row["step"]] = losses.get(row["step"], 0.0) + (row["loss"] or 0.0)
    return losses


def weights(attempt: Path) -> dict[str, torch.Tensor]:
    return torch.load(attempt / "weights.pt", weights_only=True)


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    torch.set_num_threads(1)
    attempts = {name: tmp_path_factory.mktemp(name) / "run" / "attempt-1" for name in MODELS}
    return {name: (attempt, run(job_of(name), attempt)) for name, attempt in attempts.items()}


ELSEWHERE = {
    "the same": {},
    "three ranks, skewed": {"schedule": one_f_one_b(3, 4), "partition": skewed},
    "one rank": {"schedule": gpipe(1, 4)},
    "split backward": {"schedule": zb_h1(2, 4), "checkpointing": CHECKPOINTING["always"]},
    "two stages per rank": {"schedule": interleaved(2, 4), "checkpointing": CHECKPOINTING["segments"]},
    "a V": {"schedule": zb_v(2, 4), "snapshot": replace(EVERY_2, every=1)},
}


def saved(attempt: Path, step: int) -> Snapshot:
    return Snapshot(str(snapshots.snapshot_folder(attempt, step)), step)


@pytest.mark.parametrize("where", ELSEWHERE)
def test_it_goes_on_bit_for_bit(where, uninterrupted, whole, tmp_path):
    changes = dict(ELSEWHERE[where])
    for model in MODELS if whole else [list(MODELS)[list(ELSEWHERE).index(where) % len(MODELS)]]:
        attempt, losses = uninterrupted[model]
        if cut := ELSEWHERE[where].get("partition"):
            changes["partition"] = cut(MODELS[model]().layers, changes["schedule"].stages)
        job = job_of(model, resumed=saved(attempt, 4), **changes)
        assert snapshots.snapshot_problem(job.resumed, job) is None
        resumed = tmp_path / model / "attempt-2"
        got = run(job, resumed)
        assert got == {step: losses[step] for step in (0, 4, 5, 6)}  # a warm-up step, what was left, and memory
        assert_same_bits(weights(resumed), weights(attempt))
        phases = [row["phase"] for row in read_rows(resumed, 0)]
        assert phases == ["warmup", "measured", "measured", "memory"]


def test_replicas_go_on_bit_for_bit_and_one_replica_takes_over(tmp_path):
    pair = job_of("gpt", schedule=one_f_one_b(2, 2), replicas=2, batch_size=12, model=gpt("float64"))
    losses = run(pair, tmp_path / "attempt-1")
    source = saved(tmp_path / "attempt-1", 2)
    again = run(replace(pair, resumed=source), tmp_path / "attempt-2")
    assert again == {step: losses[step] for step in again}
    assert_same_bits(weights(tmp_path / "attempt-1"), weights(tmp_path / "attempt-2"))
    alone = job_of("gpt", schedule=gpipe(1, 4), batch_size=12, model=gpt("float64"), resumed=source)
    for step, loss in run(alone, tmp_path / "attempt-3").items():
        assert loss == pytest.approx(losses[step], abs=1e-12)


def test_bf16_and_tied_weights_go_on_bit_for_bit_from_two_ranks_to_four(tmp_path):
    two = job_of("gpt", model=replace(gpt(), tied=True), computing=Computing("bf16"))
    losses = run(two, tmp_path / "attempt-1")
    left = weights(tmp_path / "attempt-1")
    assert torch.equal(left["0.0.byte"], left["4.2.weight"])  # every copy is there
    source = saved(tmp_path / "attempt-1", 4)
    four = {"schedule": zb_h1(4, 4), "partition": skewed(5, 4), "checkpointing": CHECKPOINTING["segments"]}
    for number, changes in enumerate(({}, four), 2):
        job = replace(two, resumed=source, **changes)
        assert snapshots.snapshot_problem(job.resumed, job) is None
        got = run(job, tmp_path / f"attempt-{number}")
        assert got == {step: losses[step] for step in (0, 4, 5, 6)}
        assert_same_bits(weights(tmp_path / f"attempt-{number}"), weights(tmp_path / "attempt-1"))
    exact = run(replace(two, computing=AS_WRITTEN), tmp_path / "exact")
    assert exact[6] != losses[6]


def test_own_data_that_keep_an_order_go_on_with_the_same_rows_or_not_at_all(tmp_path):
    job = own_job(settings_of(kept_order), steps=STEPS - 1, snapshot=EVERY_2, backend="threads")
    losses = run(job, tmp_path / "attempt-1")
    again = run(replace(job, resumed=saved(tmp_path / "attempt-1", 2)), tmp_path / "attempt-2")
    assert again == {step: losses[step] for step in again}
    with pytest.raises(RankError, match="data that give other rows of step 3 than when the snapshot was taken"):
        run(replace(job, resumed=saved(tmp_path / "attempt-1", 4)), tmp_path / "attempt-3")


def test_extra_state_of_a_module_goes_on(tmp_path):
    job = own_job(settings_of(with_extra_state), steps=STEPS - 1, snapshot=EVERY_2, backend="threads")
    run(job, tmp_path / "attempt-1")
    run(replace(job, resumed=saved(tmp_path / "attempt-1", 4)), tmp_path / "attempt-2")
    assert weights(tmp_path / "attempt-2")["2._extra_state"] == {"version": 2}


def test_engines_in_turn_go_on(tmp_path):
    """The limit's steps take a batch and change no weights; torch is left out of this comparison by its own rules."""
    job = job_of("mlp", steps=2, engine=EngineSettings("compare", False), checkpointing=CHECKPOINTING["except_last"])
    assert job.engines == ("microp", "limit")
    losses = run(job, tmp_path / "attempt-1")
    again = run(replace(job, resumed=saved(tmp_path / "attempt-1", 2)), tmp_path / "attempt-2")
    assert again == {step: losses[step] for step in again}
    assert_same_bits(weights(tmp_path / "attempt-1"), weights(tmp_path / "attempt-2"))


def test_what_a_snapshot_leaves(uninterrupted):
    attempt, _ = uninterrupted["gpt"]
    assert [folder.name for folder in snapshots.snapshots_of(attempt)] == ["step-2", "step-4", "step-6"]
    assert sorted(each.name for each in attempt.iterdir() if each.name.startswith(".")) == []
    folder = snapshots.snapshot_folder(attempt, 4)
    assert sorted(each.name for each in folder.iterdir()) == [*(f"layer-{i}.pt" for i in range(5)), "snapshot.json"]
    manifest = read_json(folder / "snapshot.json")
    assert (manifest["step"], manifest["training"]["model"]["dim"], manifest["training"]["seed"]) == (4, 16, 7)
    for rank in (0, 1):
        assert [row["step"] for row in read_rows(attempt, rank) if row.get("snapshot_ms", 0) > 0] == [2, 4, 6]


def test_loading_executes_nothing(uninterrupted, tmp_path):
    attempt, _ = uninterrupted["mlp"]
    folder = tmp_path / "step-4"
    shutil.copytree(snapshots.snapshot_folder(attempt, 4), folder)

    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "executed",)

    torch.save({"weights": Evil(), "optimizer": {}}, folder / "layer-1.pt")
    (tmp_path / "attempt-2").mkdir()
    with pytest.raises(RankError, match=r"loading the snapshot, step 4: UnpicklingError: Weights only load failed"):
        run_threads(job_of("mlp", resumed=Snapshot(str(folder), 4)), tmp_path / "attempt-2")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(("keep", "stay"), [(1, ["step-6"]), (2, ["step-5", "step-6"])])
def test_older_ones_are_removed_but_nothing_of_others(keep, stay, uninterrupted, tmp_path):
    """An attempt that starts anew or goes on from a path removes nothing of those before it."""
    shutil.copytree(uninterrupted["mlp"][0], tmp_path / "attempt-1")
    snapshot, source = SnapshotSettings("disk", 1, keep, False, None, False), saved(tmp_path / "attempt-1", 4)
    run(job_of("mlp", snapshot=snapshot), tmp_path / "attempt-2")
    assert [folder.name for folder in snapshots.snapshots_of(tmp_path / "attempt-2")] == stay
    assert sorted(each.name for each in (tmp_path / "attempt-2" / "snapshots").iterdir()) == stay
    assert not (tmp_path / "attempt-2" / "weights.pt").exists()
    run(job_of("mlp", snapshot=replace(snapshot, path=source.folder), resumed=source), tmp_path / "attempt-3")
    names = [folder.name for folder in snapshots.snapshots_of(tmp_path / "attempt-1")]
    assert names == ["step-2", "step-4", "step-6"]


def test_a_resumed_attempt_removes_what_the_attempts_before_it_left(uninterrupted, tmp_path):
    attempt = Path(shutil.copytree(uninterrupted["mlp"][0], tmp_path / "run" / "attempt-1"))
    shutil.rmtree(snapshots.snapshot_folder(attempt, 6))
    (attempt / "snapshots" / ".step-6.draft").mkdir()
    shutil.copytree(attempt / "snapshots" / "step-2", tmp_path / "run" / "attempt-2" / "snapshots" / "step-2")
    newest = snapshots.unfinished_snapshot(tmp_path / "run", STEPS)
    assert newest == Snapshot(str(attempt / "snapshots" / "step-4"), 4)
    job = job_of("mlp", snapshot=SnapshotSettings("disk", 5, 1, True, None, False), resumed=newest)
    run(job, tmp_path / "run" / "attempt-3")
    left = [str(each.relative_to(tmp_path / "run")) for each in tmp_path.glob("run/*/snapshots/*")]
    assert left == ["attempt-3/snapshots/step-5"]


@pytest.mark.parametrize("file", ["layer-0.pt", "layer-4.pt", "snapshot.json"])
def test_a_full_disk_is_named_and_the_older_snapshot_stays(file, tmp_path, monkeypatch):
    attempt = tmp_path / "attempt-1"
    fsync = os.fsync

    def full(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").readlink().match(f".step-4.draft/{file}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    attempt.mkdir()
    said = r"saving the training, step 4: .*/step-4 cannot be written \(No space left on device\): free some room, "
    with pytest.raises(WriteError, match=said):
        run_threads(job_of("mlp", snapshot=SnapshotSettings("disk", 2, 1, False, None, False)), attempt)
    [left] = snapshots.snapshots_of(attempt)
    assert left.name == "step-2"
    assert snapshots.snapshot_problem(Snapshot(str(left), 2), job_of("mlp")) is None
    assert [row["step"] for row in read_rows(attempt, 0)] == [0, 1, 2, 3]  # no row is lost
    snapshots.remove_drafts(attempt)
    assert [each.name for each in (attempt / "snapshots").iterdir()] == ["step-2"]


def test_killed_at_any_moment_one_snapshot_is_whole(whole, tmp_path):
    """Processes that do little but save are killed at random moments, and what they leave is read in full.

    There are 12 with `--whole`, else 3, or more until one was killed while it wrote.
    """
    job = job_of("mlp", steps=2000, snapshot=SnapshotSettings("disk", 1, 1, False, None, False))
    moments, drafts = random.Random(3), 0
    for number in range(12):
        if number >= 3 and drafts and not whole:
            break
        attempt = tmp_path / f"attempt-{number}"
        attempt.mkdir()
        process = multiprocessing.get_context("forkserver").Process(target=run_threads, args=(job, attempt))
        process.start()
        while not snapshots.snapshots_of(attempt):
            assert process.exitcode is None
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.05))
        process.kill()
        process.join()
        newest = snapshots.find_snapshot(attempt)
        assert snapshots.snapshot_problem(newest, job) is None
        drafts += len(list(attempt.glob("snapshots/.*")))
        resumed = replace(job, steps=newest.step, resumed=newest)
        assert list(run(resumed, tmp_path / "resumed" / f"attempt-{number}")) == [0, newest.step, newest.step + 1]
    assert drafts  # some were killed while they wrote
