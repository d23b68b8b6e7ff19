"""Two copies of the model on the same ranks, whose microbatches run in opposite directions."""

from __future__ import annotations

from collections.abc import Iterator

from microp.schedule.builders.phases import dualpipe_phases, play
from microp.schedule.schedule import Action, Op, Schedule, overlapped, rows


def _needs(name: str, ranks: int, chunks: int, least: int) -> None:
    """Raise ValueError unless two copies can run on these ranks."""
    Schedule(name, chunks, ((),) * ranks)  # refuses numbers that are none
    if ranks % 2 or chunks % 2 or chunks < least:
        few = f", at least {least} chunks," if least > 2 else ""
        raise ValueError(
            f"schedule {name!r} needs an even number of ranks and of chunks{few} and has chunks={chunks}, "
            f"ranks={ranks}: use chunks={max(least, chunks + chunks % 2)}, ranks={ranks + ranks % 2}"
        )


def dualpipe(ranks: int, chunks: int) -> Schedule:
    """Return DualPipe: half of the microbatches enter at each end, and a rank runs a forward and a backward in turn.

    ::

        rank 0  0F0 0F1 0F2 7F4 7I4 7W4 7F5 0F3 7B5   = 7F6 0B0   = 7B6   = 7F7   . 0B1   = 7B7   = 0I2 0W2 0I3 0W3
        rank 1    . 1F0 6F4 1F1 6F5 1F2 6B4   = 6F6 1B0   = 1F3 6B5   = 6F7 1B1   = 6B6   = 1B2   = 6I7 1I3 6W7 1W3
        rank 2    . 5F4 2F0 5F5 2F1 5F6 2B0   = 2F2 5B4   = 5F7 2B1   = 2F3 5B5   = 2B2   = 5B6   = 2I3 5I7 2W3 5W7
        rank 3  4F4 4F5 4F6 3F0 3I0 3W0 3F1 4F7 3B1   = 3F2 4B4   = 3B2   = 3F3   . 4B5   = 3B3   = 4I6 4W6 4I7 4W7

    Rank r holds stage r of the first copy and stage K-1-r of the second, whose number is 2K-1-r. The bubble is
    (K/2-1)(F+I-W), and K+1 microbatches are held on every rank, twice the weights as well (DeepSeek-V3, arXiv
    2412.19437, section 3.2.1; the phases of deepseek-ai/DualPipe). F and B of the steady phase are pairs; where a pair
    has no time of its own, as here, the B follows its F.

    Raises:
        ValueError: `ranks` or `chunks` is odd, or there are fewer than 2K chunks.
    """
    _needs("dualpipe", ranks, chunks, 2 * (ranks + ranks % 2))
    half, many = ranks // 2, chunks // 2  # of each copy

    def row(rank: int) -> Iterator[Action]:
        first, second = rank, 2 * ranks - 1 - rank
        stages = (first, second) if rank < half else (second, first)  # that of the nearer end comes first
        for action in play(dualpipe_phases(min(rank, ranks - 1 - rank), half, many), stages, many):
            yield action if action.stage < ranks else action._replace(microbatch=many + action.microbatch)

    order = rows(map(row, range(ranks)))
    return Schedule("dualpipe", chunks, order, copies=2, pairs=overlapped(order, apart=[half - 1, half]))


def chimera(ranks: int, chunks: int) -> Schedule:
    """Return Chimera: two 1F1B pipelines in opposite directions, merged so that each fills the other's bubbles.

    ::

        rank 0  0F0 0F1   . 7F2 7B2 7F3 7B3 0B0   . 0B1
        rank 1    . 1F0 6F2 1F1 6F3 6B2 1B0 6B3 1B1   .
        rank 2    . 5F2 2F0 5F3 2F1 2B0 5B2 2B1 5B3   .
        rank 3  4F2 4F3   . 3F0 3B0 3F1 3B1 4B2   . 4B3

    Rank r holds stage r of the first copy and stage K-1-r of the second, whose number is 2K-1-r. In each slot a rank
    that is free takes a backward that is ready, else the forward of the lowest microbatch, and holds at most K. With
    F = B and K dividing M the bubble is K-2 slots, half of 1F1B's; with B = 2F it grows with M and is smaller than
    1F1B's up to about 4K microbatches (Li and Hoefler, Chimera, arXiv 2107.06925, section 3; there as list of slots).

    Raises:
        ValueError: `ranks` or `chunks` is odd.
    """
    _needs("chimera", ranks, chunks, 2)
    half, last = chunks // 2, 2 * ranks - 1
    empty = Schedule("chimera", chunks, ((Action(Op.F, last, half),),) * ranks, copies=2)
    lanes = [((rank, 0), (last - rank, half)) for rank in range(ranks)]
    turns = [(op, number) for op in (Op.B, Op.F) for number in range(half)]  # what is earlier here goes first
    waiting = [[Action(op, stage, begin + number) for op, number in turns for stage, begin in lane] for lane in lanes]
    done, held = set[Action](), [0] * ranks
    order: list[list[Action]] = [[] for _ in range(ranks)]
    while any(waiting):
        started = []
        for rank, todo in enumerate(waiting):
            able = (action for action in todo if action.op is Op.B or held[rank] < ranks)
            action = next((each for each in able if done.issuperset(empty.parents(each))), None)
            if action is not None:
                todo.remove(action)
                held[rank] += 1 if action.op is Op.F else -1
                order[rank].append(action)
                started.append(action)
        done.update(started)
    return Schedule("chimera", chunks, rows(order), copies=2)
