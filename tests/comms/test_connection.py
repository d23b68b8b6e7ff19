"""A TCP connection between two ranks: frames, what the system does not take at once, ends, and strangers."""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from random import Random
from struct import pack

import pytest
from threads import in_threads

from microp.comms import Hosts, connection, one_host
from microp.comms.connection import Connection, Mailbox, header, open_connections
from microp.comms.hosts import listening_address

LOOPBACK = "127.0.0.1"
NAMES = ["rank 0", "rank 1", "rank 2"]


def connect(comms, all_gather: Callable | None = None, timeout_s: float = 10) -> dict[int, Connection] | str:
    """A rank's connections to all others, or what it says if they cannot be made."""
    peers = set(range(comms.world_size)) - {comms.rank}
    try:
        return open_connections(comms.rank, peers, NAMES, LOOPBACK, all_gather or comms.all_gather, timeout_s)
    except (TimeoutError, ConnectionError) as error:
        return str(error)


def leave_with_a_reset(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
    end.close()


@pytest.fixture
def pair() -> Iterator[tuple[Connection, Connection]]:
    first, second = (made[1 - rank] for rank, made in enumerate(in_threads(2, connect)))
    yield first, second
    first.close()
    second.close()


def boxes(end: Connection, sizes: list[int]) -> list[bytearray]:
    places = [bytearray(size) for size in sizes]
    end.mailboxes = {tag: Mailbox(memoryview(place)) for tag, place in enumerate(places)}
    return places


def send(end: Connection, tag: int, data: bytes):
    return end.send(header(tag, len(data)), data, data)


def run_until(is_done: Callable[[], bool], *ends: Connection) -> None:
    for _ in range(1_000_000):
        for end in ends:
            end.read()
            end.push()
        if is_done():
            return
    raise AssertionError("it does not come")


def test_both_ends_send_what_the_system_does_not_take(monkeypatch):
    monkeypatch.setattr(connection, "BUFFER", 4096)
    ends = [made[1 - rank] for rank, made in enumerate(in_threads(2, connect))]
    random = Random(0)
    sent = [[random.randbytes(size) for size in (0, 1, 200_000, 7, 400_000, 0, 3)] for _ in ends]
    places = [boxes(end, [len(data) for data in theirs]) for end, theirs in zip(ends, reversed(sent), strict=True)]
    left = [[send(end, tag, data) for tag, data in enumerate(mine)] for end, mine in zip(ends, sent, strict=True)]
    assert all(end.has_unsent for end in ends)
    assert all(unsent[-1].rest for unsent in left)
    run_until(lambda: all(end.mailboxes[6].came is not None for end in ends), *ends)
    assert [[bytes(place) for place in received] for received in places] == sent[::-1]
    assert not any(end.has_unsent for end in ends)
    assert not any(message.rest for unsent in left for message in unsent if message is not None)
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
    with socket.create_server((LOOPBACK, 0)) as listener:
        other = socket.create_connection(listener.getsockname())
        stream, _ = listener.accept()
    with closing(Connection(stream, "rank 0")) as end:
        boxes(end, [5])
        other.sendall(words)
        leave(other)
        with pytest.raises(ConnectionError, match="^lost rank 0: the connection was closed$"):
            run_until(lambda: end.mailboxes[0].came is not None, end)


@pytest.mark.parametrize(("tag", "nbytes"), [(5, 3), (0, 4), (0, 2**62), (0, -1)])
def test_what_was_not_announced_is_refused(pair, tag, nbytes):
    first, second = pair
    boxes(second, [3])
    first.send(header(tag, nbytes), b"abcd", None)
    said = f"^rank 0 sent {nbytes} bytes with tag {tag}, which has no such mailbox$"
    with pytest.raises(ConnectionError, match=said):
        run_until(lambda: False, second)


@pytest.mark.parametrize("leave", [None, socket.socket.close, leave_with_a_reset])
def test_strangers_who_come_before_a_rank_are_turned_away(leave, monkeypatch):
    monkeypatch.setattr(connection, "_HELLO_S", 0.1)
    strangers: list[socket.socket] = []

    def gather(comms, value):
        cards = comms.all_gather(value)
        if comms.rank == 0:
            address, port, token = cards[0]
            garbage = [b"", b"microp", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\xff" * 100_000]
            garbage += [bytes(16) + pack("<q", 1), bytes.fromhex(token) + pack("<q", 7)]
            for words in garbage:
                strangers.append(socket.create_connection((address, port)))
                strangers[-1].setblocking(False)
                strangers[-1].send(words)
                if leave is not None:
                    leave(strangers[-1])
        comms.barrier()
        return cards

    first, second = in_threads(2, lambda comms: connect(comms, partial(gather, comms)))
    [place] = boxes(second[0], [5])
    send(first[1], 0, b"hello")
    run_until(lambda: second[0].mailboxes[0].came is not None, second[0])
    assert bytes(place) == b"hello"
    for stranger in strangers if leave is None else []:
        stranger.settimeout(10)
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    for end in (first[1], second[0], *strangers):
        end.close()


def test_a_rank_that_does_not_connect_or_answer_is_named():
    with socket.create_server((LOOPBACK, 0)) as closed:
        port = closed.getsockname()[1]

    def silent(comms, value):
        cards = comms.all_gather(value)
        if comms.rank == 1:
            raise TimeoutError("it does not go on")
        return cards

    def away(comms, value):
        return [[LOOPBACK, port, "00" * 16] if card else None for card in comms.all_gather(value)]

    said = [
        in_threads(2, lambda comms, gather=gather: connect(comms, partial(gather, comms), timeout_s=0.2))
        for gather in (silent, away)
    ]
    assert said[0][0] == "waited 0.2 s for rank 1"
    assert said[1][1] == f"lost rank 0: it does not answer at {LOOPBACK}:{port}"


def test_where_a_rank_listens(monkeypatch):
    several = Hosts(("h0", "h1"), (0, 1))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert listening_address(several) == LOOPBACK
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert listening_address(one_host(2)) == LOOPBACK
    assert listening_address(several) in (LOOPBACK, "::1")  # from which it reaches the first host
