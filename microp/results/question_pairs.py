"""Pairs the questions of two groups of runs, and compares their figures.

::

    A: schedule=1f1b          B: schedule=gpipe
    chunks=4  repeat=0,1,2    chunks=4  repeat=0,1,2    ─► step_ms faster, peak_memory_mib less, loss.last equal
    chunks=8  repeat=0,1,2    chunks=8  repeat=0,1      ─► step_ms too noisy to say, ...
    chunks=16 repeat=0                                  ─► has no partner

A key is *compared* if no value of it is in both groups, as `schedule` here. Two questions are a pair if they agree in
all other keys: the groups are merged on these. The runs of one question are its launches. Questions of one group that
no key tells apart, as imported traces, have no partner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from microp.job import NOT_ASKED
from microp.records import LAUNCH
from microp.results.comparison import compare
from microp.results.frames import records
from microp.results.selection import size_of, spelling, text_of
from microp.results.swept import MISSING

if TYPE_CHECKING:  # ranks do not import pandas
    import pandas as pd

_LEFT_OUT = (LAUNCH, "config.comms.timeout_s")  # not part of a question; see microp.job.identity
ROUNDING = 1e-3
_WORDS = {"fraction": {"faster": "smaller", "slower": "larger"}}  # of a bubble, less is smaller and not faster


class Figure(NamedTuple):
    """A number of a run that is compared."""

    name: str  # what it is called
    column: str  # where it is; of a list with a number per rank the largest counts
    kind: str  # `time` (less is better), `rate` (more is better), `fraction` (a bubble), or `exact`, which is no timing
    form: str  # how it is printed


FIGURES = {
    figure.name: figure
    for figure in (
        Figure("step_ms", "step_ms.median", "time", ".1f"),
        Figure("samples_per_s", "samples_per_s", "rate", ",.0f"),
        Figure("replayed.step_ms", "replayed.step_ms", "time", ".1f"),
        Figure("bubble.measured", "bubble.measured", "fraction", ".3f"),
        Figure("peak_memory_mib", "peak_memory_mib", "exact", ".2f"),
        Figure("peak_activation_mib", "peak_activation_mib", "exact", ".2f"),
        Figure("loss.last", "loss.last", "exact", ".5g"),
    )
}


class Pairing(NamedTuple):
    """How the questions of two groups pair up.

    `figures` has one row per pair and figure: its keys; `figure`; the median, `_least`, `_largest` and `_launches` of
    `a` and `b`; `ratio` (A over B) with its 95 % interval from `low` to `high`; `verdict`; how many `more` launches of
    each side would settle it; and the `comparison`, None for what is no timing.
    """

    compared: list[str]  # the columns in which no question of one group agrees with one of the other
    same: list[str]  # the columns that have one value in all runs
    keys: list[str]  # the names of keys that together tell the pairs apart
    figures: pd.DataFrame
    alone: tuple[int, int]  # the numbers of questions of A and of B that have no partner
    rows: list[pd.DataFrame]  # the runs of A and of B that have one


def pair_questions(a: pd.DataFrame, b: pd.DataFrame) -> Pairing:
    """Pair the questions of two groups of finished runs that agree in every column that is not compared."""
    import pandas as pd

    # 1. what is compared: the columns in which the groups have no value in common
    columns = question_columns(map(str, pd.concat([a, b])))
    sides = [rows.reindex(columns=["question", *columns]).map(text_of) for rows in (a, b)]
    texts = pd.concat(sides)
    compared = [column for column in columns if not {*sides[0][column]} & {*sides[1][column]}]
    for option in [column for column in compared if column.endswith(".name")]:  # keys that not every option has
        compared += [
            column
            for column in columns
            if column.startswith(option.removesuffix("name"))
            and column not in compared
            and MISSING in {*texts[column]} != {MISSING}  # null for one option, no key of the other
        ]
    # 2. the pairs: questions that agree in all other columns
    questions = [side.drop_duplicates("question") for side in sides]  # no key may tell them apart, as imported traces
    of_a, of_b = (side[~side.duplicated(columns, keep=False)] for side in questions)
    pairs = of_a.merge(of_b, on=[column for column in columns if column not in compared], suffixes=("", " of b"))
    for column in compared:
        other = pairs[f"{column} of b"]
        pairs[column] = (pairs[column] + " / " + other).where(other != MISSING, pairs[column])
        pairs[column] = pairs[column].str.removeprefix(f"{MISSING} / ")
    options_first = sorted(columns, key=lambda column: not column.endswith(".name") and column.count(".") > 1)
    telling = telling_columns({column: pairs[column].tolist() for column in options_first})
    pairs = pairs.sort_values(telling or columns[:1], key=_order, kind="stable")
    # 3. their figures
    figures = []
    for number, pair in enumerate(records(pairs)):
        launches = a[a["question"] == pair["question"]], b[b["question"] == pair["question of b"]]
        keys = {"pair": number, **{spelling(column): pair[column] for column in telling}}
        figures += [{**keys, **line} for figure in FIGURES.values() if (line := compare_figure(figure, *launches))]
    paired = {*pairs["question"]}, {*pairs["question of b"]}
    return Pairing(
        compared=[column for column in columns if column in compared],
        same=[column for column in columns if texts[column].nunique() == 1],
        keys=list(map(spelling, telling)),
        figures=pd.DataFrame(figures, dtype=object),
        alone=(len(questions[0]) - len(paired[0]), len(questions[1]) - len(paired[1])),
        rows=[side[side["question"].isin(own)] for side, own in zip((a, b), paired, strict=True)],
    )


def question_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns of the configuration that are part of a question; a builder goes with its option."""
    return [
        column
        for column in columns
        if column.startswith("config.")
        and column.split(".")[1] not in NOT_ASKED
        and column not in _LEFT_OUT
        and not column.endswith(".builder")
    ]


def telling_columns(texts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the columns that together tell the rows apart, without those that follow from columns before them."""
    telling: list[str] = []
    parts = 1
    for column in texts:
        if (finer := len({*zip(*(texts[key] for key in (*telling, column)), strict=True)})) > parts:
            telling, parts = [*telling, column], finer
    return telling


def _order(texts: pd.Series) -> pd.Series:
    """Return what texts are sorted by: numbers as numbers, if all are."""
    import pandas as pd

    numbers = pd.to_numeric(texts, errors="coerce")
    return texts if numbers.isna().any() else numbers


def compare_figure(figure: Figure, a: pd.DataFrame, b: pd.DataFrame) -> dict[str, Any] | None:
    """Return one figure of two questions, each as its launches, as a row of `Pairing.figures`; None if one has none."""
    line: dict[str, Any] = {"figure": figure.name}
    sides = {"a": _launches(figure, a), "b": _launches(figure, b)}
    if not all(sides.values()):
        return None
    for side, launches in sides.items():
        numbers = launches.values()
        line |= {side: median(numbers), f"{side}_least": min(numbers), f"{side}_largest": max(numbers)}
        line[f"{side}_launches"] = len(numbers)
    both = [*sides["a"].values(), *sides["b"].values()]
    if figure.kind == "exact" or min(both) <= 0:
        ratio, verdict = line["a"] / line["b"] if line["b"] else None, "less" if line["a"] < line["b"] else "more"
        if ratio and abs(ratio - 1) < ROUNDING and format(line["a"], figure.form) == format(line["b"], figure.form):
            verdict = "the same"  # as printed, as of losses that are added up in another order
        line |= {"ratio": ratio, "low": None, "high": None, "verdict": verdict, "more": None, "comparison": None}
    else:
        is_rate = figure.kind == "rate"  # its inverse is a time
        compared = compare(sides["b"], sides["a"]) if is_rate else compare(sides["a"], sides["b"])
        ends = (compared.low, compared.high) if compared.low else (None, None)  # none of a single launch
        if is_rate and compared.low:
            ends = 1 / compared.high, 1 / compared.low
        line |= {"ratio": 1 / compared.ratio if is_rate else compared.ratio, "low": ends[0], "high": ends[1]}
        verdict = _WORDS.get(figure.kind, {}).get(compared.verdict, compared.verdict)
        line |= {"verdict": verdict, "more": compared.more, "comparison": compared}
    if min(both) == max(both):
        line["verdict"] = "equal"
    return line


def _launches(figure: Figure, rows: pd.DataFrame) -> dict[int, float]:
    """Return the figure of each launch, of the newest run of it."""
    if figure.column not in rows:
        return {}
    sizes = zip(rows[LAUNCH][::-1], rows[figure.column][::-1].map(size_of), strict=True)
    return {int(launch): size for launch, size in sizes if not math.isnan(size)}
