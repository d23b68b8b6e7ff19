"""Runs this process as one rank of a launch that torchrun made, on one host or several.

::

    rank 0                          opens the attempt, gets the rows of all hosts, closes it
    the first rank of another host  opens an attempt of the same name, in its own output_dir; removes it if the run
                                    has finished, else closes it as failed: its rows are only there
    all others                      write rows
"""

from __future__ import annotations

import platform
import shutil
import zlib
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from microp.config import Config, ConfigError, Stop, plain
from microp.job import NOT_ASKED, Job
from microp.model import build_model, open_batches
from microp.points.attempt import Attempt
from microp.points.planned import Planned
from microp.records import last_attempt, read_status
from microp.schedule import to_text
from microp.system import flatten
from microp.worker import HostsError, Joined, RankError, join, run_joined

_OF_A_HOST = {*NOT_ASKED, "device.memory_gib"} - {"snapshot", "activation_limit"}
_PACKAGE = Path(__file__).parents[1]


class _OtherHosts(Attempt):
    """An attempt on a host that is not rank 0's, which holds the rows of this host's ranks alone."""

    def close(self, state: str, message: str | None = None, said: Path | None = None) -> None:
        if state != "finished":
            super().close(state, message, said)
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # there are other attempts of this host
            self.folder.parent.rmdir()


def run_as_rank(point: Planned) -> Path:
    """Run one rank, and return the folder on this host to which it writes.

    Raises:
        ConfigError: the hosts differ, or do not meet.
        Stop: this rank, which is not rank 0, failed.
        OSError: this rank cannot write its rows.
    """
    try:
        joined = join(point.job, _facts(point.config, point.job))
    except HostsError as error:
        raise ConfigError([str(error)]) from error
    attempt, folder, stay = _open(point, joined)
    try:
        with attempt or nullcontext():
            _run(point.job, joined, folder, stay)
    except RankError as error:
        raise Stop(str(error)) from error
    if isinstance(attempt, _OtherHosts) and folder.exists():  # its context has recorded why
        raise Stop(str(read_status(folder)["message"]))
    return folder


def _open(point: Planned, joined: Joined) -> tuple[Attempt | None, Path, dict[int, str]]:
    """Return the attempt that this rank records, the folder, and what stays on the other hosts if the run fails.

    All hosts use the same number, which rank 0 chooses. A host whose folder exists already shares it with rank 0's.
    """
    everyone, hosts = joined.everyone, joined.hosts
    known = max(everyone.all_gather(last_attempt(point.run)))
    attempt = Attempt(point._replace(known=known)) if everyone.rank == 0 else None
    folder = point.run / everyone.all_gather(attempt.folder.name if attempt else "")[0]
    stays: str | None = None
    if joined.is_first and everyone.rank != 0 and _make(folder):
        quiet = replace(point.config, tracking=replace(point.config.tracking, mode="disabled"))
        attempt = _OtherHosts(point._replace(config=quiet), folder)
        ranks = ", ".join(map(str, hosts.ranks(joined.host)))
        stays = f"the rows of ranks {ranks} stay on {hosts.names[joined.host]} in {folder.absolute()}"
    told = {host: text for host, text in zip(hosts.of, everyone.all_gather(stays), strict=True) if text}
    return attempt, folder, {host: text for host, text in told.items() if joined.host in (0, host)}


def _make(folder: Path) -> bool:
    """Make a folder; return False if it exists."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def _run(job: Job, joined: Joined, folder: Path, stay: dict[int, str]) -> None:
    try:
        run_joined(job, joined, folder, shares=joined.host not in stay)
        joined.close()
    except RankError as error:
        raise RankError("; ".join([str(error), *stay.values()]), error.log) from error


def _facts(config: Config, job: Job) -> dict[str, Any]:
    """Return what has to be equal on all hosts: name -> value."""
    asked = flatten({**plain(config), "model": config.model.identity})  # with the code of a user's own
    keys = {key: value for key, value in asked.items() if not {key, key.partition(".")[0]} & _OF_A_HOST}
    batch = open_batches(job.data, build_model(job.model), job.batch_size, job.model.row_bytes, job.seed)(0)
    files = sorted(_PACKAGE.rglob("*.py"))
    return {
        "python": platform.python_version(),
        "torch": version("torch"),
        "microp's code": _checksum(path.read_bytes() for path in files),
        **keys,
        "the order of the schedule": _checksum([to_text(job.schedule).encode()]),
        "the partition": list(job.partition.sizes),
        "the first step": job.first_step,
        "the first batch": _checksum(each.numpy().tobytes() for each in batch),
    }


def _checksum(parts: Iterable[bytes]) -> str:
    return f"{zlib.crc32(b''.join(parts)):08x}"
