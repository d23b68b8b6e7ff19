"""Fits the cases of a profile into its time: a slow model is measured with fewer cases.

::

    round 0    case 0 ── case 1 ── ... ── case n     the next one would not fit `rounds` times: it and the rest
    round 1    case 0 ── case 1 ── ... ── case n     are left out, but never one of the first `needed`
    ...        as many rounds as fit, at least one

It has no clock. Every rank gives it the same times and so comes to the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterator

WARMUP = 2  # steps of a round before those that count
FEWEST, MOST = 2, 50  # steps of a round that count


class Budget:
    """Decides how many cases, rounds and steps are run in a given time.

    Args:
        cases: the number of cases, the most important ones first.
        needed: how many of them are run in any case.
        rounds: how often every case should be run.
        seconds: the time for all.
    """

    def __init__(self, cases: int, needed: int, rounds: int, seconds: float) -> None:
        self._cases, self._needed, self._rounds, self._seconds = cases, needed, rounds, seconds
        self._least: list[float] = []  # of each case of round 0, seconds
        self._left = cases * rounds
        self._fewest, self._is_first = FEWEST, True

    def turns(self) -> Iterator[tuple[int, int]]:
        """Yield (round, case) of what is run next; `steps` has to be asked in each of them."""
        for number in range(self._cases):
            if number >= self._needed and sum(self._least) / number * (number + 1) * self._rounds > self._seconds:
                break
            yield 0, number
        kept, self._is_first = len(self._least), False
        rounds = min(self._rounds, max(1, round(self._seconds / max(1e-9, sum(self._least)))))
        self._left = kept * (rounds - 1)
        for turn in range(1, rounds):
            for number in range(kept):
                yield turn, number

    def warmup(self, first: float) -> int:
        """Return how many steps more are not counted, after one that took `first` seconds."""
        if self._needed * (WARMUP + FEWEST) * first > self._seconds:
            self._fewest = 1
            return 0
        return WARMUP - 1

    def steps(self, elapsed: float, before: float, step: float) -> int:
        """Return how many steps of a case are counted.

        Args:
            elapsed: seconds since the first case began.
            before: seconds since this case began, with its warm-up.
            step: the seconds of a step.
        """
        if self._is_first:
            self._least.append(before + self._fewest * step)
        self._left -= 1
        share = (self._seconds - elapsed - self._left * before) / (self._left + 1)  # the others need their warm-up too
        return int(min(MOST, max(self._fewest, share / max(1e-6, step))))
