"""Prints how two runs, or two groups of runs, compare: what differs in the question, and in the figures.

::

    A 1f1b: 1 question, 3 launches (schedule=1f1b)
    B gpipe: 1 question, 3 launches (schedule=gpipe)
    same: chunks=8 ranks=2 ...

    differs   1f1b  gpipe
    schedule  1f1b  gpipe

    figure            1f1b   1f1b range  gpipe  gpipe range    A/B  verdict
    step_ms           98.2  96.2 - 98.2  106.9  106.9-109.1  0.906  faster [0.856, 0.960]
    peak_memory_mib  35.57               36.69               0.969  1.12 less

Two groups of several questions have one line per pair of questions, and one per figure over all pairs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from statistics import geometric_mean
from typing import NamedTuple, TextIO

from microp.store import (
    FIGURES,
    Figure,
    FigurePair,
    Pairing,
    QuestionPair,
    SelectionError,
    compare_figure,
    environment_columns,
    pair_questions,
    spelling,
    telling_columns,
    text_of,
)
from microp.terminal import columns, figure_text
from microp.terminal.columns import Column
from microp.terminal.console import out, warn
from microp.terminal.question_text import question_column
from microp.terminal.run_search import Group

_MAIN = (  # of what is the same, these are named
    *("schedule", "chunks", "ranks", "replicas", "batch_size", "model", "model.layers", "model.dim"),
    *("partition", "checkpointing", "engine", "device"),
)
_MACHINE = ("commit", "processor", "cores")
MORE = "more launches"
_LONGEST = 3  # keys that a group is called by
DEFINITIONS = (
    "Figures are medians over launches; range: least - largest. A/B: of timings the geometric mean over launches, "
    "with its 95\u00a0% interval; of memory and loss that of the medians. Memory is that of the rank that needs most."
)


class Names(NamedTuple):
    """What the two groups are called."""

    a: str
    b: str


def names_of(pairing: Pairing, a: Group, b: Group) -> Names:
    """Return what the groups are called: by what is compared, as `1f1b` and `gpipe`, or else A and B."""
    groups = {column.removesuffix("name") for column in pairing.compared if column.endswith(".name")}
    keys = [
        column
        for column in pairing.compared
        if column.endswith(".name") or not any(column.startswith(group) for group in groups)
    ]
    values = [[{text_of(row.get(key)) for row in group.rows} for key in keys] for group in (a, b)]
    if not 0 < len(keys) <= _LONGEST or any(len(each) > 1 for own in values for each in own):
        return Names("A", "B")
    options = all(key.endswith(".name") for key in keys)
    found = [
        ",".join(value if options else f"{spelling(key)}={value}" for key, [value] in zip(keys, own, strict=True))
        for own in values
    ]
    return Names(*found)


def show(a: Group, b: Group, limit: int) -> None:
    """Print the comparison of two groups.

    Args:
        a: the first group.
        b: the group that it is compared with.
        limit: the most pairs of questions that are printed; 0 for all.

    Raises:
        SelectionError: no two questions agree in everything that is not compared.
    """
    pairing = _pairing(a, b)
    names = names_of(pairing, a, b)
    _show_groups(pairing, names, a, b)
    if len(pairing.pairs) == 1:
        _show_figures(pairing, names)
    else:
        _show_pairs(pairing, names, limit)
    columns.paragraph(out, DEFINITIONS)


def _pairing(a: Group, b: Group) -> Pairing:
    pairing = pair_questions(a.rows, b.rows)
    if not pairing.pairs:
        compared = ", ".join(map(spelling, pairing.compared)) or "nothing"
        raise SelectionError(
            f"no question of {a.word} agrees with one of {b.word} in everything but {compared}: "
            f"run the same questions on both sides, or choose groups that differ in one key"
        )
    return pairing


def _show_groups(pairing: Pairing, names: Names, a: Group, b: Group) -> None:
    for side, name, group, alone in zip("AB", names, (a, b), pairing.alone, strict=True):
        questions = len({row["question"] for row in group.rows})
        called = f" {name}" if name != side else ""
        rest = f", {alone} without a partner" if alone else ""
        text = (
            f"{side}{called}: {_count(questions, 'question')}, {_count(len(group.rows), 'launch')}{rest} ({group.word})"
        )
        columns.paragraph(out, text, "")
    environment = _environment(a, b)
    same = {spelling(column): text_of(a.rows[0].get(column)) for column in pairing.same}
    named = [f"{key}={same[key]}" for key in _MAIN if key in same]
    machine = [f"{key}={text_of(a.rows[0].get(f'env.{key}'))}" for key in _MACHINE if f"env.{key}" not in environment]
    others = [_count(len(same) - len(named), "other key")]
    columns.paragraph(out, f"same: {', '.join([' '.join(named)] * bool(named) + others)}; {' '.join(machine)}", "")
    differ = [*pairing.compared, *environment]
    if differ:
        sides = [[_several(row.get(column) for row in group.rows) for column in differ] for group in (a, b)]
        out.print()
        listed = [Column("differs", [spelling(column) for column in differ], "left")]
        columns.show(out, [*listed, *(Column(n, s, "left", 0, 8) for n, s in zip(names, sides, strict=True))], "--csv")
    out.print()
    for name, group in zip(names, (a, b), strict=True):
        if disturbed := [row["disturbed"] for row in group.rows if row["disturbed"]]:
            some = "; ".join(disturbed[:3]) + ("; ..." if len(disturbed) > 3 else "")
            warn(
                f"{name}: the timing of {len(disturbed)} of {_count(len(group.rows), 'launch')} was disturbed ({some})"
            )
    if environment:
        warn(f"A and B ran on different {', '.join(map(spelling, environment))}: a difference may come from that")


def _environment(a: Group, b: Group) -> list[str]:
    """Return the facts of the machine and the versions in which the groups differ."""
    known = environment_columns([*a.rows, *b.rows])
    return [c for c in known if {text_of(row.get(c)) for row in a.rows} != {text_of(row.get(c)) for row in b.rows}]


def _several(values: Iterator[object], most: int = 4) -> str:
    texts = list(dict.fromkeys(map(text_of, values)))
    return ",".join(texts[:most]) + (",..." if len(texts) > most else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 'es' if what.endswith('ch') else 's'}"


def _main_figure(pairing: Pairing) -> Figure:
    """Return the figure that decides: the time of a step, or the samples per second if the steps' batches differ."""
    return FIGURES["config.batch_size" in pairing.compared]


def _show_figures(pairing: Pairing, names: Names) -> None:
    found = [each for figure in FIGURES if (each := compare_figure(figure, pairing.pairs[0]))]
    columns.show(
        out,
        [
            Column("figure", [each.figure.name for each in found], "left", 9),
            *_sides(found, names, ""),
            Column("A/B", [figure_text.ratio(each.ratio) for each in found], "right", 8),
            Column("verdict", [figure_text.verdict(each) for each in found], "left", 7),
        ],
        "--csv",
    )
    out.print()
    decides = next((each for each in found if each.figure is _main_figure(pairing)), None)
    if decides and decides.comparison:
        per = "step" if decides.figure.kind == "time" else "sample"
        columns.paragraph(out, f"time per {per}: {decides.comparison.sentence(*names)}", "bold")


def _show_pairs(pairing: Pairing, names: Names, limit: int) -> None:
    found = [[compare_figure(figure, pair) for figure in FIGURES] for pair in pairing.pairs]
    shown = pairing.pairs[: limit or None]
    main = _main_figure(pairing)
    lines = [own[FIGURES.index(main)] for own in found[: len(shown)]]
    results = [
        *_sides(lines, names, f" {main.name}"),
        Column("A/B", [figure_text.ratio(each.ratio if each else None) for each in lines], "right", 8),
        Column("verdict", [figure_text.verdict(each) if each else "-" for each in lines], "left", 7),
        Column(MORE, [figure_text.more(each) for each in lines], "right", 4),
    ]
    keys, meaning = _key_columns(pairing, shown, results)
    printed = columns.show(out, [*keys, *results], "--csv")
    about = [meaning] * bool(meaning) + [f"{MORE}: of each side, to settle a difference of this size."] * (
        MORE in printed
    )
    columns.paragraph(out, " ".join(about))
    if len(shown) < len(pairing.pairs):
        out.print(f"{len(pairing.pairs) - len(shown)} more pairs: -n 0 shows all", style="dim")
    out.print()
    _show_overall([[each for each in own if each] for own in zip(*found, strict=True)])


def _key_columns(
    pairing: Pairing, shown: Sequence[QuestionPair], results: Sequence[Column]
) -> tuple[list[Column], str]:
    """Return a column per key that tells the shown pairs apart, or one for all keys if they have no room.

    The second value says what that one column means.
    """
    telling = telling_columns(shown, pairing.telling) or pairing.telling
    texts = {spelling(key): [_pair_value(pair, key) for pair in shown] for key in telling}
    keys = [Column(key, values, "left", 5, 8) for key, values in texts.items()]
    if not texts.keys() & columns.fit([*keys, *results], out.width).left_out:
        return keys, ""
    groups = [spelling(key) for key in telling if key.endswith(".name")]
    column, meaning = question_column(texts, groups, 5)
    return [column], meaning


def _sides(found: Sequence[FigurePair | None], names: Names, what: str) -> Iterator[Column]:
    """Yield the columns of each group: its medians, and if there are any its ranges over launches."""
    for side, name in enumerate(names):
        yield Column(f"{name}{what}", [figure_text.middle(each, side) for each in found], "right", 6)
        if any(ranges := [figure_text.extent(each, side) for each in found]):
            yield Column(f"{name} range", ranges, "right", 3)


def _pair_value(pair: QuestionPair, column: str) -> str:
    a, b = (text_of(own[0].get(column)) for own in pair)
    known = dict.fromkeys(value for value in (a, b) if value != "-")  # a key that only one side's option has
    return " / ".join(known) or "-"


def _show_overall(found: Sequence[list[FigurePair]]) -> None:
    """Print one line per figure over all pairs of questions: the mean and the range of the ratios, and the verdicts."""
    known = [own for own in found if own]
    ratios = [[each.ratio for each in own if each.ratio] for own in known]
    columns.show(
        out,
        [
            Column(f"over {max(map(len, known))} pairs", [own[0].figure.name for own in known], "left", 9),
            Column("mean A/B", [figure_text.ratio(geometric_mean(own) if own else None) for own in ratios], "right", 8),
            Column(
                "least - largest", [f"{min(own):.3f} - {max(own):.3f}" if own else "-" for own in ratios], "right", 7
            ),
            Column("verdicts", [figure_text.tally(own) for own in known], "left", 8),
        ],
        "--csv",
    )


def write_csv(a: Group, b: Group, limit: int, stream: TextIO) -> None:
    """Write one line per pair of questions and figure as CSV, of at most `limit` pairs (0: all); raises as `show`."""
    pairing = _pairing(a, b)
    writer = csv.writer(stream, lineterminator="\n")
    sides = [f"{side}{what}" for side in "ab" for what in ("", "_least", "_largest", "_launches")]
    writer.writerow([*map(spelling, pairing.telling), "figure", *sides, "ratio", "low", "high", "verdict", "more"])
    for pair in pairing.pairs[: limit or None]:
        values = [_pair_value(pair, key) for key in pairing.telling]
        for found in filter(None, (compare_figure(figure, pair) for figure in FIGURES)):
            figures = [*found.a, len(pair.a), *found.b, len(pair.b), found.ratio, *(found.interval or ("", ""))]
            more = found.comparison.more if found.comparison else ""
            writer.writerow([*values, found.figure.name, *figures, figure_text.word(found), more])
