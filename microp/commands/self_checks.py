"""Checks that microp works on this machine and that its mathematics is right.

::

    ranks start and talk ........ a tensor passes through all ranks and returns with the right numbers
    gradients ................... equal the unpartitioned model's, bit for bit
    models as people write them . the same for `check_models`, with a backward that is divided into I and W
    memory ...................... falls with checkpointing
    bubble ...................... ranks idle at the start and at the end of a step

The checks use real processes on the CPU, but for the models as people write them, whose ranks are threads, and small
models. They take less than a minute.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from microp.commands import check_models as models
from microp.comms import Comms, ThreadComms, thread_comms
from microp.config import own_model
from microp.job import Job
from microp.records import read_rows, read_spans
from microp.schedule import uniform
from microp.schedule.builders import dualpipe_v, gpipe, one_f_one_b, zb_h1
from microp.settings import (
    AS_WRITTEN,
    NEVER,
    Checkpointing,
    CommsSettings,
    DeviceSettings,
    EngineSettings,
    GptSettings,
    MlpSettings,
    SyncSettings,
    TextSettings,
)
from microp.system import CommandParser
from microp.terminal import console
from microp.trace import idle_edges, makespan
from microp.worker import RankError, Trainer, launch_ranks, monolith

RANKS = 2
ALWAYS = Checkpointing("always", 1, False)
JOB = Job(
    run_id="check",
    schedule=gpipe(RANKS, 4),
    partition=uniform(8, RANKS),
    model=MlpSettings("mlp", 8, 256, "float32"),
    checkpointing=NEVER,
    data=TextSettings("text", None),
    device=DeviceSettings("cpu", 1),
    backend=CommsSettings("auto", 30).backend(DeviceSettings("cpu", 1)),
    timeout_s=30,
    batch_size=128,
    steps=5,
    warmup_steps=2,
    learning_rate=1e-3,
    seed=0,
    engine=EngineSettings("microp", False),
    sync=SyncSettings("flat", "library"),
)


def talk(job: Job, comms: Comms, _local_rank: int, _attempt: Path) -> bool:
    """Pass a tensor from rank to rank and back to the first, and return whether its numbers are right."""
    token = torch.arange(1000, dtype=torch.float32)
    after, before = (comms.rank + 1) % job.ranks, (comms.rank - 1) % job.ranks
    if comms.rank == 0:
        comms.send_tensor(token, after)
        token = comms.recv_tensor([1000], before)
    else:
        comms.send_tensor(comms.recv_tensor([1000], before) + 1, after)
    return comms.rank > 0 or torch.equal(token, torch.arange(1000) + float(job.ranks - 1))


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


def check_talk(folder: Path) -> tuple[bool, str]:
    results = launch_ranks(JOB, folder, 3, talk)
    return all(results.values()), f"{RANKS} ranks started; 1000 numbers were sent through all of them"


def check_gradients(folder: Path) -> tuple[bool, str]:
    worst, cases = 0.0, 0
    models = (JOB.model, GptSettings("gpt", 4, 32, "float32", 4, 16, 0.1))
    for model, build in zip(models, (gpipe, one_f_one_b), strict=True):
        for checkpointing in (NEVER, ALWAYS):
            job = replace(
                JOB,
                schedule=build(RANKS, 3),
                model=model,
                partition=uniform(model.layers, RANKS),
                checkpointing=checkpointing,
            )
            differences = _differences(job, list(launch_ranks(job, folder, 3, gradients).values()))
            worst = max(worst, *differences)
            cases += len(differences)
    return worst == 0, f"largest difference {worst:g} over {cases} tensors (gpipe, 1f1b; mlp, gpt; never, always)"


def _differences(job: Job, ranks: Sequence[Mapping[int, list[Tensor]]]) -> list[float]:
    """Return by how much each gradient of the second step differs from the monolith's."""
    got = {index: tensors for rank in ranks for index, tensors in rank.items()}
    *_, expected = monolith.steps(job, 2)
    pairs = [pair for index, want in enumerate(expected.gradients) for pair in zip(got[index], want, strict=True)]
    return [float((mine - theirs).abs().max()) for mine, theirs in pairs]


MODELS = (
    models.fused_qkv,
    models.custom_function,
    models.weight_several_times,
    models.low_rank_on_frozen,
    models.experts_by_index,
    models.passed_by_chance,
)


def check_models(_folder: Path) -> tuple[bool, str]:
    worst, cases = 0.0, 0
    for function in MODELS:
        name = function.__name__
        model = own_model({"name": name, "builder": f"{function.__module__}.{name}"}, AS_WRITTEN, JOB.device)
        if model.refused:
            return False, f"refused: {model.refused[0]}"
        for build, checkpointing in ((zb_h1, NEVER), (dualpipe_v, ALWAYS)):
            schedule = build(RANKS, 4)
            cut = uniform(model.layers, schedule.stages)
            job = replace(JOB, schedule=schedule, model=model, partition=cut, checkpointing=checkpointing, batch_size=9)
            try:
                differences = _differences(job, _in_threads(job))
            except Exception as error:
                return False, f"{name} with {schedule.name} fails: {type(error).__name__}: {error}"
            worst = max(worst, *differences)
            cases += len(differences)
    return worst == 0, f"largest difference {worst:g} over {cases} tensors (zb_h1, dualpipe_v; {len(MODELS)} models)"


def _in_threads(job: Job) -> list[dict[int, list[Tensor]]]:
    """Return what `gradients` returns on each rank; the ranks are threads."""

    def run(comms: ThreadComms) -> dict[int, list[Tensor]]:
        try:
            return gradients(job, comms, 0, Path())
        except BaseException:
            comms.abort()
            raise

    with ThreadPoolExecutor(job.ranks) as threads:
        return list(threads.map(run, thread_comms(job.ranks, job.timeout_s)))


def check_memory(folder: Path) -> tuple[bool, str]:
    peaks = {}
    for checkpointing in (NEVER, ALWAYS):
        attempt = folder / checkpointing.name
        attempt.mkdir()
        launch_ranks(replace(JOB, checkpointing=checkpointing, batch_size=512), attempt, 3)
        peaks[checkpointing.name] = [read_rows(attempt, rank)[-1]["peak_memory_mib"] for rank in range(RANKS)]
    fell = all(with_it < without for with_it, without in zip(peaks["always"], peaks["never"], strict=True))
    shown = {name: ", ".join(f"{peak:.2f}" for peak in values) for name, values in peaks.items()}
    return fell, f"peak MiB per rank: never {shown['never']}; always {shown['always']}"


def check_bubble(folder: Path) -> tuple[bool, str]:
    launch_ranks(replace(JOB, batch_size=512), folder, 3)
    spans = read_spans(folder)
    (first_before, first_after), (last_before, last_after) = idle_edges(spans)[0], idle_edges(spans)[RANKS - 1]
    total = makespan(spans)
    text = (
        f"of a step, rank {RANKS - 1} idles {last_before / total:.1%} at the start and {last_after / total:.1%} "
        f"at the end, rank 0 {first_before / total:.1%} and {first_after / total:.1%}"
    )
    return last_before > first_before and last_after > first_after, text


CHECKS: dict[str, Callable[[Path], tuple[bool, str]]] = {
    "ranks start and talk": check_talk,
    "gradients equal the monolith's": check_gradients,
    "models as people write them": check_models,
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
