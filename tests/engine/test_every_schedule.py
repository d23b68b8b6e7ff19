"""Every schedule equals the single process bit for bit: models of one's own, tied weights, and products in bf16.

Each rank is a thread. The models take turns over schedules, checkpointing modes and ranks, and all meet all with
`--whole`; `test_equality.py` has the models that are built in, on processes.
"""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from conftest import CHECKPOINTING, gpt, mlp, small_job
from drawn import defined
from one_process import assert_equal, by_processes, by_threads
from own_data import few_images, images, regression
from own_model import mixed, own_job, partly_frozen, passing, peaks_of, settings_of, tied_layers

from microp.schedule import builders, of_sizes, skewed, uniform, validate
from microp.schedule.builders import gpipe, one_f_one_b, two_bp, zb_h1, zb_h2, zb_v
from microp.settings import AS_WRITTEN, Computing, EngineSettings

BF16 = Computing("bf16")
WITH_DATA = (images, few_images, regression)
OTHERS = ("seq_1f1b", "dualpipe", "chimera")
BUILDERS = [build.__name__ for name, build in builders.ORDERS.items() if name not in OTHERS]
MODELS = {  # at least 7 layers; layers of `mixed` send float32 and bf16, tied ones sum weights across stages
    "mixed": (lambda: settings_of(mixed, dropout=0.1), AS_WRITTEN),
    "tied gpt": (lambda: replace(gpt(dropout=0.0), layers=7, tied=True), AS_WRITTEN),
    "tied": (lambda: settings_of(tied_layers), AS_WRITTEN),
    "passing": (lambda: settings_of(passing), AS_WRITTEN),
    "mlp, bf16": (lambda: replace(mlp(), layers=7), BF16),
    "gpt, bf16": (lambda: replace(gpt(), layers=7), BF16),
    "mixed, bf16": (lambda: settings_of(mixed, BF16, dropout=0.1), BF16),
    "tied, bf16": (lambda: settings_of(tied_layers, BF16), BF16),
}


@cache
def model_of(name: str):
    return MODELS[name][0]()


def job_of(name: str, schedule, mode: str = "never", cut=uniform, **changes):
    return small_job(mode, cut, schedule=schedule, model=model_of(name), computing=MODELS[name][1], **changes)


@pytest.mark.parametrize("name", BUILDERS)
def test_every_schedule_and_checkpointing_mode(name, whole):
    """On one rank both ends of tied weights are there; so they are with stages that are laid out as a V."""
    names = list(MODELS)
    number = BUILDERS.index(name)
    modes = [(mode, 2 + (turn + number) % 2) for turn, mode in enumerate(CHECKPOINTING)]
    for turn, (mode, ranks) in enumerate([*(product(CHECKPOINTING, (2, 3)) if whole else modes), ("always", 1)]):
        turn += 5 * number
        for model in names if whole else [names[turn % len(names)]]:
            schedule = next(defined(getattr(builders, name), ranks, (3, 4, 6, 8, 9)))
            if schedule.stages <= model_of(model).layers:
                job = job_of(model, schedule, mode, skewed if ranks == 3 else uniform, backend="threads")
                assert_equal(job, by_threads(job))


BY_MICROP = [
    *(("mixed", "zb_v", "segments"), ("tied", "zb_h1", "never"), ("passing", "zb_v", "never")),
    *(("mlp, bf16", "one_f_one_b", "segments"), ("mixed, bf16", "zb_h1", "except_last")),
    *(("gpt, bf16", "interleaved", "always"), ("tied, bf16", "zb_v", "never")),
]
BY_TORCH = [
    *(("mixed", "one_f_one_b", "never"), ("mixed", "gpipe", "always"), ("tied", "gpipe", "never")),
    *(("mlp, bf16", "gpipe", "never"), ("mixed, bf16", "one_f_one_b", "always")),
    ("gpt, bf16", "interleaved", "segments"),
]


@pytest.mark.parametrize("backend", ["shm", "tcp", "gloo"])
def test_processes(backend, tmp_path):
    """Each imports the function itself; tensors of 2 and 4 bytes per number; torch's own runtime needs sockets.

    Layers pass on views, and stages of which nothing is trained give no gradients.
    """
    cases = [(case, "microp") for case in BY_MICROP if backend != "tcp"]
    cases += [(case, "torch") for case in BY_TORCH if backend == "gloo"]
    jobs = []
    for (model, build, mode), engine in cases:
        given = {"batch_size": 8, "backend": backend, "engine": EngineSettings(engine, False)}
        jobs.append(job_of(model, getattr(builders, build)(2, 4), mode, **given))
    jobs += [own_job(settings_of(model), schedule=builders.zb_h1(2, 3), backend=backend) for model in WITH_DATA]
    jobs += [job_of_frozen(number, backend) for number, case in enumerate(FROZEN) if len(case[0].ranks) == 2]
    for job, trained in zip(jobs, by_processes(jobs, tmp_path), strict=True):
        assert_equal(job, trained)


FROZEN = [  # schedule, sizes, the stages that train nothing, the layers that are frozen
    (zb_h1(2, 1), (3, 6), (1,), (3, 9)),
    (zb_h1(2, 3), (5, 4), (1,), (5, 9)),
    (zb_h1(2, 4), (3, 6), (0,), (0, 3)),
    (zb_h1(3, 2), (3, 3, 3), (1,), (3, 6)),
    (zb_h1(3, 5), (3, 3, 3), (1,), (3, 6)),
    (zb_h2(3, 7), (3, 3, 3), (1, 2), (3, 9)),
    (one_f_one_b(3, 4), (3, 3, 3), (1,), (3, 6)),
    (two_bp(3, 2), (2, 3, 4), (1,), (2, 5)),
    (zb_v(2, 3), (2, 1, 3, 3), (1, 2), (2, 6)),
    (zb_v(2, 5), (3, 2, 1, 3), (2,), (5, 6)),
    (gpipe(2, 3), (4, 5), (0,), (0, 4)),  # from the first layer on: nothing is kept, no backward is run
    (one_f_one_b(3, 4), (2, 3, 4), (0, 1), (0, 6)),
    (zb_h1(3, 4), (3, 3, 3), (0, 1), (0, 7)),
    (zb_h1(3, 4), (3, 3, 3), (0,), (0, 4)),
    (zb_v(2, 3), (2, 1, 3, 3), (0, 1), (0, 4)),
]


def job_of_frozen(number: int, backend: str = "threads"):
    order, sizes, stages, (first, stop) = FROZEN[number]
    schedule = validate(order.without_weight_gradients(stages))
    given = {"partition": of_sizes(9, schedule.stages, list(sizes)), "mode": [*CHECKPOINTING][number % 4]}
    return own_job(settings_of(partly_frozen, frozen=first, stop=stop), schedule=schedule, backend=backend, **given)


@pytest.mark.parametrize("number", range(len(FROZEN)))
def test_stages_that_train_nothing_have_no_w(number):
    job = job_of_frozen(number)
    trained = by_threads(job)
    assert_equal(job, trained)
    assert [bool(gradients) for gradients in trained[1]] == [i not in job.model.frozen for i in range(9)]


@pytest.mark.parametrize("mode", CHECKPOINTING)
def test_layers_before_the_first_trained_one_need_no_memory_for_a_backward(mode):
    for build, stop in ((gpipe, 6), (gpipe, 4), (zb_h1, 5)):
        model, cut = settings_of(partly_frozen, frozen=0, stop=stop), of_sizes(9, 3, [3, 3, 3])
        job = own_job(model, schedule=build(3, 4), partition=cut, mode=mode, backend="threads", batch_size=256)
        measured, predicted = peaks_of(job)
        tensor = 4 * 8 * 4 * job.workload.mean_rows / 2**20  # between two layers: 4 tokens of 8 numbers
        assert predicted == pytest.approx(measured, rel=0.002, abs=1.01 * tensor), (build, stop)
