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

from microp.terminal.columns import Column

NAME = "question"
SHORTEST = 18  # characters to which a question may be shortened
MISSING = "-"  # the value of a key that the option of its group does not have


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

    def text(row: Sequence[str]) -> str:
        differ = [(key, value) for key, value in zip(keys, row, strict=True) if value not in (usual[key], MISSING)]
        return " ".join(item(key, value) for key, value in differ) or MISSING

    rest = " ".join(item(key, value) for key, value in usual.items() if value != MISSING)
    column = Column(NAME, [text(row) for row in zip(*keys.values(), strict=True)], "left", importance, SHORTEST)
    return column, f"{NAME}: what differs from {rest}; {MISSING} is that itself."
