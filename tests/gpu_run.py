"""Runs on a GPU what the CPU cannot show: `make gpu`, which takes less than ten minutes.

::

    part                   is right if
    one rank               the losses are the CPU's
    2 and 4 ranks          so they are for ranks that share the card (`device.share`)
    gradients: SCHEDULE    those of each schedule on two such ranks are the undivided model's, in float64
    replicas               the losses are those of one replica, however gradients are summed
    dropout                recomputed activations have the dropout of the first forward
    bf16, compile          the losses are about those in float32; the times are beside them
    memory                 the allocator's peak is the predicted one, but for what the card's libraries keep
    nvidia-smi             it answers while the steps run
    weights                the trained weights load without a GPU
    profile                a profile can be measured, and predicts a run
    engine=torch           torch's runtime on one rank gives the undivided model's gradients
    NCCL: ...              the same on two GPUs, where there are two

A part that fails, or that takes too long, is a line of the table, and the others go on. The table is printed line by
line; all figures are in outputs/gpu/<time>.json, also of a command that was interrupted. Without a GPU it says so.
"""

import json
import math
import platform
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import microp
from microp.commands import self_checks
from microp.config import job_of
from microp.job import Job
from microp.schedule.builders import gpipe
from microp.settings import EngineSettings
from microp.system import CONF
from microp.worker import launch_ranks, monolith

PART_S, LAST_START_S = 120, 440  # the longest time of a part; after how many seconds none begins, per GPU of two
NEAR = 1e-3  # of two losses in float32 after some steps of Adam
GIVEN = ("tracking=disabled", "chunks=4")
MODELS = {"mlp": (), "gpt": ("model=gpt", "model.heads=2", "model.context=16")}
SCHEDULES = tuple(sorted({path.stem for path in (CONF / "schedule").glob("*.yaml")} - {"file"}))
SMALL = ("model.layers=8", "model.dim=64", "batch_size=32", "steps=6", "warmup_steps=2")
LARGE = ("model.layers=8", "model.dim=4096", "batch_size=4096", "steps=30", "warmup_steps=3")


class Card(NamedTuple):
    device: str  # `cuda`; or `cpu` in its place, by which everything but the card itself can be tried
    gpus: int
    folder: Path  # gets the runs and the file of figures
    large: tuple[str, ...] = LARGE  # the words of a model that keeps a card busy
    profile_s: int = 20
    schedules: tuple[str, ...] = SCHEDULES  # whose gradients are compared
    models: tuple[tuple[str, tuple[str, ...]], ...] = tuple(MODELS.items())

    @property
    def alone(self) -> tuple[str, ...]:  # the words for ranks with a GPU each
        return (f"device={self.device}",)

    @property
    def shared(self) -> tuple[str, ...]:  # for ranks that share a GPU
        return (*self.alone, "device.share=true") if self.device == "cuda" else self.alone

    def run(self, *words: str) -> microp.Run:
        """Run what these words say, and record it in the folder."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ranks that share a card, or the cores, take turns
            return microp.measure(*GIVEN, f"output_dir={self.folder}", *words)


class Figure(NamedTuple):
    """Something found; it is right if no `most` is given, or if it is at most that (not a number is not)."""

    name: str
    value: Any
    most: float | None = None

    def is_right(self) -> bool:
        return self.most is None or bool(self.value <= self.most)

    def text(self) -> str:
        value = f"{self.value:.3g}" if isinstance(self.value, float) else str(self.value)
        return f"{self.name} {value}{'' if self.is_right() else f' (at most {self.most:.3g})'}"


class Result(NamedTuple):
    """The outcome of a part; `passed` is None if it was not tried, and `said` is its error, or why."""

    part: str
    passed: bool | None
    seconds: float
    figures: list[Figure]
    said: str = ""

    def line(self) -> str:
        verdict = {True: "pass", False: "FAIL", None: "-"}[self.passed]
        shown = "; ".join([*([self.said] if self.said else []), *(figure.text() for figure in self.figures)])
        return f"{self.part:<28}{verdict:<6}{self.seconds:>5.0f} s  {shown}"


Part = Callable[[Card], Iterator[Figure]]
HEAD = f"{'part':<28}{'':<6}{'time':>7}  found"


# --- the parts ------------------------------------------------------------------------------------
def losses(run: microp.Run) -> list[float]:
    rows = run.steps[(run.steps.phase == "measured") & run.steps.loss.notna()]
    return list(rows.groupby("step").loss.sum())


@cache
def losses_on_cpu(card: Card, *words: str) -> list[float]:
    return losses(card.run("device=cpu", "comms=threads", "ranks=1", *words))


def largest(values: Iterable[float]) -> float:
    return max(values, key=lambda value: (math.isnan(value), value))


def gap(found: Sequence[float], wanted: Sequence[float]) -> float:
    return largest(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))


def median_ms(run: microp.Run) -> float:
    return float(run.summary["step_ms"]["median"])


def same_losses(card: Card, *words: str) -> Iterator[Figure]:
    """Compare the losses with those of one rank on the CPU, for both models."""
    for name, model in card.models:
        run = card.run(*SMALL, *model, *words)
        yield Figure(f"{name}: loss differs by", gap(losses(run), losses_on_cpu(card, *SMALL, *model)), NEAR)
        yield Figure("step ms", median_ms(run))


def one_rank(card: Card) -> Iterator[Figure]:
    yield from same_losses(card, "ranks=1", *card.alone)
    yield Figure("large: step ms", median_ms(card.run(*card.large, "ranks=1", *card.alone)))


def shared(ranks: int, card: Card) -> Iterator[Figure]:
    yield from same_losses(card, f"ranks={ranks}", "schedule=1f1b", *card.shared)


def same_gradients(job: Job) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        ranks = launch_ranks(job, Path(folder), self_checks.gradients)
    found = {index: own for rank in ranks.values() for index, own in rank.items()}
    *_, wanted = monolith.steps(job, 2)
    pairs = [pair for at, own in enumerate(wanted.gradients) for pair in zip(found[at], own, strict=True)]
    return Figure("gradients differ by", largest(float((a - b).abs().max() / b.abs().max()) for a, b in pairs), 1e-9)


def gradients(words: Sequence[str], schedule: str, card: Card) -> Iterator[Figure]:
    for _, model in card.models:
        double = (*SMALL, *model, "model.dtype=float64", "checkpointing=except_last")
        yield same_gradients(job_of(*GIVEN, *double, f"schedule={schedule}", "ranks=2", *words))


def replicas(words: Sequence[str], card: Card) -> Iterator[Figure]:
    for sync in ("sync=ddp", "sync=flat", "sync=naive", "sync.all_reduce=ring", "sync.all_reduce=direct"):
        run = card.run(*SMALL, "ranks=1", "replicas=2", sync, *words)
        yield Figure(f"{sync}: loss differs by", gap(losses(run), losses_on_cpu(card, *SMALL)), NEAR)


def dropout(card: Card) -> Iterator[Figure]:
    words = (*SMALL, *MODELS["gpt"], "model.dropout=0.1", "ranks=1", *card.alone)
    whole, again = (losses(card.run(*words, f"checkpointing={name}")) for name in ("never", "always"))
    yield Figure("recomputed: loss differs by", gap(again, whole), NEAR)


def bf16(card: Card) -> Iterator[Figure]:
    for name, model in card.models:
        run = card.run(*SMALL, *model, "dtype=bf16", "ranks=2", *card.shared)
        yield Figure(f"{name}: loss differs by", gap(losses(run), losses_on_cpu(card, *SMALL, *model)), 0.02)
    for dtype in ("null", "bf16"):
        run = card.run(*card.large, f"dtype={dtype}", "ranks=1", *card.alone)
        yield Figure(f"large, dtype={dtype}: step ms", median_ms(run))


def compiled(card: Card) -> Iterator[Figure]:
    for name, model in card.models:
        began = time.monotonic()
        run = card.run(*SMALL, *model, "compile=true", "ranks=1", *card.alone)
        yield Figure(f"{name}: seconds", time.monotonic() - began)
        yield Figure("loss differs by", gap(losses(run), losses_on_cpu(card, *SMALL, *model)), NEAR)
        yield Figure("step ms", median_ms(run))


def memory(card: Card) -> Iterator[Figure]:
    for checkpointing in ("never", "always"):
        words = (*card.large, "schedule=1f1b", "ranks=2", f"checkpointing={checkpointing}")
        summary = card.run(*words, *card.shared).summary
        predicted, found = summary["predicted"]["peak_memory_mib"], summary["peak_memory_mib"]
        for rank, (want, got) in enumerate(zip(predicted, found, strict=True)):
            yield Figure(f"{checkpointing}, rank {rank}: predicted MiB", want)
            yield Figure("more than predicted", got - want, 64 + 0.1 * want)  # cuBLAS keeps up to 32 MiB on a card
            yield Figure("less", want - got, 0.1 * want)
        yield Figure("reserved MiB", summary["peak_reserved_mib"])


def nvidia_smi(card: Card) -> Iterator[Figure]:
    found = card.run(*card.large, "ranks=1", *card.alone).summary["utilisation"]
    is_asked = card.device == "cuda" and torch.version.hip is None
    yield Figure("% of the steps in actions, and by nvidia-smi", found)
    yield Figure("lacks its answers", int((found is None) == is_asked), 0)


def weights(card: Card) -> Iterator[Figure]:
    words = (*SMALL, "snapshot.every=3", "snapshot.final=true", "ranks=2")
    ours, cpus = (card.run(*words, *device) for device in (card.shared, ("device=cpu",)))
    on_card, on_cpu = (torch.load(run.folder / "weights.pt", weights_only=True) for run in (ours, cpus))
    worst = largest(float((on_card[name] - tensor).abs().max()) for name, tensor in on_cpu.items())
    yield Figure("weights differ by", worst, 0.02)  # Adam's step is up to 0.001, however small the gradient
    again = card.run(*words, f"snapshot.path={ours.folder.parent}", "steps=9", *card.shared)
    yield Figure("steps after going on", again.summary["steps"])


def profile(card: Card) -> Iterator[Figure]:
    words = (*GIVEN, f"output_dir={card.folder}", *card.large, *card.alone, "ranks=1")
    given = [word for word in words if not word.startswith(("chunks", "steps", "warmup", "tracking"))]
    command = [sys.executable, "-m", "microp.profile", *given, f"seconds={card.profile_s}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PART_S)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    summary = card.run(*card.large, "ranks=1", *card.alone).summary
    yield Figure("predicted step ms", summary["predicted"]["step_ms"])
    yield Figure("measured", summary["step_ms"]["median"])


def torch_alone(card: Card) -> Iterator[Figure]:
    job = job_of(*GIVEN, *SMALL, "model.dtype=float64", "ranks=1", *card.alone)
    backend = "nccl" if card.device == "cuda" else "gloo"
    yield same_gradients(replace(job, schedule=gpipe(1, 4), backend=backend, engine=EngineSettings("torch", False)))


def nccl_torch(card: Card) -> Iterator[Figure]:
    yield from same_losses(card, "ranks=2", "schedule=1f1b", "engine=torch", *card.alone)
    run = card.run(*card.large, "ranks=2", "schedule=1f1b", "engine=compare", *card.alone)
    yield Figure("large: torch over microp", run.summary["engines"]["ratio"]["torch/microp"])


def nccl_replicas(card: Card) -> Iterator[Figure]:
    yield from replicas(card.alone, card)
    run = card.run(*SMALL, "ranks=1", "replicas=2", "sync=torch_ddp", *card.alone)
    yield Figure("sync=torch_ddp: loss differs by", gap(losses(run), losses_on_cpu(card, *SMALL)), NEAR)


def parts_of(card: Card) -> dict[str, tuple[int, Part]]:
    """Return each part by its name, with the number of GPUs that it needs, the most important ones first."""
    one = {
        **{"one rank": one_rank, **{f"{ranks} ranks share a card": partial(shared, ranks) for ranks in (2, 4)}},
        **{"memory": memory, "nvidia-smi": nvidia_smi, "bf16": bf16, "engine=torch": torch_alone},
        **{f"gradients: {name}": partial(gradients, card.shared, name) for name in card.schedules},
        "replicas share a card": partial(replicas, card.shared),
        **{"dropout": dropout, "weights": weights, "compile": compiled, "profile": profile},
    }
    two = {
        "NCCL: losses": lambda card: same_losses(card, "ranks=2", "schedule=1f1b", *card.alone),
        "NCCL: engine=torch": nccl_torch,
        "NCCL: replicas": nccl_replicas,
        **{f"NCCL: gradients: {name}": partial(gradients, card.alone, name) for name in card.schedules},
    }
    return {**{name: (1, part) for name, part in one.items()}, **{name: (2, part) for name, part in two.items()}}


# --- their table ----------------------------------------------------------------------------------
@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in this block after a time; ranks that it has launched are ended."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def tried(name: str, part: Part, card: Card) -> Result:
    """Run a part, whatever happens in it, and return what it found until then."""
    figures: list[Figure] = []
    said, began = "", time.monotonic()
    try:
        with at_most(PART_S):
            figures.extend(part(card))  # those before an error stay
    except (Exception, SystemExit) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
    passed = not said and all(figure.is_right() for figure in figures)
    return Result(name, passed, time.monotonic() - began, figures, said)


def results(card: Card, parts: dict[str, tuple[int, Part]]) -> Iterator[Result]:
    began, last = time.monotonic(), LAST_START_S * min(card.gpus, 2)
    for name, (gpus, part) in parts.items():
        if gpus > card.gpus:
            yield Result(name, None, 0, [], f"needs {gpus} GPUs")
        elif time.monotonic() - began > last:
            yield Result(name, None, 0, [], f"no part begins after {last} s")
        else:
            yield tried(name, part, card)


def about(card: Card) -> dict[str, Any]:
    names = [torch.cuda.get_device_name(i) for i in range(card.gpus)] if card.device == "cuda" else []
    nccl = torch.cuda.nccl.version() if card.device == "cuda" else None
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "nccl": nccl}
    machine = {"python": platform.python_version(), "machine": platform.platform()}
    return {"device": card.device, "gpus": names, **versions, **machine}


def try_all(card: Card, parts: dict[str, tuple[int, Part]]) -> int:
    """Run the parts, print a line for each, write them into one file, and return the number of those that failed."""
    card.folder.mkdir(parents=True, exist_ok=True)
    began = datetime.now().astimezone()
    path, found, failed = card.folder / f"{began:%Y-%m-%d_%H-%M-%S}.json", [], 0
    head = {"date": began.isoformat(timespec="seconds"), **about(card)}
    print("; ".join([f"torch {head['torch']}", *head["gpus"]]), HEAD, sep="\n", flush=True)
    for result in results(card, parts):
        print(result.line(), flush=True)
        failed += result.passed is False
        found.append({**result._asdict(), "figures": [figure._asdict() for figure in result.figures]})
        path.write_text(json.dumps({**head, "parts": found}, indent=1, default=str) + "\n")
    print(f"{failed or 'none'} of the parts failed; all figures are in {path}")
    return failed


def main() -> int:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus == 0:
        print("torch sees no GPU here, so there was nothing to try")
        return 0
    card = Card("cuda", gpus, Path("outputs/gpu"))
    return int(try_all(card, parts_of(card)) > 0)


if __name__ == "__main__":
    sys.exit(main())
