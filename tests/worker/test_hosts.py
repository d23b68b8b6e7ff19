"""A launch over two hosts, which are namespaces of this machine: the same run as on one host, and its end if cut.

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
from user import ROOT, SMALL, begin, environment_of, ran, read, until

from microp.records import check_attempt, clocks_text, read_rows, read_schedule, read_spans, read_status, read_summary

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
    name: str
    address: str  # which the other host reaches
    namespace: str  # the name of its network namespace
    link: str  # its end of the link
    folder: Path  # where its commands run and write
    clock_s: int  # by how much its monotonic clock is ahead of the machine's
    process: int = 0  # one that does nothing on it

    def start(self, *command: str) -> subprocess.Popen[str]:
        own = {"HOST_NAME": self.name, "HOSTS_FILE": str(self.folder / "hosts"), "TMPDIR": str(self.folder / "tmp")}
        apart = ["--mount", "--uts", "--pid", "--time", "--monotonic", str(self.clock_s), "--fork", "--kill-child"]
        enter = ["ip", "netns", "exec", self.namespace, "unshare", *apart, "--mount-proc", "sh", "-e", "-c", ENTER]
        environment = environment_of(self.folder, own)
        with (self.folder / "out").open("w") as out:
            return subprocess.Popen(
                [*enter, "sh", *command], cwd=self.folder, env=environment, stdout=out, stderr=out, text=True
            )

    def torchrun(self, *words: str) -> begin:
        """Start this host's part of the README's launch over both hosts."""
        page = (ROOT / "sweeps" / "README.md").read_text()
        [launch] = re.findall(r"^torchrun (.*HOST.*-m microp.run)", page, re.MULTILINE)
        *options, option, module = launch.replace("HOST", NAMES[0]).split()
        quickly = "--rdzv-conf=read_timeout=10"  # its own wait for a host that was cut off, by default a minute
        words = (*options, "--nproc-per-node=2", "--rdzv-id=test", quickly, option, module, *words)
        where = {"folder": self.folder, "inside": self.process, "TMPDIR": str(self.folder / "tmp")}
        return begin(*words, program="torch.distributed.run", **where)

    def cut(self) -> None:
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


WORDS = [*SMALL, "schedule=1f1b", "ranks=4", "chunks=4", "tracking=disabled"]
TIMEOUT_S = 15  # a busy machine may take seconds to bring all ranks to their meeting


@contextmanager
def launched(hosts, *words: str) -> Iterator[list[begin]]:
    """A launch on all hosts, with two ranks on each, which has ended after the block."""
    commands = [host.torchrun(*words) for host in hosts]
    try:
        yield commands
    finally:
        for command in commands:
            if command.poll() is None:
                command.send_signal(signal.SIGKILL)
            command.communicate()


def attempts_of(folder: Path) -> list[Path]:
    return sorted((folder / "outputs" / "runs").glob("*/attempt-*"))


@pytest.fixture(scope="module")
def over_two(tmp_path_factory):
    with two_hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        with launched(hosts, *WORDS) as commands:
            wait_for(lambda: None not in [command.poll() for command in commands], commands)
            said = [command.said() for command in commands]
            assert [command.returncode for command in commands] == [0, 0], said
        yield hosts, said


@pytest.fixture(scope="module")
def attempt(over_two):
    hosts, _ = over_two
    [found] = attempts_of(hosts[0].folder)
    return found


def test_the_losses_are_those_of_one_host_bit_for_bit(attempt, tmp_path):
    ran(*WORDS, folder=tmp_path)
    [alone] = attempts_of(tmp_path)
    losses = [[row["loss"] for row in read_rows(folder, 3)] for folder in (attempt, alone)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 5
    assert attempt.parent.name == alone.parent.name  # the same question has the same folder


def test_all_records_are_on_the_host_of_rank_0(over_two, attempt):
    (_, second), (_, said) = over_two
    check_attempt(attempt)
    assert read_status(attempt)["status"] == "finished"
    for rank in range(4):
        assert {row["rank"] for row in read_rows(attempt, rank)} == {rank}
    assert len(read_spans(attempt)) == sum(map(len, read_schedule(attempt).ranks))
    assert list((second.folder / "outputs" / "runs").iterdir()) == []
    assert "finished" not in said


def test_clocks_are_aligned_and_the_drawing_states_the_residual(over_two, attempt):
    first, second = read(attempt / "hosts.json")
    assert (first["host"], second["host"]) == NAMES
    assert (first["ranks"], second["ranks"]) == ([0, 1], [2, 3])
    assert abs(second["clock_offset_ns"] + CLOCK_S * 10**9) <= second["clock_residual_ns"] < 10**9
    summary = read_summary(attempt)
    hosts = summary["hosts"]
    assert hosts["early_receive_ms"] <= hosts["clock_residual_ms"] == second["clock_residual_ns"] / 1e6
    said = clocks_text(summary)
    assert said.startswith("clocks of 2 hosts, ±")
    _, (printed, _) = over_two
    assert said in printed


@pytest.mark.parametrize("how", ["the link", "all processes of h1"])
def test_a_host_that_is_cut_off_ends_the_others(how, whole, tmp_path):
    """The ranks end in time; torchrun itself waits for the first host's answer for minutes on the second."""
    if how != "the link" and not whole:
        pytest.skip("with --whole")
    words = ["steps=1000000", f"comms.timeout_s={TIMEOUT_S}"]
    with two_hosts(tmp_path) as hosts, launched(hosts, *WORDS, *words) as commands:
        wait_for(lambda: any(path.stat().st_size for path in tmp_path.glob("h0/outputs/runs/*/*/steps.*")), commands)
        survivors = hosts if how == "the link" else hosts[:1]
        hosts[0].cut() if how == "the link" else hosts[1].end()
        cut_at = time.time()
        wait_for(lambda: all(ended(host.folder) for host in survivors), commands)
        told = [command.said for host, command in zip(hosts, commands, strict=True) if host in survivors]
        messages = [read_status(attempts_of(host.folder)[0])["message"] for host in survivors]
        # a host's other rank may print its own error before the one that records the end has printed this
        wait_for(lambda: all(message in said() for message, said in zip(messages, told, strict=True)), commands)
    peers = {"h0": r"rank [23] on h1", "h1": r"rank [01] on h0"}
    for host in survivors:
        [attempt] = attempts_of(host.folder)
        status = read_status(attempt)
        assert status["status"] == "failed"
        assert re.search(rf"rank \d on {host.name}.* {peers[host.name]}", status["message"])
        assert status["ended"] - cut_at < TIMEOUT_S + 90
        assert f"the rows of ranks 2, 3 stay on h1 in {hosts[1].folder}" in status["message"]
    [attempt] = attempts_of(hosts[1].folder)
    assert read_rows(attempt, 2)
    assert not read_rows(attempt, 0)


def wait_for(condition, commands) -> None:
    until(condition, lambda: "".join(command.said() for command in commands))


def ended(folder: Path) -> bool:
    return any("ended" in read(path) for path in folder.glob("outputs/runs/*/*/status.json"))
