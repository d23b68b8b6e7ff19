"""`python -m microp.tracking`: mirror to Weights & Biases what has not been mirrored yet."""

from __future__ import annotations

import sys
from pathlib import Path

from microp.mirror import is_running, mirror
from microp.records import attempts, check_attempt, in_words, read_config
from microp.settings import NEEDS_KEY, TrackingSettings
from microp.system import CommandParser, has_key, out_of_reach, run_command


def main(arguments: list[str] | None = None) -> int:
    """Mirror every attempt below a folder that has not been mirrored yet."""
    parser = CommandParser(prog="python -m microp.tracking", description=main.__doc__)
    parser.add_argument("folder", nargs="?", default="outputs", type=Path, help="default: outputs")
    parser.add_argument("--mode", choices=["offline", "online"], help="default: the mode that the run was started with")
    parser.add_argument("--follow", action="store_true", help="also attempts that run, until they have ended")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder: give outputs, a run or an attempt")
    failed, folders = 0, attempts(options.folder)
    if not folders:
        print(f"{options.folder} holds no run, so there is nothing to mirror", file=sys.stderr)
    for number, attempt in enumerate(folders, start=1):
        try:
            done = _mirror(attempt, options.mode, options.follow)
            print(f"{number}/{len(folders)} {attempt}: {done}")
        except Exception as error:  # W&B may raise anything; the other attempts are still mirrored
            failed += 1
            print(f"{number}/{len(folders)} {attempt}: {in_words(error)}", file=sys.stderr)
    return 1 if failed else 0


def _mirror(attempt: Path, mode: str | None, follow: bool) -> str:
    """Mirror one attempt, unless W&B would fail for sure, and return what was done."""
    check_attempt(attempt)
    if is_running(attempt) and not follow:
        return "it runs, and is mirrored when it has ended"
    settings = TrackingSettings(**read_config(attempt)["tracking"])
    settings.mode = mode or settings.mode
    if settings.mode == "disabled":
        return "disabled"
    if settings.mode == "online" and not has_key():
        raise ConnectionError(f"it {NEEDS_KEY} add --mode offline")
    if settings.mode == "online" and (away := out_of_reach()):
        raise ConnectionError(f"{away}: add --mode offline")
    if problem := settings.folder_problem(attempt.parents[2]) or next(iter(settings.problems()), None):
        raise ValueError(problem)
    made = mirror(attempt, settings, settings.folder(attempt.parents[2]), follow=follow)
    return f"mirrored {', '.join(made)}" if made else "complete before"


if __name__ == "__main__":
    run_command(main)
