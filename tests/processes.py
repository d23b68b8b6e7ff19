"""Runs the tests in several processes, which are forks of one that has imported and collected everything.

::

    pytest ── imports, collects ──┬─ fork ─► runs whole files, asks for the next ──┐
                                  ├─ fork ─► ...                                   ├─ reports ─► pytest
                                  └─ fork ─► ...                                 ──┘

In a process that starts by itself, importing torch and collecting thousands of tests takes longer than most files.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from itertools import groupby, islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--processes", type=int, default=1, help="run the tests in this many processes")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests of a session, file after file in the order in which they were collected.

    A test whose process ends has failed, and the rest of its file goes to another process.

    Raises:
        pytest.Session.Failed, pytest.Session.Interrupted: enough tests have failed, or the user wants no more.
        RuntimeError: a process failed outside of the tests.
    """
    number = session.config.option.processes
    if number == 1 or session.config.option.collectonly or session.testsfailed:
        return None  # pytest's own loop, which also says what was wrong with the collection
    session.config._tmp_path_factory.getbasetemp()  # one folder for all
    by_file = groupby(range(len(session.items)), lambda index: session.items[index].path)
    files = iter([list(indices) for _, indices in by_file])
    workers: list[_Worker] = []
    try:
        for indices in islice(files, number):
            workers.append(_Worker(session, indices, workers))
        while workers:
            for pipe in wait([worker.pipe for worker in workers]):
                [worker] = [each for each in workers if each.pipe is pipe]
                if not worker.hear():
                    workers.remove(worker)
                    if rest := worker.left or next(files, []):
                        workers.append(_Worker(session, rest, workers))
                elif not worker.left:
                    worker.give(next(files, []))
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
    finally:
        for worker in workers:
            os.kill(worker.pid, signal.SIGKILL)
            os.waitpid(worker.pid, 0)
    return True


class _Worker:
    """A process that runs tests, as this one sees it.

    Attributes:
        pid: the process.
        pipe: through which it says what it does.
        left: the indices of the tests that it was given and has not finished.
    """

    def __init__(self, session: pytest.Session, indices: Sequence[int], others: Sequence[_Worker]) -> None:
        self._session = session
        self.pipe, end = Pipe()
        self.pid = os.fork()
        if not self.pid:
            for each in (*others, self):
                each.pipe.close()  # so that it sees when the one that collected has ended
            _work(session, end)
        end.close()
        self.give(indices)

    def give(self, indices: Sequence[int]) -> None:
        """Let it run these tests; it ends if there are none."""
        self.left = list(indices)
        self.pipe.send(self.left)

    def hear(self) -> bool:
        """Pass on what it says next; return whether it goes on."""
        hook = self._session.config.hook
        try:
            what, told = self.pipe.recv()
        except EOFError:
            _, status = os.waitpid(self.pid, 0)
            if self.left:
                item = self._session.items[self.left.pop(0)]
                said = f"the process of the test has ended: {os.waitstatus_to_exitcode(status)}"
                report = pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call")
                hook.pytest_runtest_logreport(report=report)
            return False
        if what == "report":
            report = hook.pytest_report_from_serializable(config=self._session.config, data=told)
            hook.pytest_runtest_logreport(report=report)
        elif what == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=told)
        elif what == "finished":
            item = self._session.items[self.left.pop(0)]
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        else:
            raise RuntimeError(told)
        return True


class _Sends:
    """A plugin that sends what a terminal would show."""

    def __init__(self, config: pytest.Config, pipe: Connection) -> None:
        self._config, self._pipe = config, pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._pipe.send(("report", data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        warning_message.source = None  # it may be anything
        about = {"when": when, "nodeid": nodeid, "location": location}
        self._pipe.send(("warning", {"warning_message": warning_message, **about}))


def _work(session: pytest.Session, pipe: Connection) -> None:
    """Run the tests whose indices come, until none come; then end this process."""
    plugins, code = session.config.pluginmanager, 1
    try:
        plugins.unregister(name="terminalreporter")
        plugins.register(_Sends(session.config, pipe))
        _capture_alone(session.config)
        while indices := pipe.recv():
            items = [session.items[index] for index in indices]
            for item, after in zip(items, [*items[1:], session], strict=True):  # the session: its fixtures stay
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                pipe.send(("finished", None))
        plugins.getplugin("runner").pytest_sessionfinish(session)  # ends the fixtures of the session
        code = 0
    except (EOFError, BrokenPipeError):
        pass  # the process that collected has ended
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
    finally:
        atexit._run_exitfuncs()
        os._exit(code)


def _capture_alone(config: pytest.Config) -> None:
    """Give this process files of its own for what is printed, below the streams that modules may have kept."""
    if config.option.capture != "fd":
        return
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.resume_global_capture()
    for number, stream in enumerate((sys.stdout, sys.stderr), start=1):
        with tempfile.TemporaryFile() as own:
            for shared in (stream.fileno(), number):
                os.dup2(own.fileno(), shared)
    capture.suspend_global_capture()
