"""Compiles the segments of a stage with torch.compile.

::

    segment   Linear ─ GELU ─ Linear      as they are written: one kernel after the other
              └──── one module ────┘      compiled in its first call, per number of rows and with or without a graph

A segment, and not the whole stage, is what a recomputation runs again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from torch import nn

BACKEND = "inductor"
_VARIANTS = 10_000  # of one function: each segment, number of rows, and kind of forward is one


def compile_segment(modules: Sequence[nn.Module]) -> nn.Module:
    """Return some modules, run in order as compiled code."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # in this process: none that could outlive a rank
    import torch._functorch.config as gradients  # takes seconds, and only compiled layers need it
    import torch.compiler.config as tracer

    tracer.recompile_limit = tracer.accumulated_recompile_limit = _VARIANTS
    tracer.fail_on_recompile_limit_hit = True  # not to run as it is written without a word
    gradients.backward_pass_autocast = "off"  # as without the compiler
    segment = nn.Sequential(*modules)
    segment.compile(backend=BACKEND, dynamic=False)
    return segment
