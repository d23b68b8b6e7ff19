"""What is refused, in which words; and that what is accepted runs, whatever was done to it.

Mutants of every builder's orders are refused or give the monolith's gradients, over tags and
over links that keep nothing but their order.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
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
from microp.schedule.builders import gpipe, naive, one_f_one_b, zb_v
from microp.schedule.validation import find_cycle

# --- what is said ----------------------------------------------------------------------------------


def paired(*rows: str, at: str) -> Schedule:
    """The rows, in which an action is the first of a pair."""
    return replace(read(*rows, chunks=len(rows[0].split()) // 2), pairs=frozenset([Action.parse(at)]))


REFUSED = [
    (read("0F0 0B0", "1F0"), "1B0 is missing", "rank 0  0F0 [0B0]\n  rank 1 [1F0]"),
    (read("0F0 0F0 0B0"), "0F0 is listed more than once", "rank 0 [0F0][0F0] 0B0"),
    (read("0F0 0B0 0F0", "0B0"), "0F0 and 0B0 are listed more than once; 0B0 is on rank 1, but rank 0 holds", "[0B0]"),
    (read("0F0 0B0 0F1 0B1"), "0F1 and 0B1 are out of range (stages go from 0, microbatches from 0 to 0)", "[0F1]"),
    (read("0F0", chunks=3), "0B0, 0F1, 0B1 and 2 more are missing", "rank 0 [0F0]"),
    (read("0F0 0B0 1F0", "1B0"), "1B0 is on rank 1, but rank 0 holds stage 1", "rank 1 [1B0]"),
    (
        read("1F0 0F0 0B0 0F1 0B1", "1B0 1F1 1B1", chunks=2),
        "1F0 is on rank 0, but rank 1 holds stage 1",
        "rank 0 [1F0]",
    ),
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
    (
        read("0F0 0B0 0W0"),
        "0B0 is the full backward, but there is 0W0 too: write 0I0 for 0B0, or leave 0W0 out",
        "[0B0]",
    ),
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
    (
        paired("0F0 0B0", at="0F0"),
        "the pair (0F0;0B0) waits for itself, since 0B0 needs 0F0: pair",
        "[0F0][0B0]",
    ),
    (
        paired("0F0 0B0", at="0B0"),
        "a pair is a forward and the backward after it, but nothing comes after 0B0",
        "[0B0]",
    ),
    (
        paired("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", at="0F0"),
        "a pair is a forward and the backward after it, but 0F1 comes after 0F0",
        "[0F0]",
    ),
    (
        paired("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", at="0F1"),
        "it deadlocks: 0F1 waits for 1B0, which comes after 1F1 on rank 1, which waits for 0F1",
        "[0F1]",
    ),
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
    "typo",
    [
        read("0F0 0B0 200000000F0"),
        read("0F0 0B0 0F200000000"),
        read("0F0 0B0", chunks=2_000_000_000),
        read("0F0 0B0 0F199999999", chunks=200_000_000),
        read("199999999F0 199999999B0", chunks=2_000_000_000),
    ],
)
def test_a_typo_takes_no_time(typo):
    start = time.process_time()
    with pytest.raises(ValueError, match="schedule 'drawn'"):
        validate(typo)
    assert time.process_time() - start < 1


def test_the_cost_is_linear():
    def seconds(chunks: int) -> float:
        schedule = one_f_one_b(16, chunks)
        start = time.process_time()
        validate(schedule, 16)
        return time.process_time() - start

    assert min(seconds(800) for _ in range(3)) < 25 * min(seconds(100) for _ in range(3))  # 8 if it is linear


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


def accepted(schedule: Schedule, seed: int) -> list[tuple[str, Schedule]]:
    """The mutants that are not refused."""
    return [(what, mutant) for what, mutant in mutants(schedule, seed) if is_accepted(mutant)]


@pytest.mark.parametrize(("number", "builder"), list(enumerate(EVERY)), ids=label)
def test_sends_and_receives_match_by_tag_and_in_order(number, builder, whole):
    """Of every builder and of every mutant that is accepted; without `--whole` the numbers of ranks take turns."""
    for ranks in (2, 3, 4) if whole else (2 + number % 3,):
        schedule = build(builder, ranks, 3 if build(builder, ranks, 1).slices > 1 else 5)
        for order in (schedule, *(mutant for _, mutant in accepted(schedule, seed=ranks))):
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


def assert_right(schedule: Schedule, transport) -> None:
    """Its losses and gradients are the single process's, over a transport between threads."""
    job = small_job(schedule=schedule, model=mlp("float64"))
    assert_near(by_threads(job, transport=transport), by_one_process(job))


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
    fine = accepted(schedule, seed=7)
    kinds = Counter(what for what, _ in fine)
    assert (kinds["deleted"], kinds["doubled"], kinds["misplaced"], kinds["crossed"]) == (0, 0, 0, 0)
    assert kinds["swapped"] > 0
    rng = random.Random(11)
    for number, (_, mutant) in enumerate(rng.sample(fine, min(10 if whole else 2, len(fine)))):
        assert_right(mutant, (thread_comms, tagless)[number % 2])


def test_the_comparison_can_fail():
    job = small_job(schedule=naive(2, 3), model=mlp("float64"))
    got = by_threads(job)
    got[1][0][0].view(-1)[0] += 1e-9
    with pytest.raises(AssertionError):
        assert_near(got, by_one_process(job))


# --- schedules with one thing wrong, or with another order -----------------------------------------

Rows = list[list[Action]]


def mutants(schedule: Schedule, seed: int, pairs: int = 10) -> Iterator[tuple[str, Schedule]]:
    """(what was done, the mutant): each action deleted, doubled, misplaced and swapped with its neighbour,
    and `pairs` random ones moved in their row, or swapped within it or across ranks."""
    rng = random.Random(seed)
    places = [(rank, place) for rank, row in enumerate(schedule.ranks) for place in range(len(row))]
    for rank, place in places:
        action = schedule.ranks[rank][place]
        others = [other for other in range(len(schedule.ranks)) if other != rank]
        yield "deleted", _edit(schedule, lambda rows, r=rank, p=place: rows[r].pop(p))
        there = rng.randint(0, len(schedule.ranks[rank]))
        yield "doubled", _edit(schedule, lambda rows, r=rank, t=there, a=action: rows[r].insert(t, a))
        if others:
            other = rng.choice(others)
            there = rng.randint(0, len(schedule.ranks[other]))
            yield "misplaced", _edit(schedule, lambda rows, a=(rank, place), b=(other, there): _move(rows, a, b))
        if place:
            yield "swapped", _edit(schedule, lambda rows, a=(rank, place - 1), b=(rank, place): _swap(rows, a, b))
    for _ in range(pairs):
        rank, place = rng.choice(places)
        there = (rank, rng.randrange(len(schedule.ranks[rank])))
        yield "moved", _edit(schedule, lambda rows, a=(rank, place), b=there: _move(rows, a, b))
        yield "swapped", _edit(schedule, lambda rows, a=(rank, place), b=there: _swap(rows, a, b))
        far = rng.choice(places)
        if far[0] != rank:
            yield "crossed", _edit(schedule, lambda rows, a=(rank, place), b=far: _swap(rows, a, b))


def _edit(schedule: Schedule, change) -> Schedule:
    rows: Rows = [list(row) for row in schedule.ranks]
    change(rows)
    return replace(schedule, name="mutant", ranks=tuple(map(tuple, rows)))


def _swap(rows: Rows, one: tuple[int, int], other: tuple[int, int]) -> None:
    (a, i), (b, j) = one, other
    rows[a][i], rows[b][j] = rows[b][j], rows[a][i]


def _move(rows: Rows, one: tuple[int, int], there: tuple[int, int]) -> None:
    rows[there[0]].insert(there[1], rows[one[0]].pop(one[1]))
