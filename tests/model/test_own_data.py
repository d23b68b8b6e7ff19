"""Data of a model's own: what is drawn from them, that every schedule trains on the same, and what is refused."""

import math
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import CHECKPOINTING
from one_process import assert_equal, by_threads
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


def unseeded(_: int):
    return torch.randn(2, 4, 4, generator=GENERATOR), 0


GENERATOR = torch.Generator().manual_seed(0)
REFUSED = {  # a part of what the message says -> the layers
    "a int as data: give a map-style Dataset of (input, target), or a function (step, rows)": broken(3),
    "data without an item: give at least one": broken(Items(0, image)),
    "context=4 beside data of its own: leave context out": broken(IMAGES, context=4),
    "data that fail (ValueError: not two tensors of 2 rows, (inputs, targets), but a dict": broken(
        Items(9, lambda _: {"label": 0})
    ),
    "data that fail (RuntimeError: stack expects each tensor to be equal size": broken(
        Items(9, lambda index: (torch.zeros(index, 4, 4), 0))
    ),
    "data that fail (ValueError: not two tensors of 2 rows": broken(lambda step, rows: torch.zeros(rows, 32)),
    "data that are others the second time: let them follow from the item or the step": broken(Items(9, unseeded)),
    "a loss that is not the mean over the rows": broken(IMAGES, partial(F.cross_entropy, ignore_index=1)),
    "a loss that fails for (output [2, 3] float32, targets [2] int64)": broken(IMAGES, F.mse_loss),
    "layer 0 (Sequential), which fails for its input [2, 2, 4, 4] float32": broken(
        IMAGES, layers=[nn.Sequential(nn.Flatten(), nn.Linear(9, 8)), nn.Linear(8, 3)]
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_will_not_do_is_refused(said):
    with pytest.raises(ValueError, match=re.escape(said)):
        inspect_layers(REFUSED[said], "")


def squares(logits, targets):
    return (logits[:, :1] - targets) ** 2


def valid_only(logits, targets):
    losses = F.cross_entropy(logits, targets[:, 0], reduction="none")
    return (losses * targets[:, 1]).sum() / targets[:, 1].sum()


WEIGHTS = torch.tensor([1.0, 1.0, 3.0])
RARE = [  # the loss, the target that one item of 4,000 has, the others', what is said of it
    (F.cross_entropy, -100, 1, "-100"),
    (F.cross_entropy, 2, 1, None),
    (lambda y, t: F.cross_entropy(y, t, reduction="none").mean(), -100, 1, None),  # it still counts as a row
    (lambda y, t: F.cross_entropy(y, t, ignore_index=-1), -1, 1, "-1"),
    (lambda y, t: F.cross_entropy(y, t, weight=WEIGHTS), 2, 1, "2"),
    (lambda y, t: F.cross_entropy(y, t, weight=WEIGHTS), 1, 1, None),
    # a label and a flag, or a long row: each new number is tried where it is
    (lambda y, t: F.cross_entropy(y, t[:, 1]), [7, -100], [1, 1], "7, -100"),
    (lambda y, t: F.cross_entropy(y, t[:, 1]), [7, 2], [1, 1], None),
    (valid_only, [0, 0], [1, 1], "0"),
    (lambda y, t: F.cross_entropy(y, t[:, 0], ignore_index=2), [2, 1], [1, 1], "2, 1"),
    (lambda y, t: F.cross_entropy(y, t[:, :1].expand(-1, 9).amax(1), ignore_index=2), [2] * 9, [1] * 9, "2"),
    # masks of missing measurements
    (lambda y, t: squares(y, t).mean(), [math.nan], [1.0], None),  # the loss is not a number, and the run ends
    (lambda y, t: squares(y, t).mean(), [80.5], [1.0], None),
    (lambda y, t: squares(y, t)[~t.isnan()].mean(), [math.nan], [1.0], "nan"),
    (lambda y, t: squares(y, t)[t >= 0].mean(), [-1.0], [1.0], "-1"),
    (lambda y, t: squares(y, t)[t > 0].mean(), [0.0], [1.0], "0"),
    (lambda y, t: squares(y, t)[t > -7000].mean(), [-7777.0], [1.0], "-7777"),
    (lambda y, t: squares(y, t)[t < 80].mean(), [80.5], [1.0], "80.5"),
    (lambda y, t: F.l1_loss(y[:, :1] * (t > 0), t * (t > 0)), [0.0], [1.0], None),
]


@pytest.mark.parametrize(("loss", "number", "usual", "said"), RARE)
def test_a_rare_target_of_another_weight_is_refused_when_a_step_has_it(loss, number, usual, said):
    """The trial sees some rows only; with such a target microbatches would not add up."""
    made = broken(Items(4000, lambda at: (image(at)[0], torch.tensor(number if at == 3999 else usual))), loss)
    numbered = Items(4000, lambda at: (torch.zeros(1), at))
    facts, [step] = (
        inspect_layers(made, ""),
        [n for n in range(250) if 3999 in own_rows(numbered, n, 16, 0)[1].tolist()],
    )
    new = NewTargets(made, facts.output)
    new.check(step - 1, own_rows(made.data, step - 1, 16, 0, facts)[1])
    targets = own_rows(made.data, step, 16, 0, facts)[1]
    if said is None:
        new.check(step, targets)
        return
    with pytest.raises(ValueError, match=f"a target of step {step} is {said}, which the loss ignores or weighs"):
        new.check(step, targets)


def test_targets_that_weigh_rows_are_refused_but_shares_of_one_are_not():
    weights = Items(40, lambda index: (image(index)[0], torch.tensor([0.5 if index else 1.0])))
    with pytest.raises(ValueError, match="not the mean over the rows"):
        inspect_layers(broken(weights, lambda y, t: (t * squares(y, t)).sum() / t.sum()), "")
    drawn = lambda index: torch.rand(3, generator=torch.Generator().manual_seed(index)).softmax(0)  # noqa: E731
    shares = Items(40, lambda index: (image(index)[0], drawn(index)))
    inspect_layers(broken(shares, lambda y, t: -(t * y.log_softmax(1)).sum() / t.sum()), "")
    few = Items(40, lambda index: (image(index)[0], torch.tensor(index % 2, dtype=torch.int8)))  # of few numbers
    inspect_layers(broken(few, lambda logits, targets: F.cross_entropy(logits, targets.long())), "")


def test_targets_that_are_not_a_number_are_accepted_if_they_count_as_rows():
    data = Items(40, lambda index: (image(index)[0], torch.tensor([math.nan if index % 3 else 1.0])))
    inspect_layers(broken(data, lambda y, t: squares(y, t).where(~t.isnan(), 0.0).mean()), "")


def test_rows_of_another_length_are_refused_when_a_step_has_them():
    data = lambda step, rows: (torch.zeros(rows, 2, 4, 4), torch.zeros(rows, 1 + step // 8))  # noqa: E731
    facts = inspect_layers(broken(data, lambda y, t: squares(y, t).mean()), "")
    own_rows(data, 7, 16, 0, facts)
    with pytest.raises(ValueError, match=re.escape("a row of step 8 is [2, 4, 4] float32 and [2] float32 (input and")):
        own_rows(data, 8, 16, 0, facts)
