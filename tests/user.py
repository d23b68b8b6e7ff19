"""What a user types, in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMALL = ["model.layers=4", "model.dim=32", "batch_size=8", "steps=3", "warmup_steps=1"]
BIN = Path(sys.executable).parent


def microp(*arguments: str, folder: Path, program: str = "microp.run", **environment: str):
    command = [sys.executable, "-m", program, *arguments]
    return start(command, folder, **environment)


def start(command, folder: Path, **environment: str):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    return subprocess.run(
        command,
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "160", "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def read(path: Path):
    return json.loads(path.read_text())


def readme_block(language: str, word: str = "") -> str:
    """The only code block of a language in the README in which a word stands."""
    text = (ROOT / "README.md").read_text()
    [code] = [code for code in re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL) if word in code]
    return code


def add_schedule(folder: Path) -> Path:
    """Make a folder a user's own: with the function and the YAML file of the schedule that the README adds."""
    (folder / "mine.py").write_text(readme_block("python", "backwards_first"))
    (folder / "schedule").mkdir()
    (folder / "schedule" / "mine.yaml").write_text(readme_block("yaml", "mine.backwards_first"))
    return folder
