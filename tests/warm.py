"""Starts commands in processes of their own, without importing torch, Hydra and pandas anew for each of them.

::

    pytest ── one line of JSON ───────► warm process (packages, lower floors of microp imported) ── fork ─► the command
           ◄─ its process, exit code ──                                                          ── fork ─► its ranks

The forked process is what `python -m module` is to the command: its own folder, arguments, environment and output.
The packages that microp uses are there already, also for the ranks, and those of microp's that read nothing of the
environment when they are imported: `app` and `terminal` are imported anew. It takes a tenth of the time of a new
interpreter.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import multiprocessing
import multiprocessing.forkserver as forkserver
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

LONGEST_S = 300  # a command that has not ended then hangs
POLL_S = 0.01  # between two looks at the commands that run
HANGS = -1000  # in place of an exit code

PACKAGES = [
    *("torch", "torch._dynamo", "torch.distributed.launcher.api", "torch.distributed.pipelining"),
    *(
        "hydra",
        "hydra.main",
        "omegaconf",
        "pandas",
        "matplotlib.pyplot",
        "seaborn",
        "jinja2",
        "rich.table",
        "rich.live",
    ),
    *("microp.planner", "microp.worker"),  # with all packages below them
]


class Command:
    """A command that runs, used like a `subprocess.Popen` whose output is captured as text.

    Attributes:
        pid: its process.
        returncode: its exit code, below 0 if a signal ended it; None as long as that is not known.
    """

    def __init__(self, warm: Warm, words: str, pid: int, files: tempfile.TemporaryDirectory[str]) -> None:
        self._warm, self._words, self._files = warm, words, files
        self.pid, self.returncode = pid, None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return the exit code if the command has ended."""
        if self.returncode is None:
            self.returncode = self._warm.exit_code(self.pid, 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait until the command has ended, and return what it wrote to standard output and standard error.

        Raises:
            TimeoutError: it hangs; the message has the stacks of its threads. It has been killed.
            subprocess.TimeoutExpired: it has not ended within `timeout` seconds.
        """
        code = self._warm.exit_code(self.pid, timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self._words, timeout or 0)
        out, err = (Path(self._files.name, name).read_text() for name in ("out", "err"))
        self._files.cleanup()
        if code == HANGS:
            raise TimeoutError(f"{self._words} hangs: {err}")
        self.returncode = code
        return out, err


class Warm:
    """The warm process, made when the first command is started; it ends with this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""  # the part of a line that has come
        self._codes: dict[int, int] = {}  # of commands that have ended, by process

    def start(self, module: str, arguments: list[str], folder: Path, environment: dict[str, str]) -> Command:
        """Start `python -m module arguments` in a folder."""
        if self._process is None:
            command = [sys.executable, __file__]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._process.stdin is not None
        files = tempfile.TemporaryDirectory()
        asked = {"module": module, "arguments": arguments, "folder": str(folder), "environment": environment}
        self._process.stdin.write(json.dumps({**asked, "files": files.name}).encode() + b"\n")
        while (said := self._line(None)) is None or "started" not in said:
            pass
        return Command(self, f"{module} {' '.join(arguments)}", said["started"], files)

    def exit_code(self, pid: int, timeout: float | None) -> int | None:
        """Return the exit code of a command, HANGS if it had to be killed; None if it has not ended in time."""
        end = None if timeout is None else time.monotonic() + timeout
        while pid not in self._codes:
            if self._line(None if end is None else max(0.0, end - time.monotonic())) is None:
                return None
        return self._codes[pid]

    def _line(self, timeout: float | None) -> dict[str, int] | None:
        """Read the next line of the warm process: a command was started, or has ended; None if none comes in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        while b"\n" not in self._said:
            if not select.select([self._process.stdout], [], [], timeout)[0]:
                return None
            more = os.read(self._process.stdout.fileno(), 4096)
            assert more, "the warm process has ended"
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        said: dict[str, int] = json.loads(line)
        if "ended" in said:
            self._codes[said["ended"]] = said["code"]
        return said


def _serve() -> None:
    sys.path.insert(1, str(Path(__file__).parents[1]))  # as for the commands
    for name in PACKAGES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a command would copy the pages of all that it did not make
    asked = b""
    deadlines: dict[int, float] = {}  # of the commands that run, by process
    while True:
        if select.select([sys.stdin], [], [], POLL_S if deadlines else None)[0]:
            more = os.read(sys.stdin.fileno(), 65536)
            if not more:
                return
            *lines, asked = (asked + more).split(b"\n")
            for line in lines:
                pid = os.fork()
                if not pid:
                    _become(**json.loads(line))
                deadlines[pid] = time.monotonic() + LONGEST_S
                print(json.dumps({"started": pid}), flush=True)
        for pid in list(deadlines):
            ended, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
            if not ended and time.monotonic() > deadlines[pid]:
                _kill(pid)
                code = HANGS
            if code is not None:
                del deadlines[pid]
                print(json.dumps({"ended": pid, "code": code}), flush=True)


def _kill(pid: int) -> None:
    """Kill a command after it has printed the stacks of its threads."""
    os.kill(pid, signal.SIGUSR2)
    time.sleep(1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _become(module: str, arguments: list[str], folder: str, environment: dict[str, str], files: str) -> None:
    """Turn this forked process into the command; it does not return."""
    code = 1
    try:
        for number, path in enumerate((os.devnull, f"{files}/out", f"{files}/err")):
            opened = os.open(path, os.O_RDWR | os.O_CREAT)
            os.dup2(opened, number)
            os.close(opened)
        faulthandler.register(signal.SIGUSR2)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        _start_ranks_from_here()
        sys.path[0] = folder  # instead of the folder of this file
        sys.path[1:1] = environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _start_ranks_from_here() -> None:
    """Start multiprocessing's server of new processes as a fork of this one; otherwise it is a new interpreter."""

    def forked(path, arguments, keep):
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            lowest = 3
            for number in sorted(keep):
                os.closerange(lowest, number)
                lowest = number + 1
            os.closerange(lowest, os.sysconf("SC_OPEN_MAX"))
            exec(arguments[arguments.index("-c") + 1], {})
            code = 0
        finally:
            os._exit(code)

    before, forkserver.util.spawnv_passfds = forkserver.util.spawnv_passfds, forked
    config, server = multiprocessing.current_process()._config, forkserver._forkserver
    with tempfile.TemporaryDirectory() as folder:  # through descriptors, as microp's own: a socket's path is short
        config["tempdir"] = f"/proc/self/fd/{os.open(folder, os.O_PATH | os.O_CLOEXEC)}"
        try:
            forkserver.ensure_running()
            server._forkserver_address = (
                f"/proc/self/fd/{os.open(server._forkserver_address, os.O_PATH | os.O_CLOEXEC)}"
            )
        finally:
            forkserver.util.spawnv_passfds = before
            config["tempdir"] = None


if __name__ == "__main__":
    _serve()
