"""Models as people write them train as in plain PyTorch, or are refused: in every schedule that divides, and in others.

shapes x schedules x partitions x checkpointing x types x replicas: each shape meets each partition with each way of
checkpointing, while schedules, types and replicas take turns over the shapes; with `--whole` all meet all.

::

    plain      seeded ─► the function ─► nn.Sequential ── whole batch ── autograd ── SGD ─► losses, weights
    trained    own_model ─► Job ─► ranks that are threads ─────────────────────────────► losses, weights
"""

import math
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import cycle, islice, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import shapes
import torch
from conftest import small_job
from threads import in_threads
from torch import Tensor, nn

from microp import settings
from microp.comms import Comms, thread_comms
from microp.config import own_model
from microp.job import Job
from microp.model import loss_check, open_data
from microp.model.randomness import derive_seed
from microp.schedule import Schedule, builders, skewed, uniform
from microp.schedule.builders import gpipe
from microp.settings import AS_WRITTEN, BucketSettings, DeviceSettings, EngineSettings, OwnSettings, SgdSettings
from microp.worker import Trainer

ROWS, CHUNKS, STEPS, RATE, SEED = 9, 4, 2, 0.5, 7  # microbatches of 3, 2, 2 and 2 rows
SGD = SgdSettings("sgd", 0.0, "constant", 0, 0.0)
DIVIDED = ("zb_h1", "zb_h2", "zb_interleaved", "zb_v", "v_half", "v_min", "dualpipe_v")
WHOLE = ("gpipe", "one_f_one_b")
CUTS = {"uniform": uniform, "skewed": skewed}
MODES = ("never", "always")
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
FLAT = settings.SyncSettings("flat", "library")
SYNCS = {
    "flat": FLAT,
    "naive": settings.SyncSettings("naive", "library"),
    "ddp": BucketSettings("ddp", "library", 1e-3, 5e-4),
}
_FOLDER = tempfile.TemporaryDirectory()


class Case(NamedTuple):
    schedule: str
    cut: str = "uniform"
    mode: str = "never"
    dtype: str = "float32"
    sync: str = ""  # how the gradients of two replicas are summed; an empty text for one replica
    batches_weights: bool = False  # the W of several microbatches are one product, which is another order of summation
    ranks: int = 2

    def __str__(self) -> str:
        replicas = f" sync={self.sync}" if self.sync else ""
        return f"{self.schedule} {self.ranks} ranks {self.cut} {self.mode} {self.dtype}{replicas}"


class Trained(NamedTuple):
    """Two steps: the losses, and for each layer what its `state_dict` holds after them."""

    losses: list[float]
    layers: list[dict[str, Tensor]]


class RefusedError(Exception):
    """microp refuses the model, before the first step."""


@cache
def padded_text() -> settings.TextSettings:
    """A text of letters whose words are padded with zeros, so that rows have different numbers of them."""
    drawn = random.Random(3)
    words = (bytes(drawn.choices(range(97, 123), k=drawn.randint(1, 6))) for _ in range(2000))
    path = Path(_FOLDER.name) / "padded.txt"
    path.write_bytes(b"".join(word + bytes(drawn.choice((0, 0, 1, 2, 5))) + b" " for word in words))
    return settings.TextSettings("text", str(path))


@pytest.fixture(scope="module", autouse=True)
def _usual_loss_is_tried_once():
    """That `mean_error` is the mean over the rows is found once per type, not for each of 90 models anew."""
    tried, seen = loss_check._check_mean, set()

    def check_mean(made, output):
        key = made.loss, made.context, output.shape, output.dtype
        if made.loss is not shapes.mean_error or key not in seen:
            tried(made, output)
            seen.add(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_check, "_check_mean", check_mean)
        yield


@cache
def settings_of(name: str, dtype: str) -> OwnSettings | RefusedError:
    node = {"name": f"own_{name}", "builder": "shapes.build", "shape": name, "dtype": dtype}
    try:
        return own_model(node, AS_WRITTEN, DeviceSettings("cpu", 1))
    except ValueError as error:
        return RefusedError(str(error))


def job_of(name: str, case: Case) -> Job:
    model = settings_of(name, case.dtype)
    if isinstance(model, RefusedError):
        raise model
    build: Callable[[int, int], Schedule] = getattr(builders, case.schedule)
    schedule = build(case.ranks, CHUNKS if case.ranks < 3 else 2 * case.ranks)
    given = {"model": model, "schedule": schedule, "data": padded_text(), "backend": "threads", "batch_size": ROWS}
    given |= {"learning_rate": RATE, "optimizer": SGD, "seed": SEED, "replicas": 2 if case.sync else 1}
    given |= {"sync": SYNCS.get(case.sync, FLAT), "engine": EngineSettings("microp", case.batches_weights)}
    return small_job(case.mode, CUTS[case.cut], **given)


def trained(job: Job) -> Trained:

    def live(comms: Comms) -> tuple[list[float], dict[int, dict[str, Tensor]]]:
        try:
            trainer = Trainer(job, comms, 0)
        except ValueError as refusal:
            raise RefusedError(str(refusal)) from refusal
        losses = []
        for step in range(STEPS):
            trainer.load(step)
            losses.append(trainer.step(step)["loss"] or 0.0)
        return losses, {index: dict(layer.state_dict()) for index, layer in trainer.layers.items()}

    ranks = in_threads(thread_comms(job.ranks, 20, job.replicas), live)
    replicas = []
    for first in range(0, len(ranks), job.ranks):
        layers = {index: state for _, held in ranks[first : first + job.ranks] for index, state in held.items()}
        replicas.append(Trained([], [layers[index] for index in sorted(layers)]))
    assert all(distance(replica, replicas[0])[0] == 0 for replica in replicas), "replicas differ"
    return Trained([sum(shares) for shares in zip(*(losses for losses, _ in ranks), strict=True)], replicas[0].layers)


@cache
def undivided(name: str, chunks: int, dtype: str, replicas: int) -> Trained:
    """microp on one rank, with as many microbatches, recomputing nothing."""
    job = job_of(name, Case("gpipe", dtype=dtype, sync="flat" if replicas > 1 else "", ranks=1))
    return trained(replace(job, schedule=gpipe(1, chunks)))


@cache
def plain(name: str, dtype: str) -> Trained:
    """Train by PyTorch alone, the whole batch at once: no stage, no microbatch, no part of microp but seed and data."""
    seed = derive_seed(SEED, "layers")
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    made = shapes.build(name, dtype)
    model = nn.Sequential(*made.layers)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    windows, losses = open_data(padded_text(), ROWS, made.context, SEED), []
    for step in range(STEPS):
        window = windows(step)
        loss = made.loss(model(window[:, :-1]), window[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, [dict(layer.state_dict()) for layer in made.layers])


def distance(got: Trained, want: Trained) -> tuple[float, str]:
    """The largest difference, as a share of the largest number beside it, and where it is; 0 for equal bits."""
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for step, losses in enumerate(zip(got.losses, want.losses, strict=True)):
        one, other = torch.tensor(losses, dtype=torch.float64)
        pairs[f"loss of step {step}"] = one, other
    for index, (mine, theirs) in enumerate(zip(got.layers, want.layers, strict=True)):
        assert mine.keys() == theirs.keys()
        pairs |= {f"layer {index} {key}": (mine[key], theirs[key]) for key in theirs}
    shares = {where: _share(*pair) for where, pair in pairs.items()}
    where = max(shares, key=shares.__getitem__)
    return shares[where], where


def _share(got: Tensor, want: Tensor) -> float:
    if torch.equal(got, want):
        return 0.0
    share = float((got - want).abs().max() / (want.abs().max() or 1.0))
    return share if share == share else math.inf


def problem(name: str, case: Case) -> str:
    """What a shape does wrong in a case, in words; an empty text if it does what is expected of it."""
    shape = shapes.SHAPES[name]
    try:
        job = job_of(name, case)
        got = trained(job)
    except RefusedError as refusal:
        if shape.expect == "equal":
            return f"refused: {refusal}"
        return "" if shape.words in str(refusal) else f"refused in other words: {refusal}"
    except Exception as error:
        cause = error.__cause__ or error
        return f"crashes: {type(cause).__name__}: {' '.join(str(cause).split())}"
    if shape.expect == "refused":
        far = f", {distance(got, plain(name, case.dtype))[0]:.1g} from PyTorch" if shape.reference == "plain" else ""
        return f"trains, is to be refused{far}"
    if (shape.bits and not case.batches_weights) or shape.reference == "undivided":
        far, where = distance(got, undivided(name, job.schedule.chunks, case.dtype, job.replicas))
        if far > (0 if shape.bits and not case.batches_weights else TOLERANCE[case.dtype]):
            return f"differs from one rank by {far:.1g} ({where})"
    if shape.reference == "plain":
        far, where = distance(got, plain(name, case.dtype))
        if far > TOLERANCE[case.dtype]:
            return f"differs from PyTorch by {far:.1g} ({where})"
    return ""


TYPES = ("float32", "float64")  # what is to be refused may have weights that are no layer's, of the first type
NAMES = list(shapes.SHAPES)


def cases(name: str, whole: bool) -> Iterator[Case]:
    """The cases of a shape, without those that a configuration refuses: changed buffers recomputed, or of replicas."""
    shape, place = shapes.SHAPES[name], NAMES.index(name)
    types = TYPES if shape.expect == "equal" else TYPES[:1]
    if not whole:
        types = [types[place // 2 % len(types)]]  # to inspect a model takes longer than to train it
    syncs = () if shape.changes_buffers else SYNCS
    ways = list(product(CUTS, MODES[:1] if shape.changes_buffers else MODES, types))
    if whole:
        for ranks, schedule, sync, way in product((2, 3), (*DIVIDED, *WHOLE), ("", *syncs), ways):
            if ranks < 3 or schedule in ("zb_h1", "zb_h2", *WHOLE):  # of others five layers are too few for the stages
                yield Case(schedule, *way, sync=sync, ranks=ranks)
    turns = islice(cycle(ways), place, None)
    schedules = (DIVIDED[place % len(DIVIDED)], DIVIDED[(place + 3) % len(DIVIDED)], WHOLE[place % 2])
    for schedule in schedules[place % 3 :][:1] if shape.expect == "refused" and not whole else schedules:
        yield Case(schedule, *next(turns))  # a refused model is inspected again for each
    if shape.expect != "refused" and syncs:
        where = (WHOLE[place // 2 % 2], "ddp") if place % 2 else (DIVIDED[place % len(DIVIDED)], list(SYNCS)[place % 3])
        yield Case(where[0], *next(turns), sync=where[1])
    if place % 3 == 1:
        yield Case("zb_h1", *next(turns), batches_weights=True)


@pytest.mark.parametrize("name", NAMES)
def test_every_shape(name, whole):
    problems = {str(case): said for case in cases(name, whole) if (said := problem(name, case))}
    assert not problems, "\n".join(f"{case}: {said}" for case, said in problems.items())
