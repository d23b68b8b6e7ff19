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


def changed_data(
    runs: Iterable[tuple[str | None, Mapping[str, Any]]], now: Mapping[str | None, str | None] | None = None
) -> list[str]:
    """Return which paths have changed between these runs, while one read them, or since, one sentence per path.

    `runs` has of each attempt `data.path` and the content of its env.json; `now` what a path holds, if that counts.
    """
    read = defaultdict[str | None, Counter[str]](Counter)
    for path, env in runs:
        data = env.get("data") or {}  # nothing in one of an older microp, or if the data are in no file
        if start := data.get("start"):
            end = data.get("end", start)
            read[path][start if end == start else f"{start}, and then {end}"] += 1
    sentences = []
    for path, texts in read.items():
        holds = (now or {}).get(path) or next(iter(texts))
        if len({*texts, holds}) > 1 or ", and then " in holds:
            counts = (f"{number} {'run' if number == 1 else 'runs'} read {text}" for text, number in texts.items())
            since = f"; it holds {holds} now" if now else ""
            sentences.append(f"data.path={path} has changed: {', '.join(counts)}{since}")
    return sentences
