"""Pairs the questions of two groups of runs, and compares their figures.

::

    A: schedule=1f1b          B: schedule=gpipe
    chunks=4  repeat=0,1,2    chunks=4  repeat=0,1,2    ─► pair 1: step_ms faster, peak_memory_mib -2.3, loss equal
    chunks=8  repeat=0,1,2    chunks=8  repeat=0,1      ─► pair 2: step_ms too noisy to say, ...
    chunks=16 repeat=0                                  ─► has no partner

A key is *compared* if no value of it is in both groups, as `schedule` here. Two questions are a pair if they agree in
all other keys. The runs of one question are its launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any, Literal, NamedTuple

from microp.job import NOT_ASKED
from microp.store.comparison import Comparison, compare
from microp.store.records import Row
from microp.store.selection import columns_of, is_missing, text_of
from microp.store.statistics import LAUNCH

_LEFT_OUT = (LAUNCH, "config.comms.timeout_s")  # not part of a question; see microp.job.identity
_ENVIRONMENT = ("commit", "processor", "cores", "gpus", "platform", "python", "packages.")


def question_columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns of the configuration that are part of a question; a builder goes with its option."""
    groups = tuple(f"config.{name}" for name in NOT_ASKED)
    return [
        column
        for column in columns_of(rows)
        if column.startswith("config.")
        and not (column in groups or column.startswith(tuple(f"{group}." for group in groups)))
        and column not in _LEFT_OUT
        and not column.endswith(".builder")
    ]


def environment_columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns of the machine and the versions, on which times depend."""
    return [column for column in columns_of(rows) if column.startswith(tuple(f"env.{name}" for name in _ENVIRONMENT))]


class QuestionPair(NamedTuple):
    """One question of each group, as their finished launches."""

    a: list[Row]
    b: list[Row]


class Pairing(NamedTuple):
    """How the questions of two groups pair up.

    Attributes:
        compared: the columns in which no question of one group agrees with one of the other.
        same: the columns that have one value in all runs.
        telling: columns that together tell the pairs apart.
        pairs: the pairs, ordered by these columns.
        alone: the numbers of questions of A and of B that have no partner.
    """

    compared: list[str]
    same: list[str]
    telling: list[str]
    pairs: list[QuestionPair]
    alone: tuple[int, int]


def pair_questions(a: Sequence[Row], b: Sequence[Row]) -> Pairing:
    """Pair the questions of two groups of finished runs that agree in every column that is not compared."""
    rows = [*a, *b]
    columns = question_columns(rows)
    values = {column: (_values(a, column), _values(b, column)) for column in columns}
    compared = {column for column in columns if not values[column][0] & values[column][1]}
    for option in [column for column in compared if column.endswith(".name")]:  # keys that not every option has
        own = (column for column in columns if column.startswith(option.removesuffix("name")))
        compared |= {
            column
            for column in own
            if any(is_missing(row.get(column)) for row in rows)
            and not all(is_missing(row.get(column)) for row in rows)  # null for one option, no key of the other
        }
    rest = [column for column in columns if column not in compared]
    of_a, of_b = _questions(a, rest), _questions(b, rest)
    pairs = [QuestionPair(*pair) for key in of_a if key in of_b for pair in product(of_a[key], of_b[key])]
    telling = telling_columns(pairs, columns)
    alone = [sum(len(own[key]) for key in own if key not in other) for own, other in ((of_a, of_b), (of_b, of_a))]
    return Pairing(
        compared=[column for column in columns if column in compared],
        same=[column for column in columns if len(values[column][0] | values[column][1]) == 1],
        telling=telling,
        pairs=sorted(
            pairs, key=lambda pair: [_order(row.get(key)) for key in telling for row in (pair.a[0], pair.b[0])]
        ),
        alone=(alone[0], alone[1]),
    )


def telling_columns(pairs: Sequence[QuestionPair], columns: Sequence[str]) -> list[str]:
    """Return few of the columns that tell the pairs apart: options of groups and top-level keys are tried first."""
    order = sorted(columns, key=lambda column: not column.endswith(".name") and column.count(".") > 1)
    return tell_apart(
        {column: [tuple(text_of(own[0].get(column)) for own in pair) for pair in pairs] for column in order}
    )


def tell_apart(columns: Mapping[str, Sequence[object]]) -> list[str]:
    """Return few of the columns that together tell the rows apart: each one that parts rows that those before do not.

    Args:
        columns: name -> one value per row.
    """
    found: list[str] = []
    seen: Sequence[object] = ()
    for column, values in columns.items():
        seen = seen or [None] * len(values)
        finer = list(zip(seen, values, strict=True))
        if len(set(finer)) > len(set(seen)):
            found.append(column)
            seen = finer
    return found


def _order(value: Any) -> tuple[bool, float, str]:
    """Return a key that sorts numbers as numbers, and before texts."""
    if isinstance(value, int | float) and not is_missing(value):
        return False, float(value), ""
    return True, 0.0, text_of(value)


def _values(rows: Sequence[Row], column: str) -> set[str]:
    return {text_of(row.get(column)) for row in rows}


def _questions(rows: Sequence[Row], columns: Sequence[str]) -> dict[tuple[str, ...], list[list[Row]]]:
    """Return the questions that have the same values in `columns`, each as its launches."""
    launches: dict[str, list[Row]] = {}
    for row in rows:
        launches.setdefault(row["question"], []).append(row)
    found: dict[tuple[str, ...], list[list[Row]]] = {}
    for own in launches.values():
        found.setdefault(tuple(text_of(own[0].get(column)) for column in columns), []).append(own)
    return found


# --- figures -------------------------------------------------------------------------------------


class Figure(NamedTuple):
    """A number of a run that is compared.

    Attributes:
        name: its name in summary.json.
        of: returns it from a row; None if the run has none.
        kind: `time` (less is better), `rate` (more is better), `fraction` (a bubble), or `exact`, which is no timing.
        form: how it is printed.
    """

    name: str
    of: Callable[[Row], float | None]
    kind: Literal["time", "rate", "fraction", "exact"]
    form: str


def _worst(column: str) -> Callable[[Row], float | None]:
    return lambda row: max(row[column]) if row.get(column) else None


def _plain(column: str) -> Callable[[Row], float | None]:
    return lambda row: None if is_missing(row.get(column)) else float(row[column])


FIGURES = (
    Figure("step_ms", _plain("step_ms.median"), "time", ".1f"),
    Figure("samples_per_s", _plain("samples_per_s"), "rate", ",.0f"),
    Figure("replayed.step_ms", _plain("replayed.step_ms"), "time", ".1f"),
    Figure("bubble.measured", _plain("bubble.measured"), "fraction", ".3f"),
    Figure("peak_memory_mib", _worst("peak_memory_mib"), "exact", ".2f"),
    Figure("peak_activation_mib", _worst("peak_activation_mib"), "exact", ".2f"),
    Figure("loss.last", _plain("loss.last"), "exact", ".5g"),
)


class Spread(NamedTuple):
    """The median, the least and the largest value over launches."""

    median: float
    low: float
    high: float


class FigurePair(NamedTuple):
    """One figure of a pair of questions.

    Attributes:
        a, b: over the launches of each question.
        ratio: A over B; of timings the geometric mean over launches, else that of the medians. None if B is 0.
        interval: the 95 % interval of the ratio; None for exact figures and if a side has a single launch.
        comparison: the verdict on times; None for exact figures.
    """

    figure: Figure
    a: Spread
    b: Spread
    ratio: float | None
    interval: tuple[float, float] | None
    comparison: Comparison | None

    @property
    def is_equal(self) -> bool:
        """Whether every launch of both questions has the same value."""
        return self.a.low == self.a.high == self.b.low == self.b.high


def compare_figure(figure: Figure, pair: QuestionPair) -> FigurePair | None:
    """Compare one figure of two questions; None if one of them has no such number."""
    a, b = _by_launch(pair.a, figure), _by_launch(pair.b, figure)
    if not a or not b:
        return None
    spreads = _spread(a), _spread(b)
    if figure.kind == "exact" or min(*a.values(), *b.values()) <= 0:
        ratio = spreads[0].median / spreads[1].median if spreads[1].median else None
        return FigurePair(figure, *spreads, ratio, None, None)
    if figure.kind == "rate":  # its inverse is a time
        compared = compare(b, a)
        ratio, interval = 1 / compared.ratio, (1 / compared.high, 1 / compared.low if compared.low else 0)
    else:
        compared = compare(a, b)
        ratio, interval = compared.ratio, (compared.low, compared.high)
    return FigurePair(figure, *spreads, ratio, interval if compared.low else None, compared)


def _by_launch(rows: Sequence[Row], figure: Figure) -> dict[int, float]:
    values = {int(row[LAUNCH]): figure.of(row) for row in reversed(rows)}
    return {launch: value for launch, value in values.items() if value is not None}


def _spread(values: Mapping[int, float]) -> Spread:
    return Spread(median(values.values()), min(values.values()), max(values.values()))
