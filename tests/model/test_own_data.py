"""Data of a model's own: what is drawn from them, that every schedule trains on the same, and what is refused."""

import math
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import CHECKPOINTING
from one_process import assert_equal, by_processes, by_threads
from own_data import Items, drawn_anew, few_images, image, images, regression, shuffled_later
from own_model import own_job, settings_of
from torch import nn

from microp.model import Layers, build_model, inspect_layers
from microp.model.loss_check import NewTargets
from microp.model.own import own_rows
from microp.schedule.builders import gpipe, interleaved, one_f_one_b, zb_h1, zb_v

MODELS = [images, few_images, regression]
SCHEDULES = [gpipe(2, 3), one_f_one_b(3, 4), interleaved(2, 4, 2), zb_h1(2, 2), zb_v(2, 3)]
IMAGES = Items(40, image)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_schedule_trains_on_the_same_rows(model):
    for schedule in SCHEDULES:
        if schedule.stages <= settings_of(model).layers:
            for policy in ("never", "always"):
                given = {"schedule": schedule, "checkpointing": CHECKPOINTING[policy], "backend": "threads"}
                job = own_job(settings_of(model), **given)
                assert_equal(job, by_threads(job))


@pytest.mark.parametrize("backend", ["shm", "tcp", "gloo"])
def test_every_transport_sends_views(backend, tmp_path):
    jobs = [own_job(settings_of(model), schedule=zb_h1(2, 3), backend=backend) for model in MODELS]
    for job, trained in zip(jobs, by_processes(jobs, tmp_path), strict=True):
        assert_equal(job, trained)


def test_an_epoch_has_every_item_once_and_a_step_follows_from_its_number():
    ten, two = (Items(size, lambda index: (torch.tensor([index]), index)) for size in (10, 2))
    whole = torch.cat([own_rows(ten, step, 4, seed=3)[1] for step in range(5)]).tolist()
    assert sorted(whole[:10]) == sorted(whole[10:]) == list(range(10))
    assert whole[:10] != whole[10:] != list(range(10))
    assert own_rows(ten, 3, 4, seed=3)[1].tolist() == whole[12:16]
    assert own_rows(ten, 3, 4, seed=4)[1].tolist() != whole[12:16]
    assert sorted(own_rows(two, 0, 6, seed=0)[1].tolist()) == [0, 0, 0, 1, 1, 1]


def test_what_a_rank_holds_of_them_is_counted():
    settings = settings_of(images)
    assert settings.row_forms == (((2, 4, 4), "float32"), ((), "int64"))
    assert settings.batch_bytes(10) == (10 * 32 * 4, 10 * 8)
    assert [tensor.shape[0] for tensor in build_model(settings).some_rows(5)] == [5, 5]


@pytest.mark.parametrize(("model", "step"), [(drawn_anew, 0), (shuffled_later, 1)])
def test_ranks_with_other_data_end_before_the_step(model, step):
    """Inputs of one data set and targets of another would train, and wrongly."""
    job = own_job(settings_of(model), schedule=gpipe(2, 2), backend="threads")
    said = f"rank 1 has other data than rank 0 in step {step}: the model's function must give the same data"
    with pytest.raises(ValueError, match=said):
        by_threads(job)


def test_other_data_are_another_model():
    digests = {inspect_layers(images(size), "").data for size in (40, 40, 41)}
    assert len(digests) == 2
    assert settings_of(images).identity["data"] in digests


def broken(data, loss=F.cross_entropy, **changes):
    layers = [nn.Sequential(nn.Flatten(), nn.Linear(32, 8)), nn.Linear(8, 3)]
    return replace(Layers(layers, loss, data=data), **changes)


nine = partial(Items, 9)


def unseeded(_: int):
    return torch.randn(2, 4, 4, generator=GENERATOR), 0


def of_most(logits, targets):
    return F.cross_entropy(logits, targets, ignore_index=1)


GENERATOR = torch.Generator().manual_seed(0)
REFUSED = {  # a part of what the message says -> the layers
    "a int as data: give a map-style Dataset of (input, target), or a function (step, rows)": broken(3),
    "data without an item: give at least one": broken(Items(0, image)),
    "context=4 beside data of its own: leave context out": broken(IMAGES, context=4),
    "data that fail (ValueError: not two tensors of 2 rows, (inputs, targets), but a dict": broken(
        nine(lambda _: {"label": 0})
    ),
    "data that fail (RuntimeError: stack expects each tensor to be equal size": broken(
        nine(lambda index: (torch.zeros(index, 4, 4), 0))
    ),
    "data that fail (ValueError: not two tensors of 2 rows": broken(lambda step, rows: torch.zeros(rows, 32)),
    "data that are others the second time: let them follow from the item or the step": broken(nine(unseeded)),
    "a loss that is not the mean over the rows": broken(IMAGES, of_most),
    "a loss that fails for (output [2, 3] float32, targets [2] int64)": broken(IMAGES, F.mse_loss),
    "layer 0 (Sequential), which fails for its input [2, 2, 4, 4] float32": broken(
        IMAGES, layers=[nn.Sequential(nn.Flatten(), nn.Linear(9, 8)), nn.Linear(8, 3)]
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_will_not_do_is_refused(said):
    with pytest.raises(ValueError, match=re.escape(said)):
        inspect_layers(REFUSED[said], "")


def seldom(number, index):
    """One item of 4,000 is another one."""
    return image(index)[0], number if index == 3999 else index % 2


def by_rows(logits, targets):
    """Targets that do not count still count as rows."""
    return F.cross_entropy(logits, targets, reduction="none").mean()


def without(logits, targets):
    return F.cross_entropy(logits, targets, ignore_index=-1)  # and -100 is no target


def weighing(logits, targets):
    return F.cross_entropy(logits, targets, weight=torch.tensor([1.0, 1.0, 3.0]))


@pytest.mark.parametrize(
    ("loss", "number", "refused"),
    [
        (F.cross_entropy, -100, True),
        (F.cross_entropy, 2, False),
        (by_rows, -100, False),
        (without, -1, True),
        (weighing, 2, True),
        (weighing, 1, False),
    ],
)
def test_a_rare_target_of_another_weight_is_refused_when_a_step_has_it(loss, number, refused):
    """The trial sees some rows only; with such a target microbatches would not add up."""
    load, step = rare(broken(Items(4000, partial(seldom, number)), loss))
    if refused:
        with pytest.raises(ValueError, match=f"a target of step {step} is {number}, which the loss ignores or weighs"):
            load(step)
    else:
        load(step)


def rare(made):
    """What loads a step of data, and the step with their last item; the one before has been loaded."""
    facts, [step] = inspect_layers(made, ""), [step for step in range(4000 // 16) if 3999 in epoch_items(step, 16)]
    new = NewTargets(made, facts.output)

    def load(step):
        new.check(step, own_rows(made.data, step, 16, 0, facts)[1])

    load(step - 1)
    return load, step


def valid_only(logits, targets):
    losses = F.cross_entropy(logits, targets[:, 0], reduction="none")
    return (losses * targets[:, 1]).sum() / targets[:, 1].sum()


@pytest.mark.parametrize(
    ("loss", "rare_target", "said"),
    [
        (lambda y, t: F.cross_entropy(y, t[:, 1]), [7, -100], "7, -100"),
        (lambda y, t: F.cross_entropy(y, t[:, 1]), [7, 2], None),
        (valid_only, [0, 0], "0"),
        (lambda y, t: F.cross_entropy(y, t[:, 0], ignore_index=2), [2, 1], "2, 1"),
        (lambda y, t: F.cross_entropy(y, t[:, :1].expand(-1, 9).amax(1), ignore_index=2), [2] * 9, "2"),
    ],
)
def test_a_rare_number_in_any_place_of_the_targets(loss, rare_target, said):
    """A label and a flag, or a long row: each new number is tried where it is."""
    data = Items(4000, lambda at: (image(at)[0], torch.tensor(rare_target if at == 3999 else [1] * len(rare_target))))
    load, step = rare(broken(data, loss))
    if said:
        with pytest.raises(ValueError, match=f"a target of step {step} is {said}, which the loss ignores or weighs"):
            load(step)
    load(step - 1)
    if said is None:
        load(step)


def test_targets_of_a_type_with_few_numbers_are_accepted():
    data = Items(40, lambda index: (image(index)[0], torch.tensor(index % 2, dtype=torch.int8)))
    assert inspect_layers(broken(data, lambda logits, targets: F.cross_entropy(logits, targets.long())), "").rows


def test_targets_that_are_not_a_number_are_accepted_if_they_count_as_rows():
    data = Items(40, lambda index: (image(index)[0], torch.tensor([math.nan if index % 3 else 1.0])))
    assert inspect_layers(broken(data, lambda y, t: squares(y, t).where(~t.isnan(), 0.0).mean()), "").rows


def squares(logits, targets):
    return (logits[:, :1] - targets) ** 2


@pytest.mark.parametrize(
    ("loss", "number", "said"),
    [
        (lambda y, t: squares(y, t).mean(), math.nan, None),  # the loss is not a number, and the run ends
        (lambda y, t: squares(y, t).mean(), -1.0, None),
        (lambda y, t: squares(y, t)[~t.isnan()].mean(), math.nan, "is nan, which the loss ignores"),
        (lambda y, t: squares(y, t)[t >= 0].mean(), -1.0, "is -1, which the loss ignores"),
        (lambda y, t: squares(y, t)[t > 0].mean(), 0.0, "is 0, which the loss ignores"),
        (lambda y, t: squares(y, t)[t > -7000].mean(), -7777.0, "is -7777, which the loss ignores"),
        (lambda y, t: squares(y, t)[t < 80].mean(), 80.5, "is 80.5, which the loss ignores"),
        (lambda y, t: squares(y, t).mean(), 80.5, None),
        (lambda y, t: (t * squares(y, t)).sum() / t.sum(), 0.5, None),
        (lambda y, t: F.l1_loss(y[:, :1] * (t > 0), t * (t > 0)), 0.0, None),
    ],
)
def test_a_rare_target_that_is_no_integer(loss, number, said):
    """Masks of missing measurements; targets that weigh rows are refused before, whatever those that the trial saw."""
    data = Items(4000, lambda index: (image(index)[0], torch.tensor([number if index == 3999 else 1.0])))
    if number == 0.5:
        with pytest.raises(ValueError, match="not the mean over the rows"):
            inspect_layers(broken(data, loss), "")
        return
    load, step = rare(broken(data, loss))
    if said is None:
        load(step)
    else:
        with pytest.raises(ValueError, match=said):
            load(step)


def test_targets_that_are_shares_may_be_divided_by_their_sum():
    shares = Items(
        40, lambda index: (image(index)[0], torch.rand(3, generator=torch.Generator().manual_seed(index)).softmax(0))
    )
    inspect_layers(broken(shares, lambda y, t: -(t * y.log_softmax(1)).sum() / t.sum()), "")


def epoch_items(step, rows):
    items = Items(4000, lambda index: (torch.zeros(1), index))
    return own_rows(items, step, rows, 0)[1].tolist()


def test_rows_of_another_length_are_refused_when_a_step_has_them():
    data = lambda step, rows: (torch.zeros(rows, 2, 4, 4), torch.zeros(rows, 1 + step // 8))  # noqa: E731
    facts = inspect_layers(broken(data, lambda y, t: squares(y, t).mean()), "")
    own_rows(data, 7, 16, 0, facts)
    with pytest.raises(ValueError, match=re.escape("a row of step 8 is [2, 4, 4] float32 and [2] float32 (input and")):
        own_rows(data, 8, 16, 0, facts)


def test_rows_of_narrow_layers_do_not_depend_on_each_other():
    """A gradient of fewer rows is a part of that of all, whatever the width."""
    assert inspect_layers(regression(), "").mixing == ()
