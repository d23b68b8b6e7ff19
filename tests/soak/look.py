"""Hydra's callback that writes down after each point what the command and its helpers hold: `looks.jsonl`.

The moment is the same for every point, its ranks have ended, and garbage has been collected: what is more from point
to point is kept.
"""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

from tests.soak.machine import command_of, usage

FILE = "looks.jsonl"


class Look(Callback):
    def on_job_end(self, config: Any, job_return: Any, **_: Any) -> None:
        gc.collect()
        own = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        held = {"the command": usage(os.getpid())}
        held |= {command_of(int(pid)): usage(int(pid)) for pid in own}
        row = {name: usage_now._asdict() for name, usage_now in held.items() if usage_now}
        with Path(FILE).open("a") as file:
            file.write(json.dumps(row) + "\n")
