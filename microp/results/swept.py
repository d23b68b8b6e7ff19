"""Finds what differs between the points of a command, and what is the same in all of them.

::

    -m model.dim=64,128 schedule=gpipe,interleaved ranks=4

    swept   model.dim   schedule         same   ranks=4 chunks=4 model=mlp ...
            64          gpipe
            64          interleaved
            128         gpipe

A group is named by its option: `schedule=gpipe`, not `schedule.name=gpipe`. A key that follows from the
option, as the builder does, is not told in addition to it. A *part* of a sweep is an option of a group of its own,
as `m_sensitivity=k4_batch`: several keys change with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from microp.job import NOT_ASKED
from microp.system import flatten

MISSING = "-"  # a point whose option does not have the key
_OPTION = {"tracking": "mode"}  # the key by which a group's option is known, if that is not `name`
MATTERS = ("schedule", "chunks", "ranks", "model", "device", "comms", "batch_size", "partition", "checkpointing")
_LAST = "repeat"  # launches of the same question stand side by side


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the dotted keys whose values differ between the configurations, also those that an option implies."""
    return [key for key, values in _texts(configs).items() if len({*values}) > 1]


def varied(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the dotted keys whose values differ between the configurations, without those that an option implies."""
    texts = _texts(configs)
    return [key for key, values in texts.items() if len({*values}) > 1 and not _follows_from_option(key, texts)]


def swept(configs: Sequence[Mapping[str, Any]], typed: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the columns that tell the points apart: heading -> one text per point.

    They have the order of the overrides of a point, `typed`.
    """
    texts = _texts(configs)
    columns = {heading(key): texts[key] for key in varied(configs)}
    order = _keys(typed)
    place = {key: (key == _LAST, order.index(key) if key in order else len(order)) for key in columns}
    return {key: columns[key] for key in sorted(columns, key=place.__getitem__)}


def asked(configs: Sequence[Mapping[str, Any]], overrides: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """Return the columns of `swept` for the points of one command, whose `overrides` say what was typed.

    A key that was not typed, or as one value, which some options do not use, follows from those that were swept. It is
    left out if it has one value wherever one of them has, but for the device: emulated times are none of the machine.
    If the sweep has several parts, the key that chooses one is a column too.
    """
    in_all = [word for word in overrides[0] if "${" not in word and all(word in point for point in overrides)]
    typed = _keys([word for word in overrides[0] if word not in in_all])
    columns = parts_of(configs, overrides) | swept(configs, overrides[0])
    chosen = [columns[key] for key in typed if key in columns]
    kept = [*typed, "device"]
    return {
        key: texts for key, texts in columns.items() if key in kept or not any(_follows(texts, by) for by in chosen)
    }


def parts_of(configs: Sequence[Mapping[str, Any]], overrides: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """Return the parts of a sweep, if it has several: the key that chooses one -> the part of each point."""
    words = [dict(word.split("=", 1) for word in point) for point in overrides]
    keys = [key for key in words[0] if key.split(".")[0] not in configs[0]]
    parts = {key: [point.get(key, MISSING) for point in words] for key in keys}
    return {key: names for key, names in parts.items() if len({*names}) > 1}


def same(configs: Sequence[Mapping[str, Any]], typed: Sequence[str], matters: Sequence[str] = MATTERS) -> list[str]:
    """Return what all points have in common, as `key=value`: what `matters`, and what was `typed`."""
    values = {heading(key): texts[0] for key, texts in _texts(configs).items() if len({*texts}) == 1}
    keys = [key for key in dict.fromkeys((*matters, *_keys(typed))) if key.split(".")[0] not in NOT_ASKED]
    return [f"{key}={values[key]}" for key in keys if key in values]


def _texts(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return dotted key -> its value in each configuration, as it is typed."""
    flats = [flatten(config) for config in configs]
    keys = dict.fromkeys(key for flat in flats for key in flat)
    return {key: [text(flat.get(key, MISSING)) for flat in flats] for key in keys}


def _follows_from_option(key: str, texts: Mapping[str, list[str]]) -> bool:
    """Return whether a group's key is the same wherever the group's option is."""
    group, _, rest = key.partition(".")
    option = f"{group}.{_OPTION.get(group, 'name')}"
    if not rest or key == option or MISSING in texts.get(option, [MISSING]):
        return False
    return _follows(texts[key], texts[option])


def _follows(texts: Sequence[str], by: Sequence[str]) -> bool:
    """Return whether one column has the same value wherever another one has."""
    return len({*zip(by, texts, strict=True)}) == len({*by})


def _keys(typed: Sequence[str]) -> list[str]:
    return [override.lstrip("+").split("=")[0] for override in typed]


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
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)
