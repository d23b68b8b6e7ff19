"""The TCP connections of a rank are made: the ranks of a launch find each other, and others are turned away.

Of two ranks the higher one connects. The lower one listens only meanwhile, and takes only those who send the token that
it has given to the ranks of the launch. Whatever others send costs at most the time limit.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from hmac import compare_digest
from secrets import token_bytes
from struct import Struct
from typing import Any

from microp.comms.connection import Connection

_TOKEN = 16  # bytes
_HELLO = Struct(f"<{_TOKEN}sq")  # the token of the rank that listens, and the rank that connects
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

    The peers have no connection with this rank yet, and have it among theirs. They reach it at `address`, and messages
    call them by their `names`; `timeout_s` is the longest wait for one of them.

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
    """
    found: dict[int, socket.socket] = {}
    said: dict[socket.socket, bytes] = {}  # what each of those that nobody knows yet has said
    give_up = time.monotonic() + timeout_s
    listener.setblocking(False)
    try:
        while missing := awaited.keys() - found.keys():
            left = give_up - time.monotonic()
            ready = select.select([*said, listener], [], [], left)[0] if left > 0 else []
            if not ready:
                raise TimeoutError(f"waited {timeout_s:g} s for {awaited[min(missing)]}")
            for each in ready:
                if each is listener:
                    with suppress(BlockingIOError, ConnectionError):  # it has gone again
                        said[listener.accept()[0]] = b""
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


def _received(stream: socket.socket, count: int) -> bytes:
    """Return at most `count` bytes of a connection that has some; none if it has been closed."""
    try:
        return stream.recv(count)
    except OSError:
        return b""
