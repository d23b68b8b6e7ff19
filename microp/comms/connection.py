"""The TCP connections of a rank: how the ranks of a launch find each other, and the messages between two of them.

Of two ranks the higher one connects. The lower one listens only meanwhile, and takes only those who send the token that
it has given to the ranks of the launch. Whatever others send costs at most the time limit.

::

    sender     │ tag │ bytes │ data │ ── sendmsg ──► the system's buffers ── recv_into ──► mailbox     receiver
               └─ 16 bytes ──┘                       what does not fit waits for `push`

A message is read into its mailbox. No call on a connection waits: a message that the system's buffers do not take whole
keeps its tensor, and `push` sends the rest later.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from hmac import compare_digest
from secrets import token_bytes
from struct import Struct
from typing import Any

_TOKEN = 16  # bytes
_HELLO = Struct(f"<{_TOKEN}sq")  # the token of the rank that listens, and the rank that connects
_HELLO_S = 2.0  # the longest time for it: ranks send it at once
_HEADER = Struct("<qq")  # the tag, and the number of bytes of the data
BUFFER = 1 << 20  # bytes that are asked for in each direction; the system may give less


@dataclass(slots=True)
class Mailbox:
    """The place of a received message."""

    place: memoryview
    came: int | None = None  # the number of bytes that have come


@dataclass(slots=True)
class Unsent:
    """A message of which the system has not taken all."""

    rest: list[memoryview]  # what it has not taken
    owner: object  # of the memory


class Connection:
    """One rank's end of a connection, whose socket it closes; messages call the other rank `peer`."""

    def __init__(self, stream: socket.socket, peer: str) -> None:
        stream.setblocking(False)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream, self._peer = stream, peer
        self.fileno, self.close = stream.fileno, stream.close
        self.mailboxes: dict[int, Mailbox] = {}  # tag -> the mailbox of the messages that come from the other rank
        self._unsent: deque[Unsent] = deque()
        self._header = memoryview(bytearray(_HEADER.size))
        self._rest = self._header  # where the next bytes go
        self._filling: Mailbox | None = None  # the mailbox to which they belong; None if to the header
        self._nbytes = 0  # of the message in it

    @property
    def has_unsent(self) -> bool:
        """Whether `push` has something to send."""
        return bool(self._unsent)

    def send(self, header: bytes, data: Any, owner: object) -> Unsent | None:
        """Send a message, whose memory `owner` keeps; return it if the system did not take all of it.

        Raises:
            ConnectionError: the other rank has ended.
        """
        message = Unsent([memoryview(header), memoryview(data)], owner)
        self._unsent.append(message)
        if len(self._unsent) == 1:
            self.push()
        return message if message.rest else None

    def push(self) -> None:
        """Send as much as the system takes of what it has not taken yet.

        Raises:
            ConnectionError: the other rank has ended.
        """
        while self._unsent:
            message = self._unsent[0]
            try:
                count = self._stream.sendmsg(message.rest)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._lost() from error
            message.rest = _without(message.rest, count)
            if message.rest:
                return
            self._unsent.popleft()

    def read(self) -> None:
        """Read all that has come into the mailboxes; after the last of it, the next call raises if the rank has ended.

        Raises:
            ConnectionError: the other rank has ended, or sent what no mailbox is for.
        """
        has_come = False
        while True:
            try:
                count = self._stream.recv_into(self._rest)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._lost() from error
            if count == 0:
                if has_come:
                    return
                raise self._lost()
            has_come = True
            self._rest = self._rest[count:]
            if len(self._rest) == 0:
                self._next()

    def _next(self) -> None:
        """Go on to the data after a header, to the next header after the data."""
        if self._filling is None:
            tag, self._nbytes = _HEADER.unpack(self._header)
            box = self.mailboxes.get(tag)
            if box is None or not 0 <= self._nbytes <= len(box.place):
                raise ConnectionError(
                    f"{self._peer} sent {self._nbytes} bytes with tag {tag}, which has no such mailbox"
                )
            self._filling, self._rest = box, box.place[: self._nbytes]
            if self._nbytes:
                return
        self._filling.came = self._nbytes
        self._filling, self._rest = None, self._header

    def _lost(self) -> ConnectionError:
        return ConnectionError(f"lost {self._peer}: the connection was closed")


def header(tag: int, nbytes: int) -> bytes:
    """Return what is sent before the data of a message."""
    return _HEADER.pack(tag, nbytes)


def _without(parts: Sequence[memoryview], count: int) -> list[memoryview]:
    """Return what is left after the first `count` bytes."""
    left = []
    for part in parts:
        if count < part.nbytes:
            left.append(part[count:])
        count = max(count - part.nbytes, 0)
    return left


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
    callers = {peer: names[peer] for peer in peers if peer > rank}
    with ExitStack() as stack:
        listener, card, token = None, None, token_bytes(_TOKEN)
        if callers:
            listener = stack.enter_context(closing(_new_socket(address)))
            listener.bind((address, 0))
            listener.listen(len(callers) + 16)  # others may connect as well
            card = [address, listener.getsockname()[1], token.hex()]
        cards = all_gather(card)
        streams = {peer: _call(cards[peer], rank, names[peer], timeout_s) for peer in sorted({*peers} - {*callers})}
        if listener is not None:
            streams |= _answer(listener, token, callers, timeout_s)
    return {peer: Connection(stream, names[peer]) for peer, stream in streams.items()}


def _new_socket(address: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # before the connection is made, which depends on them
        made.setsockopt(socket.SOL_SOCKET, option, BUFFER)
    return made


def _call(card: tuple[str, int, str], rank: int, name: str, timeout_s: float) -> socket.socket:
    """Return a connection to the rank that listens where its card says."""
    address, port, token = card
    stream = _new_socket(address)
    stream.settimeout(timeout_s)
    try:
        stream.connect((address, port))
        stream.sendall(_HELLO.pack(bytes.fromhex(token), rank))
    except OSError as error:
        stream.close()
        if isinstance(error, TimeoutError):
            raise TimeoutError(f"waited {timeout_s:g} s for {name}") from error
        raise ConnectionError(f"lost {name}: it does not answer at {address}:{port}") from error
    return stream


def _answer(
    listener: socket.socket, token: bytes, awaited: Mapping[int, str], timeout_s: float
) -> dict[int, socket.socket]:
    """Return the connections of the awaited ranks (rank -> name), which send the token; close all others."""
    streams: dict[int, socket.socket] = {}
    give_up = time.monotonic() + timeout_s
    while missing := awaited.keys() - streams.keys():
        try:
            listener.settimeout(max(give_up - time.monotonic(), 1e-3))
            stream, _ = listener.accept()
        except TimeoutError as error:
            raise TimeoutError(f"waited {timeout_s:g} s for {awaited[min(missing)]}") from error
        said, rank = _hello(stream)
        if compare_digest(said, token) and rank in missing:
            streams[rank] = stream
        else:
            stream.close()
    return streams


def _hello(stream: socket.socket) -> tuple[bytes, int]:
    """Return the token and the rank that one who has connected sends; no token if it sends something else."""
    stream.settimeout(_HELLO_S)
    hello = b""
    with suppress(OSError):  # it has gone again, or sends nothing
        while len(hello) < _HELLO.size and (came := stream.recv(_HELLO.size - len(hello))):
            hello += came
    return _HELLO.unpack(hello) if len(hello) == _HELLO.size else (b"", -1)
