"""Runs this process as one rank of a launch that torchrun made: joins it, trains, and gathers the rows of all hosts.

::

    every rank   host, address, versions, configuration ──► the launch's store ──► cards of all ranks
                 are they equal? ── no ──► HostsError, before anything is started
                 connects: shared memory on a host, gloo between hosts
    run_rank, which writes to a folder of this host ── fails ──► the error of the first rank of this host that failed
    rank 2, on h1   rows, moments shifted ──► rank 0's folder, on h0

    first rank of a host   asked ──┐              ┌──► answered    offset = its time - (asked + answered) / 2
    rank 0                         └──► its time ─┘                at most wrong by (answered - asked) / 2

Clocks are compared by messages there and back, of which the quickest of many counts. Two readings, before the steps
and after them, give a line, because two clocks do not run equally fast.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import Store, rendezvous  # type: ignore[attr-defined]

from microp.comms import Comms, GroupComms, Heartbeats, Hosts, interface_of, own_address
from microp.job import Job
from microp.records import HOSTS, ROWS, WriteError, shift_moments, write_json
from microp.system import this_host
from microp.worker.failure import RankError, first_error
from microp.worker.launch import LOOPBACK_INTERFACE, SOCKET_INTERFACES, connect, end_with_parent, keep_freed_memory
from microp.worker.rank import run_rank

_MEETING_S = 60.0  # at least: hosts do not start at the same time
_TURNS = 50  # messages there and back


class HostsError(RuntimeError):
    """The hosts of a launch do not fit together, or do not meet; nothing has been started."""


@dataclass
class Joined:
    """A launch of several processes, as one of its ranks sees it."""

    comms: Comms  # the transport between the ranks of this rank's pipeline
    everyone: GroupComms  # the transport between all ranks of all pipelines, not for the timed path
    hosts: Hosts  # the hosts of all ranks

    @property
    def host(self) -> int:
        """The index of this rank's host."""
        return self.hosts.of[self.everyone.rank]

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first one on its host."""
        return self.hosts.ranks(self.host)[0] == self.everyone.rank

    def close(self) -> None:
        """Disconnect."""
        self.everyone.drop()
        self.comms.close()


def join(job: Job, facts: Mapping[str, Any]) -> Joined:
    """Join the launch that the environment names: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.

    `facts` have to be equal on all hosts: name -> a value that JSON can write.

    Raises:
        HostsError: the facts differ, or the ranks do not meet.
    """
    end_with_parent()
    keep_freed_memory()
    # 1. tell the others who we are, and learn who they are
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    heartbeats = Heartbeats.shared(world)
    patience_s = max(_MEETING_S, job.timeout_s)
    store, address = _reach_store(patience_s)
    card = {"host": this_host(), "address": address, "heartbeats": heartbeats.path, "facts": facts}
    cards = _exchange(store, rank, card, world, patience_s)
    # 2. find out who shares a host, and whether all do the same
    keys = [tuple(other["host"].values()) for other in cards]
    order = list(dict.fromkeys(keys))
    hosts = Hosts(tuple(str(name) for name, *_ in order), tuple(order.index(key) for key in keys))
    _check_equal(cards, hosts)
    # 3. connect; the first rank of a host has the memory for its heartbeats
    _choose_interface(cards, hosts, rank)
    comms = connect(job, int(os.environ["LOCAL_RANK"]), hosts, store)
    first = hosts.ranks(hosts.of[rank])[0]
    is_own = first == rank or heartbeats.path is None
    comms.heartbeats = heartbeats if is_own else Heartbeats(world, cards[first]["heartbeats"])
    comms.heartbeats.hosts = hosts if hosts.are_several else None
    comms.heartbeats.start(rank)
    group = None
    if job.backend == "nccl":
        group = dist.new_group(backend="gloo", timeout=GroupComms.own_timeout(job.timeout_s))
    return Joined(comms, GroupComms(torch.device("cpu"), job.timeout_s, group, hosts), hosts)


def _reach_store(timeout_s: float) -> tuple[Store, str]:
    """Return the store of the launch, and the address of this host from which it is reached."""
    where = {key: os.environ.get(key, "") for key in ("MASTER_ADDR", "MASTER_PORT")}
    said = " ".join(f"{key}={value}" for key, value in where.items())
    try:
        address = own_address(where["MASTER_ADDR"], int(where["MASTER_PORT"]))
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
    except (OSError, ValueError, RuntimeError) as error:  # torch's errors are RuntimeErrors
        why = error.strerror if isinstance(error, OSError) else f"no answer within {timeout_s:g} s"
        raise HostsError(
            f"{said} cannot be reached from {this_host()['host']} ({why}): give an address of the first host that "
            "this one reaches, and open the port in its firewall"
        ) from error
    return store, address


def _exchange(store: Store, rank: int, card: Mapping[str, Any], world: int, timeout_s: float) -> list[Any]:
    """Return the cards of all ranks."""
    keys = [f"microp/{number}" for number in range(world)]
    store.set(keys[rank], json.dumps(card))
    store.set_timeout(timedelta(seconds=timeout_s))
    try:
        store.wait(keys)
    except RuntimeError as error:
        missing = [str(number) for number, key in enumerate(keys) if not store.check([key])]
        raise HostsError(
            f"rank {', '.join(missing)} of {world} did not come within {timeout_s:g} s to where "
            f"{this_host()['host']} waits: look at what its host printed, and use the same command on every host"
        ) from error
    return [json.loads(store.get(key)) for key in keys]


def _check_equal(cards: list[Any], hosts: Hosts) -> None:
    """Raise HostsError if a fact of two ranks differs."""
    differences = []
    for name in dict.fromkeys(name for card in cards for name in card["facts"]):
        holders: dict[str, dict[str, None]] = {}  # value -> the names of its hosts
        for card, host in zip(cards, hosts.of, strict=True):
            value = card["facts"].get(name)
            text = value if isinstance(value, str) else json.dumps(value)
            holders.setdefault(text, {})[hosts.names[host]] = None
        if len(holders) > 1:
            texts = [f"{text} on {' and '.join(names)}" for text, names in holders.items()]
            differences.append(f"{name} is {', '.join(texts)}")
    if differences:
        raise HostsError(
            f"the hosts differ: {'; '.join(differences)}: use the same installation, files and command on every host"
        )


def _choose_interface(cards: list[Any], hosts: Hosts, rank: int) -> None:
    """Let gloo and NCCL listen on loopback if there is one host, else where the other hosts reach this one.

    By default gloo takes the address that the host's own name has here, which is often a loopback address.
    """
    name: str | None = LOOPBACK_INTERFACE
    if hosts.are_several:
        away = [card["address"] for card in cards if not ip_address(card["address"]).is_loopback]
        mine = cards[rank]["address"]
        if ip_address(mine).is_loopback and away:
            mine = own_address(away[0], int(os.environ["MASTER_PORT"]))
        name = interface_of(mine)
    if name:
        for variable in SOCKET_INTERFACES:
            os.environ.setdefault(variable, name)


# --- the run, and its rows -----------------------------------------------------------------------


def run_joined(job: Job, joined: Joined, attempt: Path, shares: bool) -> None:
    """Run one rank, which writes into a folder of this host, and bring all rows into the folder of rank 0.

    `shares` says whether `attempt`, the folder on this host, is that of rank 0, on a file system that the hosts share.

    Raises:
        RankError: this rank failed, or another one of its host, which is then named; or another host cannot be reached
            any more after the last step, and the rows are where they were.
        WriteError: the rows cannot be written.
    """
    signal.signal(signal.SIGTERM, _fail)
    try:
        # 1. train, with times on the clock of rank 0's host
        before = read_clocks(joined.everyone, joined.hosts)
        run_rank(job, joined.comms, int(os.environ["LOCAL_RANK"]), attempt, before[joined.host].offset_ns)
    except WriteError:
        raise
    except Exception as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what follows records this end
        raise first_error(attempt) or RankError(str(error)) from error
    if not joined.hosts.are_several:
        return
    try:
        # 2. compare the clocks again, and correct the times by what they have drifted
        after = read_clocks(joined.everyone, joined.hosts)
        if joined.host:
            mine = before[joined.host], after[joined.host]
            shift_moments(attempt, joined.everyone.rank, lambda moment: moment + drift_ns(*mine, moment))
        # 3. gather
        _gather(joined.everyone, attempt, shares)
        if joined.everyone.rank == 0:
            rows = [  # of each host its name, its ranks, and how its clock was compared with rank 0's
                {
                    "host": name,
                    "ranks": joined.hosts.ranks(number),
                    "clock_offset_ns": before[number].offset_ns,
                    "clock_drift_ns": after[number].offset_ns - before[number].offset_ns,
                    "clock_residual_ns": max(before[number].residual_ns, after[number].residual_ns),
                }
                for number, name in enumerate(joined.hosts.names)
            ]
            write_json(attempt / HOSTS, rows)
    except (TimeoutError, ConnectionError) as error:
        raise RankError(f"all steps have ended, but the rows could not be gathered: {error}") from error


def _fail(*_: object) -> NoReturn:
    """Fail, and so record an end: torchrun sends SIGTERM to a host's ranks when one has ended, and kills after 30 s."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise ConnectionError("torchrun ended the ranks of this host")


def _gather(everyone: Comms, attempt: Path, shares: bool) -> None:
    """Send this rank's files to rank 0, unless its folder is theirs."""
    paths = [attempt / f"{kind}.rank{everyone.rank}.jsonl" for kind in ROWS]
    files = {path.name: path.stat().st_size for path in paths if path.exists() and not shares}
    for sender, sizes in enumerate(everyone.all_gather(files)):
        for name, nbytes in sizes.items():
            if everyone.rank == 0:
                rows = everyone.recv_tensor([nbytes], sender, dtype=torch.uint8)
                (attempt / name).write_bytes(rows.numpy().tobytes())
            elif everyone.rank == sender:
                rows = torch.frombuffer(bytearray((attempt / name).read_bytes()), dtype=torch.uint8)
                everyone.send_tensor(rows, 0)
    everyone.barrier()  # after it every file has arrived


# --- clocks --------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """What is added to a moment of a host's clock, to have it on the clock of rank 0's host."""

    at_ns: int  # when it was read, on the host's own clock
    offset_ns: int  # what is added
    residual_ns: int  # by how much the offset may be wrong at most


def read_clocks(everyone: Comms, hosts: Hosts) -> list[Reading]:
    """Return the reading of every host; all ranks of all pipelines call this at the same time."""
    mine = Reading(perf_counter_ns(), 0, 0)
    firsts = [hosts.ranks(host)[0] for host in range(len(hosts.names))]
    for first in firsts[1:]:
        if everyone.rank == first:
            mine = min((_ask(everyone) for _ in range(_TURNS)), key=lambda reading: reading.residual_ns)
        elif everyone.rank == 0:
            for _ in range(_TURNS):
                everyone.recv_tensor([1], first, dtype=torch.int64)
                everyone.send_tensor(torch.tensor([perf_counter_ns()]), first)
    readings = everyone.all_gather(mine)
    return [Reading(*readings[first]) for first in firsts]


def _ask(everyone: Comms) -> Reading:
    asked = perf_counter_ns()
    everyone.send_tensor(torch.tensor([asked]), 0)
    time_there = int(everyone.recv_tensor([1], 0, dtype=torch.int64).item())
    answered = perf_counter_ns()
    return Reading(answered, time_there - (asked + answered) // 2, (answered - asked + 1) // 2)


def drift_ns(before: Reading, after: Reading, moment_ns: int) -> int:
    """Return what the offset at a moment, on the clock to which `before` converts, is more than that of `before`."""
    since = moment_ns - before.offset_ns - before.at_ns
    return (after.offset_ns - before.offset_ns) * since // max(1, after.at_ns - before.at_ns)
