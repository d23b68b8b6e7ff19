"""Measures the memory of a model's layers, once for equal arguments; that of microp's own models is kept for later."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from microp.app.places import PACKAGE
from microp.app.user_code import user_code
from microp.settings import Computing, ModelSettings, OwnSettings
from microp.simulator import MOST_ROWS, LayerMemory
from microp.store import keep_memory, read_kept_memory

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
        with user_code(f"model.builder={key.model.builder}"):
            return tuple(_probed(key))
    question = json.dumps([*key[:3], *key.computing.words, _code()])
    known = read_kept_memory(question)
    if known is None or not known.keys() >= set(kinds):
        layers = _probed(key)
        known = {kind: layers[kind] for kind in set(kinds)}
        keep_memory(question, known)
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
