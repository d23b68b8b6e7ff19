"""Every schedule equals the single process bit for bit: models of one's own, tied weights, and products in bf16.

Each rank is a thread. The models take turns over schedules, checkpointing modes and ranks, and all meet all with
`--whole`; `test_equality.py` has the models that are built in, on processes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import product

import pytest
import training
from conftest import CHECKPOINTING, gpt, mlp, small_job
from own_model import mixed, settings_of, tied_layers
from threads import in_threads

from microp.schedule import builders, skewed, uniform
from microp.schedule.builders import gpipe
from microp.settings import AS_WRITTEN, Computing
from microp.worker import monolith

BF16 = Computing("bf16")
BUILDERS = [build.__name__ for build in builders.ORDERS.values()]
MODELS = {  # at least 7 layers; layers of `mixed` send float32 and bf16, tied ones sum weights across stages
    "mixed": (lambda: settings_of(mixed, dropout=0.1), AS_WRITTEN),
    "tied gpt": (lambda: replace(gpt(dropout=0.0), layers=7, tied=True), AS_WRITTEN),
    "tied": (lambda: settings_of(tied_layers), AS_WRITTEN),
    "mlp, bf16": (lambda: replace(mlp(), layers=7), BF16),
    "gpt, bf16": (lambda: replace(gpt(), layers=7), BF16),
    "mixed, bf16": (lambda: settings_of(mixed, BF16, dropout=0.1), BF16),
    "tied, bf16": (lambda: settings_of(tied_layers, BF16), BF16),
}


@cache
def model_of(name: str):
    return MODELS[name][0]()


def job_of(name: str, schedule, **changes):
    model = model_of(name)
    cut = changes.pop("cut", uniform)(model.layers, schedule.stages)
    return small_job(
        **{"schedule": schedule, "model": model, "partition": cut, "computing": MODELS[name][1], **changes}
    )


@cache
def expected(name: str, chunks: int, batch_size: int = 9):
    """The losses of the single process, and a digest of each layer's gradients."""
    done = list(monolith.steps(job_of(name, gpipe(1, chunks), batch_size=batch_size), training.STEPS))
    return [step.loss for step in done], list(map(training.digest, done[-1].gradients))


def schedule_of(name: str, ranks: int):
    """A schedule of this builder with a number of microbatches that it is defined for."""
    for chunks in (3, 4, 6, 8, 9):
        try:
            return getattr(builders, name)(ranks, chunks)
        except ValueError:
            continue
    raise AssertionError(name)


def run_in_threads(job):
    """The losses, and the gradients of every layer; each rank is a thread."""
    results = in_threads(job.ranks, partial(training.train, job))
    losses = results[job.schedule.placement[job.schedule.stages - 1]][0]
    return losses, {index: own for _, layers in results for index, own in layers.items()}


@pytest.mark.parametrize("name", BUILDERS)
def test_every_schedule_and_checkpointing_mode(name, whole):
    """On one rank both ends of tied weights are there; so they are with stages that are laid out as a V."""
    names = list(MODELS)
    for turn, (mode, ranks) in enumerate([*product(CHECKPOINTING, (2, 3)), ("always", 1)]):
        turn += turn // 4 + 2 * BUILDERS.index(name)
        for model in names if whole else [names[turn % len(names)]]:
            schedule = schedule_of(name, ranks)
            if schedule.stages > model_of(model).layers:
                continue
            cut, policy = skewed if ranks == 3 else uniform, CHECKPOINTING[mode]
            job = job_of(model, schedule, cut=cut, checkpointing=policy, backend="threads")
            losses, layers = run_in_threads(job)
            want_losses, want = expected(model, schedule.chunks)
            assert losses == want_losses, (mode, ranks, model)
            assert [training.digest(layers[index]) for index in range(job.model.layers)] == want, (mode, ranks, model)
