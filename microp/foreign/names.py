"""What the ranges of a trace are called: the table `names.yaml`, which a user may extend."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

TABLE = Path(__file__).with_name("names.yaml")
OPS = ("F", "B", "I", "W")
OTHERS = ("receive", "send", "optimizer", "step")


class TraceError(ValueError):
    """A trace, or what is asked of it, cannot be used; the message says in one line why, and what to do."""


class Mark(NamedTuple):
    """What a range is: an `action`, or one of OTHERS."""

    kind: str
    op: str = ""  # of an action, as are stage and microbatch; None: the name lacks it
    stage: int | None = None
    microbatch: int | None = None  # or the number of a step
    second: Mark | None = None  # the second action of a range with two


def read_names(own: Path | None = None) -> Callable[[str], Mark | None]:
    """Return what tells a range's mark by its name, None if it does not count; a user's own patterns come first."""
    table = []
    for path in (own, TABLE):
        try:
            for row in yaml.safe_load(path.read_text()) if path else ():
                pattern, op = re.compile(row["pattern"]), str(row.get("op", ""))
                if op not in (*OPS, *OTHERS) and "op" not in pattern.groupindex:
                    raise ValueError(f"{pattern.pattern} tells no op, as {', '.join((*OPS, *OTHERS))}")
                table.append((pattern, op))
        except (OSError, ValueError, yaml.YAMLError, re.error, TypeError, KeyError, AttributeError) as error:
            why = " ".join(str(error).split())[:99]
            raise TraceError(f"{path} is no table of names ({why}): see {TABLE}") from error

    @cache
    def mark(name: str) -> Mark | None:
        fits = ((match.groupdict(), op) for pattern, op in table if (match := pattern.fullmatch(name)))
        return next((_mark(groups, op, "") for groups, op in fits), None)

    return mark


def _mark(groups: dict[str, str | None], op: str, number: str) -> Mark:
    """Return the mark in the groups of a match; `number` is 2 for the second action."""
    texts = (groups.get(f"{key}{number}") for key in ("stage", "microbatch"))
    stage, microbatch = (int(text) if text else None for text in texts)
    second = _mark(groups, "", "2") if groups.get("op2") and not number else None
    return Mark(op if op in OTHERS else "action", groups.get(f"op{number}") or op, stage, microbatch, second)
