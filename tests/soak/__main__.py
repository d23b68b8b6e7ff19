"""Runs the parts of the soak test and prints what passed.

::

    part      what is done                                               --times 20
    faults    each fault x moment of a step x transport                  20 times
    steps     one run at K=4 on each transport                           2,000 steps
    points    one sweep                                                  100 points
    kills     one sweep whose processes are killed at random moments     200 kills
"""

import argparse
import atexit
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]
FOLDER = Path(tempfile.mkdtemp(prefix="soak-"))
atexit.register(shutil.rmtree, FOLDER, True)  # registered first, so that it runs after what multiprocessing registers

from tests.soak import commands, faults  # noqa: E402 (the tests' helpers must be found first)
from tests.soak.machine import Machine, Result  # noqa: E402

PARTS: dict[str, Callable[[Machine, int], Iterator[Result]]] = {
    "faults": faults.run,
    "steps": commands.run_steps,
    "points": commands.run_points,
    "kills": commands.run_kills,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--times", type=int, default=20, help="how often each fault is made; scales the other parts")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
    began, failed = time.monotonic(), 0
    machine = Machine.start(FOLDER)
    for part in options.parts or PARTS:
        for result in PARTS[part](machine, options.times):
            failed += result.passed < result.tried
            print(result.text(), flush=True)
    print(f"{failed} of the lines failed" if failed else "all passed", f"({(time.monotonic() - began) / 60:.1f} min)")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
