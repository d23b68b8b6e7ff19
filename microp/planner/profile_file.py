"""Turns a profile into the plain values of its file, and back: every field of `Profile` under its own name.

::

    Profile ── to_plain ──► {"format": 5, "rows": [8.0, 64.0], ...} ── store ──► YAML ── store, read_plain ──► Profile
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from microp.planner.profile import DIVIDED, TIMES, UNDIVIDED, Profile
from microp.simulator import Size

FORMAT = 5
DIGITS = 6  # behind the point: a nanosecond


def to_plain(profile: Profile) -> dict[str, Any]:
    """Return the profile in plain values, as a file has it; only where it was read from is left out."""
    plain = {"format": FORMAT, **_plain(profile), "model": dict(profile.model)}  # a user's numbers are not rounded
    del plain["path"]
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Size):
        return [_plain(number) for number in value]
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def read_plain(given: Any, path: str) -> Profile:
    """Return the profile that a file's plain values describe.

    Raises:
        ValueError: the values are not those of a profile.
    """
    try:
        if given["format"] != FORMAT:
            raise ValueError(f"format {given['format']!r} is not {FORMAT}")
        profile: Profile = _read(Profile, {**given, "path": path})
        _check(profile)
    except KeyError as error:
        raise ValueError(f"it lacks {error}") from error
    except (TypeError, AttributeError) as error:
        raise ValueError("its values are not of a profile's form") from error
    return profile


def _read(kind: Any, value: Any) -> Any:
    """Return plain values as what has this type: a number, a tuple, a mapping, or a class with fields."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind in (Any, bool):
        return value
    if kind is Size:  # memory at no rows, which follows from that at two numbers of rows, may be below 0
        return Size(*(_number(each, -math.inf) for each in value))
    if type(None) in inside:
        return None if value is None else _read(inside[0], value)
    if origin is tuple:
        return tuple(_read(inside[0], each) for each in value)
    if origin is Mapping:
        return {_read(inside[0], key): _read(inside[1], each) for key, each in value.items()}
    if kind is float:
        return _number(value, 0)
    if kind in (int, str):
        return kind(value)
    return kind(**{name: _read(hint, value[name]) for name, hint in get_type_hints(kind).items()})


def _number(value: Any, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    if value < least:
        raise ValueError(f"{value} is a time or a factor below 0")
    return float(value)


def _check(profile: Profile) -> None:
    """Raise ValueError unless the lists of a profile belong together."""
    rows, fine, factors = profile.rows, profile.fine_rows, profile.row_factors
    if not rows or list(rows) != sorted(set(rows)) or rows[0] <= 0:
        raise ValueError("rows are not ascending numbers above 0")
    columns = [times[name] for times in (*profile.layers.values(), profile.fixed) for name in TIMES]
    columns += [part for known in profile.after.values() for change in known.values() for part in change]
    for column in (*columns, profile.checkpointed, profile.alone, profile.crowded):
        if len(column) != len(rows):
            raise ValueError(f"a list has {len(column)} values for {len(rows)} numbers of rows")
    if list(fine) != sorted(set(fine)) or any(len(own) != len(fine) for own in factors.values()):
        raise ValueError("row_factors has not one value for each of fine_rows, which ascend")
    if any(profile.memory[backward].keys() != profile.layers.keys() for backward in (DIVIDED, UNDIVIDED)):
        raise ValueError("memory and layers are not of the same layers")
    if not profile.transports or len(profile.optimizer) != 2 or len(profile.edges) != 2:
        raise ValueError("transports, optimizer or edges lack a value")
