"""Advice on memory: what fills a rank, and changes that do fit, with their price."""

from __future__ import annotations

from microp.planner import Choice, NominalPrices, Pricer, Subject, advice
from microp.planner.advice import changes
from microp.schedule import builders
from microp.settings import EmulatedSettings
from microp.simulator import LayerMemory, Size

DEVICE = EmulatedSettings("emulated", 1, 1.0, 2.0, None, None, 0.0, None, ["layer", "row"])
LAYERS = [LayerMemory(1000, Size(0, 100), Size(0, 20), in_backward=Size(0, 30), pending=Size(0, 10))] * 8


def some_pricer(ranks: int = 4) -> Pricer:
    return Pricer(Subject(8, ranks, 64, NominalPrices(DEVICE), lambda split, slices: LAYERS, lambda rows: (0, 0)))


def gpipe_now() -> tuple:
    pricer = some_pricer()
    return pricer, pricer.add(Choice("gpipe", 8), builders.gpipe(4, 8), (2, 2, 2, 2))


def given_now() -> tuple:
    pricer = some_pricer()
    return pricer, pricer.add(Choice("1f1b", 8, partition="given"), builders.one_f_one_b(4, 8), (5, 1, 1, 1))


def test_every_change_fits_and_is_priced():
    pricer, now = gpipe_now()
    found = changes(pricer, now, 0.7 * now.peak)
    assert 0 < len(found) <= 3
    assert [plan.step for _, plan in found] == sorted(plan.step for _, plan in found)
    for words, plan in found:
        assert plan.peak <= 0.7 * now.peak
        assert words in " ".join(plan.choice.words())
    assert "schedule" in advice(pricer, now, 0.7 * now.peak)
    assert "step" in advice(pricer, now, 0.7 * now.peak)


def test_two_changes_together_are_named_only_if_no_single_one_fits():
    pricer, now = gpipe_now()
    single = [plan.peak for _, plan in changes(pricer, now, now.peak)]
    [(words, plan), *_] = changes(pricer, now, 9400)
    assert plan.peak <= 9400 < min(single)
    assert {word.partition("=")[0] for word in words.split()} > {"schedule"}
    assert changes(pricer, now, 100) == []  # where nothing fits the least is named
    assert "no other change fits, and the one that needs least is " in advice(pricer, now, 100)


def test_sizes_that_the_user_chose_are_kept_but_by_an_order_with_another_number_of_stages():
    pricer, now = given_now()
    found = dict(changes(pricer, now, 0.9 * now.peak))
    assert found["partition=balanced"].sizes == (2, 2, 2, 2)
    if "chunks=16" in found:
        assert found["chunks=16"].sizes == (5, 1, 1, 1)
    moved = [(words, plan) for words, plan in found.items() if len(plan.sizes) == 8]
    assert moved
    for words, plan in moved:
        assert (plan.sizes, words) == ((1,) * 8, f"schedule={plan.choice.schedule} partition=uniform")


def test_an_order_with_fewer_stages_per_rank_than_now_is_advised_with_their_number():
    pricer = some_pricer(2)
    now = pricer.add(Choice("breadth_first", 4, stages_per_rank=4), builders.breadth_first(2, 4, 4), (1,) * 8)
    looped = [words for words, plan in changes(pricer, now, 0.99 * now.peak) if plan.choice.stages_per_rank == 2]
    assert looped
    assert all(words.endswith(" schedule.stages_per_rank=2") for words in looped)
