"""What is refused, in which words; and that what is accepted runs, whatever was done to it.

Mutants of every builder's orders are refused or give the monolith's gradients, over tags and
over links that keep nothing but their order.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
from catalogue import EVERY, build, each_builder, held_peak, label
from conftest import mlp, small_job
from drawn import read
from one_process import assert_near, by_one_process, by_threads
from threads import tagless

from microp.comms import thread_comms
from microp.schedule import Action, Op, Schedule, receives_to_post, validate
from microp.schedule.builders import gpipe, zb_v
from microp.schedule.validation import find_cycle

# --- what is said ----------------------------------------------------------------------------------


def paired(*rows: str, at: str) -> Schedule:
    """The rows, in which an action is the first of a pair."""
    return replace(read(*rows, chunks=len(rows[0].split()) // 2), pairs=frozenset([Action.parse(at)]))


EACH = "0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"
REFUSED = [  # the beginning of the sentence, and a part of the picture
    (read("0F0 0B0", "1F0"), "1B0 is missing", "rank 0  0F0 [0B0]\n  rank 1 [1F0]"),
    (read("0F0 0F0 0B0"), "0F0 is listed more than once", "rank 0 [0F0][0F0] 0B0"),
    (read("0F0 0B0 0F0", "0B0"), "0F0 and 0B0 are listed more than once; 0B0 is on rank 1, but rank 0 holds", "[0B0]"),
    (read("0F0 0B0 0F1 0B1"), "0F1 and 0B1 are out of range (stages go from 0, microbatches from 0 to 0)", "[0F1]"),
    (read("0F0", chunks=3), "0B0, 0F1, 0B1 and 2 more are missing", "rank 0 [0F0]"),
    (read("0F0 0B0 1F0", "1B0"), "1B0 is on rank 1, but rank 0 holds stage 1", "rank 1 [1B0]"),
    (read("1F0 0F0 0B0 0F1 0B1", "1B0 1F1 1B1", chunks=2), "1F0 is on rank 0, but rank 1 holds stage 1", "[1F0]"),
    (read("0F0 0B0", ""), "rank 1 has nothing to do: use fewer ranks", ""),
    (read("0F0 0B0 2F0 2B0"), "stage 1 has no action, but stage 2 has", "[2F0][2B0]"),
    (Schedule("drawn", 1, ((Action(Op.F, -1, 0),),)), "-1F0 is out of range (stages go from 0", "[-1F0]"),
    (
        replace(read("0F0 0B0 2F1 2B1", "1F0 1B0 3F1 3B1", chunks=2), copies=2),
        "rank 0 holds stage 2 and another copy of it: place the copies of a stage on different ranks",
        "",
    ),
    (read("0B0 0F0"), "it deadlocks: 0B0 waits for 0F0, which comes after 0B0 on rank 0", "rank 0 [0B0][0F0]"),
    (read("0F0 0W0 0I0"), "it deadlocks: 0W0 waits for 0I0, which comes after 0W0 on rank 0", "0F0 [0W0][0I0]"),
    (read("0F0 0B0 0W0"), "0B0 is the full backward, but there is 0W0 too: write 0I0 for 0B0, or leave 0W0", "[0B0]"),
    (read("0F0 0I0 0B0 0W0"), "0B0 is the full backward, but there is 0I0 too: write 0I0 for 0B0", "[0I0]"),
    (read("0F0 0I0 0F1 0I1 0W1", chunks=2), "0W0 is missing", "[0I0]"),
    (read("0F0 0I0 0F1 0B1", chunks=2), "0W0 is missing", "[0I0]"),
    (read("0F0 0I0 0F1", chunks=2), "0I1 is missing", "[0F1]"),
    (read("0F0 0W0"), "0I0 is missing", "[0W0]"),
    (
        read("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1", chunks=2),
        "it deadlocks: 0B0 waits for 1B0, which comes after 1F1 on rank 1, which waits for 0F1, "
        "which comes after 0B0 on rank 0",
        "rank 0  0F0 [0B0][0F1] 0B1\n  rank 1  1F0 [1F1][1B0] 1B1",
    ),
    (paired("0F0 0B0", at="0F0"), "the pair (0F0;0B0) waits for itself, since 0B0 needs 0F0: pair", "[0F0][0B0]"),
    (paired("0F0 0B0", at="0B0"), "a pair is a forward and the backward after it, but nothing comes", "[0B0]"),
    (paired(*EACH, at="0F0"), "a pair is a forward and the backward after it, but 0F1 comes after 0F0", "[0F0]"),
    (paired(*EACH, at="0F1"), "it deadlocks: 0F1 waits for 1B0, which comes after 1F1 on rank 1", "[0F1]"),
]


@pytest.mark.parametrize(("schedule", "sentence", "picture"), REFUSED)
def test_a_refusal_is_a_sentence_and_a_picture(schedule, sentence, picture):
    with pytest.raises(ValueError, match="schedule 'drawn': ") as caught:
        validate(schedule)
    first, *drawn = str(caught.value).splitlines()
    assert first.startswith(f"schedule 'drawn': {sentence}")
    assert picture in "\n".join(drawn)
    assert all(line.startswith("  rank ") for line in drawn)


def test_what_runs_is_given_back():
    for fine in (
        paired("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", at="0F1"),
        read("0F0 0B0", "1F0 1I0"),  # stage 1 trains nothing
        read("1F0 1B0", "0F0 2F0 2B0 0B0"),
        read("0F1 0F0 0B0 0B1", "1F0 1B0 1F1 1B1", chunks=2),
    ):
        assert validate(fine) is fine


def test_a_cycle_of_many_is_cut_short():
    ring = (
        (Action(Op.F, 20 + r, 0), Action(Op.F, r, 0), Action(Op.B, 20 + r, 0), Action(Op.B, r, 0)) for r in range(20)
    )
    with pytest.raises(ValueError, match=r"and so on in a cycle of 21 actions\n") as caught:
        validate(Schedule("ring", 1, tuple(ring)))
    assert len(str(caught.value).splitlines()) == 9


def is_accepted(schedule: Schedule) -> bool:
    with suppress(ValueError):
        return validate(schedule) is schedule
    return False


@pytest.mark.parametrize(("number", "builder"), list(enumerate(EVERY)), ids=label)
def test_a_cycle_is_one_of_actions_that_wait_for_each_other(number, builder):
    cycles = 0
    for what, mutant in mutants(build(builder, 2 + number % 3, 4).apart, seed=number):
        if what not in ("swapped", "moved"):
            continue
        cycle = find_cycle(mutant)
        assert is_accepted(mutant) == (not cycle)
        cycles += bool(cycle)
        assert cycle[:1] == cycle[-1:]
        for action, need in pairwise(cycle):
            row = next(row for row in mutant.ranks if action in row)
            assert need in {*mutant.waits_for(action), *row[: row.index(action)]}
    assert cycles > 0


@pytest.mark.parametrize(
    ("row", "chunks"),
    [("0F0 0B0 200000000F0", 1), ("0F0 0B0 0F199999999", 200_000_000), ("199999999F0 199999999B0", 2_000_000_000)],
)
def test_a_typo_takes_no_time(row, chunks):
    start = time.process_time()
    with pytest.raises(ValueError, match="schedule 'drawn'"):
        validate(read(row, chunks=chunks))
    assert time.process_time() - start < 1


@each_builder
def test_the_activation_limit_is_the_peak(builder):
    for ranks in (1, 3, 4):
        schedule = build(builder, ranks, 7)
        peak = max(held_peak(schedule))
        assert validate(schedule, peak) is schedule
        with pytest.raises(ValueError, match=f"hold more than activation_limit={peak - 1}.*: allow {peak} or more"):
            validate(schedule, peak - 1)


def test_a_stage_without_w_holds_a_microbatch_until_its_i():
    frozen = read("0F0 0I0 0F1 0I1", chunks=2)
    assert validate(frozen, 1) is frozen
    with pytest.raises(ValueError, match="0F1 is the first that makes rank 0 hold more than activation_limit=1"):
        validate(read("0F0 0I0 0F1 0I1 0W0 0W1", chunks=2), 1)


def test_the_first_forward_beyond_the_limit_is_drawn():
    with pytest.raises(ValueError, match="drawn") as caught:
        validate(replace(gpipe(2, 20), name="drawn"), 8)
    assert str(caught.value).splitlines()[1:] == ["  rank 0  … 0F4  0F5  0F6  0F7 [0F8] 0F9  0F10  0F11  0F12 …"]


# --- what is accepted runs -------------------------------------------------------------------------


def links(schedule: Schedule) -> tuple[dict, dict, dict]:
    """(src, dest) -> what is sent, in the order of the sends; what is posted; what is used."""
    sent, posted, used = {}, {}, {}
    for rank, row in enumerate(schedule.ranks):
        plan, seen = receives_to_post(schedule, rank), set()
        for action in row:
            for source in plan[action]:
                posted.setdefault((schedule.placement[source.stage], rank), []).append(source)
                seen.add(source)
            source, consumer = schedule.source(action), schedule.consumers.get(action)
            if source is not None and (src := schedule.placement[source.stage]) != rank:
                used.setdefault((src, rank), []).append(source)
                assert source in seen, f"{action} needs {source} before its receive is posted"
            if consumer is not None and (dest := schedule.placement[consumer.stage]) != rank:
                sent.setdefault((rank, dest), []).append(action)
    return sent, posted, used


@pytest.mark.parametrize(("number", "builder"), list(enumerate(EVERY)), ids=label)
def test_sends_and_receives_match_by_tag_and_in_order(number, builder, whole):
    """Of every builder and of every mutant that is accepted; without `--whole` the numbers of ranks take turns."""
    for ranks in (2, 3, 4) if whole else (2 + number % 3,):
        schedule = build(builder, ranks, 3 if build(builder, ranks, 1).slices > 1 else 5)
        for order in (schedule, *(each for _, each in mutants(schedule, seed=ranks) if is_accepted(each))):
            sent, posted, used = links(order)
            assert posted == sent
            assert {link: sorted(tensors) for link, tensors in used.items()} == {
                link: sorted(tensors) for link, tensors in sent.items()
            }
            assert all(count == 1 for tensors in sent.values() for count in Counter(tensors).values())


def test_some_orders_use_tensors_in_another_order_than_they_are_sent():
    drawn = read("0F0 0F1 0B0 0B1", "1F1 1F0 1B0 1B1", chunks=2)
    for schedule, turned in ((drawn, {(0, 1)}), (gpipe(4, 8), set()), (zb_v(3, 6), {(0, 1), (1, 2)})):
        sent, _, used = links(schedule)
        assert {link for link in sent if sent[link] != used[link]} == turned


SMALL = [
    (builder, ranks, chunks)
    for builder in EVERY
    for ranks, chunks in ((2, 3), (3, 4))
    if (order := build(builder, ranks, chunks)).stages <= 6  # the model's layers
    and order.slices == 1  # it has no sequence; tests/engine/test_slices.py
]


@pytest.mark.parametrize(("builder", "ranks", "chunks"), SMALL, ids=label)
def test_a_mutant_is_refused_or_runs_correctly(builder, ranks, chunks, whole):
    """Deleted, doubled, misplaced, moved and swapped actions; of those that are accepted a sample is run.

    It is a larger one with `--whole`.
    """
    schedule = build(builder, ranks, chunks)
    fine = [(what, mutant) for what, mutant in mutants(schedule, seed=7) if is_accepted(mutant)]
    kinds = Counter(what for what, _ in fine)
    assert (kinds["deleted"], kinds["doubled"], kinds["misplaced"], kinds["crossed"]) == (0, 0, 0, 0)
    assert kinds["swapped"] > 0
    rng, turn = random.Random(11), ranks + len(schedule.name)
    for number, (_, mutant) in enumerate(rng.sample(fine, min(10 if whole else 1, len(fine)))):
        job = small_job(schedule=mutant, model=mlp("float64"))  # over a transport between threads
        assert_near(by_threads(job, transport=(thread_comms, tagless)[(turn + number) % 2]), by_one_process(job))


# --- schedules with one thing wrong, or with another order -----------------------------------------

Rows, Place = list[list[Action]], tuple[int, int]


def mutants(schedule: Schedule, seed: int, pairs: int = 10) -> Iterator[tuple[str, Schedule]]:
    """(what was done, the mutant): each action deleted, doubled, misplaced and swapped with its neighbour,
    and `pairs` random ones moved in their row, or swapped within it or across ranks."""
    rng = random.Random(seed)
    places = [(rank, place) for rank, row in enumerate(schedule.ranks) for place in range(len(row))]

    def edited(change: Callable[[Rows], object]) -> Schedule:
        rows: Rows = [list(row) for row in schedule.ranks]
        change(rows)
        return replace(schedule, name="mutant", ranks=tuple(map(tuple, rows)))

    def moved(here: Place, there: Place) -> Schedule:
        return edited(lambda rows: rows[there[0]].insert(there[1], rows[here[0]].pop(here[1])))

    def swapped(here: Place, there: Place) -> Schedule:
        (a, i), (b, j) = here, there

        def swap(rows: Rows) -> None:
            rows[a][i], rows[b][j] = rows[b][j], rows[a][i]

        return edited(swap)

    for rank, place in places:
        action = schedule.ranks[rank][place]
        others = [other for other in range(len(schedule.ranks)) if other != rank]
        yield "deleted", edited(lambda rows, r=rank, p=place: rows[r].pop(p))
        there = rng.randint(0, len(schedule.ranks[rank]))
        yield "doubled", edited(lambda rows, r=rank, t=there, a=action: rows[r].insert(t, a))
        if others:
            other = rng.choice(others)
            yield "misplaced", moved((rank, place), (other, rng.randint(0, len(schedule.ranks[other]))))
        if place:
            yield "swapped", swapped((rank, place - 1), (rank, place))
    for _ in range(pairs):
        here, far = rng.choice(places), rng.choice(places)
        there = (here[0], rng.randrange(len(schedule.ranks[here[0]])))
        yield "moved", moved(here, there)
        yield "swapped", swapped(here, there)
        if far[0] != here[0]:
            yield "crossed", swapped(here, far)
