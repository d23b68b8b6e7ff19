"""What ranks do that only send and receive: these functions are imported by the rank processes."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from microp.comms import Comms, Hosts, Message, ShmComms
from microp.job import Job


def verbs(_job: Job, comms: Comms, _local_rank: int, _attempt: Path):
    """Every verb of comms once; what came of it, and what is said about a message that is too short."""
    seen = use_verbs(comms)
    if comms.rank == 0:
        comms.send_tensor(torch.ones(10), 1)
    elif comms.rank == 1:
        try:
            comms.recv_tensor([11], 0)
        except ConnectionError as error:
            seen["short"] = str(error)
    return seen


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
        **{"next": comms.get_next_rank(), "prev": comms.get_prev_rank(), "got": got.tolist(), "echo": echo.tolist()},
        "aligned": got.data_ptr() % 64 == 0,
        **{how: comms.all_reduce(mine.clone(), how).tolist() for how in ("sum", "max")},
        "mean": comms.all_reduce_mean(mine.clone()).tolist(),
        "all": comms.all_gather(f"from {comms.rank}"),
        "long": [len(text) for text in comms.all_gather("x" * 200 * comms.rank)],
    }


def between(src: int, dest: int, sizes: Sequence[int], slots: Sequence[int]) -> list[Message]:
    """Announced messages with the tags 0, 1, ..."""
    return [Message(src, dest, tag, nbytes, slot) for tag, (nbytes, slot) in enumerate(zip(sizes, slots, strict=True))]


def use_mailboxes(_job: Job, comms: Comms, _local_rank: int, _attempt: Path) -> dict[str, object]:
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
    if comms.rank == 0:
        comms.send_tensor(torch.arange(6.0).view(2, 3).t(), 1, 0)
        comms.send_tensor(torch.arange(3.0) + 8, 1, 8)
        try:
            comms.isend_tensor(torch.ones(16), 1, 0)
        except ConnectionError as error:
            seen["too large"] = str(error)
    else:
        seen["column by column"] = comms.recv_tensor([3, 2], 0, 0).tolist()
        seen["not announced"] = comms.recv_tensor([3], 0, 8).tolist()
        seen["boxes"] = [type(comms.inbox([3], 0, tag, torch.float32)).__module__ for tag in (0, 8)]
    return seen


def leave_one_by_one(job: Job, comms: Comms, *_) -> str:
    """Meet and end, where the last rank hears late that all have come: others have closed their connections by then."""
    comms.expect(Message(src, dest, 0, 4, 0) for src in range(3) for dest in range(3) if src != dest)
    if comms.rank == 0:
        connection = comms._connections[2]
        send = connection.send
        connection.send = lambda *given: (time.sleep(0.5), send(*given))[1]
    comms.barrier()
    return "came"


def wait_for_nothing(_job: Job, comms: Comms, _local_rank: int, _attempt: Path) -> tuple[str, float, float]:
    """Rank 0 never sends what it has announced to the others: what they say, after how long, and what it cost."""
    comms.expect(message for dest in range(1, comms.world_size) for message in between(0, dest, [64], [0]))
    said = ""
    began, spent = time.monotonic(), time.process_time()
    if comms.rank == 0:
        time.sleep(comms.timeout_s + 3)  # longer than the others wait, however late they begin
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
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:microp" in line]
    (attempt / f"segment{comms.rank}").write_text("".join(inode for *_, inode, _, _ in maps))
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
