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

import math
from collections.abc import Iterator, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import yaml

from microp import results
from microp.foreign import FOREIGN
from microp.system import CONF
from microp.terminal.columns import Column, counted, number, paragraph, show
from microp.terminal.console import out, warn

if TYPE_CHECKING:  # --help does without pandas
    import pandas as pd

_MAIN = (  # of what is the same, these are named
    *("schedule", "chunks", "ranks", "replicas", "batch_size", "model", "model.layers", "model.dim"),
    *("partition", "checkpointing", "engine", "device"),
)
_MACHINE = ("commit", "processor", "cores", "gpus", "platform", "python", "packages.", "data.start")
_ENVIRONMENT = tuple(f"env.{key}" for key in _MACHINE)


def pairing_of(a: results.Group, b: results.Group) -> results.Pairing:
    """Return how the questions of two groups pair up.

    Raises:
        SelectionError: no two questions agree in everything that is not compared.
    """
    pairing = results.pair_questions(a.rows, b.rows)
    if pairing.figures.empty:
        compared = ", ".join(map(results.spelling, pairing.compared)) or "nothing"
        raise results.SelectionError(
            f"no question of {a.word} agrees with one of {b.word} in everything but {compared}: "
            "run the same questions on both sides, or choose groups that differ in one key; imported traces that no "
            "key tells apart are named by their ids"
        )
    return pairing


def show_comparison(a: results.Group, b: results.Group, limit: int) -> None:
    """Print the comparison of two groups, of at most `limit` pairs of questions (0: all); raises as `pairing_of`."""
    pairing = pairing_of(a, b)
    a, b = (group._replace(rows=rows) for group, rows in zip((a, b), pairing.rows, strict=True))
    _show_groups(pairing, a, b)
    figures = pairing.figures
    sides = [row for group in (a, b) for row in results.records(group.rows)]
    reason = results.unscaled({key.removeprefix("config."): row[key] for key in row} for row in sides)
    if any(row["config.engine.name"] == FOREIGN for row in sides):
        reason = "an imported trace tells neither model nor batch: compare those of the same"
    if reason:
        warn(reason)
    of_samples = "config.batch_size" in pairing.compared and "samples_per_s" in {*figures["figure"]}
    decides = "samples_per_s" if of_samples else "step_ms"
    main = figures[figures["figure"] == decides]
    if figures["pair"].nunique() == 1:
        show([Column("figure", list(figures["figure"]), "left", 9), *_sides(figures)], "--csv")
        if (comparison := main["comparison"].iloc[0]) and not reason:
            per = "step" if decides == "step_ms" else "sample"
            some = results.doubt([*a.rows["disturbed"], *b.rows["disturbed"]])
            paragraph(f"time per {per}: {comparison.sentence(a.word, b.word)}{some}", "bold")
        return
    shown = main[: limit or None]
    paragraph(f"{decides}:", "")
    show([*(Column(key, list(shown[key]), "left", 5, 8) for key in pairing.keys), *_sides(shown)], "--csv")
    if more := len(main) - len(shown):
        out.print(f"{more} more pairs: -n 0 shows all", style="dim")
    out.print()
    _show_overall(figures)


def _show_groups(pairing: results.Pairing, a: results.Group, b: results.Group) -> None:
    """Print what was asked, what is the same, what differs, and why a difference may come from something else."""
    sides = {"A": a, "B": b}
    for (side, group), alone in zip(sides.items(), pairing.alone, strict=True):
        rest = f", {counted(alone, 'question')} without a partner" if alone else ""
        several = group.rows["question"].nunique()
        of = f" of {several} questions" if several > 1 else ""
        paragraph(f"{side}: {counted(len(group.rows), 'launch')}{of}{rest} ({group.word})", "")
    same = {results.spelling(column): results.text_of(a.rows[column].iloc[0]) for column in pairing.same}
    named = [f"{key}={same[key]}" for key in _MAIN if key in same]
    paragraph(f"same: {' '.join(named)}, {counted(len(same) - len(named), 'other key')}", "")
    machine = [column for column in map(str, a.rows) if column in b.rows and column.startswith(_ENVIRONMENT)]
    machine = [
        column for column in machine if {*a.rows[column].map(results.text_of)} != {*b.rows[column].map(results.text_of)}
    ]
    compared, both = pairing.compared, [row for group in sides.values() for row in results.records(group.rows)]
    told = [column for column in compared if not all(_is_implied(column, compared, row) for row in both)]
    if differ := [*told, *machine]:
        listed = [Column("differs", [results.spelling(column) for column in differ], "left")]
        for side, group in sides.items():
            listed.append(Column(side, [_several(group.rows, column) for column in differ], "left", 0, 8))
        out.print()
        show(listed, "--csv")
    out.print()
    for side, group in sides.items():
        if group.unfinished:
            warn(f"{side}: {counted(group.unfinished, 'run')} that did not finish left out")
        if disturbed := [text for text in group.rows["disturbed"] if text]:
            some = "; ".join(disturbed[:3]) + ("; ..." if len(disturbed) > 3 else "")
            of_all = f"{len(disturbed)} of {counted(len(group.rows), 'launch')}"
            warn(f"{side}: the timing of {of_all} was disturbed ({some})")
    if machine:
        warn(f"A and B ran on different {', '.join(map(results.spelling, machine))}: a difference may come from that")


def _is_implied(column: str, compared: Sequence[str], row: dict[str, Any]) -> bool:
    """Return whether a key has the value that the option of its group, which is compared too, gives it in its file."""
    group, key = column.removeprefix("config.").partition(".")[::2]
    option = f"config.{group}.name"
    file = CONF / group / f"{row.get(option)}.yaml"
    if column == option or option not in compared or not file.exists():  # another's own option
        return False
    given = yaml.safe_load(file.read_text())
    return bool(results.text_of(row.get(column)) == results.text_of(given.get(key, math.nan)))


def _several(rows: pd.DataFrame, column: str, most: int = 4) -> str:
    texts = list(dict.fromkeys(rows[column].map(results.text_of))) if column in rows else []
    return ",".join(texts[:most]) + (",..." if len(texts) > most else "")


def _sides(figures: pd.DataFrame) -> Iterator[Column]:
    """Yield the columns of figures: medians and ranges over launches of each side, their ratio, and the verdict."""
    lines = results.records(figures)
    for side, name in zip("ab", "AB", strict=True):
        yield Column(name, [_number(line, side) for line in lines], importance=8, about="A, B: medians over launches.")
        ranges = [(_number(line, f"{side}_least"), _number(line, f"{side}_largest")) for line in lines]
        if any(low != high for low, high in ranges):
            texts = [f"{low} - {high}" if low != high else "" for low, high in ranges]
            yield Column(f"{name} range", texts, importance=3)
    ratios = ["-" if results.is_missing(line["ratio"]) else _ratio(line["ratio"]) for line in lines]
    yield Column("A/B", ratios, importance=8, about="A/B: of timings the geometric mean over launches.")
    interval = "verdict: of timings with the 95\u00a0% interval of A/B."
    if any(line["verdict"] == "unknown" for line in lines):
        interval = "verdict: unknown where a side has one launch; repeat=1,2 makes others."
    yield Column("verdict", [_verdict(line) for line in lines], "left", 7, about=interval)


def _ratio(value: float) -> str:
    """Return a ratio with three decimals, or as many as show that it is not 1."""
    apart = round(abs(value - 1), 9)
    return f"{value:.{max(3, math.ceil(-math.log10(apart))) if apart else 3}f}"


def _number(line: dict[str, Any], key: str) -> str:
    figure = results.FIGURES[line["figure"]]
    return format(line[key], figure.form) if figure.kind == "fraction" else number(line[key], figure.form)


def _verdict(line: dict[str, Any]) -> str:
    known = not results.is_missing(line["low"]) and line["verdict"] != "equal"
    return f"{line['verdict']} [{line['low']:.3f}, {line['high']:.3f}]" if known else line["verdict"]


def _show_overall(figures: pd.DataFrame) -> None:
    """Print one line per figure over all pairs of questions: the mean and the range of the ratios, and the verdicts."""
    names, means, extents, verdicts = [], [], [], []
    for name, lines in figures.groupby("figure", sort=False):
        ratios = [ratio for ratio in lines["ratio"] if ratio]
        names.append(str(name))
        means.append(f"{geometric_mean(ratios):.3f}" if ratios else "-")
        extents.append(f"{min(ratios):.3f} - {max(ratios):.3f}" if ratios else "-")
        counts = lines["verdict"].value_counts().sort_index()
        verdicts.append(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    table = [
        Column(f"over {figures['pair'].nunique()} pairs", names, "left", 9),
        Column("mean A/B", means, importance=8),
        Column("least - largest", extents),
        Column("verdicts", verdicts, "left"),
    ]
    show(table, "--csv")
