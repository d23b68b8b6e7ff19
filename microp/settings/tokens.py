"""A file of tokens of the user's own, which is mapped into memory and not read as a whole.

::

    tokens.bin    │ skipped │ 2 bytes │ 2 bytes │ ...      `data.skip`, and `data.type` for what a token is
    tokens.npy    its own header says both

A file read as another type than its own still gives numbers. It is refused if its tokens do not fit the vocabulary,
if the vocabulary does not fit the type, or if every other number is 0 or small, as the upper half of a wider token is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from microp.settings.data import DataSettings, readable_size, reason
from microp.settings.rules import PATH, Line, OneOf, Range, broken_rules, quoted

_GIVE = "give a file of tokens, .bin or .npy"
SCANNED = 2**30  # tokens whose values are looked at before a run; of a longer file, evenly spread pieces
_PIECE = 2**22
_HEAD = 4096  # bytes


_HEADERS: dict[bytes, tuple[str, int, str | None]] = {  # first bytes -> whose form it is, bytes, type of a token
    (20240520).to_bytes(4, "little"): ("llm.c (and modded-nanogpt)", 1024, "uint16"),
    (20240801).to_bytes(4, "little"): ("llm.c", 1024, "uint32"),
    b"LITPKDS": ("lit-gpt", 24, None),
}
_NO_TOKENS = (b"\x93NUMPY", b"PK\x03\x04", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"ARROW1", b"MMIDIDX")
"""What files of other programs begin with: numpy, zip, gzip, zstd, Parquet, Arrow, the index of Megatron."""


@dataclass
class TokenSettings(DataSettings):
    """The tokens of a file."""

    path: Annotated[str, Line(_GIVE)]  # a file of tokens: .npy, or any other file of numbers alone
    # the type of a token in a file other than .npy, in the byte order of this machine
    type: Annotated[str, OneOf("uint16", "uint8", "int16", "int32", "uint32", "int64")]
    # the bytes before the first token, such as the 1024 of a header; not for .npy
    skip: Annotated[int, Range(0, 2**60)] = field(default=0, kw_only=True)

    def open(self) -> Any:
        """Return the tokens as a numpy array of one dimension mapped from the file, or raise OSError or ValueError."""
        import numpy as np  # takes 0.1 s, and only these data need it here

        if self._is_npy:
            return np.load(self._file, mmap_mode="r", allow_pickle=False)
        return np.memmap(self._file, dtype=self.type, mode="r", offset=self.skip)

    def sources(self) -> list[Path]:
        return [self._file]

    def problems(self, context: int, vocabulary: int) -> list[str]:
        if problems := broken_rules(self, "data."):
            return problems
        given = f"data.path={quoted(self.path, PATH)}"
        try:
            size = readable_size(self._file)
            with self._file.open("rb") as file:
                head = file.read(_HEAD)
        except (OSError, RuntimeError) as error:
            return [f"{given} cannot be read ({reason(error)}): {_GIVE}"]
        if self._is_npy and self.skip:
            return [f"data.skip={self.skip} is not used by {given}, whose header says where tokens begin: leave it out"]
        if not self._is_npy and (problem := self._problem_of_bytes(size, head)):
            return [f"{given} {problem}"]
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
        problem = self._problem_of_values(vocabulary)
        return [f"{given} {problem}"] if problem else []

    def _problem_of_bytes(self, size: int, head: bytes) -> str | None:
        """Return why a file without a header of numpy's, of this size and with these first bytes, is not tokens."""
        known = [header for begins, header in _HEADERS.items() if head.startswith(begins)]
        for form, length, kind in known or _like_llm_c(head, size):
            keys = [f"data.skip={length}"] if self.skip != length else []
            keys += [f"data.type={kind}"] if kind and _width(self.type) != _width(kind) else []
            if keys:
                return f"begins with a header of {length} bytes in the form of {form}: set {' '.join(keys)}"
        if head.startswith(_NO_TOKENS):
            return "is compressed, a table or numpy's under another name: give numbers alone, or numpy's as .npy"
        if self.type != "uint8" and _is_text(head[self.skip :]):
            return "holds text and no tokens: use data=text, or data.type=uint8 if each byte is a token"
        if size <= self.skip or (size - self.skip) % _width(self.type):
            after = f" after data.skip={self.skip}" if self.skip else ""
            left = max(0, size - self.skip)
            return f"has {left} bytes{after}, no whole number of data.type={self.type}: give the type it has"
        return None

    def _problem_of_values(self, vocabulary: int) -> str | None:
        """Return why the numbers in the file, read as this type, are not tokens of this vocabulary."""
        values, known = self._values(), 2 ** (8 * _width(self.type) - self.type.startswith("int"))
        if not self._is_npy and values.alternates:
            return (
                f"read as data.type={self.type} has a small number as every other token, like the upper half of a "
                "wider one: set the data.type that the file has; if its tokens really are so, give a .npy file, whose "
                "header says their type"
            )
        other, has = "the data.type that the file has", f"has tokens from {values.least} to {values.most}"
        if values.least < 0:
            return f"{has}, but tokens count from 0: give {'' if self._is_npy else f'{other}, or '}other numbers"
        if values.most >= vocabulary:
            return (
                f"{has}, but the model has {vocabulary} different ones, from 0 to {vocabulary - 1}: use a model with a "
                f"vocabulary of {values.most + 1}{'' if self._is_npy else f', or {other}'}"
            )
        if vocabulary > known and not self._is_npy:
            return (
                f"read as data.type={self.type} has no token above {known - 1}, but the model has {vocabulary} "
                f"different ones: set {other}, or use a model with a vocabulary of at most {known}"
            )
        return None

    def _values(self) -> _Values:
        status = self._file.stat()
        return _values_of(str(self._file.resolve()), self.type, self.skip, status.st_mtime_ns, status.st_size)

    @property
    def _file(self) -> Path:
        return Path(self.path).expanduser()

    @property
    def _is_npy(self) -> bool:
        return self._file.suffix == ".npy"


class _Values(NamedTuple):
    """The smallest and the largest number in a file, and whether every other one looks like half of a wider one."""

    least: int
    most: int
    alternates: bool


@cache  # every point of a sweep asks
def _values_of(path: str, kind: str, skip: int, _changed: int, _size: int) -> _Values:
    tokens = TokenSettings("tokens", path, kind, skip=skip).open()
    least, most = zip(*((int(piece.min()), int(piece.max())) for piece in _pieces(tokens)), strict=True)
    return _Values(min(least), max(most), _alternates(tokens[: 2 * _PIECE]))


def _alternates(tokens: Any) -> bool:
    """Return whether every other number is nearly always 0, or always small, and those between are not.

    The upper half of a token is its number divided by 256 or 65,536.
    """
    halves = tokens[::2], tokens[1::2]
    few, many = sorted(int((half != 0).sum()) for half in halves)
    small, large = sorted(int(half.max(initial=0)) for half in halves)
    return (many >= 8 and few <= many // 4) or (len(tokens) >= 32 and small < 64 and large >= 4096)


def _like_llm_c(head: bytes, size: int) -> list[tuple[str, int, str]]:
    """Return the header of llm.c's form that a file of this size begins with, if it does; its first number is free.

    It has 256 numbers of 4 bytes, of which the third is the number of tokens and those after it are 0.
    """
    count, rest = int.from_bytes(head[8:12], "little"), size - 1024
    fitting = [kind for kind in ("uint16", "uint32") if rest > 0 and count * _width(kind) == rest]
    return [("llm.c", 1024, kind) for kind in fitting if not any(head[12:1024])]


def _width(kind: str) -> int:
    """Return the number of bytes of a type, which its name has in bits."""
    return int("".join(filter(str.isdigit, kind))) // 8


def _is_text(head: bytes) -> bool:
    """Return whether bytes are printable text; those of tokens are not, unless they are few."""
    text = head.decode(errors="replace").rstrip("\N{REPLACEMENT CHARACTER}")  # the last character may be cut
    printable = all(letter.isprintable() or letter.isspace() for letter in text)
    return len(head) >= 32 and printable and "\ufffd" not in text


def _pieces(tokens: Any) -> Iterator[Any]:
    count = -(-len(tokens) // _PIECE)
    for number in range(0, count, -(-count // (SCANNED // _PIECE))):
        yield tokens[number * _PIECE : (number + 1) * _PIECE]
