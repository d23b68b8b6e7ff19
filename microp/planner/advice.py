"""Says why a run does not fit into its ranks' memory, and which changes would make it fit at what price.

::

    rank 0 needs 2.3 GiB, more than device.memory_gib=2: weights 0.2, gradients 0.2, the optimizer's state 0.4,
    activations 1.4 (8 in flight, 0.18 each): use chunks=16 (1.5 GiB, step +2 %) or checkpointing=always (1.1 GiB), ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from operator import lshift, rshift

from microp.planner.choices import ORDERS, Choice, Priced, Pricer, knobs_of
from microp.schedule.builders import LOOPED, V_SHAPED
from microp.simulator import Part
from microp.system import size_text

MOST = 3  # changes that are named
SMALL_PART = 0.03  # of a rank's memory: a smaller part is not named


def fill_text(parts: Sequence[Part]) -> str:
    """Return what fills a rank's memory, the largest part first."""
    total = sum(part.size for part in parts)
    found = []
    for part in sorted(parts, key=lambda part: -part.size):
        if part.size < SMALL_PART * total:
            continue
        each = f" ({part.number} in flight x {size_text(part.size / part.number)})" if part.number else ""
        found.append(f"{part.name} {size_text(part.size)}{each}")
    return ", ".join(found)


def changes(pricer: Pricer, now: Priced, cap: float) -> list[tuple[str, Priced]]:
    """Return the cheapest single changes with which every rank has at most `cap` bytes, as typed, with what they cost.

    Of each kind of change the one with the shortest step, as a run of it is predicted; the shortest first.
    """
    fitting = []
    for words, choice in _single(pricer, now.choice):
        with suppress(ValueError):  # the device has times for another number of stages
            priced = pricer.price(choice, cap)
            if priced is not None and priced.peak <= cap:
                fitting.append((words, pricer.forecast(priced)))
    fitting.sort(key=lambda each: (each[1].step, each[1].peak))
    kinds: dict[str, tuple[str, Priced]] = {}
    for words, priced in fitting:
        kinds.setdefault(" ".join(word.partition("=")[0] for word in words.split()), (words, priced))
    return list(kinds.values())[:MOST]


def _single(pricer: Pricer, now: Choice) -> Iterator[tuple[str, Choice]]:
    """Yield every choice that differs in one thing, with the override that makes it."""
    chunks = now.chunks * 2
    while chunks * now.replicas <= pricer.subject.batch_size and chunks <= 64 * now.chunks:
        yield f"chunks={chunks}", now._replace(chunks=chunks)
        chunks *= 2
    for each in ("always", "segments=2", "segments=4"):
        if each != now.checkpointing:
            name, _, segments = each.partition("=")
            words = f"checkpointing={name}" + (f" checkpointing.segments={segments}" if segments else "")
            yield words, now._replace(checkpointing=each)
    for name in ORDERS:
        if name != now.schedule:
            knobs = {key: value for key, value in knobs_of(name).items() if isinstance(value, int)}
            asked, words = dict(now.knobs), f"schedule={name}"
            for key in (key for key, value in knobs.items() if asked.get(key, value) != value):
                words += f" schedule.{key}={knobs[key]}"
            new = now._replace(schedule=name, knobs=tuple(knobs.items()))
            if now.partition == "given" and name in (*LOOPED, *V_SHAPED):  # sizes for another number of stages
                words, new = f"{words} partition=uniform", new._replace(partition="uniform")
            yield words, new
    if now.partition != "balanced":
        yield "partition=balanced", now._replace(partition="balanced")


def other_sizes(
    pricer: Pricer, now: Choice, cap: float, pipelines: int = 1, typed: Callable[[str], str] = str
) -> list[str]:
    """Return the fewest ranks, and the most rows, with which every rank has at most `cap` bytes, as typed; or nothing.

    Tried are 2, 4, ... times the ranks, and 1/2, 1/4, ... of the batch: if a layer alone is too large, none is enough.
    Where `ranks` are those of one pipeline, there are that many `pipelines`.
    """
    found, is_given = [], now.partition == "given"  # sizes for another number of stages
    choice = now._replace(partition="uniform") if is_given else now
    for key, field, shift in (("ranks", "devices", lshift), ("batch_size", "batch_size", rshift)):
        for power in range(1, 20):
            other, number = copy(pricer), shift(getattr(pricer.subject, field), power)
            other.subject = replace(pricer.subject, **{field: number})
            with suppress(ValueError):  # as in `changes`
                if (priced := other.price(choice, cap)) is not None and priced.peak <= cap:
                    number //= pipelines if key == "ranks" else 1
                    words = typed(f"{key}={number}{' partition=uniform' * is_given}")
                    found.append(f"{words} ({size_text(priced.peak)})")
                    break
    return found


def advice(
    pricer: Pricer, now: Priced, cap: float, typed: Callable[[str], str] = str, plan: str = "python -m microp.plan"
) -> str:
    """Return the changes that fit as one phrase, each with its memory and its price in time.

    Args:
        now: the choice as it is, with the predicted time of its step if that is known.
        typed: the words of a change -> how to type them.
        plan: the command that searches several changes together; empty if none can.
    """
    named = [
        f"{typed(words)} ({size_text(priced.peak)}, step {100 * (priced.step / now.step - 1):+.0f} %)"
        for words, priced in changes(pricer, now, cap)
    ]
    if not named:
        named = other_sizes(pricer, now.choice, cap, now.choice.replicas, typed)
        named += ["a smaller model", *[f"several changes together: {plan}"] * bool(plan)]
    return f"use {' or '.join(named)}"
