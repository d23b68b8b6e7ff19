"""`python -m microp.null_stages`: measures the time of the harness itself, with stages that do nothing."""

from __future__ import annotations

import sys

from microp.app import answer_version, overheads
from microp.settings import CommandParser


def main(arguments: list[str] | None = None) -> int:
    """Measure stages that do nothing on every transport, and the start and end of a point; print the times."""
    answer_version()
    parser = CommandParser(prog="python -m microp.null_stages", description=main.__doc__)
    parser.add_argument("--rows", type=int, default=8, help="rows of a microbatch (default: 8)")
    parser.add_argument("--dim", type=int, default=128, help="numbers per row (default: 128)")
    parser.add_argument("--steps", type=int, default=100, help="measured steps (default: 100)")
    options = parser.parse_args(arguments)
    for name, value in vars(options).items():
        if value < 1:
            parser.error(f"--{name}={value} is below 1: use at least 1")
    rows = overheads.transports((options.rows, options.dim), options.steps)
    print(f"{'':14}{f'per action, M={overheads.MANY}':>20}{'one microbatch there and back':>32}")
    for row in rows:
        print(f"{row['transport']:14}{row['per action']:17.1f} µs{row['there and back']:29.0f} µs")
    print(f"two ranks, GPipe, tensors of {options.rows * options.dim * 4:,} bytes, medians of {options.steps} steps")
    for name, seconds in overheads.starts().items():
        print(f"start and end of a point, {name}: {seconds:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
