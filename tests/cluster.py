"""A real Slurm on this host: a controller and two nodes that are this machine, for as long as a test file needs them.

::

    munged ── slurmctld ──┬── slurmd -N 127.0.0.1  all in one temporary folder: configuration, key, socket, state, spool
                          └── slurmd -N 127.0.0.2

Ranks meet at the name of their job's first node, so that the names of the nodes have to be addresses.

The programs are Debian's `slurmctld slurmd slurm-client munge`; nothing is installed here, and no service of the
system is used. There is no accounting, as on many small clusters.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
NODES = ("127.0.0.1", "127.0.0.2")
START_S = 30
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=2
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmctldParameters=enable_configless
ReturnToService=2
KillWait=10
MpiDefault=none
MailProg=/bin/true
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
NodeName=127.0.0.[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs=4
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"""


class NoSlurmError(RuntimeError):
    """There is no Slurm to be had here; the message says what is missing."""


class Cluster:
    """A context in which Slurm runs; `environment` is what a command needs to find it. Raises NoSlurmError."""

    def __enter__(self) -> Cluster:
        missing = [name for name in PROGRAMS if not shutil.which(name, path=_path())]
        if missing:
            raise NoSlurmError(f"{', '.join(missing)} not found: apt-get install slurmctld slurmd slurm-client munge")
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: the path of a socket has at most 107 characters
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _path()}
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        self.folder.chmod(0o755)  # munge's clients have to see its socket
        (self.folder / "state").mkdir()
        values = {"folder": self.folder, "host": socket.gethostname(), "user": getpass.getuser(), "ports": _ports(3)}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(**values))
        key = self.folder / "munge.key"
        self.run("mungekey", "--create", f"--keyfile={key}")
        files = [f"--{name}-file={self.folder / f'munged.{name}'}" for name in ("pid", "log", "seed")]
        self._daemon("munged", "--foreground", f"--key-file={key}", f"--socket={self.folder}/munge.socket", *files)
        _until((self.folder / "munge.socket").exists, "munged has no socket")
        self._daemon("slurmctld", "-D")
        for node in NODES:
            (self.folder / f"spool.{node}").mkdir()
            self._daemon("slurmd", "-D", "-N", node)
        _until(lambda: self._states() == ["idle", "idle"], "the nodes are not idle")

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str) -> str:
        """Run one of Slurm's commands, and return what it prints. Raises NoSlurmError."""
        done = subprocess.run(command, env={**os.environ, **self.environment}, capture_output=True, text=True)
        if done.returncode:
            raise NoSlurmError(f"{command[0]}: {done.stderr.strip()}")
        return done.stdout

    def _states(self) -> list[str]:
        try:
            return self.run("sinfo", "--noheader", "--Node", "--format=%T").split()
        except NoSlurmError:  # the controller does not listen yet
            return []

    def _daemon(self, *command: str) -> None:
        with (self.folder / "daemons.log").open("ab") as log:
            environment = {**os.environ, **self.environment}
            self._daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])  # where Debian has the daemons


def _ports(number: int) -> list[int]:
    """Return neighbouring ports that are free: a list of nodes needs a range."""
    for first in range(20_000 + os.getpid() % 5_000, 32_000):
        with suppress(OSError), ExitStack() as sockets:
            for port in range(first, first + number):
                sockets.enter_context(socket.create_server(("127.0.0.1", port)))
            return list(range(first, first + number))
    raise NoSlurmError("no free ports")


def _until(true: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + START_S
    while not true():
        if time.monotonic() > deadline:
            raise NoSlurmError(f"{otherwise} after {START_S} s")
        time.sleep(0.05)
