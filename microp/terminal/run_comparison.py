"""Prints how two runs, or two groups of runs, compare: what differs in the question, and in the figures.

::

    A: 3 launches (schedule=1f1b)
    B: 3 launches (schedule=gpipe)
    same: chunks=8 ranks=2 ...

    differs      A      B
    schedule  1f1b  gpipe

    figure               A       A range      B        B range    A/B  verdict
    step_ms           98.2   96.2 - 98.2  106.9  106.9 - 109.1  0.906  faster [0.856, 0.960]
    peak_memory_mib  35.57                36.69                 0.969  less

Two groups of several questions have one line per pair of questions, and one per figure over all pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from microp.records import changed_between
from microp.results import (
    FIGURES,
    Group,
    Pairing,
    SelectionError,
    is_missing,
    pair_questions,
    records,
    spelling,
    text_of,
)
from microp.terminal import columns
from microp.terminal.columns import Column, counted, number
from microp.terminal.console import out, warn

if TYPE_CHECKING:  # --help does without pandas
    import pandas as pd

_MAIN = (  # of what is the same, these are named
    *("schedule", "chunks", "ranks", "replicas", "batch_size", "model", "model.layers", "model.dim"),
    *("partition", "checkpointing", "engine", "device"),
)
_ENVIRONMENT = ("commit", "processor", "cores", "gpus", "platform", "python", "packages.", "data.start")
DEFINITIONS = (
    "Figures are medians over launches; range: least - largest. A/B: of timings the geometric mean over launches, "
    "with its 95\u00a0% interval; of memory and loss that of the medians. Memory is that of the rank that needs most. "
    "more launches: of each side, to settle a difference of this size."
)


def pairing_of(a: Group, b: Group) -> Pairing:
    """Return how the questions of two groups pair up.

    Raises:
        SelectionError: no two questions agree in everything that is not compared.
    """
    pairing = pair_questions(a.rows, b.rows)
    if pairing.figures.empty:
        compared = ", ".join(map(spelling, pairing.compared)) or "nothing"
        raise SelectionError(
            f"no question of {a.word} agrees with one of {b.word} in everything but {compared}: "
            "run the same questions on both sides, or choose groups that differ in one key"
        )
    return pairing


def show(a: Group, b: Group, limit: int) -> None:
    """Print the comparison of two groups, of at most `limit` pairs of questions (0: all); raises as `pairing_of`."""
    pairing = pairing_of(a, b)
    _show_groups(pairing, a, b)
    pairs, figures = pairing.figures["pair"].nunique(), pairing.figures
    decides = "samples_per_s" if "config.batch_size" in pairing.compared else "step_ms"  # the batches differ
    main = figures[figures["figure"] == decides]
    if pairs == 1:
        columns.show(out, [Column("figure", list(figures["figure"]), "left", 9), *_sides(figures)], "--csv")
    else:
        shown = main[: limit or None]
        keys = [Column(key, list(shown[key]), "left", 5, 8) for key in pairing.keys]
        columns.paragraph(out, f"{decides}:", "")
        columns.show(out, [*keys, *_sides(shown)], "--csv")
        if more := len(main) - len(shown):
            out.print(f"{more} more pairs: -n 0 shows all", style="dim")
        out.print()
        _show_overall(figures, pairs)
    out.print()
    if pairs == 1 and (comparison := main["comparison"].iloc[0]):
        per = "step" if decides == "step_ms" else "sample"
        columns.paragraph(out, f"time per {per}: {comparison.sentence(a.word, b.word)}", "bold")
    columns.paragraph(out, DEFINITIONS)


def _show_groups(pairing: Pairing, a: Group, b: Group) -> None:
    """Print what was asked, what is the same, what differs, and why a difference may come from something else."""
    for side, group, alone in zip("AB", (a, b), pairing.alone, strict=True):
        rest = f", {counted(alone, 'question')} without a partner" if alone else ""
        columns.paragraph(out, f"{side}: {counted(len(group.rows), 'launch')}{rest} ({group.word})", "")
    same = {spelling(column): text_of(a.rows[column].iloc[0]) for column in pairing.same}
    named = [f"{key}={same[key]}" for key in _MAIN if key in same]
    columns.paragraph(out, f"same: {' '.join(named)}, {counted(len(same) - len(named), 'other key')}", "")
    known = [column for column in map(str, a.rows) if column.startswith(tuple(f"env.{key}" for key in _ENVIRONMENT))]
    environment = [c for c in known if c in b.rows and {*a.rows[c].map(text_of)} != {*b.rows[c].map(text_of)}]
    if differ := [*pairing.compared, *environment]:
        sides = [[_several(group.rows, column) for column in differ] for group in (a, b)]
        listed = [Column("differs", [spelling(column) for column in differ], "left")]
        out.print()
        columns.show(out, [*listed, *(Column(n, s, "left", 0, 8) for n, s in zip("AB", sides, strict=True))], "--csv")
    out.print()
    for name, group in zip("AB", (a, b), strict=True):
        if group.unfinished:
            warn(f"{name}: {counted(group.unfinished, 'run')} that did not finish left out")
        if disturbed := [text for text in group.rows["disturbed"] if text]:
            some = "; ".join(disturbed[:3]) + ("; ..." if len(disturbed) > 3 else "")
            warn(
                f"{name}: the timing of {len(disturbed)} of {counted(len(group.rows), 'launch')} was disturbed ({some})"
            )
        for text in changed_between(_data(row) for row in records(group.rows)):
            warn(f"{name}: {text}")
    if environment:
        warn(f"A and B ran on different {', '.join(map(spelling, environment))}: a difference may come from that")


def _several(rows: pd.DataFrame, column: str, most: int = 4) -> str:
    texts = list(dict.fromkeys(rows[column].map(text_of))) if column in rows else []
    return ",".join(texts[:most]) + (",..." if len(texts) > most else "")


def _data(row: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the path of a run's data, and what is known of them."""
    known = {key: row.get(f"env.data.{key}") for key in ("start", "end")}
    return row.get("config.data.path"), {"data": {key: text for key, text in known.items() if not is_missing(text)}}


def _sides(figures: pd.DataFrame) -> Iterator[Column]:
    """Yield the columns of figures: medians and ranges over launches of each side, their ratio, and the verdict."""
    lines = records(figures)
    for side, name in zip("ab", "AB", strict=True):
        yield Column(name, [_number(line, side) for line in lines], "right", 8)
        ranges = [(_number(line, f"{side}_least"), _number(line, f"{side}_largest")) for line in lines]
        if any(low != high for low, high in ranges):
            texts = [f"{low} - {high}" if low != high else "" for low, high in ranges]
            yield Column(f"{name} range", texts, "right", 3)
    yield Column("A/B", ["-" if is_missing(line["ratio"]) else f"{line['ratio']:.3f}" for line in lines], "right", 8)
    yield Column("verdict", [_verdict(line) for line in lines], "left", 7)
    if any(line["verdict"] == "too noisy to say" for line in lines):
        yield Column("more launches", [_more(line) for line in lines], "right", 4)


def _number(line: dict[str, Any], key: str) -> str:
    figure = FIGURES[line["figure"]]
    return format(line[key], figure.form) if figure.kind == "fraction" else number(line[key], figure.form)


def _verdict(line: dict[str, Any]) -> str:
    known = not is_missing(line["low"]) and line["verdict"] != "equal"
    return f"{line['verdict']} [{line['low']:.3f}, {line['high']:.3f}]" if known else line["verdict"]


def _more(line: dict[str, Any]) -> str:
    """Return how many more launches would settle a comparison; - if it is settled."""
    if line["verdict"] != "too noisy to say":
        return "-"
    return "> 100" if is_missing(line["more"]) else f"{line['more']:.0f}"


def _show_overall(figures: pd.DataFrame, pairs: int) -> None:
    """Print one line per figure over all pairs of questions: the mean and the range of the ratios, and the verdicts."""
    groups = [
        (str(name), [ratio for ratio in own["ratio"] if ratio], sorted(Counter(own["verdict"]).items()))
        for name, own in figures.groupby("figure", sort=False)
    ]
    extents = [f"{min(ratios):.3f} - {max(ratios):.3f}" if ratios else "-" for _, ratios, _ in groups]
    table = [
        Column(f"over {pairs} pairs", [name for name, _, _ in groups], "left", 9),
        Column("mean A/B", [f"{geometric_mean(ratios):.3f}" if ratios else "-" for _, ratios, _ in groups], "right", 8),
        Column("least - largest", extents),
        Column("verdicts", [", ".join(f"{n} {verdict}" for verdict, n in counts) for _, _, counts in groups], "left"),
    ]
    columns.show(out, table, "--csv")
