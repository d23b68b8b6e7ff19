"""`python -m microp.simulate`: a command stands above what it calls, so it is a file of its own."""

from microp.app import version

version.answer()

from microp.pricing import main  # noqa: E402  loads torch, which `--version` need not wait for

main()
