"""torch's pipeline runtime in the engine's place, and the comparison of both in one launch."""

from dataclasses import replace
from functools import partial

import pytest
import shapes
import training
from conftest import CHECKPOINTING, gpt, mlp, small_job
from one_process import assert_near, by_processes
from own_model import settings_of

from microp.job import torch_class, torch_problems
from microp.job.torch_support import TORCH_ORDERS, nearest_in_torch
from microp.records import read_json, read_rows, read_spans, summarise, write_json
from microp.schedule import builders, uniform
from microp.settings import EngineSettings
from microp.worker import launch_ranks

BUILDERS = {
    "gpipe": builders.gpipe,
    "1f1b": builders.one_f_one_b,
    "interleaved": partial(builders.interleaved, stages_per_rank=2),
    "breadth_first_lifo": partial(builders.breadth_first, stages_per_rank=2, drain=builders.Drain.lifo),
    "zb_v": builders.zb_v,
    "eager_1f1b": builders.eager_1f1b,
    "gpipe_lifo": partial(builders.gpipe, drain=builders.Drain.lifo),
}


def job_for(build, **changes):
    schedule, model = build(2, 4), changes.pop("model", mlp())
    cut = uniform(model.layers, schedule.stages)
    return small_job(**{"schedule": schedule, "model": model, "partition": cut, "batch_size": 8, **changes})


def each_job(**changes):
    jobs = [job_for(build, **changes) for build in BUILDERS.values()]
    return [job for job in jobs if not torch_problems(job.schedule, job.checkpointing, job.rows)]


def test_every_schedule_of_torch_is_tried():
    """Which class torch needs is told by the order: one with other keys, or of another name, is its own."""
    assert {torch_class(build(2, 4)) for build in BUILDERS.values()} == set(TORCH_ORDERS)
    assert torch_class(replace(builders.gpipe(2, 4), name="file")) == "ScheduleGPipe"
    assert torch_class(builders.interleaved(2, 4, warmup=builders.Warmup.single)) is None


def test_both_engines_give_the_same_losses_and_gradients(tmp_path):
    jobs = each_job()
    jobs += [
        job_for(builders.gpipe, model=gpt(), checkpointing=CHECKPOINTING[name])
        for name in ("never", "always", "segments")
    ]
    views = settings_of(shapes.build, shape="lstm_whose_result_is_not_contiguous")
    jobs.append(job_for(BUILDERS["interleaved"], model=views))
    by_torch = [replace(job, engine=EngineSettings("torch", False)) for job in jobs]
    trained = by_processes([*jobs, *by_torch], tmp_path)
    for ours, theirs in zip(trained[: len(jobs)], trained[len(jobs) :], strict=True):
        assert_near(theirs, ours, rtol=1e-3, atol=1e-6, of_loss=1e-5)


@pytest.mark.parametrize(
    ("build", "engines"), [(builders.gpipe, {"microp", "limit", "torch"}), (builders.naive, {"microp", "limit"})]
)
def test_a_comparison_alternates_and_is_summed_up(build, engines, tmp_path):
    job = job_for(build, engine=EngineSettings("compare", False), steps=4)
    launch_ranks(job, tmp_path)
    rows = read_rows(tmp_path, 0)
    measured = [row["engine"] for row in rows if row["phase"] == "measured"]
    columns = {row["engine"]: set(row) for row in rows if row["phase"] == "measured"}
    assert columns["microp"] == columns.get("torch", columns["microp"])
    turns = [measured[i : i + len(engines)] for i in range(0, len(measured), len(engines))]
    assert len(turns) == 4
    assert all(set(turn) == engines for turn in turns)
    assert len({turn[0] for turn in turns}) == len(engines)  # nobody always comes first
    assert [row["engine"] for row in rows if row["phase"] == "memory"] == ["microp"]
    write_json(tmp_path / "summary.json", summarise(job, tmp_path, "finished"))
    summary = read_json(tmp_path / "summary.json")
    assert summary["steps"] == 4
    times = summary["engines"]["pipeline_ms"]
    assert set(times) == engines
    assert all(0 < time["median"] < summary["step_ms"]["median"] * 100 for time in times.values())
    assert ("torch/microp" in summary["engines"]["ratio"]) == ("torch" in engines)
    assert len(read_spans(tmp_path)) == sum(map(len, job.schedule.ranks))


def test_torch_runs_the_order_that_is_priced(tmp_path):
    """The trace has the job's actions in the job's order, also where the ranks do not divide the chunks."""
    jobs = each_job(engine=EngineSettings("torch", False))
    jobs.append(
        job_for(lambda ranks, _: builders.interleaved(ranks, 3), engine=EngineSettings("torch", False), batch_size=9)
    )
    ran = launch_ranks(jobs[0], tmp_path, partial(training.order_of_a_step, jobs))
    for number, job in enumerate(jobs):
        assert tuple(ran[rank][number] for rank in (0, 1)) == job.schedule.ranks, job.schedule.name


def test_beside_a_schedule_that_torch_lacks_its_nearest_is_run():
    assert nearest_in_torch(builders.zb_h1(2, 4)).name == "1f1b"
    assert nearest_in_torch(builders.gpipe(2, 4)).name == "gpipe"
    assert nearest_in_torch(builders.breadth_first(2, 4, 3)) == builders.breadth_first(2, 4, 3, builders.Drain.lifo)
    assert nearest_in_torch(builders.zb_h2(3, 4)).ranks == builders.eager_1f1b(3, 4).ranks
    assert nearest_in_torch(builders.naive(2, 4)) == builders.naive(2, 4)
    compared = {"engine": EngineSettings("compare", False)}
    assert job_for(builders.zb_h1, **compared).engines == ("microp", "limit", "torch")
    assert job_for(lambda *_: builders.one_f_one_b(3, 2), **compared).engines == ("microp", "limit")  # torch cannot
