"""What a user types, in a process of its own."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from warm import Command

ROOT = Path(__file__).parents[1]
SMALL = ["model.layers=4", "model.dim=32", "batch_size=8", "steps=3", "warmup_steps=1"]
BIN = Path(sys.executable).parent


def microp(*arguments: str, folder: Path, program: str = "microp.run", inside: int = 0, **environment: str):
    """Run a command of microp as `python -m` does, in a process of its own."""
    begun = begin(*arguments, folder=folder, program=program, inside=inside, **environment)
    out, err = begun.communicate()
    return subprocess.CompletedProcess([program, *arguments], begun.returncode, out, err)


def ran(*arguments: str, **given):
    """Run a command of microp, which ends well."""
    done = microp(*arguments, **given)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def begin(*arguments: str, folder: Path, program: str = "microp.run", inside: int = 0, **environment: str) -> Command:
    """Start a command of microp as `microp`, and do not wait for it; `inside` is a process that has its namespaces."""
    own = environment_of(folder, environment)
    return Inside(inside, program, arguments, folder, own) if inside else Command(program, [*arguments], folder, own)


class Inside(subprocess.Popen):
    """A command in the namespaces of another process, used as `Command`; it is an interpreter of its own."""

    def __init__(self, other: int, program: str, arguments: Sequence[str], folder: Path, own: dict[str, str]) -> None:
        self._output = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115 (they live as long as it)
        enter = ["nsenter", f"--target={other}", "--all", "env", f"--chdir={folder}", sys.executable, "-m", program]
        super().__init__([*enter, *arguments], env=own, stdout=self._output[0], stderr=self._output[1])

    def communicate(self, timeout: float | None = None) -> tuple[str, ...]:
        self.wait(timeout)
        return tuple(os.pread(file.fileno(), 2**24, 0).decode() for file in self._output)

    def said(self) -> str:
        return "".join(os.pread(file.fileno(), 2**24, 0).decode() for file in self._output)


def torchrun(ranks: int, *arguments: str, folder: Path, program: str = "microp.run", **environment: str):
    """Run a command with torchrun, on this host."""
    words = [f"--nproc_per_node={ranks}", "-m", program, *arguments]
    return microp(*words, folder=folder, program="torch.distributed.run", **environment)


def start(command, folder: Path, timeout: float = 300, **environment: str):
    """Run a command in an interpreter of its own."""
    own = environment_of(folder, environment)
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=timeout)


def environment_of(folder: Path, changes: dict[str, str]) -> dict[str, str]:
    """The environment of a user without W&B, unless the changes ask for it."""
    mine = {"PYTHONPATH": str(ROOT), "COLUMNS": "160", "HOME": str(folder), "WANDB_MODE": "disabled"}
    return {**{key: value for key, value in os.environ.items() if not key.startswith("WANDB")}, **mine, **changes}


def until(condition: Callable[[], object], said: Callable[[], str] = str, seconds: float = 280) -> None:
    """Wait until a condition holds; `said` tells why it does not. A busy machine may take long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, said()
        time.sleep(0.01)


def read(path: Path):
    return json.loads(path.read_text())


PAGES = [ROOT / "README.md", *(page for page in sorted(ROOT.glob("[!.]*/**/README.md")) if "outputs" not in page.parts)]


def pages() -> str:
    """The text of all pages, the README first."""
    return "\n".join(page.read_text() for page in PAGES)


def readme_block(language: str, word: str = "") -> str:
    """The only code block of a language on the pages in which a word stands; it may stand on several."""
    [code] = {code for code in re.findall(rf"```{language}\n(.*?)```", pages(), flags=re.DOTALL) if word in code}
    return code


def add_schedule(folder: Path) -> Path:
    """Make a folder a user's own: with the function and the YAML file of the schedule that the README adds."""
    (folder / "mine.py").write_text(readme_block("python", "backwards_first"))
    (folder / "schedule").mkdir()
    (folder / "schedule" / "mine.yaml").write_text(readme_block("yaml", "mine.backwards_first"))
    return folder


def add_model(folder: Path) -> Path:
    """Add the function and the YAML file of the model that the README adds to a user's own folder."""
    (folder / "words.py").write_text(readme_block("python", "nn.TransformerEncoderLayer"))
    (folder / "model").mkdir()
    (folder / "model" / "words.yaml").write_text(readme_block("yaml", "words.transformer"))
    return folder
