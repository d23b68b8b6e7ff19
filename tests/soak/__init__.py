"""What takes hours: every fault many times, long runs, long sweeps, and a sweep that is killed again and again.

::

    python -m tests.soak                          all of it, 20 times: what `make soak` runs
    python -m tests.soak --times 2 faults steps   parts of it

pytest does not collect it. It prints a table of what passed, and exits with 1 if anything failed.
"""
