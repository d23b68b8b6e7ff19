"""The settings of the training data. `microp.model` draws batches from them."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass
class DataSettings:
    """The keys of every source.

    Attributes:
        name: the option's name in `conf/data/`.
    """

    name: str

    def problems(self, context: int) -> list[str]:
        """List what is wrong with the source, for rows of `context` bytes, one sentence each."""
        return []


@dataclass
class SyntheticSettings(DataSettings):
    """Random bytes that follow from the seed."""


@dataclass
class TextSettings(DataSettings):
    """The bytes of a file, of all files in a folder, or of Python's standard library.

    Attributes:
        path: a file, or a folder, which is read with its subfolders in alphabetical order;
            null for the source files of the standard library.
    """

    path: str | None

    def files(self) -> list[Path]:
        """Return the files of the corpus, in order."""
        if self.path is None:
            return list(_walk(Path(sysconfig.get_paths()["stdlib"]), ".py", _NOT_THE_LIBRARY))
        path = Path(self.path).expanduser()
        return list(_walk(path)) if path.is_dir() else [path]

    def problems(self, context: int) -> list[str]:
        if self.path is not None and not Path(self.path).expanduser().exists():
            return [f"data.path={self.path} does not exist: give a file or a folder, or omit the key"]
        size = sum(path.stat().st_size for path in self.files())
        if size == 0:
            return [f"data.path={self.path} is empty: give a text of at least {context + 1} bytes"]
        if size <= context:
            return [
                f"data.path={self.path} has {size} bytes, but one row needs {context + 1} "
                f"(its context and the byte after it): give a longer text or a shorter context"
            ]
        return []


_NOT_THE_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests"})


def _walk(folder: Path, ending: str = "", without: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the files below `folder` with this ending, in alphabetical order, without hidden ones."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in without and not f.startswith("."))
        for name in sorted(files):
            if name.endswith(ending) and not name.startswith("."):
                yield Path(parent, name)
