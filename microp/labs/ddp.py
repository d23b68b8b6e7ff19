"""Lab 9: gradients are summed over the replicas while the backward still runs.

::

    backward   layer 15 ◄─ 14 ◄─ 13 ◄─ ... ◄─ 0   each gradient fires a hook
    buckets        └─full─┘  └──full──┘           a full one is summed

The lab runs two replicas of the model, and draws the hooks and the sums of one step.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from microp.comms import Comms
from microp.job import Job
from microp.labs.typed import ALONE, ON_RANKS, about_cores, say, typed_job
from microp.settings import BucketSettings
from microp.system import MIB, run_command
from microp.terminal import console, out
from microp.worker import Trainer, launch_ranks

WARMUP = 3


def entry(job: Job, comms: Comms, local_rank: int, _attempt: Path) -> dict[str, Any]:
    """Train, and return when each gradient of the last step was complete and when its sums ran."""
    trainer = Trainer(job, comms, local_rank)
    fired: list[tuple[str, int]] = []
    for index, layer in enumerate(trainer.stages[0].layers):
        for name, parameter in layer.named_parameters():
            label = f"layer {index} {name.split('.')[-1]}"
            parameter.register_post_accumulate_grad_hook(
                lambda _, label=label: fired.append((label, perf_counter_ns()))
            )
    for step in range(WARMUP + 1):
        trainer.load(step)
        fired.clear()
        row = trainer.step(step)
    return {"hooks": fired, "sums": [(r.start, r.end) for r in trainer.reductions], "row": row}


def main(arguments: Sequence[str] | None = None) -> list[str]:
    """Draw one step of rank 0, and return the names of the gradients in the order of their completion."""
    words = "replicas=2", "batch_size=512", "model.dim=512", "sync.bucket_mb=4", "sync.all_reduce=library"
    job = typed_job("ddp", __doc__, arguments, *words, fixed=[*ALONE, "sync=ddp"], takes=["replicas", *ON_RANKS])
    with (
        tempfile.TemporaryDirectory() as folder,
        console.status(f"{job.replicas} replicas start and run {WARMUP + 1} steps"),
    ):
        ranks = launch_ranks(job, Path(folder), entry)
    seen = ranks[0]
    hooks, sums, row = seen["hooks"], seen["sums"], seen["row"]
    backward = row["last_end_ns"]
    begin, end = hooks[0][1], max(backward, *(end for _, end in sums))
    width = max(20, out.width - len(f"{'':16} |"))

    def column(moment: int) -> int:
        return int((moment - begin) / (end - begin) * (width - 1))

    for label, moment in hooks:
        if label.endswith("weight"):
            print(f"{label:16} |{'.' * column(moment)}▼")
    for number, (start, stop) in enumerate(sums):
        print(f"bucket {number:<9} |{' ' * column(start)}{'█' * max(1, column(stop) - column(start))}")
    print(f"{'backward ends':16} |{' ' * column(backward)}│")
    last = f"{(end - begin) / 1e6:.1f} ms┘"
    print(f"{'time':16} └0{last:>{width - 2}}")
    say("▼ a layer's weight gradient is complete: its hook fires   ... the time since the first of them")
    say("█ a bucket of gradients is summed\n")
    early, mib = sum(start < backward for start, _ in sums), row["reduced_bytes"] / MIB
    took, waited = row["all_reduce_ms"], row["exposed_ms"]
    say(f"{early} of {len(sums)} sums started before the backward ended; {mib:.1f} MiB in all.")
    assert isinstance(job.sync, BucketSettings)
    first, other = job.sync.first_bucket_mb, job.sync.bucket_mb
    say(f"Bucket 0 is full at {first:g} MiB (sync.first_bucket_mb), so that sums start early; others at {other:g} MiB.")
    say(f"The sums took {took:.1f} ms; after the backward rank 0 waited {waited:.1f} ms.")
    hidden = max(0, 1 - waited / took) if took else 1
    share = max((rank["row"]["queued_ms"] or 0) / rank["row"]["step_ms"] for rank in ranks.values())
    say(f"So {hidden:.0%} of their time was hidden. {about_cores(share) or _judged(waited, took, len(sums))}")
    return [label for label, _ in hooks]


def _judged(waited: float, took: float, buckets: int) -> str:
    """Return whether that is good: at best only the last bucket is waited for."""
    if waited <= 1.5 * took / buckets:
        return "That is good: at most the last bucket, whose sum starts as the backward ends, should be waited for."
    return (
        f"That is not good: at best all but the last of {buckets} buckets is: smaller ones (sync.bucket_mb=1) "
        "leave earlier. Sums also need cores beside those of the backwards."
    )


if __name__ == "__main__":
    run_command(main)
