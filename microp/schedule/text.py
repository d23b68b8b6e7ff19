"""Reads and writes schedules as text: in microp's own form, and in the CSV of torch's pipelining.

::

    # microp schedule zb_h1 chunks=1 ranks=2        microp's: a header, then one line per rank
    0F0 0I0 0W0
    1F0 1I0 1W0

    0F0,,,0I0,0W0                                   torch's: one row per rank, one cell per action;
    ,1F0,1I0,1W0                                    an empty cell is an idle slot

    (0F7;7B3)   (0F7;7B3)OVERLAP_F_B                a pair, in microp's form and in torch's

Both are also read as a spreadsheet saves them: with a mark of the byte order, quoted cells, commas, semicolons or tabs
between words, and rows without any.

The letters are the same. Files that microp wrote before it had an I have a B beside each W, which is
read as an I.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar, cast

from microp.schedule.schedule import Action, Op, Schedule, rows

T = TypeVar("T")

_HEADER = re.compile(
    r"# microp schedule (?P<name>\S.*) chunks=(?P<chunks>\d{1,9}) ranks=(?P<ranks>\d{1,9})"
    r"(?: slices=(?P<slices>\d{1,9}))?(?: copies=(?P<copies>\d{1,9}))?"
)
_BOUNDS = str.maketrans(dict.fromkeys("\ufeff,;()\"'", " "))  # between words; each is one character, as columns count
_WORD = re.compile(r"\((\w+);(\w+)\)(?:OVERLAP_F_B)?|[^\s\ufeff,;()\"']+")  # a pair, or a word between bounds
_DERIVED = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|(SEND|RECV)_[FB])\d*")  # torch's communication: follows


# --- microp's form -------------------------------------------------------------------------------


def to_text(schedule: Schedule) -> str:
    """Return the schedule as text: a header, then one line per rank with its actions separated by spaces.

    ::

        # microp schedule gpipe chunks=2 ranks=2
        0F0 0F1 0B0 0B1
        1F0 1F1 1B0 1B1
    """
    slices = f" slices={schedule.slices}" if schedule.slices > 1 else ""
    slices += f" copies={schedule.copies}" if schedule.copies > 1 else ""
    header = f"# microp schedule {schedule.name} chunks={schedule.chunks} ranks={len(schedule.ranks)}{slices}"
    return "\n".join((header, *(" ".join(_written(schedule, row)) for row in schedule.ranks))) + "\n"


def from_text(text: str) -> Schedule:
    """Return the schedule that `to_text` wrote; it is not validated.

    Raises:
        ValueError: the text is not a schedule; the message gives line and column (both from 1).
    """
    lines = text.splitlines() or [""]
    header = _HEADER.fullmatch(lines[0].strip()) or _HEADER.fullmatch(" ".join(lines[0].translate(_BOUNDS).split()))
    if header is None:
        raise ValueError("line 1, column 1: expected '# microp schedule <name> chunks=<M> ranks=<K>'")
    ranks, pairs = _read(_words(text)[1:])
    if len(ranks) != int(header["ranks"]):
        raise ValueError(f"line 1, column 1: ranks={header['ranks']}, but {len(ranks)} rows of actions follow")
    return Schedule(
        header["name"],
        int(header["chunks"]),
        with_input_gradients(ranks),
        int(header["slices"] or 1),
        int(header["copies"] or 1),
        pairs,
    )


def with_input_gradients(ranks: Iterable[Iterable[T]]) -> tuple[tuple[T, ...], ...]:
    """Return rows of actions or spans in which a B beside a W of its pair is an I, because files had no I once."""
    table: list[list[Any]] = list(map(list, ranks))
    divided = {(item.stage, item.microbatch) for row in table for item in row if item.op is Op.W}

    def today(item: Any) -> T:
        is_part = item.op is Op.B and (item.stage, item.microbatch) in divided
        return cast(T, item._replace(op=Op.I) if is_part else item)

    return tuple(tuple(map(today, row)) for row in table)


def _words(text: str) -> list[list[tuple[str, str]]]:
    """Return the lines' words, each with its line and column; lines without any are left out."""
    table = [
        [(f"line {number}, column {word.start() + 1}", word.group()) for word in _WORD.finditer(line)]
        for number, line in enumerate(text.splitlines(), start=1)
    ]
    return [words for words in table if words]


def _read(table: Iterable[Iterable[tuple[str, str]]]) -> tuple[tuple[tuple[Action, ...], ...], frozenset[Action]]:
    """Return the rows of actions that the words name, and the forwards of the pairs among them."""
    ranks, pairs = [], set()
    for words in table:
        row: list[Action] = []
        for where, word in words:
            try:
                if (pair := _WORD.fullmatch(word)) and pair[1]:
                    row += map(Action.parse, pair.groups())
                    pairs.add(row[-2])
                else:
                    row.append(Action.parse(word))
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
        ranks.append(row)
    return rows(ranks), frozenset(pairs)


def _written(schedule: Schedule, row: Iterable[Action], mark: str = "") -> list[str]:
    """Return the words of a row; `mark` comes after a pair."""
    partners = schedule.partners
    seconds = set(partners.values())
    return [
        f"({action};{partners[action]}){mark}" if action in partners else str(action)
        for action in row
        if action not in seconds
    ]


# --- torch's form --------------------------------------------------------------------------------


def to_torch_csv(schedule: Schedule) -> str:
    """Return the CSV that torch's `_PipelineSchedule._load_csv` reads: one row per rank, no idle slots."""
    return "".join(",".join(_written(schedule, row, "OVERLAP_F_B")) + "\n" for row in schedule.ranks)


def from_torch_csv(text: str, name: str, slices: int = 1, copies: int = 1) -> Schedule:
    """Return the schedule in a CSV of torch's; it is not validated.

    Idle slots and communication are skipped.

    Args:
        name: the schedule's name. The CSV has neither a name nor `chunks`, which is read as the
            highest microbatch plus one.
        slices: the number of slices of each microbatch, whose numbers are those of units then.
        copies: the number of copies of the model.

    Raises:
        ValueError: the text is not a schedule; the message gives line and column (both from 1).
    """
    table, pairs = _read([word for word in row if not _DERIVED.fullmatch(word[1])] for row in _words(text))
    microbatches = [action.microbatch for row in table for action in row]
    if not microbatches:
        raise ValueError("line 1, column 1: found no action: write one row per rank, such as 0F0,0F1,0B0,0B1")
    return Schedule(name, -(-(max(microbatches) + 1) // max(slices, 1)), table, slices, copies, pairs)
