"""Keeps secrets out of the files: the value of a key that says key, token, secret or password is not written.

::

    schedule.api_key=abc  chunks=4   ── redact_words ──►   schedule.api_key=REDACTED  chunks=4
    {"api_key": "abc", "chunks": 4}  ── redact_values ─►   {"api_key": "REDACTED", "chunks": 4}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

REDACTED = "REDACTED"
_SAYS_SO = r"(?:key|token|secret|password)"
_SECRET = re.compile(_SAYS_SO, re.IGNORECASE)
_INSIDE = re.compile(rf"([\w.]*{_SAYS_SO}[\w.]*\s*[:=]\s*)('[^']*'|\"[^\"]*\"|[^,}}\]\s]+)", re.IGNORECASE)


def redact_words(words: Iterable[str]) -> list[str]:
    """Return the words of a command, in which the values of secret keys are replaced, also those inside of a value."""
    return [_redact_word(word) for word in words]


def _redact_word(word: str) -> str:
    key, assigned, value = word.partition("=")
    if assigned and _SECRET.search(key):
        return f"{key}={REDACTED}"
    return key + assigned + _INSIDE.sub(rf"\1{REDACTED}", value)


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
