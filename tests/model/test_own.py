"""A model of one's own: what is known of it without numbers, what is refused, and that weights follow from the seed."""

import re
from contextlib import nullcontext
from dataclasses import replace

import own_model as models
import pytest
import torch
import torch.nn.functional as F
from shapes import Does, gradients_by_frequency
from torch import nn
from training import digest

from microp.config import own_model
from microp.device.memory_probe import probe_layers
from microp.model import Layers, build_model, generator_states, inspect_layers, random_parts, unchanged
from microp.settings import AS_WRITTEN, DeviceSettings


def first():
    return nn.Sequential(nn.Embedding(256, 8), nn.Flatten(), nn.Linear(32, 8))


def layers(*inside, loss=models.of_last):
    return lambda: Layers([first(), *(make() for make in inside), nn.Linear(8, 256)], loss, 4)


def making(work):
    return layers(lambda: Does(lambda own, x: work(x * own.weight), weight=nn.Parameter(torch.ones(8))))


def one_row(x):
    return x.flatten()[None].expand(2, -1)[:, :8].contiguous()


REFUSED = {  # a part of what the message says -> the function; `config/bad_input.txt` has the others
    "layer 1 (Does), which makes [2, 8] float64, and layer 0, which makes [2, 8] float32": making(lambda x: x.double()),
    "layer 1 (GRU), which makes a tuple of [2, 8] float32: let it return one tensor": layers(lambda: nn.GRU(8, 8)),
    "which makes [2, 8] float32 of 2 rows and [2, 8] float32 of 3: let the first size be": making(one_row),
    "layer 1 (ReLU), which writes into its input": layers(lambda: nn.ReLU(inplace=True)),
    "layer 1 (Does), whose output has no gradient: join it": making(lambda x: x.detach()),
    "a loss that fails for targets from 0 to 255 (IndexError: ": lambda: Layers([first()], models.of_last, 4),
    "a loss that fails for (output [2, 256] float32, targets [2, 4] int64) (": layers(nn.ReLU, loss=F.cross_entropy),
    "a loss that makes [2, 4] float32 of (output [2, 256] float32, targets [2, 4] int64): return the mean": layers(
        nn.ReLU, loss=lambda logits, targets: logits[:, :4] * targets
    ),
}


def test_what_the_caller_has_set_does_not_count():
    contexts = nullcontext(), torch.inference_mode(), torch.no_grad(), torch.autocast("cpu"), torch.device("meta")
    facts = []
    for number, context in enumerate(contexts):
        node = {"name": f"mine_{number}", "builder": "own_model.passing"}  # one that is known is not looked at again
        with context:
            facts.append(own_model(node, AS_WRITTEN, DeviceSettings("cpu", 1)).facts)
    assert all(each == facts[0] for each in facts)


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_said(message):
    with torch.device("meta"):
        made = REFUSED[message]()
    with pytest.raises(ValueError, match=re.escape(message)) as said:
        inspect_layers(made, "")
    assert "\n" not in str(said.value)


def test_the_facts_of_a_model():
    facts = models.settings_of(models.mixed, dropout=0.1).facts
    assert facts.shapes == ((4,), (4, 8), (6, 8), (6, 8), (6, 8), (6, 8), (6, 8), (6, 8), (6, 8), (6, 8), (6, 8))
    assert facts.kinds == (0, 1, 2, 3, 4, 5, 5, 5, 5, 9, 10)  # equal layers are measured once
    assert facts.random == (3, 5, 6, 7, 8)
    assert (facts.context, facts.dtype, facts.changes_buffers) == (4, "float32", False)
    assert models.settings_of(models.mixed, dtype="float64").facts.dtype == "float64"
    assert models.settings_of(models.normed).facts.changes_buffers
    assert models.settings_of(models.normalised_together).facts.mixing == (2,)
    assert models.settings_of(gradients_by_frequency).facts.mixing == (0,)  # only the gradients of its weights
    turned = Does(
        lambda own, x: (x * own.weight).expand(len(x), 8).t().contiguous().t(), weight=nn.Parameter(torch.ones(8))
    )
    assert inspect_layers(Layers([first(), turned, nn.Linear(8, 256)], models.of_last, 4), "").scattered == (1,)
    assert models.settings_of(models.tied_layers).facts.tied == (
        ((0, "weight"), (6, "weight")),
        ((2, "weight"), (3, "0.weight"), (4, "weight")),
        ((2, "bias"), (4, "bias")),
    )
    facts = models.settings_of(models.partly_frozen, frozen=3, stop=6).facts
    assert (facts.frozen, facts.kinds) == ((3, 4, 5), (0, 1, 1, 3, 3, 3, 1, 1, 8))
    model = models.settings_of(models.mixed)
    assert model.weights == sum(p.numel() for layer in models.mixed().layers for p in layer.parameters())


def counting(start=None, **register):
    """A layer that counts its forwards, in a buffer or in what `start` is."""

    def forward(own, x):
        own.count[()] += 1
        return own.linear(x) * (1 + own.count[()] / 100)

    def make():
        made = Does(forward, linear=nn.Linear(8, 8))
        made.register_buffer("count", torch.zeros(()), **register) if start is None else setattr(made, "count", start)
        return made

    return make


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (counting(), ()),
        (lambda: nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5)), ()),
        (counting(persistent=False), ("layer 1 (Does) changes count",)),
        (counting({(): 0}), ("layer 1 (Does) changes something",)),
    ],
)
def test_what_a_forward_changes_and_no_state_dict_has_is_known(make, what):
    made = Layers([first(), make(), nn.Linear(8, 256)], models.of_last, 4, changes_buffers=True)
    assert inspect_layers(made, "").unsaved == what


@pytest.mark.parametrize(("function", "layer"), [(models.mixed, 3), (models.by_numpy, 1)])
def test_the_weights_follow_from_the_seed_and_not_from_the_ranks(function, layer):
    model = build_model(models.settings_of(function))
    states = generator_states()
    [alone], [other] = (model.build([layer], seed) for seed in (5, 6))
    whole = model.build(range(model.layers), 5)
    assert generator_states() == states
    one, same, differs = (digest(list(made.state_dict().values())) for made in (alone, whole[layer], other))
    assert one == same != differs


def test_a_function_may_empty_a_list_that_it_is_given():
    model = build_model(replace(models.settings_of(models.emptying), keys={"widths": [8]}))
    assert [len(model.build(range(3), 0)) for _ in range(2)] == [3, 3]


def test_a_module_without_weights_may_be_in_several_layers():
    """Each layer has its own: dropout draws for its own layer. Where one draws, each is seeded, since any may draw."""
    layers = build_model(models.settings_of(models.passing)).build(range(7), 0)
    assert layers[2] is not layers[5][1]
    assert [len(list(random_parts(layer))) for layer in layers] == [1] * 7


def test_a_function_that_was_changed_is_refused(monkeypatch):
    settings = models.settings_of(models.mixed)
    build_model(settings)
    monkeypatch.setattr("microp.model.own.code_of", lambda _: "another")
    with pytest.raises(ValueError, match=r"model.builder=own_model.mixed has changed since it was checked: start"):
        build_model(settings)


CHANGES = {
    "set_default_dtype": lambda: torch.set_default_dtype(torch.float64),
    "set_default_device": lambda: torch.set_default_device("cuda"),
    "set_num_threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "set_deterministic_debug_mode": lambda: torch.use_deterministic_algorithms(True),
    "set_float32_matmul_precision": lambda: torch.set_float32_matmul_precision("medium"),
    "autocast of cpu": torch.autocast("cpu", torch.bfloat16).__enter__,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_function_that_changes_a_setting_of_torch_is_refused_and_the_setting_is_as_it_was(name):
    for place in ("cpu", "meta"):  # where the function is called
        said = pytest.raises(ValueError, match=f"mine changes a setting of torch .*{name}")
        with torch.device(place), said, unchanged("mine"):
            CHANGES[name]()
        with unchanged("nothing"):
            assert (nn.Linear(2, 2)(torch.ones(1, 2)).dtype, torch.ones(1).device.type) == (torch.float32, "cpu")
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")


def test_a_layer_that_ends_the_process_later_on_ends_no_command():
    with pytest.raises(ValueError, match=r"layer \d+ cannot be measured: SystemExit: 0"):
        probe_layers(models.settings_of(models.leaving), 8, False)
