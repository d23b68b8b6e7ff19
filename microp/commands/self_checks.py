"""Checks that microp works on this machine and that its mathematics is right.

::

    gradients ................... equal the unpartitioned model's, bit for bit, also of a backward divided into I and W
    memory ...................... falls with checkpointing
    bubble ...................... ranks idle at the start and at the end of a step

The checks use real processes on the CPU, and small models. They take less than a minute.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from microp import settings
from microp.comms import Comms
from microp.job import Job
from microp.records import read_rows, read_spans
from microp.schedule import uniform
from microp.schedule.builders import gpipe, one_f_one_b, zb_h1
from microp.system import CommandParser
from microp.terminal import console
from microp.trace import idle_edges, makespan
from microp.worker import RankError, Trainer, launch_ranks, monolith

RANKS = 2
ALWAYS = settings.Checkpointing("always", 1, False)
JOB = Job(
    run_id="check",
    schedule=gpipe(RANKS, 4),
    partition=uniform(8, RANKS),
    model=settings.MlpSettings("mlp", 8, 256, "float32"),
    checkpointing=settings.NEVER,
    data=settings.TextSettings("text", None),
    device=settings.DeviceSettings("cpu", 1),
    backend=settings.CommsSettings("auto", 30).backend(settings.DeviceSettings("cpu", 1)),
    timeout_s=30,
    batch_size=128,
    steps=5,
    warmup_steps=2,
    learning_rate=1e-3,
    seed=0,
    engine=settings.EngineSettings("microp", False),
    sync=settings.SyncSettings("flat", "library"),
)


def gradients(job: Job, comms: Comms, local_rank: int, _attempt: Path) -> dict[int, list[Tensor]]:
    """Run two steps and return the gradients of the second one, on the CPU, for each layer of this rank."""
    trainer = Trainer(job, comms, local_rank)
    for step in range(2):
        trainer.load(step)
        trainer.step(step)
    return {
        index: [gradient.cpu() for gradient in monolith.gradients_of(layer)]
        for number, stage in trainer.stages.items()
        for index, layer in zip(job.partition.layers_of(number), stage.layers, strict=True)
    }


def check_gradients(folder: Path) -> tuple[bool, str]:
    worst, cases = 0.0, 0
    models = (JOB.model, settings.GptSettings("gpt", 4, 32, "float32", 4, 16, 0.1))
    for model, build in zip(models, (one_f_one_b, zb_h1), strict=True):
        for checkpointing in (settings.NEVER, ALWAYS):
            job = replace(
                JOB,
                schedule=build(RANKS, 3),
                model=model,
                partition=uniform(model.layers, RANKS),
                checkpointing=checkpointing,
            )
            found = {
                index: own for rank in launch_ranks(job, folder, gradients).values() for index, own in rank.items()
            }
            *_, expected = monolith.steps(job, 2)
            for index, wanted in enumerate(expected.gradients):
                worst = max(worst, *(float((a - b).abs().max()) for a, b in zip(found[index], wanted, strict=True)))
                cases += len(wanted)
    return worst == 0, f"largest difference {worst:g} over {cases} tensors (1f1b, zb_h1; mlp, gpt; never, always)"


def check_memory(folder: Path) -> tuple[bool, str]:
    peaks = {}
    for checkpointing in (settings.NEVER, ALWAYS):
        attempt = folder / checkpointing.name
        attempt.mkdir()
        launch_ranks(replace(JOB, checkpointing=checkpointing, batch_size=512), attempt)
        peaks[checkpointing.name] = [read_rows(attempt, rank)[-1]["peak_memory_mib"] for rank in range(RANKS)]
    fell = all(with_it < without for with_it, without in zip(peaks["always"], peaks["never"], strict=True))
    shown = {name: ", ".join(f"{peak:.2f}" for peak in values) for name, values in peaks.items()}
    return fell, f"peak MiB per rank: never {shown['never']}; always {shown['always']}"


def check_bubble(folder: Path) -> tuple[bool, str]:
    launch_ranks(replace(JOB, batch_size=512), folder)
    spans = read_spans(folder)
    (first_before, first_after), (last_before, last_after) = idle_edges(spans)[0], idle_edges(spans)[RANKS - 1]
    total = makespan(spans)
    text = (
        f"of a step, rank {RANKS - 1} idles {last_before / total:.1%} at the start and {last_after / total:.1%} "
        f"at the end, rank 0 {first_before / total:.1%} and {first_after / total:.1%}"
    )
    return last_before > first_before and last_after > first_after, text


CHECKS: dict[str, Callable[[Path], tuple[bool, str]]] = {
    "gradients equal the monolith's": check_gradients,
    "memory falls with checkpointing": check_memory,
    "the trace shows the bubble": check_bubble,
}


def run_checks() -> Iterator[tuple[str, bool, str]]:
    """Run the checks one after the other; yield the name of each, whether it passed, and the figure that shows it."""
    torch.set_num_threads(1)  # as in the ranks: the order of a sum depends on it
    for name, check in CHECKS.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                passed, figure = check(Path(folder))
            except RankError as error:
                passed, figure = False, str(error)
        yield name, passed, figure


def main(arguments: list[str] | None = None) -> int:
    """Check that microp works on this machine and that its mathematics is right; exit code 1 if a check fails."""
    CommandParser(prog="python -m microp.check", description=main.__doc__).parse_args(arguments)
    failed = 0
    with console.err.status("checking"):
        for name, passed, figure in run_checks():
            failed += not passed
            console.out.print(f"{'[green]pass[/]' if passed else '[red]FAIL[/]'}  {name:32} {figure}", soft_wrap=True)
    return 1 if failed else 0
