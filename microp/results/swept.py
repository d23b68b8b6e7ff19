"""Finds what differs between the points of a command, and what is the same in all of them.

::

    -m model.dim=64,128 schedule=gpipe,interleaved ranks=4

    swept   model.dim   schedule         same   ranks=4 chunks=4 model=mlp ...
            64          gpipe
            64          interleaved
            128         gpipe

A group is named by its option: `schedule=gpipe`, not `schedule.name=gpipe`. A key that follows from the
option, as the builder does, is not told in addition to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from microp.job import NOT_ASKED
from microp.system import flatten

MISSING = "-"  # a point whose option does not have the key
_OPTION = {"tracking": "mode"}  # the key by which a group's option is known, if that is not `name`
MATTERS = ("schedule", "chunks", "ranks", "model", "device", "comms", "batch_size", "partition", "checkpointing")
ALWAYS = 3  # of these are told even where they have no room in one line
_LAST = "repeat"  # launches of the same question stand side by side


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the dotted keys whose values differ between the configurations, also those that an option implies."""
    flats = [flatten(config) for config in configs]
    keys = dict.fromkeys(key for each in flats for key in each)
    return [key for key in keys if len({text(each.get(key, MISSING)) for each in flats}) > 1]


def varied(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the dotted keys whose values differ between the configurations, without those that an option implies."""
    flats = [flatten(config) for config in configs]
    return [key for key in differing(configs) if not _follows_from_option(key, flats)]


def swept(configs: Sequence[Mapping[str, Any]], typed: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the columns that tell the points apart: heading -> one text per point.

    They have the order of the overrides of a point, `typed`.
    """
    flats = [flatten(config) for config in configs]
    found = {heading(key): [text(each.get(key, MISSING)) for each in flats] for key in varied(configs)}
    order = [override.lstrip("+").split("=")[0] for override in typed]
    place = {key: (key == _LAST, order.index(key) if key in order else len(order)) for key in found}
    return {key: found[key] for key in sorted(found, key=place.__getitem__)}


def same(
    configs: Sequence[Mapping[str, Any]], typed: Sequence[str], width: int, matters: Sequence[str] = MATTERS
) -> list[str]:
    """Return what all points have in common, as `key=value`: what was `typed`, and of what `matters` even if it was not
    as much as has room in `width` characters.
    """
    differ = {heading(key) for key in differing(configs)}
    values = {heading(key): text(value) for key, value in flatten(configs[0]).items()}
    asked = [override.lstrip("+").split("=")[0] for override in typed]
    asked = [key for key in dict.fromkeys(asked) if key in values]
    keys = [key for key in dict.fromkeys((*matters, *asked)) if key in values and key not in differ]
    keys = [key for key in keys if key.partition(".")[0] not in NOT_ASKED]
    items = {key: f"{key}={values[key]}" for key in keys}
    for key in reversed(keys):
        if len(" ".join(items.values())) > width and key not in (*asked, *matters[:ALWAYS]):
            del items[key]
    return list(items.values())


def heading(key: str) -> str:
    """Return what a user types for a dotted key: the group alone for the name of its option."""
    group, _, rest = key.partition(".")
    return group if rest and rest == _OPTION.get(group, "name") else key


def text(value: Any) -> str:
    """Return a value as it is typed."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(text, value))}]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _follows_from_option(key: str, flats: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a group's key is the same wherever the group's option is."""
    group, _, rest = key.partition(".")
    name = f"{group}.{_OPTION.get(group, 'name')}"
    if not rest or key == name or not all(name in each for each in flats):
        return False
    values: dict[str, set[str]] = {}
    for each in flats:
        values.setdefault(each[name], set()).add(text(each.get(key, MISSING)))
    return all(len(found) == 1 for found in values.values())
