"""What labs 6 to 8 share: one step of a schedule on four ranks, drawn and measured.

On GPUs, where there is one a rank, the actions take what they take; else each rank is an emulated
device: every action does its real work and then lasts its nominal time, F 5 ms and B 10 ms.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import torch

from microp import launch, render
from microp.config import plan_of
from microp.records import read_spans
from microp.summary import summarise

RANKS, CHUNKS = 4, 4
EMULATED = ["device=emulated", "device.forward_ms=5", "device.backward_ms=10", "model.dim=64", "batch_size=64"]


def show(schedule: str, lesson: str) -> dict[str, list[float]]:
    """Run some steps, draw the last one and print what its ranks did.

    Returns:
        rank by rank: `utilisation`, the share of the step in which it computed, and `in_flight`.
    """
    gpus = torch.cuda.device_count() >= RANKS
    words = ["device=cuda", "model.dim=2048", "batch_size=4096"] if gpus else EMULATED
    plan = plan_of(f"schedule={schedule}", f"ranks={RANKS}", f"chunks={CHUNKS}", "steps=5", "warmup_steps=1", *words)
    with tempfile.TemporaryDirectory() as folder, _Watch(gpus) as watch:
        launch.run_elastic(plan, Path(folder), 3)
        spans, summary = read_spans(Path(folder)), summarise(plan, Path(folder), "finished")
    print(f"{schedule}: {RANKS} ranks, {CHUNKS} microbatches, one step of {summary['step_ms']['median']:.0f} ms\n")
    print(f"{render.text(spans, columns=88)}\n")
    begin, end = min(span.start for span in spans), max(span.end for span in spans)
    busy = [sum(s.end - s.start for s in spans if s.rank == rank) / (end - begin) for rank in range(RANKS)]
    held, peaks = summary["in_flight_peak"], summary["peak_activation_mib"]
    for rank, (share, number, peak) in enumerate(zip(busy, held, peaks, strict=True)):
        print(f"rank {rank}  busy {share:4.0%} {'█' * round(40 * share):40}  {number} in flight, {peak:.2f} MiB kept")
    form = summary["bubble"]["closed_form"]
    print(f"\nidle: {1 - sum(busy) / RANKS:.1%} measured, {form:.1%} by the formula{watch.text()}\n{lesson}")
    return {"utilisation": busy, "in_flight": held}


class _Watch:
    """What `nvidia-smi` says of the GPUs meanwhile, if there are any."""

    def __init__(self, gpus: bool) -> None:
        self._seen: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True) if gpus and shutil.which("nvidia-smi") else None

    def _look(self) -> None:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        while not self._ended.wait(0.2):
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            self._seen.append(sum(map(float, said)) / len(said))

    def __enter__(self) -> _Watch:
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def text(self) -> str:
        return f"; busiest moment by nvidia-smi: {max(self._seen):.0f} % busy" if self._seen else ""
