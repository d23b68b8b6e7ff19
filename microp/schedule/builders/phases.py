"""Helpers of several builders: they put a row together, in an order that the builder chooses.

::

    three_phases    F F F | F B F B F B | B B B        warmup, steady, cooldown
    defer_weights   I I I W I W I W     W W            a W when more than `lag` wait
    play            2 x "F0", 3 x "F1 I1 W1", ...      phases as a table
    looped_1f1b     three_phases over several stages of a rank, a round of microbatches at a time
    dualpipe_phases the phases of DualPipe and of DualPipeV
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, count
from operator import itemgetter

from microp.schedule.partition import spread
from microp.schedule.schedule import Action, Op

_F, _B, _I, _W = Op  # a name of an enumeration takes longer to look up


def three_phases(forwards: Sequence[Action], backwards: Sequence[Action], warmup: int) -> Iterator[Action]:
    """Yield `warmup` forwards (or all, if there are fewer), then a forward and a backward in turn, then backwards."""
    steady = max(0, len(forwards) - warmup)
    yield from forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards[:steady], strict=True):
        yield forward
        yield backward
    yield from backwards[steady:]


def defer_weights(row: Iterable[Action], lag: int) -> Iterator[Action]:
    """Yield the row with an I and a W for every B.

    An I that leaves more than `lag` W waiting is followed by the oldest one; the rest come last.
    """
    waiting: deque[Action] = deque()
    for action in row:
        yield action if action.op is _F else action._replace(op=_I)
        if action.op is _B:
            waiting.append(Action(_W, action.stage, action.microbatch))
            if len(waiting) > lag:
                yield waiting.popleft()
    yield from waiting


def looped_stages(rank: int, ranks: int, stages_per_rank: int) -> range:
    """Return the stages r, K+r, 2K+r, ... of rank r.

    Raises:
        ValueError: `stages_per_rank` is below 1.
    """
    if stages_per_rank < 1:
        raise ValueError(f"stages_per_rank={stages_per_rank} is below 1: use at least 1")
    return range(rank, stages_per_rank * ranks, ranks)


def rounds_of(ranks: int, chunks: int, group: int | None = None) -> tuple[int, ...]:
    """Return the number of microbatches of each round of a looped 1F1B: K each, where K divides M.

    Where it does not, there are as many rounds as full ones would fit, at least one, as even as possible and
    the larger ones first: 4 ranks take 11 microbatches in rounds of 6 and 5. torch has the same rounds, and
    refuses those that are not all equal. With a `group`, each round has so many, and the last one what is left.

    Raises:
        ValueError: `group` is below `ranks`.
    """
    if group is None:
        return spread(chunks, max(1, chunks // ranks))
    if group < ranks:
        raise ValueError(f"schedule.group={group} is below ranks={ranks}: use {ranks} or more, or null")
    return tuple(min(group, chunks - begun) for begun in range(0, chunks, group))


def looped_1f1b(stages: Sequence[int], rounds: Sequence[int], warmup: int, slices: int = 1) -> Iterator[Action]:
    """Return the 1F1B row of a rank with several stages: a round of microbatches on each of them, then the next round.

    ::

        k-th forward   0 1 2 3  4 5 6 7  8 ...      4 ranks, rounds of 4, 2 stages per rank
        stage          0 0 0 0  1 1 1 1  0 ...      index in `stages`; backwards begin with the last
        microbatch     0 1 2 3  0 1 2 3  4 ...

    Args:
        rounds: the number of microbatches of each.
        warmup: the warmup forwards beyond the first round on all stages but the last.
        slices: the units of a microbatch, of whose backwards the last comes first.
    """
    order = [
        (turn, microbatch)
        for end, size in zip(accumulate(rounds), rounds, strict=True)
        for turn in range(len(stages))
        for microbatch in range(end - size, end)
    ]
    units = range(slices)
    forwards = [Action(_F, stages[turn], number * slices + at) for turn, number in order for at in units]
    backwards = [Action(_B, stages[-1 - turn], number * slices + at) for turn, number in order for at in units[::-1]]
    return three_phases(forwards, backwards, (len(stages) - 1) * rounds[0] * slices + warmup)


def play(phases: Iterable[tuple[int, str]], stages: Sequence[int], chunks: int) -> Iterator[Action]:
    """Yield the actions of a table of phases, each a repeat count and words; microbatches are counted automatically.

    ::

        F0  the next forward of stages[0]        I1  the next input gradient of stages[1]
        W0  the oldest weight gradient that      B1  the next full backward of stages[1],
            waits in stages[0]                       which leaves no weight gradient
        W   the oldest of any stage

    Microbatches from `chunks` on are left out, so that a table may be written for more.
    """
    seen = {letter: dict.fromkeys(stages, 0) for letter in "FB"}  # how many; a B may be divided
    waiting: dict[int, deque[tuple[int, Action]]] = {stage: deque() for stage in stages}  # with the count of their I
    divided = count()
    for times, text in phases:
        words = [(word[0], [stages[int(digit)] for digit in word[1:]]) for word in text.split()]
        for letter, named in words * times:
            if letter == "W":
                lane = waiting[named[0]] if named else min(filter(None, waiting.values()), key=itemgetter(0))
                action = lane.popleft()[1]
            else:
                (stage,) = named
                counts = seen["F" if letter == "F" else "B"]
                action = Action(Op(letter), stage, counts[stage])
                counts[stage] += 1
                if letter == "I":
                    waiting[stage].append((next(divided), action._replace(op=_W)))
            if action.microbatch < chunks:
                yield action


def dualpipe_phases(rank: int, ranks: int, chunks: int) -> list[tuple[int, str]]:
    """Return the phases of DualPipeV, which are also those of DualPipe on each half of its ranks, from the ends on."""
    below, half, odd = ranks - rank - 1, (rank + 1) // 2, (rank + 1) % 2
    return [
        (2 * below, "F0"),
        (rank + 1, "F0 F1"),
        (below, "I1 W F1"),
        (chunks - 2 * ranks + rank + 1, "F0 B1 F1 B0"),
        (below, "B1 F1 B0"),
        (half, "B1 B0"),
        (odd, "B1 I0"),
        (half, "I1 I0"),
        (below, "W I0"),
        (rank + 1, "W"),
    ]
