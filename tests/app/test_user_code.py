"""What a user's own code does in the command's process: it ends neither silently nor unnoticed."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from microp.app import user_code as user_code_module
from microp.app.interrupts import watched
from microp.app.user_code import user_code
from microp.settings import exit_raises


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_end_is_an_interrupt(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), watched(), user_code("a function"):
        signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_a_signal_that_is_ignored_still_is():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with watched():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_rank_of_torchrun_keeps_its_handlers(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    before = signal.getsignal(signal.SIGTERM)
    with watched():
        assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_would_end_the_command_is_an_error_of_the_function(raised):
    with pytest.raises(ValueError, match=f"a function raised {raised.__name__}: let it return"), watched():  # noqa: SIM117
        with user_code("a function"):
            raise raised


def test_an_interrupt_in_python_is_one():
    """`microp.measure` has no handlers of its own, and cannot tell."""
    with pytest.raises(KeyboardInterrupt), user_code("a function"):
        raise KeyboardInterrupt


def test_an_exit_without_a_word_is_an_error_also_in_a_thread():
    raised = []

    def leave():
        try:
            os._exit(3)
        except SystemExit as error:
            raised.append(error.code)

    before = os._exit
    with exit_raises():
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert (raised, os._exit) == ([3], before)


def test_a_process_that_was_forked_from_it_ends():
    with exit_raises():
        if not (child := os.fork()):
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_a_function_that_does_not_return_is_told(monkeypatch):
    said, told = [], threading.Event()
    monkeypatch.setattr(user_code_module, "LONG_S", 0.01)
    monkeypatch.setattr(user_code_module.console, "note", lambda text: (said.append(text), told.set()))
    with user_code("a function"):
        assert told.wait(60)
    assert said == ["a function has not returned for 0.01 s: the command waits for it, Ctrl-C ends both"]
