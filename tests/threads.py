"""Ranks that are threads, and the gradients they leave; a transport that knows no tags."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import training
from conftest import mlp, small_job

from microp.comms import Comms, ThreadComms, thread_comms
from microp.comms.base import PostedReceive
from microp.schedule import Schedule
from microp.schedule.builders import gpipe
from microp.worker import monolith


def in_threads(ranks: int | Sequence[Comms], work: Callable[[Any], Any], timeout_s: float = 20.0) -> list[Any]:
    """Run `work(comms)` on every rank; the results in rank order. Raises the failure of one that the others follow."""
    everyone = thread_comms(ranks, timeout_s) if isinstance(ranks, int) else ranks
    results, failures = [None] * len(everyone), []

    def run(number: int) -> None:
        try:
            results[number] = work(everyone[number])
        except BaseException as error:
            failures.append(error)
            everyone[number].abort()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(everyone))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s + 20)
        assert not thread.is_alive(), "it hangs"
    if failures:
        followed = ConnectionError, threading.BrokenBarrierError
        raise next((failure for failure in failures if not isinstance(failure, followed)), failures[0])
    return results


class Tagless(ThreadComms):
    """A transport that keeps the order of each link and nothing else: the n-th receive that is posted
    gets the n-th tensor that is sent, whatever their tags."""

    def __init__(self, hub, rank: int, timeout_s: float) -> None:
        super().__init__(hub, rank, timeout_s)
        self._sent: Counter[int] = Counter()
        self._posted: Counter[int] = Counter()

    def put(self, tensor, dest, tag, leaves_ns):
        self._sent[dest] += 1
        super().put(tensor, dest, self._sent[dest], leaves_ns)

    def inbox(self, shape, src, tag, dtype):
        def post():
            self._posted[src] += 1
            return super(Tagless, self).inbox(shape, src, self._posted[src], dtype)

        return PostedReceive(post)


def tagless(world_size: int, timeout_s: float) -> list[Tagless]:
    return [Tagless(comms._hub, comms.rank, timeout_s) for comms in thread_comms(world_size, timeout_s)]


def run(schedule: Schedule, transport=thread_comms) -> dict[int, list[torch.Tensor]]:
    """The gradients of every layer after two steps, each rank a thread."""
    job = small_job(schedule=schedule, model=mlp("float64"))
    results = in_threads(transport(len(schedule.ranks), 20), lambda comms: training.train(job, comms))
    return {index: gradients for _, layers in results for index, gradients in layers.items()}


@cache
def expected(chunks: int) -> list[list[torch.Tensor]]:
    *_, last = monolith.steps(small_job(schedule=gpipe(1, chunks), model=mlp("float64")), training.STEPS)
    return last.gradients


def differs(schedule: Schedule, got: dict[int, list[torch.Tensor]]) -> float:
    """How far the gradients are from the monolith's; 1e-12 covers another order of summation."""
    pairs = zip(expected(schedule.chunks), (got[layer] for layer in sorted(got)), strict=True)
    return max((a - b).abs().max().item() for one, other in pairs for a, b in zip(one, other, strict=True))


def are_equal(some: dict[int, list[torch.Tensor]], others: dict[int, list[torch.Tensor]]) -> bool:
    return some.keys() == others.keys() and all(
        torch.equal(a, b) for layer in some for a, b in zip(some[layer], others[layer], strict=True)
    )
