"""Costs that many tests use."""

from typing import Any

from microp.simulator import Costs, for_stages


def equal(stages: int, forward: Any, backward: Any, latency: Any = 0) -> Costs:
    """Return costs with the same times on every stage."""
    return for_stages(stages, forward=forward, backward=backward, latency=latency)
