"""A launch over two hosts, which are namespaces of this machine: the same run as on one host, and its end if cut."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hosts import CLOCK_S, NAMES, two_hosts
from user import SMALL, microp, read, until
from warm import Command

from microp.records import (
    check_attempt,
    clocks_text,
    read_rows,
    read_schedule,
    read_spans,
    read_status,
    read_summary,
)

WORDS = [*SMALL, "schedule=1f1b", "ranks=4", "chunks=4", "tracking=disabled"]
TIMEOUT_S = 15  # a busy machine may take seconds to bring all ranks to their meeting


@contextmanager
def launched(hosts, *words: str, ranks: int = 2) -> Iterator[list[Command]]:
    """A launch on all hosts, with `ranks` ranks on each, which has ended after the block."""
    commands = [host.warm_torchrun(*words, ranks=ranks) for host in hosts]
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
    """The hosts, and what a run over both printed on each."""
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
    done = microp(*WORDS, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    [alone] = attempts_of(tmp_path)
    losses = [[row["loss"] for row in read_rows(each, 3)] for each in (attempt, alone)]
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


def test_clocks_are_aligned(attempt):
    first, second = read(attempt / "hosts.json")
    assert (first["host"], second["host"]) == NAMES
    assert (first["ranks"], second["ranks"]) == ([0, 1], [2, 3])
    assert abs(second["clock_offset_ns"] + CLOCK_S * 10**9) <= second["clock_residual_ns"] < 10**9
    summary = read_summary(attempt)["hosts"]
    assert summary["early_receive_ms"] <= summary["clock_residual_ms"] == second["clock_residual_ns"] / 1e6


def test_the_drawing_states_the_residual(over_two, attempt):
    _, (printed, _) = over_two
    said = clocks_text(read_summary(attempt))
    assert said.startswith("clocks of 2 hosts, ±")
    assert said in printed


def test_a_cut_link_ends_both_hosts(tmp_path):
    """The ranks end in time; torchrun itself waits for the first host's answer for minutes on the second."""
    words = ["steps=1000000", f"comms.timeout_s={TIMEOUT_S}"]
    with two_hosts(tmp_path) as hosts, launched(hosts, *WORDS, *words) as commands:
        first, second = hosts
        wait_for(lambda: any(path.stat().st_size for path in first.folder.glob("outputs/runs/*/*/steps.*")), commands)
        first.cut()
        cut_at = time.time()
        wait_for(lambda: all(ended(host.folder) for host in hosts), commands)
        wait_for(lambda: all("error: rank" in command.said() for command in commands), commands)
        said = [command.said() for command in commands]
    for host, own, other, peers in ((first, said[0], "h1", "23"), (second, said[1], "h0", "01")):
        [attempt] = attempts_of(host.folder)
        status = read_status(attempt)
        assert status["status"] == "failed"
        assert re.search(rf"rank \d on {host.name}.* rank [{peers}] on {other}", status["message"])
        assert status["ended"] - cut_at < TIMEOUT_S + 90
        assert f"the rows of ranks 2, 3 stay on h1 in {second.folder}" in status["message"]
        assert status["message"] in own
    assert read_rows(attempt, 2)
    assert not read_rows(attempt, 0)


def wait_for(condition, commands) -> None:
    until(condition, lambda: "".join(command.said() for command in commands))


def ended(folder: Path) -> bool:
    return any("ended" in read(path) for path in folder.glob("outputs/runs/*/*/status.json"))
