"""`python -m microp.null_stages`: measures the time of the harness itself, with stages that do nothing."""

from __future__ import annotations

from argparse import Namespace

from microp.commands import busy_machine, overheads
from microp.system import CommandParser, run_command


def main(arguments: list[str] | None = None) -> int:
    """Measure stages that do nothing on every transport, and the start and end of a point; print the times."""
    parser = CommandParser(prog="python -m microp.null_stages", description=main.__doc__)
    parser.add_argument("--rows", type=int, default=8, help="rows of a microbatch (default: 8)")
    parser.add_argument("--dim", type=int, default=128, help="numbers per row (default: 128)")
    parser.add_argument("--steps", type=int, default=100, help="measured steps (default: 100)")
    parser.add_argument("--points", type=int, default=5, help="points of a sweep whose starts are timed (default: 5)")
    parser.add_argument("--busy", type=int, nargs="+", metavar="N", help="compare shm with gloo beside N processes")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2], metavar="K", help="with --busy (default: 2)")
    parser.add_argument("--launches", type=int, default=10, help="with --busy (default: 10)")
    parser.add_argument("--minutes", type=int, default=12, help="with --busy: no launch begins later (default: 12)")
    options = parser.parse_args(arguments)
    for name, value in vars(options).items():
        least = {"busy": 0, "ranks": 2, "points": 3}.get(name, 1)
        for each in value if isinstance(value, list) else [value]:
            if each is not None and each < least:
                parser.error(f"--{name}={each} is below {least}: use at least {least}")
    if options.busy is None:
        return _alone(options)
    shape = options.rows, options.dim
    return busy_machine.show(
        busy_machine.launches(options.ranks, options.busy, options.launches, shape, options.minutes)
    )


def _alone(options: Namespace) -> int:
    rows = overheads.transports((options.rows, options.dim), options.steps)
    print(f"{'':14}{f'per action, M={overheads.MANY}':>20}{'one microbatch there and back':>32}")
    for row in rows:
        print(f"{row['transport']:14}{row['per action']:17.1f} µs{row['there and back']:29.0f} µs")
    print(f"two ranks, GPipe, tensors of {options.rows * options.dim * 4:,} bytes, medians of {options.steps} steps")
    for name, seconds in overheads.starts(options.points).items():
        print(f"start and end of a point, {name}: {seconds:.2f} s")
    return 0


if __name__ == "__main__":
    run_command(main)
