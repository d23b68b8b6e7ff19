"""The settings of the training data. `microp.model` draws batches from them."""

from __future__ import annotations

import os
import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated
from zlib import crc32

from microp.settings.rules import PATH, Line, Name, broken_rules, quoted
from microp.system import BYTES, memory_bytes

MOST_FILES = 100_000
_HEAD = 2**20  # bytes at the beginning of the data that are read for their checksum
_GIVE = "give a file or a folder, or leave the key out"


@dataclass
class DataSettings:
    """The keys of every source."""

    name: Annotated[str, Name()]  # the option's name in `conf/data/`

    def sources(self) -> list[Path]:
        """Return the files of the user's own from which the tokens come, in order, or raise OSError."""
        return []

    def contents(self) -> str | None:
        """Return what tells these data from others at the same path, in words; None if they are in no file of a user's.

        It is their size, when the last file was written, and a checksum of all sizes and of the first MiB.
        """
        try:
            files = {path: path.stat() for path in self.sources()}
            sizes, left = [status.st_size for status in files.values()], _HEAD
            checksum = crc32(repr(sizes).encode())
            for path, size in zip(files, sizes, strict=True):
                if left > 0 and size:
                    with path.open("rb") as file:
                        checksum = crc32(file.read(left), checksum)
                    left -= size
        except (OSError, RuntimeError) as error:
            return f"nothing that can be read ({reason(error)})"
        if not files:
            return None
        last = max(status.st_mtime for status in files.values())
        written = datetime.fromtimestamp(last, UTC).isoformat(" ", "milliseconds")
        count = "" if len(files) == 1 else f" in {len(files)} files"
        return f"{sum(sizes)} bytes{count}, written {written}, checksum {checksum:08x}"

    def problems(self, context: int, vocabulary: int) -> list[str]:
        """List what is wrong with the source for rows of `context` tokens, of which the model knows `vocabulary`."""
        problems = broken_rules(self, "data.")
        if vocabulary < BYTES:
            problems.append(
                f"data={self.name} has {BYTES} different tokens, the bytes, but the model knows {vocabulary}: use "
                f"data=tokens, or a model with a vocabulary of {BYTES}"
            )
        return problems


@dataclass
class SyntheticSettings(DataSettings):
    """Random bytes that follow from the seed."""


@dataclass
class TextSettings(DataSettings):
    """The bytes of a file, of all files in a folder, or of Python's standard library."""

    # a file, or a folder, which is read with its subfolders in alphabetical order; null for the source files of the
    # standard library
    path: Annotated[str | None, Line(_GIVE)]

    @property
    def is_library(self) -> bool:
        """Whether the text is that of the standard library."""
        return self.path is None

    def files(self) -> list[Path]:
        """Return the files of the corpus, in order."""
        return list(self._files())

    def sources(self) -> list[Path]:
        return [] if self.is_library else self.files()

    def problems(self, context: int, vocabulary: int) -> list[str]:
        if (problems := super().problems(context, vocabulary)) or self.path is None:
            return problems
        given = f"data.path={quoted(self.path, PATH)}"
        try:
            sizes = [regular_size(path) for path in islice(self._files(), MOST_FILES + 1)]
        except FileNotFoundError:
            return [f"{given} does not exist: {_GIVE}"]
        except (OSError, RuntimeError) as error:  # RuntimeError: there is no such user, in ~user
            return [f"{given} cannot be read ({reason(error)}): {_GIVE}"]
        if len(sizes) > MOST_FILES:
            return [f"{given} has more than {MOST_FILES} files: give a smaller folder"]
        if sum(sizes) == 0:
            return [f"{given} is empty: give a text of at least {context + 1} bytes"]
        if sum(sizes) <= context:
            return [
                f"{given} has {sum(sizes)} bytes, but one row needs {context + 1} "
                f"(its context and the byte after it): give a longer text or a shorter context"
            ]
        if sum(sizes) > (most := memory_bytes()):
            return [f"{given} has {sum(sizes)} bytes, more than the {most} bytes of memory here: give a shorter text"]
        return []

    def _files(self) -> Iterator[Path]:
        if self.path is None:
            return _walk(Path(sysconfig.get_paths()["stdlib"]), ".py", _NOT_THE_LIBRARY)
        path = Path(self.path).expanduser()
        return _walk(path) if path.is_dir() else iter([path])


_NOT_THE_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests"})


def regular_size(path: Path) -> int:
    """Return the bytes of a file; OSError if it is no regular one (a pipe would wait forever), or may not be read."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is neither a file nor a folder")
    if not os.access(path, os.R_OK):
        raise PermissionError("permission denied")
    return status.st_size


def reason(error: Exception) -> str:
    """Return why a file cannot be read, in words."""
    return getattr(error, "strerror", None) or str(error)


def _walk(folder: Path, ending: str = "", without: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the regular files below `folder` with this ending, in alphabetical order, without hidden ones."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in without and not f.startswith("."))
        for name in sorted(files):
            if name.endswith(ending) and not name.startswith(".") and (path := Path(parent, name)).is_file():
                yield path
