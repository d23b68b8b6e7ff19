"""Compares the keys of a composed configuration with those of its schema.

::

    rank: 4            a key that the schema does not have    ─► rank is not a key of a run: did you mean ranks?
    (no `chunks`)      a key that was taken away              ─► ~chunks takes away a key that every run needs
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from microp.app.hydra_problems import taken_away, unknown_key
from microp.app.schema import GROUPS


def _root_of(node: DictConfig) -> DictConfig:
    root = node._get_root()
    assert isinstance(root, DictConfig)
    return root


def all_keys(node: DictConfig) -> set[str]:
    """Return the keys of a node, also those without a value (`???`), which `in` does not find."""
    return {str(key) for key in node.keys()}  # noqa: SIM118


def _of(node: DictConfig) -> Any:
    return OmegaConf.get_type(node)


def wrong_keys(node: DictConfig, without: Collection[str], before: str = "") -> Iterator[str]:
    """Yield the keys that the schema of a node or of a node below it does not have, and those that are missing."""
    schema = _of(node)
    known, present = {field.name for field in fields(schema)}, all_keys(node)
    for key in map(str, node):
        if key not in known and f"{before}{key}" not in {*without, "hydra"}:
            yield unknown_key(f"{before}{key}", _root_of(node), str(node[key]))
    for key in known:
        if key not in present or (before == "" and key in GROUPS and OmegaConf.is_missing(node, key)):
            yield taken_away(f"{before}{key}")
        elif isinstance(below := node._get_node(key), DictConfig) and is_dataclass(_of(below)):
            yield from wrong_keys(below, without, f"{before}{key}.")
