"""Starts commands in processes of their own, without importing torch, Hydra and pandas anew for each of them.

::

    pytest ── connects ───────────────► warm process (packages, lower floors of microp imported)
                                          └─ fork, one for each process of pytest
           ── one line of JSON ───────────►  └─ fork ─► the command ── fork ─► its ranks
           ◄─ its process, exit code ───────

The forked process is what `python -m module` is to the command: its own folder, arguments, environment and output.
The packages are there already, also for the ranks, and the files of `conf/` have been read; what `terminal` reads of
the environment when it is imported is read anew. It takes a tenth of the time of a new interpreter. torchrun's ranks
are forks of torchrun; a command can be in the namespaces of another process.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import importlib
import json
import multiprocessing
import multiprocessing.forkserver as forkserver
import os
import platform
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

LONGEST_S = 300  # a command that has not ended then hangs
POLL_S = 0.01  # between two looks at the commands that run
HANGS = -1000  # in place of an exit code
HUGE = 2**21  # the bytes of a huge page
MADV_COLLAPSE = 25  # since Linux 6.1
SHARED = "TESTS_WARM_PROCESS"  # the variable that has the name of its socket
OUTPUT = ("out", "err")  # files of what a command writes
HANDLER = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"  # of torchrun's ranks

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
    *("microp.sweep.hydra_app", "microp.commands.interface", "microp.commands.pricing", "microp.sweep.sweep"),
    *("microp.sweep.attempt", "microp.sweep.joined", "microp.commands.planning"),
    *("multiprocessing.queues", "multiprocessing.popen_forkserver", "torch._subclasses.schema_check_mode"),
]
WITHOUT_RANKS = ("analysis", "microp.null_stages", "microp.order", "microp.plan", "microp.runs", "microp.simulate")
CONSOLE = "microp.terminal.console"


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

    def said(self) -> str:
        """Return what it has written so far."""
        return "".join(Path(self._files.name, name).read_text() for name in OUTPUT)

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
        out, err = (Path(self._files.name, name).read_text() for name in OUTPUT)
        self._files.cleanup()
        if code == HANGS:
            raise TimeoutError(f"{self._words} hangs: {err}")
        self.returncode = code
        return out, err


class Warm:
    """The warm process, which ends with the process that has started it."""

    def __init__(self) -> None:
        name = os.environ.pop(SHARED, "")
        self._address = b"\0" + name.encode() if name else b""  # at which it listens
        self._connection: socket.socket | None = None
        self._said = b""  # the part of a line that has come
        self._codes: dict[int, int] = {}  # of commands that have ended, by process

    def share(self) -> None:
        """Start the process; those that this one starts use it too."""
        self._prepare()
        os.environ[SHARED] = self._address[1:].decode()

    def _prepare(self) -> None:
        """Start the process, unless it runs."""
        if self._address:
            return
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(b"")  # to a name that no other socket has
            listener.listen()
            self._address = listener.getsockname()
            command = [sys.executable, __file__, str(listener.fileno())]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])

    def start(
        self, module: str, arguments: list[str], folder: Path, environment: dict[str, str], inside: int = 0
    ) -> Command:
        """Start `python -m module arguments` in a folder; `inside` is the process whose namespaces it gets."""
        if self._connection is None:
            self._prepare()
            self._connection = socket.socket(socket.AF_UNIX)
            self._connection.connect(self._address)
        files = tempfile.TemporaryDirectory()
        for name in OUTPUT:
            Path(files.name, name).touch()
        asked = {"module": module, "arguments": arguments, "folder": str(folder), "environment": environment}
        self._connection.sendall(json.dumps({**asked, "files": files.name, "inside": inside}).encode() + b"\n")
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
        assert self._connection is not None
        while b"\n" not in self._said:
            if not select.select([self._connection], [], [], timeout)[0]:
                return None
            more = self._connection.recv(4096)
            assert more, "the warm process has ended"
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        said: dict[str, int] = json.loads(line)
        if "ended" in said:
            self._codes[said["ended"]] = said["code"]
        return said


def _listen(listener: socket.socket) -> None:
    """Import the packages; then fork for every process that connects, until those that could have gone."""
    sys.path.insert(1, str(Path(__file__).parents[1]))  # as for the commands
    for name in PACKAGES:
        importlib.import_module(name)
    _read_files()
    importlib.import_module("microp.model").library_text()  # on which most ranks train
    importlib.import_module("rich.emoji").Emoji.replace(":x:")  # the first one imports all of them
    with importlib.import_module("torch.autograd.profiler").record_function("the first step imports what this does"):
        pass
    for each in vars(weakref.finalize)["_registry"]:
        each.atexit = False  # a command need not give back what was made here
    gc.collect()
    gc.freeze()  # a collection in a command would copy the pages of all that it did not make
    make_forks_cheap()
    while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            for number in (0, 1):
                os.dup2(connection.fileno(), number)
            connection.close()
            _serve()
            os._exit(0)
        connection.close()


def make_forks_cheap() -> None:
    """Collect this process's memory in huge pages: a fork then copies, and its end frees, 500 times fewer entries.

    Nothing else changes, and nothing at all where the system cannot do it.
    """
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, _, _, _, *name = line.split()
        if permissions == "rw-p" and name in ([], ["[heap]"]):
            begin, end = (int(each, 16) for each in addresses.split("-"))
            for page in range(-(-begin // HUGE) * HUGE, end - HUGE + 1, HUGE):
                advise(ctypes.c_void_p(page), ctypes.c_size_t(HUGE), MADV_COLLAPSE)


def _read_files() -> None:
    """Compose once what most commands compose: the files are kept as long as they do not change."""
    config, factory = importlib.import_module("microp.config"), importlib.import_module("microp.config")
    for words in (("tracking=disabled", "chunks=2"), ("tracking=disabled", "model.dim=32", "comms=threads")):
        factory.make_job(config.read_config(config.compose_config(*words)))
    config.compose_config("schedule=1f1b", "costs.forward=[1,2]", name="simulate")


def _serve() -> None:
    """Start the commands that are asked for on standard input, and say what becomes of them on standard output."""
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


def _become(
    module: str, arguments: list[str], folder: str, environment: dict[str, str], files: str, inside: int
) -> None:
    """Turn this forked process into the command; it does not return."""
    code = 1
    try:
        for number, path in enumerate((os.devnull, *(f"{files}/{name}" for name in OUTPUT))):
            opened = os.open(path, os.O_RDWR)
            os.dup2(opened, number)
            os.close(opened)
        faulthandler.register(signal.SIGUSR2)
        if inside:
            _enter(inside)
        os.chdir(folder)
        _set_environment(environment)
        _open_consoles()
        if not (module.startswith(WITHOUT_RANKS) or {"comms=threads", "tracking=disabled"} <= {*arguments}):
            _start_ranks_from_here()
        if module == "torch.distributed.run":
            importlib.import_module(HANDLER).Popen = _Rank
        sys.path[0] = folder  # instead of the folder of this file
        own = environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[1:1] = own
        if any(Path(path, "hydra_plugins").is_dir() for path in own):
            _forget_plugins()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        if code:
            os._exit(code)
    _run(module, arguments)


def _set_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _open_consoles() -> None:
    """Give the consoles the width and the colours that this environment and this output give."""
    console = importlib.import_module(CONSOLE)
    before = console.out, console.err  # which other modules have imported
    importlib.reload(console)
    for old, new in zip(before, (console.out, console.err), strict=True):
        vars(old).update(vars(new))


def _forget_plugins() -> None:
    """Let Hydra look for plugins anew: it did so when the files were read, on this process's own path."""
    singleton, plugins = (importlib.import_module(f"hydra.core.{name}") for name in ("singleton", "plugins"))
    singleton.Singleton._instances.pop(plugins.Plugins, None)


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


NAMESPACES = {  # the kinds, as setns wants them; the first one gives the right to enter the others
    "user": 0x10000000,
    "mnt": 0x00020000,
    "uts": 0x04000000,
    "net": 0x40000000,
    "time": 0x00000080,
    "pid": 0x20000000,
}


def _enter(process: int) -> None:
    """Go on in the namespaces of another process, in a child where those of the processes differ."""
    own, its = (Path(f"/proc/{each}/ns") for each in ("self", process))
    others = [kind for kind in NAMESPACES if (own / kind).readlink() != (its / kind).readlink()]
    opened = {kind: os.open(its / kind, os.O_RDONLY | os.O_CLOEXEC) for kind in others}
    system = ctypes.CDLL(None, use_errno=True)
    platform._uname_cache = None  # the name of the host that it was
    for kind, descriptor in opened.items():
        if system.setns(descriptor, NAMESPACES[kind]):
            raise OSError(ctypes.get_errno(), f"setns {kind}")
        os.close(descriptor)
    if "pid" in others and (child := os.fork()):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(child, number))
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) % 256)
    elif "pid" in others:
        system.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its parent


class _Rank(subprocess.Popen):
    """`python -u -m module arguments`, which torchrun starts: a fork of torchrun instead."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *_):
        self.pid = os.fork()
        self._child_created = True
        if self.pid:
            return
        os.setsid()
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the agent's sockets
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        _set_environment(env)
        _, _, _, module, *arguments = args
        _run(module, arguments)


def _start_ranks_from_here() -> None:
    """Start multiprocessing's server of new processes as a fork of this one; otherwise it is a new interpreter."""
    config, server = multiprocessing.current_process()._config, forkserver._forkserver
    with tempfile.TemporaryDirectory() as folder:  # through descriptors, as microp's own: a socket's path is short
        config["tempdir"] = f"/proc/self/fd/{os.open(folder, os.O_PATH | os.O_CLOEXEC)}"
        try:
            with forks_instead_of_interpreters():
                forkserver.ensure_running()
            server._forkserver_address = (
                f"/proc/self/fd/{os.open(server._forkserver_address, os.O_PATH | os.O_CLOEXEC)}"
            )
        finally:
            config["tempdir"] = None


@contextmanager
def forks_instead_of_interpreters() -> Iterator[None]:
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
        yield
    finally:
        forkserver.util.spawnv_passfds = before


if __name__ == "__main__":
    _listen(socket.socket(fileno=int(sys.argv[1])))
