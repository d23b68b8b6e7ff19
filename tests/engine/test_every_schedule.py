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
from own_model import mixed, own_job, passing, settings_of, tied_layers
from test_frozen import CASES as FROZEN
from test_frozen import job_of as job_of_frozen

from microp.schedule import builders, skewed, uniform
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
