"""The environment variables that a configuration may read, because whatever it holds is written to files."""

from __future__ import annotations

import re

ALLOWED = (
    *("HOME", "USER", "LOGNAME", "HOSTNAME", "PWD", "TMPDIR", "SCRATCH", "WORK", "DATA"),
    *("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_SUBMIT_DIR", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
    *("WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_DIR"),
)
_READ = re.compile(r"oc\.env:\s*([^,}\s]*)")


def environment_problems(text: str) -> list[str]:
    """List the environment variables that a configuration's values, as text, read and may not, one sentence each."""
    return [
        f"${{oc.env:{name}}} would write an environment variable into the records: "
        f"type its value, or use one of {', '.join(ALLOWED)}"
        for name in dict.fromkeys(_READ.findall(text))
        if name not in ALLOWED
    ]
