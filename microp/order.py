"""`python -m microp.order`: search for an order under a memory cap, and write it as a schedule file."""

from __future__ import annotations

from microp.system import run_command


def main() -> None:
    from microp.commands import ordering
    from microp.sweep import run_app

    run_app("order", ordering.run_order)


if __name__ == "__main__":
    run_command(main)
