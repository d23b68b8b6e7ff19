"""A file of tokens of the user's own, which is mapped into memory and not read as a whole.

::

    tokens.bin    │ 2 bytes │ 2 bytes │ ...      `data.type` says what a token is
    tokens.npy    its own header says it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from microp.settings.data import DataSettings, regular_size
from microp.settings.rules import PATH, Line, OneOf, broken_rules, quoted

_GIVE = "give a file of tokens, .bin or .npy"
SCANNED = 2**30  # tokens whose values are looked at before a run; of a longer file, evenly spread pieces
_PIECE = 2**22


@dataclass
class TokenSettings(DataSettings):
    """The tokens of a file.

    Attributes:
        path: a file of tokens: .npy, or any other file of numbers alone.
        type: the type of a token in a file without a header, in the byte order of this machine.
    """

    path: Annotated[str, Line(_GIVE)]
    type: Annotated[str, OneOf("uint16", "uint8", "int16", "int32", "uint32", "int64")]

    def open(self) -> Any:
        """Return the tokens as a numpy array of one dimension that is mapped from the file.

        Raises:
            OSError, ValueError: the file cannot be mapped.
        """
        import numpy as np  # takes 0.1 s, and only these data need it here

        path = Path(self.path).expanduser()
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False)
        return np.memmap(path, dtype=self.type, mode="r")

    def problems(self, context: int, vocabulary: int) -> list[str]:
        if found := broken_rules(self, "data."):
            return found
        given = f"data.path={quoted(self.path, PATH)}"
        path = Path(self.path).expanduser()
        try:
            size = regular_size(path)
        except FileNotFoundError:
            return [f"{given} does not exist: {_GIVE}"]
        except (OSError, RuntimeError) as error:
            return [f"{given} cannot be read ({getattr(error, 'strerror', None) or error}): {_GIVE}"]
        width = int("".join(filter(str.isdigit, self.type))) // 8
        if path.suffix != ".npy" and (size == 0 or size % width):
            return [f"{given} has {size} bytes, no whole number of data.type={self.type}: give the type it has"]
        try:
            tokens = self.open()
        except (OSError, ValueError) as error:
            return [f"{given} cannot be read ({' '.join(str(error).split())}): {_GIVE}"]
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            return [f"{given} holds {tokens.dtype} {list(tokens.shape)}: give a file of whole numbers in one dimension"]
        if len(tokens) <= context:
            return [
                f"{given} has {len(tokens)} tokens, but one row needs {context + 1} (its context and the token after "
                "it): give more tokens or a shorter context"
            ]
        status = path.stat()
        least, most = _range_of(str(path.resolve()), self.type, status.st_mtime_ns, status.st_size)
        if least < 0:
            return [
                f"{given} has tokens from {least} to {most}, but tokens count from 0: give the data.type that the file "
                "has, or other numbers"
            ]
        if most >= vocabulary:
            return [
                f"{given} has tokens from {least} to {most}, but the model has {vocabulary} different ones, from 0 to "
                f"{vocabulary - 1}: use a model with a vocabulary of {most + 1}, or the data.type that the file has"
            ]
        return []


@cache  # every point of a sweep asks
def _range_of(path: str, kind: str, _changed: int, _size: int) -> tuple[int, int]:
    """Return the smallest and the largest token of a file."""
    tokens = TokenSettings("tokens", path, kind).open()
    least, most = zip(*((int(piece.min()), int(piece.max())) for piece in _pieces(tokens)), strict=True)
    return min(least), max(most)


def _pieces(tokens: Any) -> Iterator[Any]:
    count = -(-len(tokens) // _PIECE)
    for number in range(0, count, -(-count // (SCANNED // _PIECE))):
        yield tokens[number * _PIECE : (number + 1) * _PIECE]
