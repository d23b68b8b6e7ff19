"""Which ranks share a host, and the address at which a host is reached by the others.

::

    h0   rank 0, rank 1        ranks of one host share memory
    h1   rank 2, rank 3        ranks of two hosts send over the network
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux: the IPv4 address of an interface


@dataclass(frozen=True)
class Hosts:
    """The hosts of one launch."""

    names: tuple[str, ...]  # the name of each host, in the order of their first ranks
    of: tuple[int, ...]  # rank (counted over all pipelines) -> the index of its host

    @property
    def are_several(self) -> bool:
        return len(self.names) > 1

    def ranks(self, host: int) -> list[int]:
        """Return the ranks of a host; the first of them records what the host does."""
        return [rank for rank, its in enumerate(self.of) if its == host]

    def rank_text(self, world_rank: int) -> str:
        """Return how messages name a rank: `rank 2`, of several hosts `rank 2 on h1`."""
        return f"rank {world_rank} on {self.names[self.of[world_rank]]}" if self.are_several else f"rank {world_rank}"


def one_host(ranks: int) -> Hosts:
    """Return the hosts of a launch on this host alone."""
    return Hosts((socket.gethostname(),), (0,) * ranks)


def own_address(other: str, port: int) -> str:
    """Return the address of this host from which it reaches another one; nothing is sent.

    Raises:
        OSError: the name of the other host is unknown, or there is no route to it.
    """
    family, kind, protocol, _, where = socket.getaddrinfo(other, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Return the name of the network interface that has an IPv4 address; None if the system does not tell."""
    packed = ip_address(address).packed
    return next((name for _, name in socket.if_nameindex() if _address_of(name) == packed), None)


def listening_address(hosts: Hosts) -> str:
    """Return the address at which a rank lets the others connect.

    It is that of the interface which `GLOO_SOCKET_IFNAME` names. If the system does not tell it, loopback if there is
    one host, else the address from which this host reaches the first one.
    """
    if packed := _address_of(os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]):
        return str(ip_address(packed))
    if hosts.are_several:
        return own_address(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    return "127.0.0.1"


def _address_of(interface: str) -> bytes | None:
    """Return the IPv4 address of a network interface."""
    if sys.platform != "linux":
        return None
    import fcntl  # not on every system

    request = interface.encode().ljust(40, b"\0")  # struct ifreq: 16 bytes of name, then a sockaddr
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return fcntl.ioctl(probe, _GET_ADDRESS, request)[20:24]
    return None
