"""What a user types: in this process, which has imported the packages, or in an interpreter of its own."""

import importlib
import io
import json
import logging
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from loaded import load_once

from microp.config import factory, tracebacks
from microp.points import PointsCallback
from microp.terminal import console

ROOT = Path(__file__).parents[1]
SMALL = ["model.layers=4", "model.dim=32", "batch_size=8", "steps=3", "warmup_steps=1"]
BIN = Path(sys.executable).parent


def microp(*arguments: str, folder: Path, program: str = "microp.run", **environment: str):
    """Type a command of microp in a folder: what `python -m` does, in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with _as_typed(program, arguments, folder, environment), redirect_stdout(out), redirect_stderr(err):
        try:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess([program, *arguments], code, out.getvalue(), err.getvalue())


@contextmanager
def _as_typed(program: str, arguments: Sequence[str], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Let this process be one of a user's, and afterwards the tests' again.

    Hydra composes a configuration twice, at first to read `hydra.mode`: once is enough where no word sets it.
    """
    own, numbers = environment_of(folder, environment), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers, modules, sets_mode = [*map(signal.getsignal, numbers)], {*sys.modules}, ("-cn", "--config", "hydra")
    levels = {logger: logger.level for logger in (logging.root, tracebacks)}
    _end_wandb()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        for each in (console.out, console.err):  # before the environment: rich reads it, too
            patch.setattr(each, "width", int(own["COLUMNS"]))
        patch.chdir(folder)
        for name in os.environ.keys() - own.keys():
            patch.delenv(name)
        for name, value in own.items():
            patch.setenv(name, value)
        patch.setattr(factory, "_checked_models", {})  # another test may have a model of the same name
        patch.setattr(sys, "argv", [program, *arguments])
        patch.setattr(sys, "path", [str(folder), *sys.path])
        if not any(word.startswith(sets_mode) for word in arguments):
            patch.setattr(Hydra, "get_mode", lambda *_, **__: None)
        patch.setattr(ConfigLoaderImpl, "load_configuration", load_once)
        patch.setattr(
            Hydra, "format_config_groups", lambda *_, **__: ""
        )  # on no page of ours, and most of --help's time
        importlib.invalidate_caches()
        try:
            yield
        finally:
            PointsCallback.began, HydraConfig.instance().cfg = None, None
            GlobalHydra.instance().clear()
            for number, handler in zip(numbers, handlers, strict=True):
                signal.signal(number, handler)
            for logger, level in levels.items():
                logger.setLevel(level)
            _end_wandb()
            for name in {*sys.modules} - modules:
                if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                    del sys.modules[name]


def _end_wandb() -> None:
    """End W&B's process: it writes relative to the folder in which it was started."""
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


def ran(*arguments: str, **given):
    """Type a command of microp, which ends well."""
    done = microp(*arguments, **given)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


class begin(subprocess.Popen):  # noqa: N801 (it is called as a function)
    """Start a command of microp in an interpreter of its own; `inside` is a process that has its namespaces."""

    def __init__(
        self, *words: str, folder: Path, program: str = "microp.run", inside: int = 0, **environment: str
    ) -> None:
        self._output = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115 (they live as long as it)
        enter = ["nsenter", f"--target={inside}", "--all", "env", f"--chdir={folder}"] if inside else []
        command, own = [*enter, sys.executable, "-m", program, *words], environment_of(folder, environment)
        out, err = self._output
        super().__init__(command, cwd=None if inside else folder, env=own, stdout=out, stderr=err)

    def communicate(self, timeout: float | None = 300) -> tuple[str, ...]:
        """Wait until it has ended, and return what it wrote to standard output and standard error."""
        self.wait(timeout)
        return tuple(os.pread(file.fileno(), 2**24, 0).decode() for file in self._output)

    def said(self) -> str:
        """Return what it has written so far."""
        return "".join(os.pread(file.fileno(), 2**24, 0).decode() for file in self._output)


def alone(*words: str, **given):
    """Run a command of microp in an interpreter of its own."""
    process = begin(*words, **given)
    return subprocess.CompletedProcess(process.args, process.wait(), *process.communicate())


def torchrun(ranks: int, *arguments: str, folder: Path, program: str = "microp.run", **environment: str):
    """Run a command with torchrun, on this host."""
    words = [f"--nproc_per_node={ranks}", "-m", program, *arguments]
    return alone(*words, folder=folder, program="torch.distributed.run", **environment)


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
