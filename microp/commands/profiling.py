"""Measures a model's profile: runs its cases on the ranks, and fits the times.

::

    make_cases ──► ranks ──► times of actions ──► fit ──► Profile

    together   ranks that all compute: 7 orders and partitions x up to 6 numbers of microbatches
    alone      one rank with all layers
    gloo       some of them over the other transport
    torch      some of them run by torch's own pipeline runtime, for its time between actions

A slow model is measured with fewer cases, in fewer rounds, so that the time that was asked for is kept. What is left
out first are the largest numbers of microbatches, then unequal and looped partitions. The cases that show every op at
two numbers of microbatches are always run, with at least 2 steps each (one of them counts). What has a launch of its
own (one rank alone, the other transports and torch) is left out where no time is left for it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, NamedTuple

from microp import profiling
from microp.config import Config, ConfigError, ProfileConfig, Stop, doubt, machine_of, make_job
from microp.job import Job
from microp.points import PointsCallback, run_app
from microp.records import load_average, write_profile
from microp.schedule import Partition, Schedule, skewed, uniform
from microp.schedule.builders import breadth_first, gpipe, one_f_one_b, zb_h1
from microp.settings import LOWERED, NEVER, Checkpointing, EstimateSettings, ModelSettings, SlurmSettings
from microp.system import MIB
from microp.terminal import clock, console

ROUNDS = 3  # a machine's speed drifts: every case is run at several times
ALWAYS = Checkpointing("always", 1, False)
MOST_CHUNKS = 6  # numbers of microbatches: 1, 2, 4, ... 32
TWO = 2  # cases of a transport, with tensors of two sizes: one does not tell the time per MiB
SHORT_S = 2.0  # seconds that are enough for such a launch, if there is no time for all of them
LATE = 1.2  # times as long as was asked: more is told
OTHERS_SHARE = 0.1  # of the time, for one rank alone, for each other transport, and for torch


class Cases(NamedTuple):
    """The cases of a profile, the most important ones first."""

    together: list[Job]  # ranks that all compute
    needed: int  # how many of these show every op at two numbers of microbatches
    alone: list[Job]  # one rank
    transports: dict[str, list[Job]]  # the other transports, with their cases


def make_cases(job: Job) -> Cases:
    """Return the cases of a profile of the job's model and device."""
    layers, batch = job.model.layers, job.batch_size
    places = os.cpu_count() or 1  # the ranks that can compute at once, each on a core or a GPU of its own
    if job.device.name == "cuda":
        import torch  # takes half a second

        places = torch.cuda.device_count()
    ranks = min(places, layers, 8)
    counts = [2**power for power in range(MOST_CHUNKS) if 2**power <= batch]
    even = uniform(layers, ranks)

    def case(schedule: Schedule, cut: Partition, checkpointing: Checkpointing = NEVER, **others: Any) -> Job:
        return replace(job, schedule=schedule, partition=cut, checkpointing=checkpointing, **others)

    def every_op(chunks: int) -> list[Job]:
        checkpointed = case(one_f_one_b(ranks, chunks), even, ALWAYS)
        return [case(gpipe(ranks, chunks), even), case(zb_h1(ranks, chunks), even), checkpointed]

    def others(chunks: int) -> list[Job]:
        found = [case(one_f_one_b(ranks, chunks), even)]
        if ranks > 1:
            heavy = skewed(layers, ranks, (1 + 1 / ranks) / 2, 0)
            found[:0] = [case(build(ranks, chunks), heavy) for build in (one_f_one_b, zb_h1)]
        if layers >= 2 * ranks > 2:
            found.append(case(breadth_first(ranks, chunks, 2), uniform(layers, 2 * ranks)))
        return found

    some = counts[1::2] or counts
    first = (counts[1::2] + counts[::2])[:2]  # 2 and 8 microbatches
    needed = [job for chunks in first for job in every_op(chunks)]
    together = [*needed, *(job for chunks in first for job in others(chunks))]
    for chunks in counts:
        together += [*every_op(chunks), *others(chunks)] if chunks not in first else []
    whole = uniform(layers, 1)
    alone = [case(gpipe(1, chunks), whole) for chunks in some] if ranks > 1 else []
    transports = {}
    if job.backend == "shm" and ranks > 1 and job.device.name == "cpu":
        for other in ("tcp", "gloo"):
            transports[other] = [case(one_f_one_b(ranks, chunks), even, backend=other) for chunks in some]
    if job.backend in ("shm", "tcp", "gloo") and ranks > 1 and job.device.name == "cpu":
        counts = [chunks for chunks in some if chunks >= ranks and batch % chunks == 0]  # what torch takes
        by_torch = replace(job.engine, name=profiling.TORCH)
        transports[profiling.TORCH] = [
            case(build(ranks, chunks), even, backend="gloo", engine=by_torch)
            for build in (one_f_one_b, gpipe)
            for chunks in counts
        ]
    transports = {name: cases for name, cases in transports.items() if cases}
    return Cases(together, len(needed), alone, transports)


def measure_profile(job: Job, seconds: float) -> profiling.Profile:
    """Run the cases of a profile of the job's model, for about `seconds`, and return what they show."""
    from microp.device import peak_gflops, probe_layers  # torch

    cases, load, began = make_cases(job), load_average(), monotonic()
    kinds = job.model.kinds
    apart = {"one rank alone": cases.alone} if cases.alone else {}
    apart |= cases.transports
    others: dict[str, list[profiling.Case]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        what = f"measuring {job.model.name} for about {seconds:g} s"
        if not console.err.is_terminal:
            console.note(what)
        with clock(what, seconds):
            together = _run(
                cases.together, cases.needed, seconds * (1 - OTHERS_SHARE * len(apart)), folder / "together"
            )
            launch = monotonic() - began - _measured(together)
            for left, (name, own) in zip(range(len(apart), 0, -1), apart.items(), strict=True):
                rest = seconds - (monotonic() - began)
                if (some := max(rest / left - launch, min(SHORT_S, rest - launch))) > 0:
                    others[name] = _run(own, TWO, some, folder / name)
    if lacking := [name for name in apart if name not in others]:
        console.note(
            f"seconds={seconds:g} leaves no time for {', '.join(lacking)}: not measured, and not in the profile"
        )
    samples = _samples(together, kinds)
    fitted = profiling.fit_times(samples, _samples(others.pop("one rank alone", []), kinds), kinds)
    between_all = [profiling.between(case) for case in together]
    transports: dict[str, profiling.Transport] = {job.backend: profiling.fit_transport(between_all)}
    transports |= {
        name: profiling.fit_transport([profiling.between(case) for case in own]) for name, own in others.items()
    }
    optimizer = profiling.line([(nbytes / MIB, ms) for case in between_all for nbytes, ms in case.optimizer])
    memory = {
        name: probe_layers(job.model, job.batch_size / 4, split, job.computing)
        for name, split in ((profiling.UNDIVIDED, False), (profiling.DIVIDED, True))
    }
    dtype = LOWERED.get(job.computing.dtype or "", job.model.dtype)
    if (took := monotonic() - began) > LATE * seconds:
        always = f"the ranks are started and {cases.needed} cases are run, however long that takes"
        console.note(f"this took {took:.0f} s, longer than seconds={seconds:g}: {always}")
    return profiling.Profile(
        machine=machine_of(job.device.name, job.device.threads),
        model=job.model.identity,
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        batch_size=job.batch_size,
        ranks=len(cases.together[0].schedule.ranks),
        **vars(fitted),
        transports=transports,
        optimizer=optimizer,
        edges=(median(case.head for case in between_all), median(case.tail for case in between_all)),
        memory={name: {kind: layers[kind] for kind in sorted(set(kinds))} for name, layers in memory.items()},
        load=load,
        optimizer_kind=job.optimizer.kind,
        computing=job.computing,
        peak_gflops=peak_gflops(job.device.name, dtype, job.device.threads),
    )


def _measured(cases: Sequence[profiling.Case]) -> float:
    """Return the seconds from the first counted step of a launch to its last one."""
    return float(max(case.steps[0][-1, -1] for case in cases) - min(case.steps[0][0, 0] for case in cases)) / 1e9


def _samples(cases: Sequence[profiling.Case], kinds: Sequence[int]) -> list[profiling.Sample]:
    return [sample for case in cases for sample in profiling.samples_of(case, kinds)]


def _run(jobs: Sequence[Job], needed: int, seconds: float, folder: Path) -> list[profiling.Case]:
    """Run cases in one launch, as many as fit but at least `needed`; return them with their times."""
    from microp.worker import RankError, launch_ranks, measure_cases  # torch

    folder.mkdir()
    try:
        ranks = launch_ranks(jobs[0], folder, partial(measure_cases, jobs, needed, ROUNDS, seconds))
    except RankError as error:
        raise Stop(f"the profile's ranks failed: {error}") from error
    cases = []
    for number, job in enumerate(jobs[: len(ranks[0])]):
        times, steps, weights = zip(*(ranks[rank][number] for rank in range(job.ranks)), strict=True)
        case = profiling.Case(
            schedule=job.schedule,
            sizes=job.partition.sizes,
            rows=job.batch_size / job.schedule.chunks,
            checkpointing=job.checkpointing,
            times=list(times),
            steps=list(steps),
            weights=list(weights),
            boundary=job.model.hop_bytes(job.partition.sizes, job.computing) * job.workload.mean_rows,
        )
        cases.append(case)
    return cases


def main() -> None:
    run_app("profile", ProfileCallback.task(run_profile))


def run_profile(point: ProfileConfig, job: Job) -> str:
    """Measure one model's profile, write it and print what it says."""
    profile = measure_profile(job, point.seconds)
    path = write_profile(Path(point.output_dir) / "profiles", profile)
    for text in described(profile, job.model):
        console.out.print(text, soft_wrap=True)
    console.out.print(str(path), soft_wrap=True)
    if problem := doubt(replace(profile, path=str(path))):
        console.warn(problem)
    return str(path)


def described(profile: profiling.Profile, model: ModelSettings) -> list[str]:
    """Return a profile as lines of text: its times at some numbers of rows."""
    inside = profile.layers.get(1) or next(iter(profile.layers.values()))
    lines = [f"{model.name}: one layer of {model.layers}, ms per microbatch, {profile.ranks} ranks computing"]
    lines.append("rows      " + "".join(f"{rows:>9g}" for rows in profile.rows))
    for name in profiling.TIMES:
        lines.append(f"{name:10}" + "".join(f"{value:9.3f}" for value in inside[name]))
    for name, transport in profile.transports.items():
        rate = f"{transport.per_mib:.3f} ms per MiB"
        hop = f"{transport.latency * 1e3:.0f} µs" if transport.latency else "of no time beside the spread"
        lines.append(f"{name}: hop {hop} + {rate}, engine {transport.overhead * 1e3:.0f} µs")
    lines.append(f"peak of a rank: {profile.peak_gflops or 0:,.0f} GFLOP/s, in a product of matrices")
    spreads = ", ".join(f"{name} {'unknown' if v is None else f'{v:.0%}'}" for name, v in profile.spread.items())
    lines.append(f"spread (p90 - p10) / median: {spreads}")
    return lines


class ProfileCallback(PointsCallback):
    """Checks all models before the first one is measured."""

    @classmethod
    def prepare(cls, config: Config) -> Job:
        assert isinstance(config, ProfileConfig)
        problems = []
        if isinstance(config.launch, SlurmSettings):
            problems.append("launch=slurm is for runs: type this in a job of your own on the machine to be measured")
        if config.device.is_emulated:
            problems.append("device=emulated has nominal times: there is nothing to profile, use device=cpu")
        if isinstance(config.device, EstimateSettings):
            problems.append("device=estimate is for plans and prices: there is nothing to profile, use device=cpu")
        if config.comms.name == "threads":
            problems.append("comms=threads runs all ranks in one process: a profile needs processes, use comms=auto")
        if config.compile:
            problems.append("compile=true is not for a profile, which also measures W: leave it out")
        if config.replicas != 1:
            problems.append(f"replicas={config.replicas}: a profile is of one pipeline, leave replicas out")
        if problems:
            raise ConfigError(problems)
        fitting = replace(config, ranks=1, chunks=1, partition={**config.partition}, schedule={**config.schedule})
        return make_job(fitting)
