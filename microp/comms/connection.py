"""A TCP connection between two ranks: messages in both directions, each of which is read into its mailbox.

::

    sender     │ tag │ bytes │ data │ ── sendmsg ──► the system's buffers ── recv_into ──► mailbox     receiver
               └─ 16 bytes ──┘                       what does not fit waits for `push`

No call waits. A message that the system's buffers do not take whole keeps its tensor, and `push` sends the rest later.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Any

_HEADER = Struct("<qq")  # the tag, and the number of bytes of the data


class Mailbox:
    """The place of a received message."""

    __slots__ = ("came", "place")

    def __init__(self, place: memoryview) -> None:
        self.place = place
        self.came: int | None = None  # the number of bytes that have come


class Unsent:
    """A message of which the system has not taken all."""

    __slots__ = ("_owner", "rest")

    def __init__(self, rest: list[memoryview], owner: object) -> None:
        self.rest = rest  # what it has not taken
        self._owner = owner  # of the memory


class Connection:
    """One rank's end of a connection.

    Args:
        stream: the connected socket; this object closes it.
        peer: what messages call the other rank.

    Attributes:
        mailboxes: tag -> the mailbox of the messages that come from the other rank.
    """

    def __init__(self, stream: socket.socket, peer: str) -> None:
        stream.setblocking(False)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream, self._peer = stream, peer
        self.mailboxes: dict[int, Mailbox] = {}
        self._unsent: deque[Unsent] = deque()
        self._header = memoryview(bytearray(_HEADER.size))
        self._rest = self._header  # where the next bytes go
        self._filling: Mailbox | None = None  # the mailbox to which they belong; None if to the header
        self._nbytes = 0  # of the message in it

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether `push` has something to send."""
        return bool(self._unsent)

    def send(self, header: bytes, data: Any, owner: object) -> Unsent | None:
        """Send a message; return it if the system did not take all of it.

        Args:
            header: the `header` of the message.
            data: the memory with the data.
            owner: an object that keeps this memory.

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

    def close(self) -> None:
        self._stream.close()


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
