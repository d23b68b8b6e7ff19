"""Traces of torch's own pipeline runtime, beside what `engine=torch` records of the same steps."""

import json
import os
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor, distributed, nn
from torch.distributed import pipelining
from torch.profiler import ProfilerActivity, profile

from microp.device import marked
from microp.engine.torch_engine import _timed_stage
from microp.schedule import to_torch_csv
from microp.schedule.builders import zb_h1

SCHEDULES = {  # torch's class -> what microp calls its order
    "ScheduleGPipe": "gpipe",
    "Schedule1F1B": "1f1b",
    "ScheduleInterleaved1F1B": "interleaved",
    "ScheduleLoopedBFS": "breadth_first_lifo",
    "ScheduleInterleavedZeroBubble": "zb_interleaved",
}
if not torch.__version__.startswith("2.11."):  # which sends to its own rank in a V, and ends
    SCHEDULES |= {"ScheduleZBVZeroBubble": "zb_v", "ScheduleDualPipeV": "dualpipe_v"}
SINGLE = ("ScheduleGPipe", "Schedule1F1B")
V_SHAPED = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
RUNTIME = "_PipelineScheduleRuntime"  # runs an order from a file
MARKED = ("Schedule1F1B", "ScheduleDualPipeV", "ScheduleInterleavedZeroBubble")  # the third names its actions itself
STEPS = 4
TIMES = {"forward": 0.012, "input": 0.012, "weight": 0.010}  # seconds that the parts of a stage sleep
ROWS, DIM = 2, 8


class Slept(torch.autograd.Function):
    """Return the tensor after a sleep, and sleep in the backward too."""

    @staticmethod
    def forward(context: Any, x: Tensor, forward: float, backward: float) -> Tensor:
        context.backward_s = backward
        time.sleep(forward)
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(context.backward_s)
        return gradients[0].clone(), None, None


class Layer(nn.Module):
    """A linear layer whose forward, input gradient and weight gradient take their times."""

    def __init__(self, heavy: float) -> None:
        super().__init__()
        self.linear, self.heavy = nn.Linear(DIM, DIM), heavy

    def at(self, microbatch: int) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        x = Slept.apply(x, TIMES["forward"] * self.heavy, TIMES["input"] * self.heavy)
        weight = Slept.apply(self.linear.weight, 0.0, TIMES["weight"] * self.heavy)
        return nn.functional.linear(x, weight, self.linear.bias)


def stages_of(name: str, rank: int, ranks: int) -> list[int]:
    if name in (*SINGLE, RUNTIME):
        return [rank]
    return [rank, 2 * ranks - 1 - rank] if name in V_SHAPED else [rank, rank + ranks]


def trace_schedule(name: str, rank: int, ranks: int, chunks: int, folder: Path) -> None:
    """Run some steps of one of torch's schedules under the profiler, and write the rank's trace and what it timed."""
    ids, taken, kind = stages_of(name, rank, ranks), [], getattr(pipelining.schedules, name)
    count = ranks * len(ids)

    def timed(stage: int, op: str, microbatch: int, call: Any) -> Any:
        began = time.time_ns()
        result = call()
        taken.append((str(op), stage, microbatch, began, time.time_ns()))
        return result

    def example() -> Tensor:
        return torch.empty(ROWS, DIM, requires_grad=True)

    layers = [Layer(1.5 if stage == 0 else 1.0) for stage in ids]
    stages = [
        _timed_stage(pipelining.PipelineStage)(
            *(partial(timed, stage), layer, stage, count, torch.device("cpu"), (example(),), example())
        )
        for stage, layer in zip(ids, layers, strict=True)
    ]
    optimizer = torch.optim.SGD([weight for layer in layers for weight in layer.parameters()], lr=1e-3)
    schedule = kind(stages[0] if name in SINGLE else stages, chunks, loss_fn=lambda y, t: ((y - t) ** 2).mean())
    if name == RUNTIME:
        schedule._load_csv(str(folder.parent / "order.csv"))
    batch, target = torch.randn(ROWS * chunks, DIM), torch.randn(ROWS * chunks, DIM)
    steps: list[list[Any]] = []
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for step in range(STEPS + 1):
            taken.clear()
            distributed.barrier()
            with torch.profiler.record_function(f"ProfilerStep#{step}"):
                with marked(schedule) if name in MARKED else nullcontext():
                    schedule.step(*([batch] if 0 in ids else []), target=target if count - 1 in ids else None)
                optimizer.step()
                optimizer.zero_grad()
            steps.append(list(taken))
    folder.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))
    (folder / f"timed{rank}.json").write_text(json.dumps(steps))


def _run(rank: int, ranks: int, folder: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "WORLD_SIZE": str(ranks)}
    torch.set_num_threads(1)
    store = distributed.FileStore(str(folder / "store"), ranks)
    distributed.init_process_group("gloo", rank=rank, world_size=ranks, store=store)
    for name in (*SCHEDULES, RUNTIME):
        trace_schedule(name, rank, ranks, 2 * ranks, folder / name)
    distributed.destroy_process_group()


def make_traces(ranks: int, folder: Path) -> Path:
    """Trace all of torch's schedules on this many gloo processes, below a folder, and an order that torch lacks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "order.csv").write_text(to_torch_csv(zb_h1(ranks, 2 * ranks)))
    mp.start_processes(_run, (ranks, folder), nprocs=ranks, start_method="forkserver")
    return folder
