"""Writes files whole or not at all, and says in one line why a file cannot be written.

::

    write_text   draft ── whole ──► replaces the file      ── fails ──► draft removed, WriteError
    Lines        lines ── whole ──► end of the file        ── fails ──► cut off again, WriteError
    Reserve      room that was taken at the start of a run: the error is recorded even if the disk is full by then
"""

from __future__ import annotations

import errno
import json
import os
import re
import resource
from contextlib import suppress
from pathlib import Path

import yaml

from microp.settings import KIB, quoted, size_text

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_SMALL = 16 * KIB  # bytes: an error with its traceback, a status
AGAIN = "the same command then goes on"
OTHER_FOLDER = f"or choose another output_dir; {AGAIN}"
_ASKED = re.compile(r"tried to allocate (\d+) bytes")
_LONGEST = 300  # characters of what an error says
_UNEXPECTED = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)


class WriteError(OSError):
    """A file cannot be written, for a reason that the next run would meet too; the message names path and remedy.

    Attributes:
        no_room: whether the reason is a full disk.
    """

    def __init__(self, message: str, no_room: bool = False) -> None:
        super().__init__(message)
        self.no_room = no_room


def unwritable(path: Path, error: OSError, nbytes: int = 0, instead: str = OTHER_FOLDER) -> WriteError:
    """Return the error that tells why a file cannot be written.

    Args:
        path: the file.
        error: what the system said.
        nbytes: the size of what was to be written.
        instead: the remedy if neither room nor permission can be had.
    """
    return WriteError(_why(path, error, nbytes, instead), error.errno in _FULL)


def in_a_line(error: OSError) -> str:
    """Return what the system refused as one line with the path and the remedy."""
    if isinstance(error, WriteError):
        return str(error)
    if error.errno in _NO_DESCRIPTORS or error.filename is not None:
        return _why(Path(os.fsdecode(error.filename or "a pipe")), error, 0, OTHER_FOLDER)
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


def _why(path: Path, error: OSError, nbytes: int, instead: str) -> str:
    if error.errno in _NO_DESCRIPTORS:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"too few file descriptors for {path}: a process may have {limit}; raise it, for example ulimit -n 4096"
    if error.errno not in _FULL:
        closed = error.errno in (errno.EACCES, errno.EPERM)  # one cannot ask what is in such a folder
        is_dead = not closed and path.is_symlink() and not path.exists()
        reason = "a link to nothing" if is_dead else error.strerror or str(error)
        return f"{path} cannot be written ({reason}): make it writable, {instead}"
    there = _first_folder(path)
    disk = next(each for each in (there, *there.parents) if each.is_mount())
    room = os.statvfs(there)
    needed, free = size_text(nbytes), size_text(room.f_bavail * room.f_frsize)
    if room.f_files and not room.f_favail:
        free = "no more files"
    return f"no room in {disk} for {path} ({needed} needed, {free} free): free some, {instead}"


def _first_folder(path: Path) -> Path:
    """Return the innermost folder of a path that exists."""
    return next(each for each in path.absolute().parents if each.is_dir())


def full_disk(path: Path, instead: str = OTHER_FOLDER, nbytes: int = _SMALL) -> WriteError | None:
    """Return the error of a path if there is no room for `nbytes` there, or None if there is; `instead` as above."""
    room = os.statvfs(_first_folder(path))
    if room.f_bavail * room.f_frsize >= nbytes:
        return None
    return unwritable(path, OSError(errno.ENOSPC, ""), nbytes, instead)


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
    """A file to which whole lines are appended; each is passed to the operating system at once.

    Args:
        path: the file, which is emptied.

    Raises:
        WriteError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, 0
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise unwritable(path, error) from error

    def add(self, text: str) -> None:
        """Append text.

        Raises:
            WriteError: there is no room for all of it; the file is as before.
        """
        data = text.encode()
        try:
            written = 0
            while written < len(data):  # a disk that becomes full takes a part, and then nothing
                written += self._file.write(data[written:])
        except OSError as error:
            self._file.seek(self._size)
            self._file.truncate()
            raise unwritable(self._path, error, len(data)) from error
        self._size += len(data)

    def close(self) -> None:
        self._file.close()


class Reserve:
    """Room in a folder for one small file that must be written even if the disk is full by then.

    It is a file without a name, so that nothing of it is left if the process is killed. Where the file system has no
    such files, nothing is reserved.

    Args:
        folder: where the file will be.
        nbytes: its largest size.

    Raises:
        WriteError: there is no room for it.
    """

    def __init__(self, folder: Path, nbytes: int = _SMALL) -> None:
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
            os.posix_fallocate(self._descriptor, 0, nbytes)
        except (OSError, AttributeError) as error:  # not Linux, or a file system without such files
            self.close()
            if isinstance(error, OSError) and error.errno in _FULL:
                raise unwritable(folder / "error", error, nbytes) from error

    def write(self, path: Path, text: str) -> None:
        """Write the file, in the reserved room if there is some; raises as `write_text`."""
        if self._descriptor is None:
            write_text(path, text)
            return
        data, draft = text.encode(), path.with_name(f".{path.name}.{os.getpid()}")
        try:
            os.pwrite(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(data))
            # A directory's descriptor, here an unused one, makes Python follow the link to the file without a name.
            os.link(f"/proc/self/fd/{self._descriptor}", draft, src_dir_fd=self._descriptor, follow_symlinks=True)
            draft.replace(path)
        except OSError as error:
            raise unwritable(path, error, len(data)) from error
        finally:
            self.close()

    def close(self) -> None:
        """Give the room back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_text(path: Path) -> str:
    """Return the text of a file; raises as `check_regular`."""
    check_regular(path)
    return path.read_text()


def check_regular(path: Path) -> None:
    """Raise OSError for a pipe or the like: to read it may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is not a regular file")


def parse_problem(error: Exception) -> str:
    """Return why a JSON or YAML file cannot be read: what its reader says, in our words."""
    match error:
        case json.JSONDecodeError():
            return f"line {error.lineno} is not JSON"
        case yaml.MarkedYAMLError(problem_mark=mark) if mark:
            return f"line {mark.line + 1} is not YAML"
        case UnicodeDecodeError() | yaml.YAMLError():
            return "it is not text"
        case RecursionError():
            return "it is nested too deeply"
        case OSError(strerror=reason) if reason:
            return reason
    return str(error).partition("\n")[0] or repr(error)
