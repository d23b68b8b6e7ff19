"""Rules for single values, stated with the fields of a settings class.

::

    class ModelSettings:
        layers: Annotated[int, Range(1, 100_000)] ── broken_rules ──► "model.layers=0 is below 1: use at least 1"

A rule holds for each element of a list. A value that is null breaks no rule: the type of its key says whether
null is allowed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

SHOWN, PATH = 60, 200  # characters of a value in a message, and of a path


def quoted(value: object, most: int = SHOWN) -> str:
    """Return a value as it stands in a message: on one line, printable, and cut after `most` characters."""
    text = str(value)
    text = text if len(text) <= most else f"{text[: most - 3]}..."
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


class Rule(ABC):
    """What a value has to be."""

    @abstractmethod
    def broken(self, value: Any) -> str | None:
        """Return what is wrong with a value and the remedy, `is below 1: use at least 1`; None for a good value."""


@dataclass(frozen=True)
class Range(Rule):
    """A number from `least` to `most`."""

    least: int
    most: int
    otherwise: str = ""  # a further remedy, for example `null for none`

    def broken(self, value: Any) -> str | None:
        more = self.otherwise and f", or {self.otherwise}"
        if value > self.most:
            return f"is above {self.most}: use at most {self.most}{more}"
        if not value >= self.least:  # also NaN
            return f"is below {self.least}: use at least {self.least}{more}"
        return None


@dataclass(frozen=True)
class Positive(Rule):
    """A number above 0 and at most `most`."""

    most: int
    advice: str  # the remedy, for example `use for example 0.001`

    def broken(self, value: Any) -> str | None:
        if not isinstance(value, int | float) or not value > 0:  # also NaN
            return f"is not a number above 0: {self.advice}"
        return f"is above {self.most}: use at most {self.most}" if value > self.most else None


class OneOf(Rule):
    """One of these words."""

    def __init__(self, *words: str, otherwise: str = "") -> None:
        self.words, self.otherwise = words, otherwise and f", or {otherwise}"  # a further remedy

    def broken(self, value: Any) -> str | None:
        fits, known = value in self.words, ", ".join(self.words)
        return None if fits else f"is not one of {known}: use one of these{self.otherwise}"


@dataclass(frozen=True)
class Name(Rule):
    """A name that can be a part of the name of a folder, of a table and of a command."""

    def broken(self, value: Any) -> str | None:
        if re.fullmatch(r"[\w+-][\w.+-]{0,59}", value):
            return None
        return "is not a name: use at most 60 letters, digits, _ + - and ., which does not come first"


@dataclass(frozen=True)
class Line(Rule):
    """A text on one line: not empty, not longer than `longest`, without characters that cannot be printed."""

    advice: str  # what to give instead
    longest: int = 1000
    without: str = ""  # characters that it must not have

    def broken(self, value: Any) -> str | None:
        if not isinstance(value, str):
            return f"is not a text: {self.advice}"
        if not value.strip():
            return f"is empty: {self.advice}"
        if not value.isprintable():
            return f"has characters that cannot be printed: {self.advice}"
        if len(value) > self.longest:
            return f"has {len(value)} characters: use at most {self.longest}"
        if unfit := sorted(set(value) & set(self.without)):
            return f"has {' '.join(unfit)}: use none of {' '.join(self.without)}"
        return None


def broken_rules(settings: object, before: str = "") -> list[str]:
    """Return one sentence per value of a dataclass that breaks its rule; `before`: of its keys, such as `model.`."""
    kind: Any = type(settings)
    problems = []
    for key, rule in _rules_of(kind):
        value = getattr(settings, key)
        values = value if isinstance(value, list) else [value]
        broken = [(each, wrong) for each in values if each is not None and (wrong := rule.broken(each))]
        problems += [f"{before}{key}={quoted(each)} {wrong}" for each, wrong in broken[:1]]
    return problems


@cache
def _rules_of(settings: type) -> list[tuple[str, Rule]]:
    """Return the rules of a class's fields with their keys; to read them takes a millisecond."""
    hints = get_type_hints(settings, include_extras=True)
    return [(key, rule) for key, hint in hints.items() for rule in getattr(hint, "__metadata__", ())]
