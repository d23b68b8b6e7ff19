"""Lab 9: gradients are summed over the replicas while the backward still runs.

::

    backward   layer 15 ◄─ 14 ◄─ 13 ◄─ ... ◄─ 0        a hook fires when a gradient is complete
    buckets        └─full─┘  └──full──┘                a full bucket is summed during the backward

The lab runs two replicas of the model, and draws the hooks and the sums of one step.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from microp.comms import Comms
from microp.config import job_of
from microp.job import Job
from microp.system import MIB, run_command
from microp.worker import Trainer, launch_ranks

WIDTH = 72
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


def main() -> list[str]:
    """Draw one step of rank 0, and return the names of the gradients in the order of their completion."""
    words = ["ranks=1", "chunks=1", "replicas=2", "batch_size=512", "model.dim=512", "sync.bucket_mb=4"]
    with tempfile.TemporaryDirectory() as folder:
        seen = launch_ranks(job_of(*words, "sync.all_reduce=library"), Path(folder), 3, entry)[0]
    hooks, sums, row = seen["hooks"], seen["sums"], seen["row"]
    backward = row["last_end_ns"]
    begin, end = hooks[0][1], max(backward, *(end for _, end in sums))

    def column(moment: int) -> int:
        return int((moment - begin) / (end - begin) * (WIDTH - 1))

    for label, moment in hooks:
        if label.endswith("weight"):
            print(f"{label:16} |{'.' * column(moment)}▼")
    for number, (start, stop) in enumerate(sums):
        print(f"bucket {number:<9} |{' ' * column(start)}{'█' * max(1, column(stop) - column(start))}")
    print(f"{'backward ends':16} |{' ' * column(backward)}│\n")
    early, mib = sum(start < backward for start, _ in sums), row["reduced_bytes"] / MIB
    print(f"{early} of {len(sums)} sums started before the backward ended; {mib:.1f} MiB in all.")
    print(f"The sums took {row['all_reduce_ms']:.1f} ms; after the backward rank 0 waited {row['exposed_ms']:.1f} ms.")
    return [label for label, _ in hooks]


if __name__ == "__main__":
    run_command(main)
