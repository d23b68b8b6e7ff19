"""Runs a schedule on four ranks, and draws and measures one step, for labs 6 to 8.

With one GPU per rank the actions take their real time. Otherwise each rank is an emulated device: an
action does its real work and then lasts until its nominal time, F 5 ms and B 10 ms, has passed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import mean

import torch

from microp.config import job_of
from microp.records import read_spans, summarise
from microp.trace import bubble_fraction, busy, makespan, screen, timeline
from microp.worker import launch_ranks

RANKS, CHUNKS = 4, 4
EMULATED = ["device=emulated", "device.forward_ms=5", "device.backward_ms=10", "model.dim=64", "batch_size=64"]


def show(schedule: str, lesson: str) -> dict[str, list[float]]:
    """Run some steps, draw the last one and print what its ranks did.

    Returns:
        two lists over the ranks: `utilisation`, the share of the step in which the rank computed, and
        `in_flight`, its peak number of microbatches.
    """
    gpus = torch.cuda.device_count() >= RANKS
    words = ["device=cuda", "model.dim=2048", "batch_size=4096"] if gpus else EMULATED
    job = job_of(f"schedule={schedule}", f"ranks={RANKS}", f"chunks={CHUNKS}", "steps=5", "warmup_steps=1", *words)
    with tempfile.TemporaryDirectory() as folder:
        launch_ranks(job, Path(folder), 3)
        spans, summary = read_spans(Path(folder)), summarise(job, Path(folder), "finished")
    print(f"{schedule}: {RANKS} ranks, {CHUNKS} microbatches, one step of {summary['step_ms']['median']:.0f} ms\n")
    shown = screen()
    print(f"{shown.text(timeline({'measured': spans}, shown.columns))}\n")
    total = makespan(spans)
    shares = [time / total for time in busy(spans).values()]
    held, peaks = summary["in_flight_peak"], summary["peak_activation_mib"]
    for rank, (share, number, peak) in enumerate(zip(shares, held, peaks, strict=True)):
        print(f"rank {rank}  busy {share:4.0%} {'█' * round(40 * share):40}  {number} in flight, {peak:.2f} MiB kept")
    form = summary["bubble"]["closed_form"]
    driver = summary["utilisation"]
    said = f"; utilisation by nvidia-smi: {mean(driver['nvidia_smi']):.0f} %" if driver else ""
    print(f"\nidle: {bubble_fraction(spans):.1%} measured, {form:.1%} by the formula{said}\n{lesson}")
    return {"utilisation": shares, "in_flight": held}
