"""What commands have in common: how they begin and end, one line for each mistake, words without secrets.

::

    schedule.api_key=abc  chunks=4   ── redact_words ──►   schedule.api_key=REDACTED  chunks=4
    {"api_key": "abc", "chunks": 4}  ── redact_values ─►   {"api_key": "REDACTED", "chunks": 4}

The value of a key that ends with key, token, secret or password is not written to a file.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from microp.system.machine import is_joined
from microp.system.places import answer_version

_PLAIN = re.compile(r"[\w/.:+@%-]([\w/.:+@% -]*[\w/.:+@%-])?", re.ASCII)  # Hydra reads such a value as it stands
_INTERRUPTED = 130
REDACTED = "REDACTED"
_SAYS_SO = r"(?:key|token|secret|password)"
_SECRET = re.compile(rf"{_SAYS_SO}$", re.IGNORECASE)  # not max_tokens, nor key_dim
_INSIDE = re.compile(rf"([\w.]*{_SAYS_SO}\s*[:=]\s*)('[^']*'|\"[^\"]*\"|[^,}}\]\s]+)", re.IGNORECASE)


_signals: list[int] = []  # those that were to end this command


def _interrupt(number: int, _: object) -> None:
    _signals.append(number)
    raise KeyboardInterrupt


def see_interrupt() -> None:
    """Raise KeyboardInterrupt if a signal was to end this command; Python drops one that it raises in a destructor."""
    if _signals:
        raise KeyboardInterrupt


def run_command(command: Callable[[], Any]) -> NoReturn:
    """Run a command and exit with the number that it returns, 0 if it returns something else, 130 after Ctrl-C.

    With `--version` it answers that instead.

    SIGTERM and SIGHUP end it as Ctrl-C does, so that what it started is ended and recorded. What is ignored, as SIGHUP
    after `nohup`, still is; a rank of torchrun leaves them as they are, because it may wait in torch's C++ code.
    """
    atexit.register(gc.freeze)  # else Python looks for cycles in all of torch as it ends: a third of a second
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler) and not is_joined():
            signal.signal(number, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the locale's encoding lacks is a question mark
    try:
        answer_version()
        code = command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BrokenPipeError:
        code = leave_reader()
    finally:
        _signals.clear()
    sys.exit(code if isinstance(code, int) else 0)


def leave_reader() -> int:
    """Write what is left of the output nowhere, as its reader, such as `head`, has seen enough; return 0."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def override(key: str, value: object) -> str:
    """Return `key=value` as a word of a command, in which Hydra finds the value again; a shell needs `shlex.join`."""
    return f"{key}={_spelled(value)}"


def _spelled(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_spelled, value))}]"
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + found[2].replace("'", "\\'"), value)
        return f"'{escaped}'"
    return str(value)


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a dictionary without nested ones, whose keys are joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


class CommandParser(argparse.ArgumentParser):
    """A parser whose `error` prints one line and exits with code 2."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the command line; nothing has been started."""
        self.exit(2, f"error: {message}\n")


def redact_words(words: Iterable[str]) -> list[str]:
    """Return the words of a command, in which the values of secret keys are replaced, also those inside of a value."""
    redacted = []
    for key, assigned, value in (word.partition("=") for word in words):
        is_secret = assigned and _SECRET.search(key)
        redacted.append(key + assigned + (REDACTED if is_secret else _INSIDE.sub(rf"\1{REDACTED}", value)))
    return redacted


def redact_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration, nested or with dots in its keys, in which the values of secret keys are replaced."""
    return {
        key: redact_values(value)
        if isinstance(value, Mapping)
        else REDACTED
        if value is not None and _SECRET.search(str(key))
        else value
        for key, value in values.items()
    }
