"""What the ranges of a trace are called: the table `names.yaml`, which a user may extend."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import yaml

TABLE = Path(__file__).with_name("names.yaml")
OPS = ("F", "B", "I", "W")
OTHERS = ("post", "receive", "send", "optimizer", "step")


class TraceError(ValueError):
    """A trace, or what is asked of it, cannot be used; the message says in one line why, and what to do."""


class Mark(NamedTuple):
    """What a range is.

    Attributes:
        kind: `action`, or one of OTHERS.
        op, stage, microbatch: of an action or a `post`, None where the name lacks it; a step's number is the last.
        second: the second action of a range with two.
    """

    kind: str
    op: str = ""
    stage: int | None = None
    microbatch: int | None = None
    second: Mark | None = None


class Names(dict[str, Mark | None]):
    """A range's name -> what it is, None if nothing that counts; a user's own patterns come first.

    Raises:
        TraceError: the user's file is not such a table.
    """

    def __init__(self, own: Path | None = None) -> None:
        super().__init__()
        self._table = [pair for path in (own, TABLE) if path for pair in _read(path)]

    def __missing__(self, name: str) -> Mark | None:
        fits = ((match.groupdict(), op) for pattern, op in self._table if (match := pattern.fullmatch(name)))
        self[name] = next((_mark(groups, op) for groups, op in fits), None)
        return self[name]


def _read(path: Path) -> list[tuple[re.Pattern[str], str]]:
    try:
        table = [(re.compile(row["pattern"]), str(row.get("op", ""))) for row in yaml.safe_load(path.read_text())]
        wrong = [
            pattern.pattern for pattern, op in table if op not in (*OPS, *OTHERS) and "op" not in pattern.groupindex
        ]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, re.error, TypeError, KeyError, AttributeError) as error:
        raise TraceError(f"{path} is no table of names ({' '.join(str(error).split())[:99]}): see {TABLE}") from error
    if wrong:
        raise TraceError(f"{path}: {wrong[0]} tells no op: give it one of {', '.join((*OPS, *OTHERS))}")
    return table


def _mark(groups: dict[str, str | None], op: str) -> Mark:
    stage, microbatch, stage2, microbatch2 = (
        int(text) if (text := groups.get(key)) is not None else None
        for key in ("stage", "microbatch", "stage2", "microbatch2")
    )
    pair = Mark("action", second, stage2, microbatch2) if (second := groups.get("op2")) else None
    return Mark(op if op in OTHERS else "action", groups.get("op") or op, stage, microbatch, pair)
