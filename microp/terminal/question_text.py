"""Names the question of each row in one short column, for tables without room for a column per key.

::

    chunks  partition  partition.share  batch_size        question
    8       uniform    -                256               -
    8       skewed     0.5              256          ─►   skewed share=0.5
    8       uniform    -                32                batch_size=32

    question: what differs from chunks=8 uniform batch_size=256; - is that itself
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from rich.cells import cell_len

from microp.terminal.columns import Column, shorten

NAME = "question"
SHORTEST = 18  # characters to which a question may be shortened
LEAST = 6  # characters to which a value in it may be shortened
MISSING = "-"  # the value of a key that the option of its group does not have

Item = tuple[str, str, bool]  # `learning_rate=`, its value, and whether the value is an option, which stays whole


def question_column(keys: Mapping[str, Sequence[str]], groups: Collection[str], importance: int) -> tuple[Column, str]:
    """Return the column, and the sentence that says what its texts leave out.

    Args:
        keys: key -> one value per row, of the keys that differ between the rows.
        groups: the keys that name a group; their values stand alone.
        importance: that of the column.
    """
    usual = {key: Counter(values).most_common(1)[0][0] for key, values in keys.items()}
    last = Counter(key.rpartition(".")[2] for key in keys)

    def item(key: str, value: str) -> str:
        short = key.rpartition(".")[2]
        return value if key in groups else f"{short if last[short] == 1 else key}={value}"

    def items(row: Sequence[str]) -> list[Item]:
        differ = [(key, value) for key, value in zip(keys, row, strict=True) if value not in (usual[key], MISSING)]
        return [(item(key, ""), value, key in groups) for key, value in differ]

    rows = [items(row) for row in zip(*keys.values(), strict=True)]
    texts = [_text(row) for row in rows]

    def shorter(_: Sequence[str], limit: int) -> list[str] | None:
        short = {text: _fit(row, limit) for text, row in zip(texts, rows, strict=True)}
        return [short[text] for text in texts] if len(set(short.values())) == len(short) else None

    rest = " ".join(item(key, value) for key, value in usual.items() if value != MISSING)
    column = Column(NAME, texts, "left", importance, SHORTEST, shorter=shorter)
    return column, f"{NAME}: what differs from {rest}; {MISSING} is that itself."


def _text(items: Sequence[Item]) -> str:
    return " ".join(f"{label}{value}" for label, value, _ in items) or MISSING


def _fit(items: Sequence[Item], limit: int) -> str:
    """Return a question with at most `limit` characters: first values lose their middle, then keys are left out."""
    for length in (limit, *range(max([len(value) for _, value, _ in items], default=0), LEAST - 1, -1)):
        short = [(label, value if whole else _cut(value, length), whole) for label, value, whole in items]
        if cell_len(_text(short)) <= limit:
            return _text(short)
    for kept in range(len(items) - 1, 0, -1):
        missing = len(items) - kept
        if cell_len(text := f"{_text(short[:kept])} +{missing} key{'' if missing == 1 else 's'}") <= limit:
            return text
    return f"{len(items)} key{'' if len(items) == 1 else 's'}"


def _cut(value: str, length: int) -> str:
    return (shorten([value], length) or [value])[0]
