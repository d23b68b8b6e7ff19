"""What happens to ranks in tests of launches: these functions are imported by the rank processes."""

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any, NamedTuple

import torch

from microp.comms import Comms, TcpComms
from microp.job import Job
from microp.worker import Trainer

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "end": signal.SIGTERM, "interrupt": signal.SIGINT}
EXITS = {"exit": 3, "leave": 0}


class Fault(NamedTuple):
    """What happens to a rank in its third step, and where: `torch` is the first forward of torch's runtime.

    A `slow` rank runs for a while and then goes on. A rank ends itself by `exit` with code 3 and `leave` with code 0 at
    once, by `quit` with code 0 as Python does.
    """

    how: str  # one of SIGNALS or EXITS, `quit`, `hang`, `slow`, `raise`, `memory`
    where: str  # `forward`, `backward` or `weight_gradient` of a microbatch, `optimizer`, `Trainer`, `torch`
    microbatch: int = 1
    rank: int = -1

    def __call__(self, job: Job, comms: Comms, _local_rank: int, attempt: Path) -> None:
        from microp.engine import torch_engine
        from microp.model import Stage
        from microp.worker import run_rank, trainer

        (attempt / f"pid{comms.rank}").write_text(str(os.getpid()))
        if comms.rank == self.rank % job.ranks:
            others: dict[str, tuple[Any, str]] = {
                "optimizer": (torch.optim.Adam, "step"),
                "Trainer": (trainer, "open_device"),
                "torch": (torch_engine._Layers, "forward"),
            }
            holder, name = others.get(self.where, (Stage, self.where))
            original, calls = getattr(holder, name), [0]

            def faulty(that, *given, **named):
                calls[0] += 1
                if self._is_due(that, given, calls[0]):
                    (attempt / "happened").write_text(str(time.time()))
                    self._happen()
                return original(that, *given, **named)

            setattr(holder, name, faulty)
        run_rank(job, comms, comms.rank, attempt)

    def _is_due(self, that: Any, given: Sequence[object], calls: int) -> bool:
        if self.where == "Trainer":
            return True
        if self.where == "optimizer":
            return calls == 3
        if self.where == "torch":
            return that._stage[0].batch.step == 2
        return given[0] == self.microbatch and that.batch.step == 2

    def _happen(self) -> None:
        if self.how == "raise":
            raise ValueError("the layer is broken")
        if self.how == "memory":
            raise MemoryError
        if self.how == "hang":
            time.sleep(600)
        if self.how == "slow":
            left = 3.0  # seconds of its own: what it was stopped for counts little
            while left > 0:
                began = time.monotonic()
                time.sleep(0.01)
                left -= min(time.monotonic() - began, 0.05)
            return
        if self.how == "quit":
            sys.exit(0)
        if self.how in EXITS:
            os._exit(EXITS[self.how])
        os.kill(os.getpid(), SIGNALS[self.how])


def told(fault: Fault, rank: int, place: str, step: int) -> str:
    """The pattern of what is said of a fault of a rank; `place` is `action 1F1` or `the optimizer`."""
    at = f"in {place.removeprefix('action ')}, step {step}"
    raised = {"raise": "the layer is broken", "memory": "out of memory", "quit": "SystemExit: 0"}
    if fault.how in ("hang", "stop"):
        where = place.removeprefix("action ")
        return rf"rank \d waited .* rank {rank}, which has been in {where} for \d+\.\d s \(step {step}\)"
    if fault.how in raised:
        return f"rank {rank}, {place}, step {step}: {raised[fault.how]}"
    if fault.how in SIGNALS:
        return f"rank {rank} was killed by {SIGNALS[fault.how].name} {at}"
    if fault.how == "leave":
        return f"rank {rank} was lost {at}, and wrote no error"
    return f"rank {rank} ended with exit code {EXITS[fault.how]} {at}"


class Unreadable:
    """An entry that no rank can read."""

    def __call__(self, job: Job, comms: Comms, local_rank: int, attempt: Path) -> None:
        raise AssertionError("it was read")

    def __setstate__(self, state: object) -> None:
        raise ValueError("the entry cannot be read")

    def __getstate__(self) -> object:
        return 1


def sleep_on(_job: Job, comms: Comms, _local_rank: int, attempt: Path) -> None:
    (attempt / f"pid{comms.rank}").write_text(str(os.getpid()))
    time.sleep(600)


def listen(job: Job, comms: Comms, local_rank: int, _attempt: Path) -> list[str]:
    """Train without unpickling anything from another rank; the addresses on which this process listens meanwhile."""

    def refuse(*_: object) -> None:
        raise AssertionError("unpickled what another rank sent")

    listened, begin = [], socket.socket.listen

    def noting(own: socket.socket, count: int) -> None:
        begin(own, count)
        listened.extend(listening(os.getpid()))

    torch.distributed.distributed_c10d._tensor_to_object = refuse
    socket.socket.listen = noting  # type: ignore[method-assign]
    trainer = Trainer(job, comms, local_rank)
    for step, (_, _, engine) in enumerate(job.of(comms.replica).phases()):
        trainer.load(step)
        trainer.step(step, engine)
    comms.gather_all({"rank": comms.rank, "text": "é" * 1000 * comms.rank})
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"  # here the host's name may stand for loopback as well
    assert bool(listened) == (type(comms) is TcpComms and comms.rank == 0)  # while the others connect
    return [*listened, *listening(os.getpid())]


LISTENS = "0A"  # the state in /proc/net/tcp


def listening(pid: int) -> list[str]:
    """The addresses of the TCP sockets on which a process listens, such as `127.0.0.1`."""
    mine = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            mine.add(str(descriptor.readlink()))
        except FileNotFoundError:  # closed since
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENS and f"socket:[{inode}]" in mine:
                found.append(_address(local.partition(":")[0]))
    return found


def _address(text: str) -> str:
    """An address as text, from the words of 4 bytes in the machine's order that Linux shows."""
    words = bytes.fromhex(text)
    address = ip_address(b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4)))
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def is_loopback(address: str) -> bool:
    return ip_address(address).is_loopback
