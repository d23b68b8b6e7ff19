"""Ranks that share a GPU: their messages go through pinned memory, tried on GPUs that are none (`tests/gpu.py`)."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from conftest import mlp, small_job
from gpu import Gpu, HostComms, World
from threads import are_equal, in_threads
from threads import run as run_on_cpu
from torch.utils._python_dispatch import _disable_current_modes

from microp.comms import StagedComms, thread_comms
from microp.device import Cuda
from microp.schedule.builders import gpipe, one_f_one_b, zb_v
from microp.worker import Trainer, monolith
from microp.worker import trainer as trainer_module

CPU = torch.device("cpu")


class Staged(StagedComms):
    def _pin(self, shape, dtype):
        with _disable_current_modes():
            return self._gpu.on_host(super()._pin(shape, dtype))


def train(schedule, **changes) -> dict[int, list[torch.Tensor]]:
    """The gradients of every layer after two steps of ranks that stage their messages."""
    job = small_job(schedule=schedule, model=mlp("float64"), **changes)

    def open_cuda(_settings, _workload, comms, _local_rank):
        device = Cuda(0, 5, comms._gpu)
        device.torch_device = CPU
        return device

    def live(inner) -> dict[int, list[torch.Tensor]]:
        gpu = Gpu(World())
        trainer = Trainer(job, Staged(HostComms(inner, gpu), CPU, gpu))
        for step in range(2):
            trainer.load(step)
            with gpu:
                trainer.step(step)
        return {index: monolith.gradients_of(layer) for index, layer in trainer.layers.items()}

    with patch.object(trainer_module, "open_device", open_cuda):
        found = in_threads(thread_comms(len(schedule.ranks), 5, job.replicas), live)
    return {index: gradients for rank in found for index, gradients in rank.items()}


@pytest.mark.parametrize("schedule", [gpipe(2, 4), one_f_one_b(3, 5), zb_v(2, 3)], ids=lambda each: each.name)
def test_the_gradients_are_those_of_the_cpu(schedule):
    assert are_equal(train(schedule), run_on_cpu(schedule))


def test_a_message_that_leaves_before_its_copy_has_been_made_is_found():
    with patch.object(StagedComms, "to_host", lambda _, tensor, host: host.copy_(tensor, non_blocking=True)):
        found = train(one_f_one_b(2, 4))
    assert not are_equal(found, run_on_cpu(one_f_one_b(2, 4)))


def test_pinned_memory_that_is_written_again_too_early_is_found():
    """As if all messages of a link had one mailbox: the next one comes before the GPU has copied the last."""
    expect = StagedComms.expect

    def one_mailbox(comms, messages) -> None:
        expect(comms, [message._replace(slot=0) for message in messages])

    with patch.object(StagedComms, "expect", one_mailbox):
        found = train(gpipe(2, 4))
    assert not are_equal(found, run_on_cpu(gpipe(2, 4)))


def test_every_verb_goes_through_the_host():
    def work(inner) -> list[float]:
        gpu = Gpu(World())
        comms = Staged(HostComms(inner, gpu), CPU, gpu)
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
