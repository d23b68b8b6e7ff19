"""The errors that a user can act on."""

from __future__ import annotations


class ConfigError(ValueError):
    """A configuration is wrong; nothing has been started.

    Attributes:
        problems: one sentence per problem: the value, the rule, what to set instead.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class RunError(RuntimeError):
    """A run failed; the message names the rank, the action and the step."""
