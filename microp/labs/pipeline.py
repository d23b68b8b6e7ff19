"""Runs a schedule on four ranks, and draws and measures one step, for labs 6 to 8.

With one GPU per rank the actions take their real time. Otherwise each rank is an emulated device: an
action does its real work and then lasts until its nominal time has passed, which is proportional to its rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import torch

from microp.job import Job
from microp.labs.typed import ON_RANKS, bar, say, typed_job
from microp.records import MOSTLY_WORK, OVER_NOMINAL, disturbances, read_spans, summarise
from microp.settings import EmulatedSettings
from microp.simulator import nominal_costs
from microp.system import MIB, size_text
from microp.terminal import console, counted, out
from microp.trace import bubble_fraction, busy, makespan, timeline
from microp.worker import launch_ranks

RANKS = 4
EMULATED = ["device=emulated", "device.per=[layer,row]", "device.forward_ms=0.3125", "device.backward_ms=0.625"]
EMULATED += ["model.dim=64", "batch_size=64"]  # F lasts 20 ms for 4 layers and the 16 rows of one of 4 microbatches
TAKES = ("ranks", "chunks", "steps", "warmup_steps", *ON_RANKS, "engine", "partition", "replicas", "activation_limit")

SCHEDULES = {"naive": ("naive", 4), "gpipe": ("gpipe", 4), "one_f_one_b": ("1f1b", 8)}  # lab -> schedule, chunks


def show(lab: str, text: str | None, lesson: str, arguments: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Run some steps, draw the last one and print what its ranks did: the `main` of labs 6 to 8.

    Args:
        text, arguments: as of `typed_job`.
        lesson: what to see, the last line; it may name K-1, for two numbers of microbatches M+K-1 and M, and the M that
            ran, and the ranks, by their places, {0} to {6}.

    Returns:
        two lists over the ranks: `utilisation`, the share of the step in which the rank computed, and
        `in_flight`, its peak number of microbatches.
    """
    gpus = torch.cuda.device_count() >= RANKS
    words = ["device=cuda", "model.dim=2048", "batch_size=4096"] if gpus else EMULATED
    schedule, chunks = SCHEDULES[lab]
    given = f"ranks={RANKS}", f"chunks={chunks}", "steps=5", "warmup_steps=1", *words
    job = typed_job(lab, text, arguments, *given, fixed=[f"schedule={schedule}"], takes=TAKES)
    name, count = job.schedule.name, counted(job.steps, "step")
    with (
        tempfile.TemporaryDirectory() as folder,
        console.status(f"{name}: {job.ranks} processes start, and {count} after the warm-up will be measured"),
    ):
        launch_ranks(job, Path(folder))
        spans, summary = read_spans(Path(folder)), summarise(job, Path(folder), "finished")
    of = f"{counted(job.schedule.chunks, 'microbatch')} of {_rows(job)}"
    say(
        f"{name}, {counted(job.ranks, 'rank')}, {of}: {summary['step_ms']['median']:.0f} ms per step with its optimizer"
    )
    if isinstance(job.device, EmulatedSettings):
        say(_about_times(job, job.device))
    print()
    console.draw(timeline({"measured": spans}, out.width))
    print()
    total = makespan(spans)
    shares = [time / total for time in busy(spans).values()]
    held, peaks = summary["in_flight_peak"], summary["peak_activation_mib"]
    kept = [f"{number} in flight, {size_text(peak * MIB)} kept" for number, peak in zip(held, peaks, strict=True)]
    for rank, (share, end) in enumerate(zip(shares, kept, strict=True)):
        start = f"rank {rank:{len(str(job.ranks - 1))}}  busy {share:4.0%} "
        print(bar(start, share, 1, f"  {end:{max(map(len, kept))}}"))
    idle, chunks = job.ranks - 1, job.schedule.chunks
    few, many = sorted((chunks, 4 * chunks if 4 * chunks <= job.batch_size else max(1, chunks // 4)))
    numbers = idle, few + idle, few, many + idle, many, chunks, job.ranks
    form = summary["bubble"]["closed_form"]
    usual = idle / (idle + (1 if lab == "naive" else chunks))
    if job.ranks == 1:
        lesson = "One rank is never idle: the lesson of this lab is about several."
    elif form is None or abs(form - usual) > 1e-9 or job.checkpointing.segments:
        lesson = "The lesson of this lab, without such words, is about equal ranks, free hops and no recomputation."
    if (nominal := summary["nominal"]) and nominal["step"] > OVER_NOMINAL:
        late = f"{summary['overruns']} of {summary['actions']} actions took longer than their time"
        is_short = nominal["work"] > MOSTLY_WORK
        why = "The times are too short for the real work" if is_short else "The machine was busy"
        lesson += f"\n{why}: {late}, and a step {nominal['step']:.2f} times its own."
        lesson += " Use fewer chunks, or device.forward_ms and device.backward_ms four times as long." * is_short
    elif why := ", ".join(each.text for each in disturbances(summary, {})):
        lesson += f"\nDisturbed: {why}. Run it again on an idle machine."
    if not isinstance(job.device, EmulatedSettings):
        lesson += "\nThe times are real: what small layers cost besides is in them and not in the formula."
    formula = "" if form is None else f", {form:.1%} by the formula"
    driver = summary["utilisation"]
    said = f"; utilisation by nvidia-smi: {mean(driver['nvidia_smi']):.0f} %" if driver else ""
    say(f"\nidle: {bubble_fraction(spans):.1%} measured{formula}{said}\n{lesson.format(*numbers)}")
    return {"utilisation": shares, "in_flight": held}


def _rows(job: Job) -> str:
    """Return the number of rows of a microbatch; if microbatches differ, both numbers and the mean."""
    workload = job.workload
    least, most = min(workload.rows), max(workload.rows)
    return counted(most, "row") if least == most else f"{least} or {most} rows ({workload.mean_rows:.3g} on average)"


def _about_times(job: Job, device: EmulatedSettings) -> str:
    """Return how long the actions of an emulated device last."""
    costs = nominal_costs(device, job.workload)
    nothing = [0] * job.ranks
    parts = zip(costs.backward, costs.weight or nothing, costs.recompute or nothing, strict=True)
    full = list(map(sum, parts))
    forward, backward = (" or ".join(f"{time:.4g}" for time in sorted({*times})) for times in (costs.forward, full))
    rows = f"of {_rows(job)}, and half of that for half the rows" if "row" in device.per else "of any size"
    layers = " or ".join(map(str, sorted({*job.partition.sizes})))
    rows += f" or layers; a stage has {layers}" * (device.per == ["layer", "row"])
    return (
        f"The times are set, not measured: F lasts {forward} ms and B {backward} ms for a microbatch {rows}. An action "
        "does real but short work, then waits until its time has passed, so that few cores can show many ranks."
    )
