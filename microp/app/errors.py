"""The errors that a user can act on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


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
        super().__init__("\n".join(problems))
        self.problems = problems
        self.rests = list(rests)


class RunError(RuntimeError):
    """A run failed; the message names the rank, the action and the step."""
