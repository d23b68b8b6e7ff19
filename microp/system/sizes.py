"""Sizes in bytes: their units, and their text."""

from __future__ import annotations

KIB, MIB, GIB = 2**10, 2**20, 2**30
BYTES = 256  # different bytes: the vocabulary of a model of text
_UNITS = {"GiB": GIB, "MiB": MIB, "KiB": KIB}


def size_text(nbytes: float) -> str:
    """Return a number of bytes with three digits in the largest unit of which it has one: `300 B`, `1.5 MiB`."""
    unit = next((unit for unit, size in _UNITS.items() if nbytes >= size), "B")
    number = nbytes / _UNITS.get(unit, 1)
    return f"{number:.0f} {unit}" if number >= 1000 or unit == "B" else f"{number:.3g} {unit}"
