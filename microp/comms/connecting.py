"""The TCP connections of a rank are made: the ranks of a launch find each other, and others are turned away.

Of two ranks the higher one connects. The lower one listens only meanwhile, and takes only those who send the token that
it has given to the ranks of the launch. Whatever others send, and however many come, costs at most the time limit.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from hmac import compare_digest
from secrets import token_bytes
from struct import Struct
from typing import Any

from microp.comms.connection import Connection

_TOKEN = 16  # bytes
_HELLO = Struct(f"<{_TOKEN}sq")  # the token of the rank that listens, and the rank that connects
_MOST_UNKNOWN = 64  # connections that have not said yet who they are
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # a connection that is closed makes room
BUFFER = 1 << 20  # bytes that are asked for in each direction; the system may give less


def open_connections(
    rank: int,
    peers: Collection[int],
    names: Sequence[str],
    address: str,
    all_gather: Callable[[Any], list[Any]],
    timeout_s: float,
) -> dict[int, Connection]:
    """Return rank -> the connection to it, for each of `peers`; all ranks call this together.

    Args:
        rank: this rank.
        peers: the ranks to which it has no connection yet, and which have this rank among theirs.
        names: how messages name each rank.
        address: the address at which the others reach this rank.
        all_gather: returns the value of every rank.
        timeout_s: the longest wait for another rank, in seconds.

    Raises:
        TimeoutError, ConnectionError: another rank did not connect.
    """
    callers = {peer for peer in peers if peer > rank}
    with ExitStack() as stack:
        listener, card, token = None, None, token_bytes(_TOKEN)
        if callers:
            listener = stack.enter_context(closing(_new_socket(address)))
            listener.bind((address, 0))
            listener.listen(len(callers) + 16)  # others may connect as well
            card = [address, listener.getsockname()[1], token.hex()]
        cards = all_gather(card)
        streams = {peer: _call(cards[peer], rank, names[peer], timeout_s) for peer in sorted({*peers} - callers)}
        if listener is not None:
            streams |= _answer(listener, token, {peer: names[peer] for peer in callers}, timeout_s)
    return {peer: Connection(stream, names[peer]) for peer, stream in streams.items()}


def _new_socket(address: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # before the connection is made, which depends on them
        made.setsockopt(socket.SOL_SOCKET, option, BUFFER)
    return made


def _call(card: tuple[str, int, str], rank: int, name: str, timeout_s: float) -> socket.socket:
    """Return a connection to the rank that listens where its card says."""
    address, port, token = card
    made = _new_socket(address)
    made.settimeout(timeout_s)
    try:
        made.connect((address, port))
        made.sendall(_HELLO.pack(bytes.fromhex(token), rank))
    except TimeoutError as error:
        made.close()
        raise TimeoutError(f"waited {timeout_s:g} s for {name}") from error
    except OSError as error:
        made.close()
        raise ConnectionError(f"lost {name}: it does not answer at {address}:{port}") from error
    return made


def _answer(
    listener: socket.socket, token: bytes, awaited: Mapping[int, str], timeout_s: float
) -> dict[int, socket.socket]:
    """Return the connections of the awaited ranks (rank -> name), which send the token; close all others.

    Raises:
        TimeoutError: an awaited rank has not connected in time, whoever else has.
        OSError: this process may have no further file descriptor.
    """
    found: dict[int, socket.socket] = {}
    said: dict[socket.socket, bytes] = {}  # what each of those that nobody knows yet has said, the oldest first
    give_up = time.monotonic() + timeout_s
    listener.setblocking(False)
    try:
        while missing := awaited.keys() - found.keys():
            left = give_up - time.monotonic()
            ready = _ready([*said, listener], left) if left > 0 else []
            if not ready:
                raise TimeoutError(f"waited {timeout_s:g} s for {awaited[min(missing)]}")
            for each in ready:
                if each is listener:  # the last, so that no other one of them has been closed
                    _accept(listener, said)
                    continue
                said[each] += (came := _received(each, _HELLO.size - len(said[each])))
                if came and len(said[each]) < _HELLO.size:
                    continue
                hello = said.pop(each)
                token_said, rank = _HELLO.unpack(hello) if len(hello) == _HELLO.size else (b"", -1)
                if compare_digest(token_said, token) and rank in awaited and rank not in found:
                    found[rank] = each
                else:
                    each.close()
    finally:
        for each in said:
            each.close()
    return found


def _ready(sockets: Sequence[socket.socket], seconds: float) -> list[socket.socket]:
    """Return those of the sockets, in their order, that have something to read, after at most this time."""
    poller, by_number = select.poll(), {each.fileno(): each for each in sockets}
    for number in by_number:
        poller.register(number, select.POLLIN)
    numbers = {number for number, _ in poller.poll(seconds * 1e3)}
    return [each for number, each in by_number.items() if number in numbers]


def _accept(listener: socket.socket, unknown: dict[socket.socket, bytes]) -> None:
    """Add the next connection to those that nobody knows yet; where there is no room for it, close the oldest.

    Raises:
        OSError: this process may have no further file descriptor, and none is unknown.
    """
    try:
        came, _ = listener.accept()
    except OSError as error:
        if error.errno not in _NO_ROOM:
            return  # it has gone again
        if not unknown:
            raise
        _close_oldest(unknown)  # the next call finds it still waiting
        return
    unknown[came] = b""
    if len(unknown) > _MOST_UNKNOWN:
        _close_oldest(unknown)


def _close_oldest(unknown: dict[socket.socket, bytes]) -> None:
    oldest = next(iter(unknown))
    del unknown[oldest]
    oldest.close()


def _received(stream: socket.socket, count: int) -> bytes:
    """Return at most `count` bytes of a connection that has some; none if it has been closed."""
    try:
        return stream.recv(count)
    except OSError:
        return b""
