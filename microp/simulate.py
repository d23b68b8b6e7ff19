"""`python -m microp.simulate`: price a schedule and draw it. Options: `--help`."""

from __future__ import annotations

from microp.system import run_command


def main() -> None:
    from microp.commands import pricing
    from microp.sweep import run_app

    run_app("simulate", pricing.run_price)


if __name__ == "__main__":
    run_command(main)
