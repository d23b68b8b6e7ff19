"""What labs have in common: the words that one types behind them, their help, and text that fits the terminal."""

from __future__ import annotations

import math
import sys
import textwrap
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence

from microp.config import ConfigError, job_of
from microp.job import Job
from microp.records import FEW_QUEUED
from microp.system import CommandParser
from microp.terminal import out

ALONE = "ranks=1", "chunks=1"  # the lab has no pipeline, or makes one by hand
BY_HAND = "batch_size", "model", "data", "seed"  # the keys and groups that a lab of one step takes
TRAINS = *BY_HAND, "learning_rate", "optimizer", "dtype"
ON_RANKS = *TRAINS, "device", "profile", "comms", "sync", "compile", "checkpointing"
LONGEST_BAR = 60  # characters


def typed_job(
    lab: str,
    text: str | None,
    arguments: Sequence[str] | None,
    *given: str,
    fixed: Sequence[str] = (),
    takes: Sequence[str] = BY_HAND,
) -> Job:
    """Return the job of a lab: of its own words, of which those that were typed take the place.

    Args:
        lab: its module's name.
        text: its docstring, for `--help`.
        arguments: the typed words; None takes those of the command line.
        given: words such as `chunks=4` that one may type otherwise; `device=cpu` also replaces `device.KEY=VALUE`.
        fixed: words that the lab is about, which cannot be typed otherwise.
        takes: the keys and groups that one may type; the lab would ignore others.
    """
    parser = parser_of(lab, text)
    about = f"of {', '.join(takes)}, as after microp; without: {' '.join(given)}"
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help=about)
    options, flags = parser.parse_known_args(arguments)
    if flags:
        parser.error(f"{flags[0]}: a key is typed without --, as {flags[0].lstrip('-')}=VALUE")
    words = options.words
    keys = {_key(word): word for word in fixed}
    for word in words:
        key, _, value = word.partition("=")
        if key in keys:
            parser.error(f"{word}: this lab is about {keys[key]}, so leave {key} out")
        if key.partition(".")[0] not in takes:
            parser.error(f"{word}: this lab takes {', '.join(takes)}")
        if "," in value and value[0] not in "[{'\"":
            parser.error(f"{word}: a lab runs one value, so type one of them")
    typed = {_key(word) for word in words}
    others = {_key(word) for word in words if word not in given}  # of another option, the lab has no keys
    kept = [word for word in given if _key(word) not in typed and _key(word).partition(".")[0] not in others]
    try:
        return job_of(*fixed, *kept, *words)
    except ConfigError as error:
        parser.error(str(error))


def parser_of(lab: str, text: str | None) -> CommandParser:
    """Return the parser of a lab's command line, whose help begins with the lab's docstring."""
    parts = (text or "").replace("::\n\n", "").split("\n\n")
    return CommandParser(
        prog=f"python -m microp.labs.{lab}",
        description="\n\n".join(part if part.startswith("  ") else _fitted(part, out.width - 1) for part in parts),
        formatter_class=RawDescriptionHelpFormatter,
    )


def flags_of(parser: CommandParser, arguments: Sequence[str] | None) -> Namespace:
    """Return the flags that one types behind a lab, as `--card 80` or as `card=80`."""
    words = sys.argv[1:] if arguments is None else arguments
    flags = [f"--{word}" if "=" in word and not word.startswith("-") else word for word in words]
    options, rest = parser.parse_known_args(flags)
    if rest:
        parser.error(f"{rest[0].removeprefix('--')}: this lab takes {', '.join(vars(options)) or 'no words'}")
    return options


def say(text: str) -> None:
    """Print lines; those that are wider than the terminal are wrapped between words."""
    for line in text.split("\n"):
        print(_fitted(line, out.width))


def about_cores(share: float) -> str:
    """Return a line that a rank had no core for this share of its time, if that is too large; else nothing."""
    if share <= FEW_QUEUED:
        return ""
    why = "other work ran, or there are more ranks than cores"
    return f"\nDisturbed: a rank had no core for {share:.0%} of the time: {why}."


def bar(start: str, value: float, most: float, end: str = "") -> str:
    """Return a line with a bar, whose length is `value`'s share of `most`, between other text."""
    room = max(1, min(LONGEST_BAR, out.width - len(start + end)))
    length = round(room * min(1, value / most)) if math.isfinite(value) else 0
    return f"{start}{'█' * length:{room}}{end}".rstrip()


def _fitted(text: str, columns: int) -> str:
    return textwrap.fill(text, columns, break_long_words=False, break_on_hyphens=False)


def _key(word: str) -> str:
    return word.partition("=")[0]
