"""Reads a profile from the plain values of its file.

::

    YAML ── store ──► plain values ── read_plain ──► Profile
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from microp.planner.profile import DIVIDED, FORMAT, TIMES, UNDIVIDED, After, Machine, Profile, Transport
from microp.planner.samples import BACKWARD, FORWARD, OPTIMIZER, USUAL, WEIGHT
from microp.settings import ADAM, AS_WRITTEN, Computing
from microp.simulator import LayerMemory, Size

BEFORE = 3  # the format that had one factor for all that is not usual


def read_plain(given: Any, path: str) -> Profile:
    """Return the profile that a file's plain values describe.

    Raises:
        ValueError: the values are not those of a profile.
    """
    try:
        if given["format"] not in (FORMAT, BEFORE):
            raise ValueError(f"format {given['format']!r} is not {FORMAT}")
        rows = tuple(map(_number, given["rows"]))
        if not rows or list(rows) != sorted(set(rows)) or rows[0] <= 0:
            raise ValueError("rows are not ascending numbers above 0")

        def column(values: Any) -> tuple[float, ...]:
            found = tuple(map(_time, values))
            if len(found) != len(rows):
                raise ValueError(f"a list has {len(found)} values for {len(rows)} numbers of rows")
            return found

        def table(values: Any, names: Sequence[str] = TIMES) -> dict[str, tuple[float, ...]]:
            return {name: column(values[name]) for name in names}

        def changes(values: Any) -> After:
            return After(column(values["added_ms"]), column(values["factor"]))

        if given["format"] == FORMAT:
            after = {
                str(op): {str(what): changes(own) for what, own in known.items()}
                for op, known in given["after"].items()
            }
        else:
            after = {op: _after_any(op, column(factor)) for op, factor in given["alternating_factor"].items()}
        fine = tuple(map(_number, given.get("fine_rows", ())))
        factors = {str(op): tuple(map(_time, own)) for op, own in given.get("row_factors", {}).items()}
        if list(fine) != sorted(set(fine)) or any(len(own) != len(fine) for own in factors.values()):
            raise ValueError("row_factors has not one value for each of fine_rows, which ascend")
        transports = {
            str(name): Transport(*(_time(values[f"{key}_ms"]) for key in Transport._fields))
            for name, values in given["transports"].items()
        }
        memory = {
            backward: {int(kind): _memory(sizes) for kind, sizes in given["memory_bytes"][backward].items()}
            for backward in (DIVIDED, UNDIVIDED)
        }
        layers = {int(kind): table(times) for kind, times in given["layers_ms"].items()}
        if any(known.keys() != layers.keys() for known in memory.values()):
            raise ValueError("memory_bytes and layers_ms are not of the same layers")
        machine = given["machine"]
        return Profile(
            machine=Machine(
                str(machine["device"]),
                str(machine["processor"]),
                int(machine["cores"]),
                str(machine["torch"]),
                int(machine["threads"]),
            ),
            model=dict(given["model"]),
            date=str(given["date"]),
            batch_size=int(given["batch_size"]),
            ranks=int(given["ranks"]),
            rows=rows,
            layers=layers,
            fixed=table(given["fixed_ms"]),
            after=after,
            checkpointed=column(given["checkpointed_factor"]),
            alone=column(given["alone_factor"]),
            crowded=column(given.get("crowded_factor", [1.0] * len(rows))),
            transports=transports,
            optimizer=(_time(given["optimizer_ms"]["fixed"]), _time(given["optimizer_ms"]["per_mib"])),
            edges=(_time(given["edges_ms"]["before"]), _time(given["edges_ms"]["after"])),
            memory=memory,
            spread={
                str(name): _number_or_none(value) or None for name, value in given["spread"].items()
            },  # once 0: one step
            load=_number_or_none(given.get("load_average")),
            path=path,
            optimizer_kind=str(given.get("optimizer", ADAM.kind)),
            fine_rows=fine,
            row_factors=factors,
            computing=Computing(**{key: given.get(key, value) for key, value in asdict(AS_WRITTEN).items()}),
        )
    except KeyError as error:
        raise ValueError(f"it lacks {error}") from error
    except (TypeError, AttributeError) as error:
        raise ValueError("its values are not of a profile's form") from error


def _after_any(op: str, factor: tuple[float, ...]) -> dict[str, After]:
    """Return what a factor for any other op before it says, as older files have it."""
    others = (what for what in (FORWARD, BACKWARD, WEIGHT, OPTIMIZER) if what != USUAL[op])
    return {what: After((0.0,) * len(factor), factor) for what in others}


def _memory(sizes: Mapping[str, Any]) -> LayerMemory:
    given = {"frozen": (0, 0), **sizes}  # older files are of models without frozen weights
    parts = (Size(*map(_number, given[name])) for name in LayerMemory._fields[1:])
    return LayerMemory(int(sizes["weights"]), *parts)


def _number_or_none(value: Any) -> float | None:
    return None if value is None else _number(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _time(value: Any) -> float:
    """Return a time, or what times are multiplied by."""
    if _number(value) < 0:
        raise ValueError(f"{value} is a time or a factor below 0")
    return float(value)
