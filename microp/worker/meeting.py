"""Joins a launch that torchrun made: finds out which ranks share a host, and connects.

::

    every rank   host, address, versions, configuration ──► the launch's store ──► cards of all ranks
                 are they equal? ── no ──► HostsError, before anything is started
                 connects: shared memory on a host, gloo between hosts
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store, rendezvous  # type: ignore[attr-defined]

from microp.comms import Comms, GroupComms, Heartbeats, Hosts, interface_of, own_address
from microp.job import Job
from microp.system import this_host
from microp.worker.launch import LOOPBACK_INTERFACE, SOCKET_INTERFACES, connect, end_with_parent, keep_freed_memory

_MEETING_S = 60.0  # at least: hosts do not start at the same time


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
    group = dist.new_group(backend="gloo") if job.backend == "nccl" else None
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
