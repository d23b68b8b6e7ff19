"""The settings of the engine, which runs the steps. `microp.engine` has the engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from microp.settings.rules import OneOf, broken_rules


@dataclass
class EngineSettings:
    """The engine and its options.

    Attributes:
        name: `microp`, `torch` (torch.distributed.pipelining), or `compare`: alternates between
            both and their limit, one rank's compute without waiting.
        batch_weights: whether consecutive W of one stage are run as one product over their rows:
            faster, but the last bits of the sums can differ.
    """

    name: Annotated[str, OneOf("microp", "torch", "compare")]
    batch_weights: bool

    def problems(self) -> list[str]:
        """List what is wrong with these values, one sentence each."""
        return broken_rules(self, "engine.")
