"""What tests let ranks do: these functions are imported by the rank processes."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from sockets import listening
from torch import Tensor

from microp.comms import Comms, Hosts, Message, ShmComms, TcpComms
from microp.job import Job
from microp.worker import Trainer, monolith

STEPS = 2  # the second one sees the optimizer's work


def digest(tensors: Sequence[Tensor]) -> str:
    """Equal for equal bits."""
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()


def train(job: Job, comms: Comms) -> tuple[list[float], dict[int, list[Tensor]]]:
    """Losses (on the last rank, else empty), and the last gradients of this rank's layers."""
    trainer = Trainer(job, comms, comms.rank)
    losses = []
    for step in range(STEPS):
        trainer.load(step)
        row = trainer.step(step)
        if row["loss"] is not None:
            losses.append(row["loss"])
    gradients = {
        index: monolith.gradients_of(layer)
        for number, stage in trainer.stages.items()
        for index, layer in zip(job.partition.layers_of(number), stage.layers, strict=True)
    }
    return losses, gradients


def train_all(jobs: Sequence[Job], _job: Job, comms: Comms, _local_rank: int, _attempt: Path):
    """(losses, digest of each layer's gradients) of every job, one after the other."""
    results = []
    for job in jobs:
        losses, gradients = train(job, comms)
        results.append((losses, {index: digest(tensors) for index, tensors in gradients.items()}))
    return results


def train_all_tensors(jobs: Sequence[Job], _job: Job, comms: Comms, _local_rank: int, _attempt: Path):
    return [train(job, comms) for job in jobs]


def order_of_a_step(jobs: Sequence[Job], _job: Job, comms: Comms, _local_rank: int, _attempt: Path):
    """This rank's actions in the order of their starts, as traced, of every job."""
    orders = []
    for job in jobs:
        trainer = Trainer(job, comms, comms.rank)
        trainer.load(0)
        trainer.step(0)
        orders.append(tuple(span.action for span in sorted(trainer.trace.spans, key=lambda span: span.start)))
    return orders


def peak_memory(jobs: Sequence[Job], _job: Job, comms: Comms, _local_rank: int, _attempt: Path):
    """This rank's peak memory in MiB, of every job."""
    peaks = []
    for job in jobs:
        trainer = Trainer(job, comms, comms.rank)
        trainer.load(0)
        trainer.step(0)
        trainer.load(1)
        peaks.append(trainer.memory_step(1)["peak_memory_mib"])
    return peaks


def verbs(_job: Job, comms: Comms, _local_rank: int, _attempt: Path):
    """Every verb of comms once; what came of it."""
    return use_verbs(comms)


def use_verbs(comms: Comms) -> dict[str, object]:
    mine = torch.full((3,), float(comms.rank + 1))
    after, before = (comms.rank + 1) % comms.world_size, (comms.rank - 1) % comms.world_size
    send = comms.isend_tensor(mine, after, tag=5)
    received = comms.irecv_tensor([3], before, tag=5)
    got = received.wait()
    send.wait()
    if comms.rank == 0:
        comms.send_tensor(torch.arange(6, dtype=torch.int64).view(2, 3), after)
        echo = comms.recv_tensor([2, 3], before, dtype=torch.int64)
    else:
        echo = comms.recv_tensor([2, 3], before, dtype=torch.int64)
        comms.send_tensor(echo * 2, after)
    comms.barrier()
    return {
        "next": comms.get_next_rank(),
        "prev": comms.get_prev_rank(),
        "got": got.tolist(),
        "echo": echo.tolist(),
        "aligned": got.data_ptr() % 64 == 0,
        "sum": comms.all_reduce(mine.clone()).tolist(),
        "max": comms.all_reduce(mine.clone(), "max").tolist(),
        "mean": comms.all_reduce_mean(mine.clone()).tolist(),
        "all": comms.all_gather(f"from {comms.rank}"),
        "long": [len(text) for text in comms.all_gather("x" * 200 * comms.rank)],
    }


def send_short(_job: Job, comms: Comms, _local_rank: int, _attempt: Path) -> str:
    """Rank 0 sends 10 numbers, rank 1 asks for 11."""
    if comms.rank == 0:
        comms.send_tensor(torch.ones(10), 1)
        return ""
    try:
        comms.recv_tensor([11], 0)
    except ConnectionError as error:
        return str(error)
    return "nothing was noticed"


def never_send(job: Job, comms: Comms, _local_rank: int, _attempt: Path) -> str:
    """Rank 1 runs a step, rank 0 does not."""
    trainer = Trainer(job, comms, 0)
    trainer.load(0)
    if comms.rank == 0:
        time.sleep(1.5)
        return ""
    try:
        trainer.step(0)
    except RuntimeError as error:
        return str(error)
    return "nothing was noticed"


def different_jobs(job: Job, comms: Comms, _local_rank: int, _attempt: Path) -> str:
    """Each rank has another seed."""
    from dataclasses import replace

    try:
        Trainer(replace(job, seed=comms.rank), comms, 0)
    except ConnectionError as error:
        return str(error)
    return "nothing was noticed"


def die(job: Job, comms: Comms, _local_rank: int, attempt: Path) -> None:
    """The last rank kills itself in its third step, the others train on."""
    from microp.worker import run_rank

    if comms.rank == job.ranks - 1:
        step = Trainer.step

        def fatal(trainer: Trainer, number: int, *engine: str):
            if number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(trainer, number, *engine)

        Trainer.step = fatal  # type: ignore[method-assign]
    run_rank(job, comms, comms.rank, attempt)


def raise_in_action(job: Job, comms: Comms, _local_rank: int, attempt: Path) -> None:
    """The last rank's forward of microbatch 1 fails in the third step."""
    from microp.model import Stage
    from microp.worker import run_rank

    if comms.rank == job.ranks - 1:
        forward = Stage.forward

        def failing(stage: Stage, microbatch: int, x: Tensor | None) -> Tensor:
            if microbatch == 1 and stage.batch.step == 2:
                raise ValueError("the layer is broken")
            return forward(stage, microbatch, x)

        Stage.forward = failing  # type: ignore[method-assign]
    run_rank(job, comms, comms.rank, attempt)


SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "end": signal.SIGTERM, "interrupt": signal.SIGINT}
EXITS = {"exit": 3, "leave": 0}


class Fault(NamedTuple):
    """What happens to a rank in its third step, and where.

    Attributes:
        how: `kill`, `stop`, `end`, `interrupt` (by a signal), `hang`, `raise`, `memory`, or the rank ends itself:
            `exit` with code 3 and `leave` with code 0 at once, `quit` with code 0 as Python does.
        where: `forward`, `backward` or `weight_gradient` of a microbatch, `optimizer`, `Trainer`, its constructor, or
            `torch`, the first forward of torch's runtime.
        microbatch: the index of that microbatch.
        rank: the rank; -1 is the last one.
    """

    how: str
    where: str
    microbatch: int = 1
    rank: int = -1

    def __call__(self, job: Job, comms: Comms, _local_rank: int, attempt: Path) -> None:
        from microp.engine import torch_engine
        from microp.model import Stage
        from microp.worker import run_rank

        (attempt / f"pid{comms.rank}").write_text(str(os.getpid()))
        if comms.rank == self.rank % job.ranks:
            holder: type = Stage
            name = self.where
            if self.where == "optimizer":
                holder, name = torch.optim.Adam, "step"
            elif self.where == "Trainer":
                holder, name = Trainer, "_build"
            elif self.where == "torch":
                holder, name = torch_engine._Layers, "forward"
            original, calls = getattr(holder, name), [0]

            def faulty(that, *given, **named):
                calls[0] += 1
                if self._is_due(that, given, calls[0]):
                    (attempt / "happened").write_text(str(time.time()))
                    self._happen()
                return original(that, *given, **named)

            setattr(holder, name, faulty)
        run_rank(job, comms, comms.rank, attempt)

    def _is_due(self, that: object, given: Sequence[object], calls: int) -> bool:
        if self.where == "Trainer":
            return True
        if self.where == "optimizer":
            return calls == 3
        if self.where == "torch":
            return that._stage[0].batch.step == 2  # type: ignore[attr-defined]
        return given[0] == self.microbatch and that.batch.step == 2  # type: ignore[attr-defined]

    def _happen(self) -> None:
        if self.how == "raise":
            raise ValueError("the layer is broken")
        if self.how == "memory":
            raise MemoryError
        if self.how == "hang":
            time.sleep(600)
        if self.how == "quit":
            sys.exit(0)
        if self.how in EXITS:
            os._exit(EXITS[self.how])
        os.kill(os.getpid(), SIGNALS[self.how])


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


class Unreadable:
    """An entry that no rank can read."""

    def __call__(self, job: Job, comms: Comms, local_rank: int, attempt: Path) -> None:
        raise AssertionError("it was read")

    def __setstate__(self, state: object) -> None:
        raise ValueError("the entry cannot be read")

    def __getstate__(self) -> object:
        return 1


def sleep_on(_job: Job, comms: Comms, _local_rank: int, attempt: Path) -> None:
    """Say who I am, then do nothing for a long time."""
    (attempt / f"pid{comms.rank}").write_text(str(os.getpid()))
    time.sleep(600)


# --- shared memory -------------------------------------------------------------------------------


def segments() -> set[str]:
    """The inodes of microp's segments that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "memfd:microp" in line}


def between(src: int, dest: int, sizes: Sequence[int], slots: Sequence[int]) -> list[Message]:
    """Announced messages with the tags 0, 1, ..."""
    return [Message(src, dest, tag, nbytes, slot) for tag, (nbytes, slot) in enumerate(zip(sizes, slots, strict=True))]


def use_mailboxes(_job: Job, comms: Comms, _local_rank: int, _attempt: Path) -> dict[str, object]:
    """Rank 0 sends, rank 1 answers; what rank 1 saw."""
    shapes = [(5, 3), (7,), (1, 2, 2), (2, 2)]  # of 60, 28, 16 and, in float64, 32 bytes
    seen: dict[str, object] = {"values": [], "aligned": []}
    layouts = {"apart": [0, 1, 2, 3], "shared": [0, 0, 0, 0]}
    for slots in layouts.values():
        there = between(0, 1, [60, 28, 16, 32], slots)
        back = between(1, 0, [4] * 4, slots)
        comms.expect(message for message in (*there, *back))
        for step in range(3):
            comms.barrier()
            for tag, shape in enumerate(shapes):
                dtype = torch.float64 if tag == 3 else torch.float32
                if comms.rank == 0:
                    comms.send_tensor(torch.full(shape, float(10 * step + tag), dtype=dtype), 1, tag)
                    comms.recv_tensor([1], 1, tag)
                else:
                    got = comms.recv_tensor(shape, 0, tag, dtype)
                    seen["values"].append((tuple(got.shape), got.unique().tolist()))
                    seen["aligned"].append(got.data_ptr() % 64 == 0)
                    comms.send_tensor(torch.ones(1), 0, tag)
    return seen


def send_transposed(_job: Job, comms: Comms, _local_rank: int, _attempt: Path) -> list[list[float]] | None:
    """Rank 0 sends a matrix whose numbers lie column by column; what rank 1 got."""
    comms.expect(between(0, 1, [24], [0]))
    if comms.rank == 0:
        comms.send_tensor(torch.arange(6.0).view(2, 3).t(), 1, 0)
        return None
    return comms.recv_tensor([3, 2], 0, 0).tolist()


def use_a_tag_that_was_not_announced(_job: Job, comms: Comms, _local_rank: int, _attempt: Path) -> dict[str, object]:
    """Two tensors, of which only the first has a mailbox; how each travelled, and a third that has no room."""
    comms.expect(between(0, 1, [12], [0]))
    tensors = {0: torch.arange(3.0), 8: torch.arange(3.0) + 8}
    if comms.rank == 0:
        for send in [comms.isend_tensor(tensor, 1, tag) for tag, tensor in tensors.items()]:
            send.wait()
        try:
            comms.isend_tensor(torch.ones(4), 1, 0)
        except ConnectionError as error:
            return {"too large": str(error)}
        return {}
    pending = {tag: comms.irecv_tensor([3], 0, tag) for tag in (8, 0)}
    return {f"tag {tag}": (type(pending[tag]).__module__, pending[tag].wait().tolist()) for tag in tensors}


def wait_for_nothing(_job: Job, comms: Comms, _local_rank: int, _attempt: Path) -> tuple[str, float, float]:
    """Rank 0 never sends what it has announced to the others: what they say, after how long, and what it cost."""
    comms.expect(message for dest in range(1, comms.world_size) for message in between(0, dest, [64], [0]))
    said = ""
    began, spent = time.monotonic(), time.process_time()
    if comms.rank == 0:
        time.sleep(comms.timeout_s + 0.3)
    else:
        try:
            comms.recv_tensor([16], 0, 0)
        except TimeoutError as error:
            said = str(error)
    return said, time.monotonic() - began, time.process_time() - spent


def outlive_the_sender(_job: Job, comms: Comms, _local_rank: int, attempt: Path) -> None:
    """Rank 0 kills itself while the others wait for its tensor; they write down what they saw."""
    comms.expect(message for dest in range(1, comms.world_size) for message in between(0, dest, [64], [0]))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # elastic ends the others: not before they have spoken
    found = " ".join(segments())
    (attempt / f"segment{comms.rank}").write_text(f"{os.getpid()} {found}")
    comms.barrier()
    if comms.rank == 0:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        comms.recv_tensor([16], 0, 0)
    except ConnectionError as error:
        (attempt / f"said{comms.rank}").write_text(f"{time.monotonic() - began} {error}")
    os._exit(1)


# --- replicas ------------------------------------------------------------------------------------


class Left(NamedTuple):
    """What a rank has after some steps with replicas.

    Attributes:
        losses: its share of each step's loss; empty, but on a pipeline's last rank.
        bits: for each of its layers a digest of the gradients and of the weights.
        gradients: on the first replica, for each of its layers.
        inputs: a digest of the last batch's inputs, where it has the first stage.
    """

    losses: list[float]
    bits: dict[int, tuple[str, str]]
    gradients: dict[int, list[Tensor]]
    inputs: str | None


def train_replica(job: Job, comms: Comms) -> Left:
    trainer = Trainer(job, comms, comms.rank)
    rows = []
    for step in range(STEPS):
        trainer.load(step)
        rows.append(trainer.step(step))
    layers = {
        index: layer
        for number, stage in trainer.stages.items()
        for index, layer in zip(job.partition.layers_of(number), stage.layers, strict=True)
    }
    gradients = {index: monolith.gradients_of(layer) for index, layer in layers.items()}
    weights = {index: [p.detach() for p in layer.parameters()] for index, layer in layers.items()}
    first = trainer.stages.get(0)
    return Left(
        [row["loss"] for row in rows if row["loss"] is not None],
        {index: (digest(gradients[index]), digest(weights[index])) for index in layers},
        {} if comms.replica else gradients,
        digest(first.batch.inputs) if first else None,
    )


def train_replicas(jobs: Sequence[Job], _job: Job, comms: Comms, _local_rank: int, _attempt: Path) -> list[Left]:
    return [train_replica(job, comms) for job in jobs]


def links(job: Job, comms: Comms, local_rank: int, attempt: Path) -> dict[str, str]:
    """How a rank reaches each of the others if the first two are on one host and the last two on another."""
    apart = ShmComms(comms.device, comms.timeout_s, comms.group, Hosts(("h0", "h1"), (0, 0, 1, 1)))
    ends = [(src, dest) for src in range(4) for dest in range(4) if src != dest]
    apart.expect(Message(src, dest, 7, 64, 0) for src, dest in ends)
    others = [rank for rank in range(4) if rank != comms.rank]
    boxes = {rank: apart.inbox([16], rank, 7, torch.float32) for rank in others}
    for turn in range(3):
        apart.barrier()
        for box in boxes.values():
            if box.post is not None:
                box.post()
        sending = {rank: apart.outbox([16], rank, 7, torch.float32) for rank in others}
        for rank, box in sending.items():
            box.send(torch.full([16], float(100 * turn + 10 * comms.rank + rank)))
        for rank, box in boxes.items():
            assert box.wait().tolist() == [float(100 * turn + 10 * rank + comms.rank)] * 16
        for box in sending.values():
            if box.finish is not None:
                box.finish()
        apart.barrier()
    comms.barrier()  # until here every rank keeps its connections
    return {str(rank): type(box).__module__.rpartition(".")[2] for rank, box in boxes.items()}


def take_memory_again(_job: Job, _comms: Comms, _local_rank: int, _attempt: Path) -> int:
    """Return the page faults of 16 MiB of tensors that are freed and taken again ten times."""
    begin = 0
    for turn in range(12):
        if turn == 2:
            begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        taken = [torch.ones(2**18) for _ in range(16)]
        del taken
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin
