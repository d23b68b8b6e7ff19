"""Schedules, spans and costs as tests write them, and valid ones that nobody would draw."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from random import Random
from typing import Any

from microp.schedule import Action, Op, Schedule
from microp.simulator import LINK_MODELS, Costs, LinkModel, for_stages
from microp.trace import Span


def defined(build: Callable[[int, int], Schedule], ranks: int, numbers: Iterable[int]) -> Iterator[Schedule]:
    """The schedules of a builder, which says for which numbers of microbatches it is not defined."""
    for chunks in numbers:
        with suppress(ValueError):
            yield build(ranks, chunks)


def read(*rows: str, chunks: int = 1, name: str = "drawn") -> Schedule:
    return Schedule(name, chunks, tuple(tuple(map(Action.parse, row.split())) for row in rows))


def read_spans(*rows: str) -> list[Span]:
    """Spans as drawn, a word per unit of time: `F0` an action, `.` a bubble; stage = rank.

    A rank waits for its next action from the end of the one before.
    """
    spans = []
    for rank, row in enumerate(rows):
        free = Fraction(0)
        for time, word in enumerate(row.split()):
            if word != ".":
                start, end = Fraction(time), Fraction(time + 1)
                spans.append(Span(rank, Op(word[0]), rank, int(word[1:]), free, start, start, end))
                free = end
    return spans


def equal(stages: int, forward: Any, backward: Any, latency: Any = 0) -> Costs:
    return for_stages(stages, forward=forward, backward=backward, latency=latency)


def random_schedule(random: Random) -> Schedule:
    """Stages anywhere, some backwards divided, some stages frozen, and a row for each rank as fate would have it."""
    stages, chunks = random.randint(1, 6), random.randint(1, 5)
    ranks = random.randint(1, stages)
    places = [*range(ranks), *(random.randrange(ranks) for _ in range(stages - ranks))]
    random.shuffle(places)
    pairs = [(stage, m) for stage in range(stages) for m in range(chunks)]
    frozen = [random.random() < 0.2 for _ in range(stages)]
    backwards = [(Op.I,) if frozen[s] else (Op.I, Op.W) if random.random() < 0.4 else (Op.B,) for s, _ in pairs]
    todo = [Action(op, *pair) for pair, ops in zip(pairs, backwards, strict=True) for op in (Op.F, *ops)]
    rule = Schedule("rule", chunks, (tuple(todo),))  # asked for parents alone
    rows: list[list[Action]] = [[] for _ in range(ranks)]
    done: set[Action] = set()
    while todo:
        action = random.choice([action for action in todo if done.issuperset(rule.parents(action))])
        todo.remove(action)
        done.add(action)
        rows[places[action.stage]].append(action)
    return Schedule("random", chunks, tuple(map(tuple, rows)))


def random_costs(random: Random, schedule: Schedule, transfer: LinkModel | None = None) -> Costs:
    """Integers, or Fractions; some microbatches recomputed, hops of any length, one for all or one per stage."""
    unit = random.choice((1, Fraction(1, random.randint(2, 7))))

    def times(least: int, most: int) -> tuple[int | Fraction, ...]:
        return tuple(random.randint(least, most) * unit for _ in range(schedule.stages))

    return Costs(
        *(times(1, 9), times(1, 9), random.choice(((), times(0, 6)))),
        full=random.choice(((), times(1, 15))),
        latency=random.choice((0, random.randint(0, 6) * unit, times(0, 6), times(0, 30))),
        recompute=random.choice(((), times(0, 5))),
        spared=tuple(m for m in range(schedule.chunks) if random.random() < 0.3),
        boundary=random.choice(((), times(0, 20))),
        bandwidth=random.randint(1, 6),
        transfer=transfer or random.choice(list(LINK_MODELS.values())),
    )


def random_cases(seed: int, count: int, transfer: LinkModel | None = None) -> Iterator[tuple[Schedule, Costs]]:
    random = Random(seed)
    for _ in range(count):
        schedule = random_schedule(random)
        yield schedule, random_costs(random, schedule, transfer)
