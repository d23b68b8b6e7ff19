"""Keeps the measured memory of layers in the user's cache folder, so that a later command needs no torch for it.

::

    $XDG_CACHE_HOME or ~/.cache
    └─ microp/layer-memory/<hash>.json      one file per question: model, rows, kind of backward, torch and code

A file that cannot be read counts as none, and one that cannot be written is left out: the memory is measured again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from microp.simulator import LayerMemory, Size
from microp.store.files import WriteError, write_text


def _path(question: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "microp" / "layer-memory" / f"{hashlib.sha256(question.encode()).hexdigest()[:16]}.json"


def read_kept_memory(question: str) -> dict[int, LayerMemory] | None:
    """Return the memory that was kept of layers, by their index; None if there is none.

    Args:
        question: all that the memory depends on, as text.
    """
    try:
        found = json.loads(_path(question).read_text())
        if found["question"] != question:
            return None
        return {int(index): _layer_memory(**values) for index, values in found["layers"].items()}
    except (OSError, RuntimeError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None


def _layer_memory(weights: int, **sizes: list[float]) -> LayerMemory:
    made = LayerMemory(int(weights), **{name: Size(*map(float, size)) for name, size in sizes.items()})
    if len(sizes) + 1 != len(LayerMemory._fields):
        raise ValueError("a size is missing")
    return made


def keep_memory(question: str, layers: Mapping[int, LayerMemory]) -> None:
    """Keep the memory of layers, by their index, for commands that ask the same question."""
    text = json.dumps({"question": question, "layers": {index: each._asdict() for index, each in layers.items()}})
    with suppress(OSError, RuntimeError, WriteError):  # a home that is not there or cannot be written
        path = _path(question)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
