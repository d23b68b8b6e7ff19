"""Starts commands in processes of their own, without importing torch, Hydra and pandas anew for each of them.

::

    pytest ── one line of JSON ─► warm process (packages imported, of microp the lower floors) ── fork ─► the command
           ◄─ its exit code ────                                                               ── fork ─► its ranks

The forked process is what `python -m module` is to the command: its own folder, arguments, environment and output.
The packages that microp uses are there already, also for the ranks, and those of microp's that read nothing of the
environment when they are imported: `app` and `terminal` are imported anew. It takes a tenth of the time of a new
interpreter.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import multiprocessing
import multiprocessing.forkserver as forkserver
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

LONGEST_S = 300  # a command that has not ended then hangs

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


class Warm:
    """The warm process, made when the first command is started; it ends with this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(
        self, module: str, arguments: list[str], folder: Path, environment: dict[str, str], out: Path, err: Path
    ) -> int:
        """Run `python -m module arguments` in a folder and return its exit code; its output goes to two files.

        Raises:
            TimeoutError: the command hangs; the message has the stacks of its threads. It has been killed.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"module": module, "arguments": arguments, "folder": str(folder), "environment": environment}
        self._process.stdin.write(json.dumps({**asked, "out": str(out), "err": str(err)}) + "\n")
        code = self._process.stdout.readline().strip()
        if code == "hangs":
            raise TimeoutError(f"{module} {' '.join(arguments)} hangs: {err.read_text()}")
        return int(code)


def _serve() -> None:
    sys.path.insert(1, str(Path(__file__).parents[1]))  # as for the commands
    for name in PACKAGES:
        importlib.import_module(name)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            _become(**json.loads(line))
        print(_exit_code(pid), flush=True)


def _exit_code(pid: int) -> int | str:
    """Return the exit code of a command; "hangs" if it had to be killed, after it has printed its stacks."""
    deadline, pause = time.monotonic() + LONGEST_S, 0.001
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            break
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    os.kill(pid, signal.SIGUSR2)
    time.sleep(1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hangs"


def _become(module: str, arguments: list[str], folder: str, environment: dict[str, str], out: str, err: str) -> None:
    """Turn this forked process into the command; it does not return."""
    code = 1
    try:
        for number, path in enumerate((os.devnull, out, err)):
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
