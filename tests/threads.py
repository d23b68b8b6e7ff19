"""Ranks that are threads, and a transport that knows no tags."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from microp.comms import Comms, ThreadComms, thread_comms
from microp.comms.base import PostedReceive


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
