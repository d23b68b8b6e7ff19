"""A launch over two hosts, which are namespaces of this machine: the same run as on one host, and its end if cut."""

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hosts import CLOCK_S, NAMES, two_hosts
from user import SMALL, Inside, ran, read, until

from microp.records import check_attempt, clocks_text, read_rows, read_schedule, read_spans, read_status, read_summary

WORDS = [*SMALL, "schedule=1f1b", "ranks=4", "chunks=4", "tracking=disabled"]
TIMEOUT_S = 15  # a busy machine may take seconds to bring all ranks to their meeting


@contextmanager
def launched(hosts, *words: str) -> Iterator[list[Inside]]:
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
