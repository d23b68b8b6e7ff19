"""The settings of the engine, which runs the steps. `microp.engine` has the engines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EngineSettings:
    """The engine and its options.

    Attributes:
        name: `microp`, `torch` (torch.distributed.pipelining), or `compare`: alternates between
            both and their limit, one rank's compute without waiting.
        batch_weights: whether consecutive W of one stage are run as one product over their rows:
            faster, but the last bits of the sums can differ.
    """

    name: str
    batch_weights: bool
