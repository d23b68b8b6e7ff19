"""Runs one rank's part of a step: microp's engine, torch's runtime, and the limit they are compared with.

::

    Runner ──┬── Engine        any schedule
             ├── TorchEngine   torch.distributed.pipelining, the same stages and records
             └── Limit         one rank's compute without waiting, times (M+K-1)/M
"""

from microp.engine.engine import ActionError, Boundary, Engine, Runner, describe_failure
from microp.engine.limit import Limit
from microp.engine.torch_engine import TorchEngine
