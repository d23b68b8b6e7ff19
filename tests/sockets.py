"""On what addresses a process listens, from /proc."""

from ipaddress import IPv6Address, ip_address
from pathlib import Path

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
