"""Writes files whole or not at all, and says in one line why a file cannot be written.

::

    write_text   draft ── whole ──► replaces the file      ── fails ──► draft removed, WriteError
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from microp.settings import quoted
from microp.system import KIB

_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some room, or choose another output_dir"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit, for example with ulimit -n 4096"),
}
_SMALL = 16 * KIB  # bytes: an error with its traceback, a status
_LONGEST = 300  # characters of what an error says
_UNEXPECTED = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)


class WriteError(OSError):
    """A file cannot be written, for a reason that the next run would meet too; the message names path and remedy."""


def unwritable(path: Path, error: OSError) -> WriteError:
    """Return the error that tells why a file cannot be written, and what to do."""
    remedy = _REMEDIES.get(error.errno or 0, "make it writable, or choose another output_dir")
    reason = f"{path} cannot be written ({error.strerror or error})"
    return WriteError(f"{reason}: {remedy}; the same command then goes on")


def full_disk(path: Path) -> WriteError | None:
    """Return the error of a path if there is no room for some KiB there, or None if there is."""
    there = next(folder for folder in path.absolute().parents if folder.is_dir())
    if shutil.disk_usage(there).free >= _SMALL:
        return None
    return unwritable(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def in_a_line(error: OSError) -> str:
    """Return what the system refused as one line with the path and the remedy."""
    if isinstance(error, WriteError):
        return str(error)
    if error.errno in _REMEDIES or error.filename is not None:
        return str(unwritable(Path(os.fsdecode(error.filename or "a file or a pipe")), error))
    return " ".join(str(error.strerror or error).split()) or type(error).__name__


def in_words(error: BaseException) -> str:
    """Return an error as one line; the text of one that nobody raised on purpose says little without its type."""
    text, name = " ".join(str(error).split()), type(error).__name__
    if isinstance(error, MemoryError):
        return f"out of memory{f' ({text})' if text else ''}"
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
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):  # there may be none
            draft.unlink()
        raise unwritable(path, error) from error
