"""Runs a schedule on four ranks, and draws and measures one step, for labs 6 to 8.

With one GPU per rank the actions take their real time. Otherwise each rank is an emulated device: an
action does its real work and then lasts until its nominal time has passed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import torch

from microp.labs.typed import typed_job
from microp.records import read_spans, summarise
from microp.settings import EmulatedSettings
from microp.terminal import err
from microp.trace import bubble_fraction, busy, makespan, screen, timeline
from microp.worker import launch_ranks

RANKS = 4
EMULATED = ["device=emulated", "device.forward_ms=5", "device.backward_ms=10", "model.dim=64", "batch_size=64"]


SCHEDULES = {"naive": "naive", "gpipe": "gpipe", "one_f_one_b": "1f1b"}  # lab -> what it is about


def show(lab: str, text: str | None, arguments: Sequence[str] | None, lesson: str) -> dict[str, list[float]]:
    """Run some steps, draw the last one and print what its ranks did.

    Args:
        text, arguments: as of `typed_job`.
        lesson: what to see, the last line.

    Returns:
        two lists over the ranks: `utilisation`, the share of the step in which the rank computed, and
        `in_flight`, its peak number of microbatches.
    """
    gpus = torch.cuda.device_count() >= RANKS
    words = ["device=cuda", "model.dim=2048", "batch_size=4096"] if gpus else EMULATED
    given = f"ranks={RANKS}", "chunks=4", "steps=5", "warmup_steps=1", *words
    job = typed_job(lab, text, arguments, *given, fixed=[f"schedule={SCHEDULES[lab]}"])
    name, count = job.schedule.name, job.training_steps + 1
    with (
        tempfile.TemporaryDirectory() as folder,
        err.status(f"{name}: {job.ranks} processes start and run {count} steps"),
    ):
        launch_ranks(job, Path(folder), 3)
        spans, summary = read_spans(Path(folder)), summarise(job, Path(folder), "finished")
    chunks = f"{job.schedule.chunks} microbatch{'es' * (job.schedule.chunks > 1)}"
    print(f"{name}: {job.ranks} ranks, {chunks}, one step of {summary['step_ms']['median']:.0f} ms")
    if isinstance(job.device, EmulatedSettings):
        print(
            f"The times are set, not measured: on every rank F lasts {job.device.forward_ms} ms and B "
            f"{job.device.backward_ms} ms.\nAn action does real but short work, then waits until that time has passed, "
            "so that few cores can show many ranks."
        )
    print()
    shown = screen()
    print(f"{shown.text(timeline({'measured': spans}, shown.columns))}\n")
    total = makespan(spans)
    shares = [time / total for time in busy(spans).values()]
    held, peaks = summary["in_flight_peak"], summary["peak_activation_mib"]
    for rank, (share, number, peak) in enumerate(zip(shares, held, peaks, strict=True)):
        print(f"rank {rank}  busy {share:4.0%} {'█' * round(40 * share):40}  {number} in flight, {peak:.2f} MiB kept")
    form = summary["bubble"]["closed_form"]
    formula = "" if form is None else f", {form:.1%} by the formula"
    driver = summary["utilisation"]
    said = f"; utilisation by nvidia-smi: {mean(driver['nvidia_smi']):.0f} %" if driver else ""
    print(f"\nidle: {bubble_fraction(spans):.1%} measured{formula}{said}\n{lesson}")
    return {"utilisation": shares, "in_flight": held}
