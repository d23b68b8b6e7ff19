"""Compiles the segments of a stage with torch.compile.

::

    segment   Linear ─ GELU ─ Linear      as they are written: one kernel after the other
              └──── one module ────┘      compiled in its first call, per number of rows and with or without a graph

A segment, and not the whole stage, is what a recomputation runs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

BACKEND = "inductor"
_VARIANTS = 10_000  # of one function: each segment, number of rows, and kind of forward is one
_LONGEST = 200  # characters of what the compiler says


class Segment(nn.Module):
    """Some modules, run in order as compiled code."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        _configure()
        self._compiled = torch.compile(nn.Sequential(*modules), backend=BACKEND, dynamic=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the modules make of x.

        Raises:
            RuntimeError: this is the first call of its kind, and the modules cannot be compiled.
        """
        from torch._dynamo.exc import TorchDynamoException

        try:
            result: Tensor = self._compiled(x)
        except TorchDynamoException as error:
            cause = getattr(error, "inner_exception", error)
            said = " ".join(f"{type(cause).__name__}: {cause}".split())[:_LONGEST]
            raise RuntimeError(f"the layers cannot be compiled, use compile=false ({said})") from error
        return result


@cache
def _configure() -> None:
    """Set torch's compiler up for a rank."""
    import torch._functorch.config as gradients  # takes seconds, and only compiled layers need it
    import torch._inductor.config as generator
    import torch.compiler.config as tracer

    tracer.recompile_limit = tracer.accumulated_recompile_limit = _VARIANTS
    tracer.fail_on_recompile_limit_hit = True  # not to run as it is written without a word
    gradients.backward_pass_autocast = "off"  # as without the compiler
    generator.compile_threads = 1  # in this process: no processes that could outlive a rank
