"""The settings of the training data, and what tells them from others. `microp.model` draws batches from them."""

from __future__ import annotations

import os
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

from microp.settings.rules import PATH, Line, Name, broken_rules, quoted
from microp.system import BYTES, memory_bytes

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

        It is their size, when the last file was written, and a checksum of all sizes and of the first MiB: a file of
        tokens may be longer than the memory.
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

    def files(self) -> list[Path]:
        """Return the files of the corpus, in order."""
        if self.path is None:
            return list(_walk(Path(sysconfig.get_paths()["stdlib"]), ".py", _NOT_THE_LIBRARY))
        path = Path(self.path).expanduser()
        return list(_walk(path)) if path.is_dir() else [path]

    def sources(self) -> list[Path]:
        return [] if self.path is None else self.files()

    def problems(self, context: int, vocabulary: int) -> list[str]:
        if (problems := super().problems(context, vocabulary)) or self.path is None:
            return problems
        given = f"data.path={quoted(self.path, PATH)}"
        try:
            sizes = [readable_size(path) for path in self.files()]
        except (OSError, RuntimeError) as error:  # RuntimeError: there is no such user, in ~user
            return [f"{given} cannot be read ({reason(error)}): {_GIVE}"]
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


_NOT_THE_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests"})


def changed_data(
    runs: Iterable[tuple[str | None, Mapping[str, Any]]], now: Mapping[str | None, str | None] | None = None
) -> list[str]:
    """Return which paths have changed between these runs, while one read them, or since, one sentence per path.

    `runs` has of each attempt `data.path` and the content of its env.json, where `data` has the `contents` at its start
    and at its end; `now` what a path holds, if that counts. A file that was written again and is the same is told too.
    """
    read = defaultdict[str | None, Counter[str]](Counter)
    for path, env in runs:
        data = env.get("data") or {}  # nothing in one of an older microp, or if the data are in no file
        if start := data.get("start"):
            end = data.get("end", start)
            read[path][start if end == start else f"{start}, and then {end}"] += 1
    sentences = []
    for path, texts in read.items():
        holds = (now or {}).get(path) or next(iter(texts))
        if len({*texts, holds}) > 1 or ", and then " in holds:
            counts = (f"{number} {'run' if number == 1 else 'runs'} read {text}" for text, number in texts.items())
            since = f"; it holds {holds} now" if now else ""
            sentences.append(f"data.path={path} has changed: {', '.join(counts)}{since}")
    return sentences


def readable_size(path: Path) -> int:
    """Return the bytes of a file, or raise OSError: it is not there, may not be read, or is a pipe."""
    size = path.stat().st_size
    if path.is_fifo() or not os.access(path, os.R_OK):
        raise PermissionError("it is a pipe, or permission is denied")
    return size


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
