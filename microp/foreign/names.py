"""What the ranges of a trace are called: the table `names.yaml`, which a user may extend.

::

    PP:1F0      an action: F of stage 1 and microbatch 0
    Forward 3   an action whose stage is that of its rank
    gloo:recv   a receive
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import yaml

OPS = ("F", "B", "I", "W")
OTHERS = ("post", "receive", "send", "optimizer", "step")


class TraceError(ValueError):
    """A trace, or what is asked of it, cannot be used; the message says in one line why, and what to do."""


class Mark(NamedTuple):
    """What a range is.

    Attributes:
        kind: `action`, or one of OTHERS.
        op, stage, microbatch: of an action or a `post`; a stage or microbatch that the name lacks is None. Of a step,
            `microbatch` is its number.
        second: the second action of a pair.
    """

    kind: str
    op: str = ""
    stage: int | None = None
    microbatch: int | None = None
    second: Mark | None = None

    @property
    def text(self) -> str:
        """The action as a message names it."""
        return (
            f"{'' if self.stage is None else self.stage}{self.op}{'' if self.microbatch is None else self.microbatch}"
        )


class Names:
    """The patterns, those of `own`, a user's file, before those of microp.

    Raises:
        TraceError: the file cannot be read or is not such a table.
    """

    def __init__(self, own: Path | None = None) -> None:
        self._own = own
        self._known: dict[str, Mark | None] = {}

    @cached_property
    def _table(self) -> list[tuple[re.Pattern[str], str]]:
        paths = [path for path in (self._own, Path(__file__).with_name("names.yaml")) if path]
        return [pair for path in paths for pair in _read(path)]

    def __getitem__(self, name: str) -> Mark | None:
        """Return what a range of this name is; None if it is nothing that counts."""
        if name not in self._known:
            found = ((match, op) for pattern, op in self._table if (match := pattern.fullmatch(name)))
            self._known[name] = next((_mark(match.groupdict(), op) for match, op in found), None)
        return self._known[name]


def _read(path: Path) -> list[tuple[re.Pattern[str], str]]:
    try:
        table = [(re.compile(row["pattern"]), str(row.get("op", ""))) for row in yaml.safe_load(path.read_text())]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, re.error, TypeError, KeyError, AttributeError) as error:
        why = " ".join(str(error).split())[:100]
        example = Path(__file__).with_name("names.yaml")
        raise TraceError(f"{path} is no table of names ({why}): write a list as in {example}") from error
    for pattern, op in table:
        if op not in (*OPS, *OTHERS, "") or not (op or "op" in pattern.groupindex):
            raise TraceError(
                f"{path}: {pattern.pattern!r} has op={op or 'nothing'}: use one of {', '.join((*OPS, *OTHERS))}"
            )
    return table


def _mark(groups: dict[str, str | None], op: str) -> Mark:
    def number(key: str) -> int | None:
        return int(groups[key] or 0) if groups.get(key) is not None else None

    letter = groups.get("op") or op
    second = groups.get("op2")
    pair = Mark("action", second, number("stage2"), number("microbatch2")) if second else None
    return Mark(op if op in OTHERS else "action", letter, number("stage"), number("microbatch"), pair)
