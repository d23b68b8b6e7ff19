"""W&B as a mirror of the records, its dashboard as code, and the deletion of runs with their W&B files.

::

    outputs/runs/... ── mirror ──► outputs/wandb/...        wandb is imported only where it is used
"""

from microp.mirror.files import is_running, remove, take_agent
from microp.mirror.mirroring import mirror
