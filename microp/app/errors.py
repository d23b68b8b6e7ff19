"""The errors that a user can act on, and the form of their messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

LONGEST = 400  # characters of a line


class Rest(NamedTuple):
    """What could be composed without the overrides that were refused; more may be wrong with it.

    Attributes:
        overrides: those that were not refused.
        config: the configuration (a DictConfig) that they give.
        refused: the keys of the refused overrides, which have their defaults.
    """

    overrides: list[str]
    config: Any
    refused: list[str]


class ConfigError(ValueError):
    """A configuration is wrong; nothing has been started.

    Attributes:
        problems: one sentence per problem: the value, the rule, what to set instead.
        rests: the configurations, one per point, without the overrides that are wrong.
    """

    def __init__(self, problems: list[str], rests: Sequence[Rest] = ()) -> None:
        self.problems = [fitted(problem) for problem in problems]
        super().__init__("\n".join(self.problems))
        self.rests = list(rests)


class RunError(RuntimeError):
    """A run failed; the message names the rank, the action and the step."""


class Stop(BaseException):
    """Ends a command in which the next point would fail too; the message is one line with the remedy.

    It is no Exception, because Hydra keeps the Exceptions of a point until the last point has run.
    """


def fitted(problem: str) -> str:
    """Return a problem with printable characters and with lines of bounded length, which are cut in the middle.

    A sentence begins with the key and ends with the remedy; what is long is a value that a user gave. Only a drawing
    below the sentence has lines of its own.
    """
    return "\n".join(map(_fitted, problem.split("\n")))


def _fitted(line: str) -> str:
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)
