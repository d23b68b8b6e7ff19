"""`python -m microp.tracking`: mirror to Weights & Biases what has not been mirrored yet."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from microp.settings import TrackingSettings
from microp.store import attempts, mirror, read_config


def main(arguments: list[str] | None = None) -> int:
    """Mirror every attempt below a folder that has not been mirrored yet."""
    parser = argparse.ArgumentParser(prog="python -m microp.tracking", description=main.__doc__)
    parser.add_argument("folder", nargs="?", default="outputs", type=Path, help="default: outputs")
    parser.add_argument("--mode", choices=["offline", "online"], help="default: the mode that the run was started with")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder: give outputs, a run or an attempt")
    failed = 0
    found = attempts(options.folder)
    for number, attempt in enumerate(found, start=1):
        try:
            settings = TrackingSettings(**read_config(attempt)["tracking"])
            settings.mode = options.mode or settings.mode
            if settings.problems():
                parser.error(settings.problems()[0])
            mirror(attempt, settings, attempt.parents[2])
            print(f"{number}/{len(found)} {attempt}: {'disabled' if settings.mode == 'disabled' else 'mirrored'}")
        except Exception as error:  # W&B may raise anything; the other attempts are still mirrored
            failed += 1
            print(f"{number}/{len(found)} {attempt}: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
