"""Advice on memory: what fills a rank, and changes that do fit, with their price."""

from __future__ import annotations

from microp.planner import Choice, NominalPrices, Pricer, Subject, advice
from microp.planner.advice import changes
from microp.schedule import builders
from microp.settings import EmulatedSettings
from microp.simulator import LayerMemory, Size

DEVICE = EmulatedSettings("emulated", 1, 1.0, 2.0, None, None, 0.0, None, ["layer", "row"])
LAYERS = [LayerMemory(1000, Size(0, 100), Size(0, 20), in_backward=Size(0, 30), pending=Size(0, 10))] * 8
NOW = Choice("gpipe", 8)


def some_pricer() -> Pricer:
    return Pricer(Subject(8, 4, 64, NominalPrices(DEVICE), lambda split, slices: LAYERS, lambda rows: (0, 0)))


def test_every_change_fits_and_is_priced():
    pricer = some_pricer()
    now = pricer.add(NOW, builders.gpipe(4, 8), (2, 2, 2, 2))
    found = changes(pricer, now, 0.7 * now.peak)
    assert 0 < len(found) <= 3
    assert [plan.step for _, plan in found] == sorted(plan.step for _, plan in found)
    for words, plan in found:
        assert plan.peak <= 0.7 * now.peak
        assert words in " ".join(plan.choice.words())
    assert "schedule" in advice(pricer, now, 0.7 * now.peak)
    assert "step" in advice(pricer, now, 0.7 * now.peak)


def test_two_changes_together_are_named_only_if_no_single_one_fits():
    pricer = some_pricer()
    now = pricer.add(NOW, builders.gpipe(4, 8), (2, 2, 2, 2))
    single = [plan.peak for _, plan in changes(pricer, now, now.peak)]
    [(words, plan), *_] = changes(pricer, now, 9400)
    assert plan.peak <= 9400 < min(single)
    assert {word.partition("=")[0] for word in words.split()} > {"schedule"}


def test_where_nothing_fits_the_least_is_named():
    pricer = some_pricer()
    now = pricer.add(NOW, builders.gpipe(4, 8), (2, 2, 2, 2))
    assert changes(pricer, now, 100) == []
    assert "no other change fits, and the one that needs least is " in advice(pricer, now, 100)


def test_sizes_that_the_user_chose_are_kept_by_a_change_of_the_number_of_chunks():
    pricer = some_pricer()
    now = pricer.add(Choice("1f1b", 8, partition="given"), builders.one_f_one_b(4, 8), (5, 1, 1, 1))
    found = dict(changes(pricer, now, 0.9 * now.peak))
    assert found["partition=balanced"].sizes == (2, 2, 2, 2)
    if "chunks=16" in found:
        assert found["chunks=16"].sizes == (5, 1, 1, 1)


def test_an_order_with_another_number_of_stages_is_advised_with_the_partition_that_it_is_priced_with():
    pricer = some_pricer()
    now = pricer.add(Choice("1f1b", 8, partition="given"), builders.one_f_one_b(4, 8), (5, 1, 1, 1))
    moved = [(words, plan) for words, plan in changes(pricer, now, 0.9 * now.peak) if len(plan.sizes) == 8]
    assert moved
    for words, plan in moved:
        assert plan.sizes == (1,) * 8
        assert words == f"schedule={plan.choice.schedule} partition=uniform"


def test_an_order_with_fewer_stages_per_rank_than_now_is_advised_with_their_number():
    pricer = Pricer(Subject(8, 2, 64, NominalPrices(DEVICE), lambda split, slices: LAYERS, lambda rows: (0, 0)))
    now = pricer.add(Choice("breadth_first", 4, stages_per_rank=4), builders.breadth_first(2, 4, 4), (1,) * 8)
    looped = [words for words, plan in changes(pricer, now, 0.99 * now.peak) if plan.choice.stages_per_rank == 2]
    assert looped
    assert all(words.endswith(" schedule.stages_per_rank=2") for words in looped)
