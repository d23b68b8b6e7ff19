"""`python -m microp.simulate`: a command stands above what it calls, so it is a file of its own."""

from microp.pricing import main

main()
