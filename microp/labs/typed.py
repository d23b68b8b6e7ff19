"""The words that one types behind a lab, and its help."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence

from microp.config import ConfigError, job_of
from microp.job import Job
from microp.system import CommandParser

ALONE = "ranks=1", "chunks=1"  # the lab has no pipeline, or makes one by hand


def typed_job(
    lab: str, text: str | None, arguments: Sequence[str] | None, *given: str, fixed: Sequence[str] = ()
) -> Job:
    """Return the job of a lab: of its own words, of which those that were typed take the place.

    Args:
        lab: its module's name.
        text: its docstring, for `--help`.
        arguments: the typed words; None takes those of the command line.
        given: words such as `chunks=4` that one may type otherwise.
        fixed: words that the lab is about, which cannot be typed otherwise.
    """
    parser = parser_of(lab, text)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help=f"as after microp; without: {' '.join(given)}")
    words = parser.parse_args(arguments).words
    keys = {_key(word): word for word in fixed}
    for word in words:
        if _key(word) in keys:
            parser.error(f"{word}: this lab is about {keys[_key(word)]}, so leave {_key(word)} out")
    typed = set(map(_key, words))
    try:
        return job_of(*fixed, *(word for word in given if _key(word) not in typed), *words)
    except ConfigError as error:
        parser.error(str(error))


def parser_of(lab: str, text: str | None) -> CommandParser:
    """Return the parser of a lab's command line, whose help begins with the lab's docstring."""
    return CommandParser(
        prog=f"python -m microp.labs.{lab}",
        description=(text or "").replace("::\n\n", ""),
        formatter_class=RawDescriptionHelpFormatter,
    )


def _key(word: str) -> str:
    return word.partition("=")[0]
