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
from pathlib import Path

import torch
from torch import Tensor

from microp.comms import Comms
from microp.config import ConfigError, job_of
from microp.job import Job
from microp.records import read_rows, read_spans
from microp.system import CommandParser, override
from microp.terminal import console
from microp.trace import idle_edges, makespan
from microp.worker import RankError, Trainer, launch_ranks, monolith

RANKS = 2
SMALL = (f"ranks={RANKS}", "model.layers=8", "batch_size=512", "steps=5", "warmup_steps=2", "tracking=disabled")
GPT = ("model=gpt", "model.layers=4", "model.dim=32", "model.context=16", "model.dropout=0.1")
POLICIES = ("never", "always")


def small_job(folder: Path, *words: str) -> Job:
    """Return a job of the default configuration with a small model, changed by these words."""
    return job_of(*SMALL, override("output_dir", str(folder)), *words)


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
    for words in (("schedule=1f1b",), ("schedule=zb_h1", *GPT)):
        for policy in POLICIES:
            job = small_job(folder, "chunks=3", f"checkpointing={policy}", *words)
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
    for policy in POLICIES:
        attempt = folder / policy
        attempt.mkdir()
        launch_ranks(small_job(folder, f"checkpointing={policy}"), attempt)
        peaks[policy] = [read_rows(attempt, rank)[-1]["peak_memory_mib"] for rank in range(RANKS)]
    fell = all(with_it < without for with_it, without in zip(peaks["always"], peaks["never"], strict=True))
    shown = {name: ", ".join(f"{peak:.2f}" for peak in values) for name, values in peaks.items()}
    return fell, f"peak MiB per rank: never {shown['never']}; always {shown['always']}"


def check_bubble(folder: Path) -> tuple[bool, str]:
    launch_ranks(small_job(folder), folder)
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
            except (ConfigError, RankError) as error:
                passed, figure = False, str(error)
        yield name, passed, figure


def main(arguments: list[str] | None = None) -> int:
    """Check that microp works on this machine and that its mathematics is right; exit code 1 if a check fails."""
    CommandParser(prog="python -m microp.check", description=main.__doc__).parse_args(arguments)
    failed = 0
    with console.out.status("checking"):  # on the console of the lines: rich clears it only for its own
        for name, passed, figure in run_checks():
            failed += not passed
            console.out.print(f"{'[green]pass[/]' if passed else '[red]FAIL[/]'}  {name:32} {figure}")
    return 1 if failed else 0
