"""Starts commands in processes of their own, without importing torch, Hydra and pandas anew for each of them.

::

    pytest ── fork, once all tests are collected ─► multiprocessing's server of new processes
           ── Process ────────────────────────────►  └─ fork ─► the command ── fork ─► the server of its ranks

A command and its server of ranks would import torch for two seconds each, and there are hundreds of commands. The
forked process is what `python -m module` is to the command: its own folder, arguments, environment and output. The
packages are there already, also for the ranks; what `terminal` reads of the environment when it is imported is read
anew. Hydra composes a configuration twice, at first to read `hydra.mode`: once is enough where no word sets it."""

import atexit
import faulthandler
import importlib
import multiprocessing
import multiprocessing.forkserver as forkserver
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import process, resource_tracker
from pathlib import Path

from hydra._internal.hydra import Hydra

LONGEST_S = 300  # a command that has not ended then hangs: it writes the stacks of its threads, and ends with code 1
READ_MODE = Hydra.get_mode
MAIN = multiprocessing.current_process()  # as it is to a process that a user starts
WITHOUT_RANKS = ("analysis", "microp.import_trace", "microp.order", "microp.plan", "microp.runs", "microp.simulate")


class Command:
    """A command that runs, used like a `subprocess.Popen` whose output is captured as text."""

    def __init__(self, module: str, arguments: list[str], folder: Path, environment: Mapping[str, str]) -> None:
        """Start `python -m module arguments` in a folder."""
        self._words = [module, *arguments]
        self._files = tempfile.TemporaryDirectory()
        self._output = [Path(self._files.name, name) for name in ("out", "err")]
        for path in self._output:
            path.touch()
        given = (module, arguments, str(folder), dict(environment), [str(path) for path in self._output])
        self._process = multiprocessing.get_context("forkserver").Process(target=_become, args=given, daemon=True)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, below 0 if a signal ended it; None as long as it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code if the command has ended."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def said(self) -> str:
        """Return what it has written so far."""
        return "".join(path.read_text() for path in self._output)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait until the command has ended, and return what it wrote to standard output and standard error."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._words, timeout or 0)
        out, err = (path.read_text() for path in self._output)
        return out, err


def _become(module: str, arguments: list[str], folder: str, environment: dict[str, str], output: list[str]) -> None:
    """Turn this forked process into the command; it does not return."""
    try:
        for number, path in enumerate((os.devnull, *output)):
            opened = os.open(path, os.O_RDWR)
            os.dup2(opened, number)
            os.close(opened)
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__  # and not what pytest reads
        for finalizer in weakref.finalize._registry:
            finalizer.atexit = False  # a command does not give back what pytest has made
        process._current_process, process._parent_process = MAIN, None  # a command is nobody's child, and has ranks
        forkserver._forkserver.__init__()  # the tests' server, and the tracker of what they share, are not its own
        resource_tracker._resource_tracker.__init__()
        faulthandler.dump_traceback_later(LONGEST_S, exit=True, file=2)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        _open_consoles()
        if not (module.startswith(WITHOUT_RANKS) or {"comms=threads", "tracking=disabled"} <= {*arguments}):
            _start_ranks_from_here()
        added = environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:] = [folder, *added, *(path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix)))]
        if any(Path(path, "hydra_plugins").is_dir() for path in added):  # tests may have looked for plugins already
            singleton, plugins = (importlib.import_module(f"hydra.core.{name}") for name in ("singleton", "plugins"))
            singleton.Singleton._instances.pop(plugins.Plugins, None)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    Hydra.get_mode = mode_reader(arguments)
    _run(module, arguments)


def mode_reader(words: Sequence[str]) -> Callable[..., object]:
    """What Hydra shall read its mode with: the default needs no configuration. A stored sweep may have another one."""
    return READ_MODE if any(word.startswith(("-cn", "--config", "hydra")) for word in words) else lambda *_, **__: None


def _open_consoles() -> None:
    """Give the consoles the width and the colours that this environment and this output give."""
    console = importlib.import_module("microp.terminal.console")
    before = console.out, console.err  # which other modules have imported
    importlib.reload(console)
    for old, new in zip(before, (console.out, console.err), strict=True):
        vars(old).update(vars(new))


def _run(module: str, arguments: list[str]) -> None:
    """Run a module as `python -m` does, and end this process."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
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
        atexit._run_exitfuncs()  # as at the end of an interpreter: semaphores are removed
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _start_ranks_from_here() -> None:
    """Start multiprocessing's server of new processes as a fork of this one; otherwise it is a new interpreter."""
    config, server = multiprocessing.current_process()._config, forkserver._forkserver
    with tempfile.TemporaryDirectory() as folder:  # through descriptors, as microp's own: a socket's path is short
        config["tempdir"] = f"/proc/self/fd/{os.open(folder, os.O_PATH | os.O_CLOEXEC)}"
        try:
            start_server_from_here()
            server._forkserver_address = (
                f"/proc/self/fd/{os.open(server._forkserver_address, os.O_PATH | os.O_CLOEXEC)}"
            )
        finally:
            config["tempdir"] = None


def start_server_from_here() -> None:
    """Let multiprocessing's servers be forks of this process, which do what they do in an interpreter of their own."""

    def forked(path, arguments, keep):
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
                if number > 2 and number not in (*keep, nothing):
                    os.dup2(nothing, number)  # not closed: it would be another file's, and objects here write to it
            faulthandler.disable()  # what it writes to is closed
            sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
            exec(arguments[arguments.index("-c") + 1], {})
            code = 0
        finally:
            os._exit(code)

    before, forkserver.util.spawnv_passfds = forkserver.util.spawnv_passfds, forked
    try:
        resource_tracker.ensure_running()
        forkserver.ensure_running()
    finally:
        forkserver.util.spawnv_passfds = before
