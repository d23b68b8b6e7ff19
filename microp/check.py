"""`python -m microp.check`: checks in under a minute that microp works here and that its mathematics is right."""

from __future__ import annotations

from microp.commands import self_checks
from microp.system import CommandParser, run_command
from microp.terminal import console


def main(arguments: list[str] | None = None) -> int:
    """Check that microp works on this machine and that its mathematics is right; exit code 1 if a check fails."""
    CommandParser(prog="python -m microp.check", description=main.__doc__).parse_args(arguments)
    failed = 0
    with console.err.status("checking"):
        for name, passed, figure in self_checks.run_checks():
            failed += not passed
            console.out.print(f"{'[green]pass[/]' if passed else '[red]FAIL[/]'}  {name:32} {figure}", soft_wrap=True)
    return 1 if failed else 0


if __name__ == "__main__":
    run_command(main)
