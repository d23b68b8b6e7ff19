"""Two hosts on one machine, made of namespaces, so that a launch over several hosts can be tested.

::

    h0  10.77.0.1 ── veth ── 10.77.0.2  h1        a network, processes, mounts, name and clock of its own each

Each host has its own loopback interface, `/dev/shm`, `/proc`, temporary folder, host name and `/etc/hosts`, and a
monotonic clock that is `CLOCK_S` ahead of the other's. As on Debian, the first host's name is a loopback address on
that host itself. Everything ends with the processes, and `two_hosts` removes what has a name.
"""

import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from user import ROOT, Inside, begin, environment_of

NAMES, ADDRESSES = ("h0", "h1"), ("10.77.0.1", "10.77.0.2")
CLOCK_S = 5_000  # by which the second host's monotonic clock is ahead
_made = itertools.count()
ENTER = """
mount -t tmpfs -o size=1g none /dev/shm
mount --bind "$HOSTS_FILE" /etc/hosts
hostname "$HOST_NAME"
exec "$@"
"""


class Host(NamedTuple):
    """One of the two hosts."""

    name: str
    address: str  # which the other host reaches
    namespace: str  # the name of its network namespace
    link: str  # its end of the link
    folder: Path  # where its commands run and write
    clock_s: int  # by how much its monotonic clock is ahead of the machine's
    process: int = 0  # one that does nothing on it

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command on this host; its output goes to `out` in the host's folder."""
        own = {"HOST_NAME": self.name, "HOSTS_FILE": str(self.folder / "hosts"), "TMPDIR": str(self.folder / "tmp")}
        apart = ["--mount", "--uts", "--pid", "--time", "--monotonic", str(self.clock_s), "--fork", "--kill-child"]
        enter = ["ip", "netns", "exec", self.namespace, "unshare", *apart, "--mount-proc", "sh", "-e", "-c", ENTER]
        environment = environment_of(self.folder, own)
        with (self.folder / "out").open("w") as out:
            return subprocess.Popen(
                [*enter, "sh", *command], cwd=self.folder, env=environment, stdout=out, stderr=out, text=True
            )

    def torchrun(self, *words: str) -> Inside:
        """Start this host's part of the README's launch over both hosts."""
        page = (ROOT / "sweeps" / "README.md").read_text()
        [launch] = re.findall(r"^torchrun (.*HOST.*-m microp.run)", page, re.MULTILINE)
        *options, option, module = launch.replace("HOST", NAMES[0]).split()
        quickly = "--rdzv-conf=read_timeout=10"  # its own wait for a host that was cut off, by default a minute
        words = (*options, "--nproc-per-node=2", "--rdzv-id=test", quickly, option, module, *words)
        where = {"folder": self.folder, "inside": self.process, "TMPDIR": str(self.folder / "tmp")}
        return begin(*words, program="torch.distributed.run", **where)

    def cut(self) -> None:
        """Take this host's end of the link down."""
        _ip("-n", self.namespace, "link", "set", self.link, "down")

    def end(self) -> None:
        """Kill all processes of this host, with the first process of its namespace."""
        os.kill(self.process, signal.SIGKILL)


@contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Host, ...]]:
    """Make two hosts whose folders are in `folder`, which is empty; skip the test where that is not possible."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("two hosts need root, to make network namespaces, and the packages iproute2 and util-linux")
    hosts = [_host(folder, number) for number in range(len(NAMES))]
    idle: list[subprocess.Popen[str]] = []
    try:
        first, second = hosts
        ends = ["netns", first.namespace, "type", "veth", "peer", "name", second.link, "netns", second.namespace]
        try:
            for host in hosts:
                _ip("netns", "add", host.namespace)
            _ip("link", "add", first.link, *ends)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"two hosts need namespaces: {error.stderr.strip()}")
        for host in hosts:
            inside = ["-n", host.namespace]
            _ip(*inside, "link", "set", "lo", "up")
            _ip(*inside, "address", "add", f"{host.address}/24", "dev", host.link)
            _ip(*inside, "link", "set", host.link, "up")
            idle.append(host.start("sh", "-c", "echo ready; exec sleep infinity"))
        yield tuple(host._replace(process=_child(process, host)) for host, process in zip(hosts, idle, strict=True))
    finally:
        for process in idle:
            process.kill()
            process.wait()
        for host in hosts:
            subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True)


def _child(process: subprocess.Popen[str], host: Host) -> int:
    """Return the process that runs on the host for the one that was started, once it does."""
    while (said := (host.folder / "out").read_text()) != "ready\n":
        if process.poll() is not None:
            pytest.skip(f"two hosts need namespaces: {said}")
        time.sleep(0.01)
    [child] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)


def _host(folder: Path, number: int) -> Host:
    own = folder / NAMES[number]
    (own / "tmp").mkdir(parents=True)
    known = dict(zip(NAMES, ADDRESSES, strict=True)) | ({NAMES[0]: "127.0.1.1"} if number == 0 else {})
    lines = [f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **known}.items()]
    (own / "hosts").write_text("".join(lines))
    name = NAMES[number]
    return Host(name, ADDRESSES[number], f"microp-{os.getpid()}-{next(_made)}", f"link{number}", own, number * CLOCK_S)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
