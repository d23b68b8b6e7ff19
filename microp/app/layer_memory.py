"""Measures the memory of a model's layers, once for equal arguments; that of microp's own models is kept for later.

::

    $XDG_CACHE_HOME or ~/.cache
    └─ microp/layer-memory/<hash>.json      one file per question: model, rows, kind of backward, torch and code

A later command then needs no torch for it. A file that cannot be read counts as none, and one that cannot be written is
left out: the memory is measured again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from microp.app.places import PACKAGE
from microp.settings import Computing, ModelSettings, OwnSettings
from microp.simulator import MOST_ROWS, LayerMemory, Size
from microp.store import WriteError, write_text

MEASURES = ("device", "model", "settings", "simulator")  # the packages whose code a measurement depends on


def layer_memory(model: ModelSettings, rows: float, split: bool, computing: Computing) -> tuple[LayerMemory, ...]:
    """Return the memory of every layer.

    Args:
        model: the model.
        rows: the rows of a microbatch.
        split: whether the backward is divided into B and W.
        computing: how the layers compute.

    Raises:
        ValueError: the model is too large to be built and measured, or a layer fails.
    """
    return _measured(_Key(repr(model), min(rows, MOST_ROWS), split, computing, model))


class _Key(NamedTuple):
    """What the measurement of a model's layers depends on; the settings themselves cannot be hashed."""

    text: str
    rows: float
    split: bool
    computing: Computing
    model: ModelSettings

    def __hash__(self) -> int:
        return hash(self[:4])


@cache
def _measured(key: _Key) -> tuple[LayerMemory, ...]:
    kinds = key.model.kinds
    if isinstance(key.model, OwnSettings):  # its function may use other files than its own
        return tuple(_probed(key))
    question = json.dumps([*key[:3], *key.computing.words, _code()])
    known = _read_kept(question)
    if known is None or not known.keys() >= set(kinds):
        layers = _probed(key)
        known = {kind: layers[kind] for kind in set(kinds)}
        _keep(question, known)
    return tuple(known[kind] for kind in kinds)


def _probed(key: _Key) -> list[LayerMemory]:
    from microp.device import probe_layers  # torch, which nothing else here needs

    return probe_layers(key.model, key.rows, key.split, key.computing)


@cache
def _code() -> str:
    """Return a digest of microp's code that measures memory, and of torch's version."""
    torch = find_spec("torch")
    assert torch is not None, "torch is installed"
    assert torch.origin is not None, "torch is a package"
    files = [Path(torch.origin).with_name("version.py")]
    files += sorted(path for name in MEASURES for path in (PACKAGE / name).glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def _path(question: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "microp" / "layer-memory" / f"{hashlib.sha256(question.encode()).hexdigest()[:16]}.json"


def _read_kept(question: str) -> dict[int, LayerMemory] | None:
    """Return the memory that was kept of layers, by their index; None if there is none.

    Args:
        question: all that the memory depends on, as text.
    """
    try:
        found = json.loads(_path(question).read_text())
        if found["question"] != question:
            return None
        return {int(index): _layer_memory(**values) for index, values in found["layers"].items()}
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _layer_memory(weights: int, **sizes: list[float]) -> LayerMemory:
    made = LayerMemory(int(weights), **{name: Size(*map(float, size)) for name, size in sizes.items()})
    if len(sizes) + 1 != len(LayerMemory._fields):
        raise ValueError("a size is missing")
    return made


def _keep(question: str, layers: Mapping[int, LayerMemory]) -> None:
    """Keep the memory of layers, by their index, for commands that ask the same question."""
    text = json.dumps({"question": question, "layers": {index: each._asdict() for index, each in layers.items()}})
    with suppress(OSError, RuntimeError, WriteError):  # a home that is not there or cannot be written
        path = _path(question)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
