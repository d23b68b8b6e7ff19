"""A TCP connection between two ranks: frames, what the system does not take at once, ends, and strangers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from random import Random
from struct import pack

import pytest
from threads import in_threads

from microp.comms import connecting as connecting_module
from microp.comms import hosts as hosts_module
from microp.comms.connecting import open_connections
from microp.comms.connection import Connection, Mailbox, header
from microp.comms.hosts import Hosts, listening_address, one_host

HELLO = connecting_module._HELLO
TOKEN = bytes(range(16))
LOOPBACK = "127.0.0.1"
NAMES = ["rank 0", "rank 1", "rank 2"]
GARBAGE = {
    "nothing": b"",
    "too little": b"microp",
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "the wrong token": HELLO.pack(bytes(16), 1),
    "another rank": HELLO.pack(TOKEN, 7),
    "a huge length": b"\xff" * 1_000_000,
}


def connect(comms, all_gather: Callable | None = None, timeout_s: float = 10) -> dict[int, Connection] | str:
    """A rank's connections to all others, or what it says if they cannot be made."""
    peers = set(range(comms.world_size)) - {comms.rank}
    try:
        return open_connections(comms.rank, peers, NAMES, LOOPBACK, all_gather or comms.all_gather, timeout_s)
    except (TimeoutError, ConnectionError) as error:
        return str(error)


@pytest.fixture
def strangers() -> Iterator[list[socket.socket]]:
    found: list[socket.socket] = []
    yield found
    for each in found:
        each.close()


def listen(kind: type[socket.socket] = socket.socket) -> socket.socket:
    listener = kind()
    listener.bind((LOOPBACK, 0))
    listener.listen(64)
    return listener


def come(listener: socket.socket, words: bytes = b"") -> socket.socket:
    """A connection to the listener that sends these words, or as many as are read."""
    found = socket.create_connection(listener.getsockname())
    found.setblocking(False)
    if words:
        found.send(words)
    return found


def leave_with_a_reset(stranger: socket.socket) -> None:
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
    stranger.close()


def answer(listener: socket.socket, timeout_s: float) -> dict[int, socket.socket]:
    """The connections of rank 1, which is awaited."""
    return connecting_module._answer(listener, TOKEN, {1: "rank 1"}, timeout_s)


def answers_rank_1(listener: socket.socket, rank_1: socket.socket) -> bool:
    """Whether rank 1 is the only one that is let in."""
    [(rank, found)] = answer(listener, 10).items()
    is_it = rank == 1 and found.getpeername() == rank_1.getsockname()
    found.close()
    return is_it


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
    monkeypatch.setattr(connecting_module, "BUFFER", 4096)
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


@pytest.mark.parametrize("leave", [socket.socket.close, leave_with_a_reset])
@pytest.mark.parametrize("words", [header(0, 5)[:7], header(0, 5), header(0, 5) + b"ab"])
def test_a_rank_that_dies_within_a_message_is_named(words, leave):
    with listen() as listener:
        other = come(listener)
        stream, _ = listener.accept()
    with closing(Connection(stream, "rank 0")) as connection:
        boxes(connection, [5])
        other.sendall(words)
        leave(other)
        with pytest.raises(ConnectionError, match="^lost rank 0: the connection was closed$"):
            run_until(lambda: connection.mailboxes[0].came is not None, connection)


@pytest.mark.parametrize(("tag", "nbytes"), [(5, 3), (0, 4), (0, 2**62), (0, -1)])
def test_what_was_not_announced_is_refused(pair, tag, nbytes):
    first, second = pair
    boxes(second, [3])
    first.send(header(tag, nbytes), b"abcd", None)
    said = f"^rank 0 sent {nbytes} bytes with tag {tag}, which has no such mailbox$"
    with pytest.raises(ConnectionError, match=said):
        run_until(lambda: False, second)


@pytest.mark.parametrize("leave", [None, socket.socket.close, leave_with_a_reset])
def test_strangers_who_come_before_a_rank_are_turned_away(strangers, leave):
    with listen() as listener:
        strangers += [come(listener, words) for words in GARBAGE.values()]
        if leave is not None:
            for each in strangers:
                leave(each)
        with come(listener, HELLO.pack(TOKEN, 1)) as rank_1:
            assert answers_rank_1(listener, rank_1)
    for each in strangers if leave is None else []:
        each.settimeout(10)
        with suppress(ConnectionResetError):
            assert each.recv(1) == b""


def test_the_first_connection_of_a_rank_counts():
    with listen() as listener, come(listener, HELLO.pack(TOKEN, 1)) as rank_1, come(listener, HELLO.pack(TOKEN, 1)):
        assert answers_rank_1(listener, rank_1)


class BusyListener(socket.socket):
    """There is always a further stranger who waits for an answer, and leaves before it."""

    def accept(self):
        come(self).close()
        return super().accept()


class AbortedListener(socket.socket):
    """Every second connection has gone again before it is accepted."""

    count = 0

    def accept(self):
        found = super().accept()
        self.count += 1
        if self.count % 2:
            found[0].close()
            raise ConnectionAbortedError
        return found


def test_strangers_who_keep_coming_do_not_keep_a_rank_waiting():
    with listen(BusyListener) as listener:
        with come(listener), pytest.raises(TimeoutError, match=r"^waited 0\.05 s for rank 1$"):
            answer(listener, 0.05)
        with come(listener), come(listener, HELLO.pack(TOKEN, 1)) as rank_1:
            assert answers_rank_1(listener, rank_1)


def test_connections_that_have_gone_before_they_are_accepted_are_left_out():
    with listen(AbortedListener) as listener, come(listener), come(listener, HELLO.pack(TOKEN, 1)) as rank_1:
        assert answers_rank_1(listener, rank_1)


def test_a_rank_that_dies_before_it_has_said_who_it_is_is_named():
    with listen() as listener:
        come(listener, HELLO.pack(TOKEN, 1)[:-1]).close()
        with pytest.raises(TimeoutError, match=r"^waited 0\.2 s for rank 1$"):
            answer(listener, 0.2)


def test_a_stranger_at_the_port_of_a_rank_does_not_change_what_comes(strangers):
    def gather(comms, value):
        cards = comms.all_gather(value)
        if comms.rank == 0:
            strangers.append(socket.create_connection(tuple(cards[0][:2])))
            strangers[0].sendall(GARBAGE["another protocol"])
        comms.barrier()
        return cards

    first, second = in_threads(2, lambda comms: connect(comms, partial(gather, comms)))
    [place] = boxes(second[0], [5])
    send(first[1], 0, b"hello")
    run_until(lambda: second[0].mailboxes[0].came is not None, second[0])
    assert bytes(place) == b"hello"
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
