"""What a batch is: rows of bytes, which follow from (seed, step) and from nothing else.

::

    corpus   ...i m p o r t   t o r c h \\n...
    a row       [m p o r t   t o]           inputs    made where the first stage lives
                  [p o r t   t o r]         targets   made where the last stage lives

Both ranks draw the same places, so nothing is sent.
"""

from __future__ import annotations

import os
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from microp.seeding import derive_seed

Windows = Callable[[int], Tensor]
"""step -> (rows, context + 1) int64: inputs are all columns but the last, targets all but the first."""


@dataclass
class Data(ABC):
    """Where batches come from.

    Attributes:
        name: the option's name in `conf/data/`.
    """

    name: str

    @abstractmethod
    def windows(self, rows: int, context: int, seed: int) -> Windows:
        """Open the source; what it returns gives the batch of a step."""

    def problems(self, context: int) -> list[str]:
        """What is wrong with the source for rows of `context` bytes, a sentence each."""
        return []


@dataclass
class Synthetic(Data):
    """Random bytes from the seed."""

    def windows(self, rows: int, context: int, seed: int) -> Windows:
        def draw(step: int) -> Tensor:
            return torch.randint(0, 256, (rows, context + 1), generator=_generator(seed, step))

        return draw


@dataclass
class Text(Data):
    """The bytes of a file, of all files in a folder, or of Python's standard library.

    Attributes:
        path: a file or a folder (read with its subfolders, in the order of the names);
            None for the sources of the standard library, which every machine has.
    """

    path: str | None

    def windows(self, rows: int, context: int, seed: int) -> Windows:
        corpus = torch.frombuffer(bytearray(b"".join(p.read_bytes() for p in self.files())), dtype=torch.uint8)
        reach = torch.arange(context + 1)

        def draw(step: int) -> Tensor:
            starts = torch.randint(0, len(corpus) - context, (rows, 1), generator=_generator(seed, step))
            return corpus[starts + reach].long()

        return draw

    def files(self) -> list[Path]:
        """The files of the corpus, in order."""
        if self.path is None:
            return list(_walk(Path(sysconfig.get_paths()["stdlib"]), ".py", _NOT_THE_LIBRARY))
        path = Path(self.path).expanduser()
        return list(_walk(path)) if path.is_dir() else [path]

    def problems(self, context: int) -> list[str]:
        if self.path is not None and not Path(self.path).expanduser().exists():
            return [f"data.path={self.path} does not exist: give a file or a folder, or leave it out"]
        size = sum(path.stat().st_size for path in self.files())
        if size == 0:
            return [f"data.path={self.path} is empty: give a text of at least {context + 1} bytes"]
        if size <= context:
            return [
                f"data.path={self.path} has {size} bytes, one context and the byte after it are "
                f"{context + 1}: give a longer text or a shorter context"
            ]
        return []


_NOT_THE_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests"})


def _walk(folder: Path, ending: str = "", without: frozenset[str] = frozenset()) -> Iterator[Path]:
    """The files below `folder` whose names end so, by name; nothing that is hidden."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in without and not f.startswith("."))
        for name in sorted(files):
            if name.endswith(ending) and not name.startswith("."):
                yield Path(place, name)


def _generator(seed: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, "batch", step))
