"""Says why a run does not fit into its ranks' memory, and which changes would make it fit at what price.

::

    rank 0 needs 2.3 GiB, more than device.memory_gib=2: weights 0.2, gradients 0.2, the optimizer's state 0.4,
    activations 1.4 (8 in flight, 0.18 each): use chunks=16 (1.5 GiB, step +2 %) or checkpointing=always (1.1 GiB), ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import inf

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
            knobs, asked, words = knobs_of(name), dict(now.knobs), f"schedule={name}"
            for key in (key for key, value in knobs.items() if asked.get(key, value) != value):
                words += f" schedule.{key}={knobs[key]}"
            new = now._replace(schedule=name, knobs=tuple(knobs.items()))
            if now.partition == "given" and name in (*LOOPED, *V_SHAPED):  # sizes for another number of stages
                words, new = f"{words} partition=uniform", new._replace(partition="uniform")
            yield words, new
    if now.partition != "balanced":
        yield "partition=balanced", now._replace(partition="balanced")


def other_sizes(pricer: Pricer, now: Choice, cap: float, most: float = inf) -> list[tuple[str, float]]:
    """Return the least number of ranks, up to `most`, and the largest batch with which every rank has at most `cap`.

    Each as typed, with the bytes of the fullest rank. Tried are twice, four, ... times the ranks, and half, a quarter,
    ... of the rows. There may be none: a layer alone can be too large.
    """
    subject, replicas, is_given = pricer.subject, now.replicas, now.partition == "given"
    ranks = [n for power in range(1, 14) if (n := subject.devices << power) <= min(most, replicas * subject.layers)]
    rows = [n for power in range(1, 30) if (n := subject.batch_size >> power) >= replicas * now.chunks]
    spread = now._replace(partition="uniform") if is_given else now  # sizes for another number of stages
    found = []
    for key, numbers, choice in (("devices", ranks, spread), ("batch_size", rows, now)):
        for number in numbers:
            with suppress(ValueError):  # as in `changes`
                priced = pricer.resized(**{key: number}).price(choice, cap)
                if priced is not None and priced.peak <= cap:
                    typed = f"batch_size={number}" if key == "batch_size" else f"ranks={number // replicas}"
                    found.append((typed + " partition=uniform" * (choice != now), priced.peak))
                    break
    return found


def advice(
    pricer: Pricer, now: Priced, cap: float, typed: Callable[[str], str] = str, plan: str = "", most: float = inf
) -> str:
    """Return the changes that fit as one phrase, each with its memory and its price in time.

    Args:
        now: the choice as it is, with the predicted time of its step if that is known.
        typed: the words of a change -> how to type them.
        plan: the command that searches several changes together; empty if there is none.
        most: the largest number of ranks, of all replicas, that there can be.
    """
    found = changes(pricer, now, cap)
    if not found:
        sizes = [f"{typed(words)} ({size_text(peak)})" for words, peak in other_sizes(pricer, now.choice, cap, most)]
        rest = "no other change alone is enough" + ", nor are more ranks or fewer rows" * (not sizes)
        return f"use {' or '.join([*sizes, 'a smaller model'])}; {rest}{plan and f'; several together: {plan}'}"
    return "use " + " or ".join(
        f"{typed(words)} ({size_text(plan.peak)}, step {100 * (plan.step / now.step - 1):+.0f} %)"
        for words, plan in found
    )
