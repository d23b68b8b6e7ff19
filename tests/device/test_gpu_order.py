"""What a GPU is given, in what order and with what waits, tried on GPUs that are none (`tests/gpu.py`)."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
import torch
from conftest import CHECKPOINTING, mlp, small_job
from gpu import Gpu, Group, HostComms, Stream, Work, World
from one_process import by_threads
from threads import in_threads
from torch.utils._python_dispatch import _disable_current_modes

from microp.comms import Heartbeats, NcclComms, StagedComms, thread_comms
from microp.device import Cuda
from microp.engine import describe_failure
from microp.schedule.builders import gpipe, interleaved, one_f_one_b, zb_h1, zb_v
from microp.worker import Trainer, monolith
from microp.worker import trainer as trainer_module

STEPS, CPU = 2, torch.device("cpu")
ORDERS = (one_f_one_b(3, 5), gpipe(2, 4), zb_h1(3, 4), interleaved(2, 4, 2), zb_v(2, 3))
SCHEDULES = {order.name: order for order in ORDERS}


class Nccl(NcclComms):
    """The transport over groups that are none; what is not of the timed path goes between the threads."""

    def __init__(self, threads, gpu: Gpu) -> None:
        self.rank, self.world_size, self.timeout_s = threads.rank, threads.world_size, threads.timeout_s
        self.device, self.names = CPU, [f"rank {rank}" for rank in range(threads.world_size)]
        self._up, self._down = (Group(gpu, self.rank, name) for name in ("up", "down"))
        self.gpu, self.all_reduce, self.all_gather = gpu, threads.all_reduce, threads.all_gather
        self.barrier, self.close = threads.barrier, threads.close

    close = all_reduce = all_gather = barrier = lambda *_: None  # abstract in the base class


@dataclass
class Rank:
    comms: Nccl
    gradients: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    waits: list[int] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    trainer: Trainer | None = None
    error: Exception | None = None
    said: str = ""


class Staged(StagedComms):
    """The transport of ranks that share a GPU: their messages go through pinned memory."""

    gpu = property(lambda self: self._gpu)

    def _pin(self, shape, dtype):
        with _disable_current_modes():
            return self._gpu.on_host(super()._pin(shape, dtype))


def on_gpus(schedule, timeout_s: float = 20, staged: bool = False, **changes) -> list[Rank]:
    job, world = small_job(schedule=schedule, model=mlp("float64"), **changes), World(timeout_s)
    heartbeats = Heartbeats(len(schedule.ranks))

    def open_cuda(_settings, _workload, comms, _local_rank):
        device = Cuda(0, timeout_s, comms.gpu)
        device.torch_device = CPU
        return device

    def live(threads) -> Rank:
        gpu = Gpu(World() if staged else world)
        rank = Rank(Staged(HostComms(threads, gpu), CPU, gpu) if staged else Nccl(threads, gpu))
        rank.comms.heartbeats = heartbeats
        try:
            rank.trainer = trainer = Trainer(job, rank.comms)
            for step in range(STEPS):
                trainer.load(step)
                before = rank.comms.gpu.waits
                with rank.comms.gpu:
                    rank.rows.append(trainer.step(step))
                rank.waits.append(rank.comms.gpu.waits - before)
            rank.gradients = {index: monolith.gradients_of(layer) for index, layer in trainer.layers.items()}
        except Exception as error:
            rank.error, rank.said = error, describe_failure(rank.comms, schedule, error)
            threads.abort()
        return rank

    with patch.object(trainer_module, "open_device", open_cuda):
        return in_threads(thread_comms(len(schedule.ranks), timeout_s), live, 280)


def finished(ranks: list[Rank]) -> list[Rank]:
    if errors := [rank.error for rank in ranks if rank.error]:
        raise next((error for error in errors if not isinstance(error, ConnectionError)), errors[0])
    return ranks


def are_those_of_the_cpu(schedule, ranks: list[Rank]) -> bool:
    found = {index: tensors for rank in finished(ranks) for index, tensors in rank.gradients.items()}
    _, layers = by_threads(small_job(schedule=schedule, model=mlp("float64")))
    return all(all(map(torch.equal, found[index], tensors)) for index, tensors in enumerate(layers))


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_gradients_are_those_of_the_cpu_and_the_host_waits_once_a_step(name):
    schedule = SCHEDULES[name]
    ranks = on_gpus(schedule)
    assert are_those_of_the_cpu(schedule, ranks)
    assert [rank.waits for rank in ranks] == [[1] * STEPS] * len(ranks)
    assert not ranks[0].comms.gpu.world.dropped


def test_times_are_those_of_the_gpu():
    ranks = finished(on_gpus(one_f_one_b(2, 4), checkpointing=CHECKPOINTING["always"]))
    for rank in ranks:
        spans, row = list(rank.trainer.trace.spans), rank.rows[-1]
        assert all(a.wait_start <= a.ready == a.start < a.end <= b.wait_start for a, b in pairwise(spans))
        lengths = {(span.end - span.start) / 1e6 for span in spans}
        assert all(abs(length - round(length)) < 1e-3 and length >= 3 for length in lengths)
        assert row["recompute_ms"] == pytest.approx(round(row["recompute_ms"]), abs=1e-3)
        assert 0 < row["recompute_ms"] < row["compute_ms"] < row["step_ms"]
        assert row["optimizer_ms"] >= 1
    assert ranks[1].rows[-1]["wait_ms"] >= 3  # for the first forward of the other


def test_a_memory_step_gives_the_allocator_s_peaks():
    gpu = Gpu(World())
    device, steps = Cuda(0, 1, gpu), []
    peak = device.peak_memory([], lambda: steps.append(gpu.peaks), lambda _: False)
    assert steps == [gpu.peaks]
    assert peak == (3 << 20, 3 << 20, 4 << 20)


def blocking_wait(work: Work) -> None:
    work._waited = True
    work._after.synchronize()


def test_a_receive_that_is_not_waited_for_is_found():
    with patch.object(Work, "wait", lambda work: setattr(work, "_waited", True)):
        ranks = on_gpus(one_f_one_b(2, 4))
    assert not are_those_of_the_cpu(one_f_one_b(2, 4), ranks)


def test_a_wait_of_the_host_inside_the_step_is_found():
    with patch.object(Work, "wait", blocking_wait):
        ranks = finished(on_gpus(one_f_one_b(2, 4)))
    assert all(waits > 1 for rank in ranks for waits in rank.waits)


def test_the_action_at_which_a_gpu_stands_is_named():
    """Rank 0's third activation never leaves; the host of rank 1 has enqueued all of its step meanwhile."""
    send = Group.send

    def lose(group: Group, tensors, dest, tag):
        work = send(group, tensors, dest, tag)
        sent = group._gpu.world.ends["up", 0, 1]["send"]
        if group._name == "up" and len(sent) == 4:  # the first one opened the communicator
            stuck = Stream(group._gpu.world)
            sent[3] = sent[3]._replace(stream=stuck, place=stuck.put(lambda: False) + 1)
        return work

    with patch.object(Group, "send", lose):
        _, rank = on_gpus(gpipe(2, 4), timeout_s=3)
    assert rank.said == "rank 1 waited 3 s for 0F2 from rank 0 (step 0)"


@pytest.mark.parametrize("schedule", [gpipe(2, 4), one_f_one_b(3, 5), zb_v(2, 3)], ids=lambda each: each.name)
def test_staged_gradients_are_those_of_the_cpu(schedule):
    assert are_those_of_the_cpu(schedule, on_gpus(schedule, staged=True))


def test_a_message_that_leaves_before_its_copy_has_been_made_is_found():
    with patch.object(StagedComms, "to_host", lambda _, tensor, host: host.copy_(tensor, non_blocking=True)):
        assert not are_those_of_the_cpu(one_f_one_b(2, 4), on_gpus(one_f_one_b(2, 4), staged=True))


def test_every_verb_goes_through_the_host():
    def work(threads) -> list[float]:
        gpu = Gpu(World())
        comms = Staged(HostComms(threads, gpu), CPU, gpu)
        with gpu:
            mine = torch.full((3,), float(comms.rank + 1))
            total = comms.all_reduce(mine * 1)
            later = comms.iall_reduce(mine * 2).wait()
            if comms.rank == 0:
                comms.send_tensor(mine + 6, 1, tag=3)
                came = mine
            else:
                came = comms.recv_tensor([3], 0, tag=3)
            comms.barrier()
            found = [tensor.sum().item() for tensor in (total, later, came)]
        return [*found, comms.all_gather(comms.rank)]

    assert in_threads(2, work) == [[9.0, 18.0, 3.0, [0, 1]], [9.0, 18.0, 21.0, [0, 1]]]
