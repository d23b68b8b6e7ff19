"""Writes files whole or not at all, and says in one line why a file cannot be written.

::

    write_text   draft ── whole ──► replaces the file      ── fails ──► draft removed, WriteError
    Lines        lines ── whole ──► end of the file        ── fails ──► WriteError; readers leave a part of a line out
"""

from __future__ import annotations

import errno
import os
import re
import resource
from contextlib import suppress
from pathlib import Path

from microp.settings import quoted
from microp.system import KIB, size_text

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_SMALL = 16 * KIB  # bytes: an error with its traceback, a status
_INSTEAD = "or choose another output_dir; the same command then goes on"
_ASKED = re.compile(r"tried to allocate (\d+) bytes")
_LONGEST = 300  # characters of what an error says
_UNEXPECTED = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)


class WriteError(OSError):
    """A file cannot be written, for a reason that the next run would meet too; the message names path and remedy."""


def unwritable(path: Path, error: OSError, nbytes: int = 0) -> WriteError:
    """Return the error that tells why a file of `nbytes` cannot be written."""
    if error.errno in _FULL:
        folder = _first_folder(path)
        disk = next(parent for parent in (folder, *folder.parents) if parent.is_mount())
        room = f"{size_text(nbytes)} needed, {size_text(_free(folder))} free"
        return WriteError(f"no room in {disk} for {path} ({room}): free some, {_INSTEAD}")
    if error.errno in _NO_DESCRIPTORS:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        remedy = f"a process may have {limit}; raise it, for example ulimit -n 4096"
        return WriteError(f"too few file descriptors for {path}: {remedy}")
    return WriteError(f"{path} cannot be written ({error.strerror or error}): make it writable, {_INSTEAD}")


def full_disk(path: Path) -> WriteError | None:
    """Return the error of a path if there is no room for some KiB there, or None if there is."""
    full = _free(_first_folder(path)) < _SMALL
    return unwritable(path, OSError(errno.ENOSPC, ""), _SMALL) if full else None


def _first_folder(path: Path) -> Path:
    """Return the innermost folder of a path that exists."""
    return next(folder for folder in path.absolute().parents if folder.is_dir())


def _free(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def in_a_line(error: OSError) -> str:
    """Return what the system refused as one line with the path and the remedy."""
    if isinstance(error, WriteError):
        return str(error)
    if error.errno in _NO_DESCRIPTORS or error.filename is not None:
        return str(unwritable(Path(os.fsdecode(error.filename or "a pipe")), error))
    return " ".join(str(error.strerror or error).split()) or type(error).__name__


def in_words(error: BaseException) -> str:
    """Return an error as one line; the text of one that nobody raised on purpose says little without its type."""
    text, name = " ".join(str(error).split()), type(error).__name__
    if isinstance(error, MemoryError):
        return f"out of memory{f' ({text})' if text else ''}"
    if asked := _ASKED.search(text):  # of torch, for a CPU
        return f"out of memory ({size_text(int(asked[1]))} more were asked for)"
    if not text:
        return name
    is_long = "\n" in str(error).strip()
    says_little = is_long or isinstance(error, _UNEXPECTED) or not isinstance(error, Exception)
    text = quoted(text, _LONGEST)
    return f"{name}: {text}" if says_little else text


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: a reader never sees half of it, and a full disk leaves the old one and no draft.

    Raises:
        WriteError: it cannot be written.
    """
    draft, data = path.with_name(f".{path.name}.{os.getpid()}"), text.encode()
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):  # there may be none
            draft.unlink()
        raise unwritable(path, error, len(data)) from error


class Lines:
    """A file, made empty, to which lines are appended; each is passed to the operating system at once.

    Raises:
        WriteError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise unwritable(path, error) from error

    def add(self, text: str) -> None:
        """Append a line.

        Raises:
            WriteError: there is no room for all of it; nothing may be appended after that.
        """
        rest = data = text.encode()
        try:
            while rest:  # a disk that becomes full takes a part, and then nothing
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise unwritable(self._path, error, len(data)) from error

    def close(self) -> None:
        self._file.close()
