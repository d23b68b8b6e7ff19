"""Tells whether runs were trained on the same data: `data.path` says where a text is, and not what it holds.

::

    env.json   data.start, data.end     what the files were when the ranks started and when they had ended, in words:
                                        size, time and checksum of `DataSettings.contents`

A file that was written again and is the same is told too, because only its beginning is read for the checksum: a file
of tokens may be longer than the memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

Env = Mapping[str, Any]  # the content of an attempt's env.json; one of an older microp says nothing about data
_THEN = ", and then "


def changed_while(path: str | None, env: Env) -> str | None:
    """Return that an attempt's data changed between its start and its end, in one sentence; None if they did not."""
    text = _read(env)
    return f"data.path={path} changed while the run read it: it held {text}" if text and _THEN in text else None


def changed_since(runs: Iterable[tuple[str | None, Env, str | None]]) -> list[str]:
    """Return which paths hold something else now than attempts read there, one sentence per path.

    `runs` has of each attempt `data.path`, its environment, and what the path holds now.
    """
    found = defaultdict[str, Counter[str]](Counter)
    for path, env, now in runs:
        if now is not None and (text := _read(env)) and text != now:
            found[f"data.path={path} holds {now}"][text] += 1
    return [f"{now}, but {_counts(texts)}" for now, texts in found.items()]


def changed_between(runs: Iterable[tuple[str | None, Env]]) -> list[str]:
    """Return which paths held something else for some of these runs than for others, one sentence per path."""
    found = defaultdict[str, Counter[str]](Counter)
    for path, env in runs:
        if text := _read(env):
            found[f"data.path={path} has changed"][text] += 1
    return [f"{path}: {_counts(texts)}" for path, texts in found.items() if len(texts) > 1 or _THEN in "".join(texts)]


def _read(env: Env) -> str | None:
    """Return what an attempt read, and what it became if that is something else; None if it is not known."""
    data = env.get("data") or {}
    start = data.get("start")
    return f"{start}{_THEN}{data['end']}" if start and data.get("end", start) != start else start


def _counts(texts: Counter[str]) -> str:
    return ", ".join(f"{number} {'run' if number == 1 else 'runs'} read {text}" for text, number in texts.items())
