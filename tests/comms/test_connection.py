"""A TCP connection between two ranks: frames, what the system does not take at once, ends, and strangers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from random import Random

import pytest
from threads import in_threads

from microp.comms import connection as connection_module
from microp.comms import hosts as hosts_module
from microp.comms.connection import Connection, Mailbox, header, open_connections
from microp.comms.hosts import Hosts, listening_address, one_host

LOOPBACK = "127.0.0.1"
NAMES = ["rank 0", "rank 1", "rank 2"]


def connect(comms, all_gather: Callable | None = None, timeout_s: float = 10) -> dict[int, Connection] | str:
    """A rank's connections to all others, or what it says if they cannot be made."""
    peers = set(range(comms.world_size)) - {comms.rank}
    try:
        return open_connections(comms.rank, peers, NAMES, LOOPBACK, all_gather or comms.all_gather, timeout_s)
    except (TimeoutError, ConnectionError) as error:
        return str(error)


@pytest.fixture
def pair() -> Iterator[tuple[Connection, Connection]]:
    first, second = (found[1 - rank] for rank, found in enumerate(in_threads(2, connect)))
    yield first, second
    first.close()
    second.close()


def boxes(connection: Connection, sizes: list[int]) -> list[bytearray]:
    """The places of mailboxes with the tags 0, 1, ..."""
    places = [bytearray(size) for size in sizes]
    connection.mailboxes = {tag: Mailbox(memoryview(place)) for tag, place in enumerate(places)}
    return places


def send(connection: Connection, tag: int, data: bytes):
    return connection.send(header(tag, len(data)), data, data)


def run_until(is_done: Callable[[], bool], *ends: Connection) -> None:
    for _ in range(1_000_000):
        for end in ends:
            end.read()
            end.push()
        if is_done():
            return
    raise AssertionError("it does not come")


def test_messages_come_into_the_mailboxes_of_their_tags(pair):
    first, second = pair
    places = boxes(second, [3, 5, 4])
    for tag, data in ((2, b"last"), (0, b"one"), (1, b"")):
        assert send(first, tag, data) is None
    run_until(lambda: second.mailboxes[1].came is not None, second)
    assert [bytes(place) for place in places] == [b"one", bytes(5), b"last"]
    assert [second.mailboxes[tag].came for tag in range(3)] == [3, 0, 4]


def test_both_ends_send_what_the_system_does_not_take(monkeypatch):
    """Messages in both directions, of which none is read before all are sent."""
    monkeypatch.setattr(connection_module, "BUFFER", 4096)
    ends = [found[1 - rank] for rank, found in enumerate(in_threads(2, connect))]
    random = Random(0)
    sent = [[random.randbytes(size) for size in (0, 1, 200_000, 7, 400_000, 0, 3)] for _ in ends]
    places = [boxes(end, [len(data) for data in theirs]) for end, theirs in zip(ends, reversed(sent), strict=True)]
    left = [[send(end, tag, data) for tag, data in enumerate(mine)] for end, mine in zip(ends, sent, strict=True)]
    assert all(end.has_unsent for end in ends)
    assert all(message is not None and message.rest for message in (own[-1] for own in left))
    run_until(lambda: all(end.mailboxes[6].came is not None for end in ends), *ends)
    assert [[bytes(place) for place in own] for own in places] == sent[::-1]
    assert not any(end.has_unsent for end in ends)
    assert not any(message.rest for own in left for message in own if message is not None)
    for end in ends:
        end.close()


def test_the_end_of_a_rank_is_seen(pair):
    first, second = pair
    [place] = boxes(second, [3])
    send(first, 0, b"abc")
    first.close()
    with pytest.raises(ConnectionError, match="^lost rank 0: the connection was closed$"):
        run_until(lambda: False, second)
    assert bytes(place) == b"abc"  # what was sent before it has come
    with pytest.raises(ConnectionError, match="^lost rank 0: the connection was closed$"):
        all(send(second, 0, b"abc") is None for _ in range(1000))


@pytest.mark.parametrize(
    ("tag", "data", "said"),
    [
        (5, b"abc", "rank 0 sent 3 bytes with tag 5, which has no such mailbox"),
        (0, b"abcd", "rank 0 sent 4 bytes with tag 0, which has no such mailbox"),
    ],
)
def test_what_was_not_announced_is_refused(pair, tag, data, said):
    first, second = pair
    boxes(second, [3])
    send(first, tag, data)
    with pytest.raises(ConnectionError, match=f"^{said}$"):
        run_until(lambda: False, second)


def test_strangers_are_turned_away():
    """They come before rank 1: one says nothing, one too little, one the wrong token, one another rank."""
    strangers: list[socket.socket] = []

    def gather(comms, value):
        cards = comms.all_gather(value)
        if comms.rank == 0:
            _, port, token = cards[0]
            hello = connection_module._HELLO
            said = [b"", b"microp", hello.pack(bytes(16), 1), hello.pack(bytes.fromhex(token), 7), b""]
            for words in said:
                strangers.append(socket.create_connection((LOOPBACK, port)))
                strangers[-1].sendall(words)
            strangers.pop().close()
        comms.barrier()
        return cards

    first, second = in_threads(2, lambda comms: connect(comms, partial(gather, comms)))
    [place] = boxes(second[0], [5])
    send(first[1], 0, b"hello")
    run_until(lambda: second[0].mailboxes[0].came is not None, second[0])
    assert bytes(place) == b"hello"
    for stranger in strangers:
        stranger.settimeout(10)
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        stranger.close()
    first[1].close()
    second[0].close()


def test_a_rank_that_does_not_connect_is_named():
    def gather(comms, value):
        cards = comms.all_gather(value)
        if comms.rank == 1:
            raise TimeoutError("it does not go on")
        return cards

    found = in_threads(2, lambda comms: connect(comms, partial(gather, comms), timeout_s=0.2))
    assert found[0] == "waited 0.2 s for rank 1"


def test_a_rank_that_does_not_answer_is_named():
    with socket.create_server((LOOPBACK, 0)) as closed:
        port = closed.getsockname()[1]

    def gather(comms, value):
        return [[LOOPBACK, port, "00" * 16] if card else None for card in comms.all_gather(value)]

    found = in_threads(2, lambda comms: connect(comms, partial(gather, comms), timeout_s=0.2))
    assert found[1] == f"lost rank 0: it does not answer at {LOOPBACK}:{port}"


@pytest.mark.skipif(not hosts_module._IPV6.exists(), reason="addresses of interfaces are read from Linux")
def test_a_rank_listens_where_gloo_does(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert listening_address(one_host(2)) == LOOPBACK
    monkeypatch.setattr(hosts_module, "_ipv4_address", lambda _: None)
    if any(name == "lo" for _, name in hosts_module._ipv6_addresses()):
        assert listening_address(one_host(2)) == "::1"


def test_without_an_interface_it_listens_on_loopback_or_where_other_hosts_reach_it(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert listening_address(one_host(2)) == LOOPBACK
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert listening_address(Hosts(("h0", "h1"), (0, 1))) == LOOPBACK
