"""Checks the layers of a user's own model, and finds out what the rest of microp needs to know of them.

::

    layers ── forward with 2 rows and with 3 ──► LayerFacts, or ValueError with what does not fit
    loss   ── numbers of many rows, together and one by one

On the meta device, whose tensors have a shape and a type but no numbers, a large model is checked in no time. Layers
with numbers are also run several times, which shows whether they make the same of the same input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import accumulate
from operator import or_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from microp.model.division import choose_division, undivided_text
from microp.model.loss_check import check_loss
from microp.model.own import Layers, is_dataset, row_form, separated
from microp.model.randomness import seeded
from microp.model.split_backward import SplitBackward, has_hooks, trained
from microp.model.trial import TYPES, Trial, or_none, rows_for_trial, weights_of
from microp.model.watch import layer_text, place_of, tensor_text, tried
from microp.settings import LayerFacts, LayerWork, TiedWeight

_DIGESTED = 64  # rows of a model's own data
_ABOUT_ZERO = 0.01
_MOST_VOCABULARY = _MOST_CONTEXT = 1_000_000


def inspect_layers(made: Layers, code: str) -> LayerFacts:
    """Run the layers, all on the CPU or all on the meta device, and return what is known of them.

    `code` is the digest of the function's source file.

    Raises:
        ValueError: something does not fit; what follows `<function> returns`.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the work is small; on busy cores, threads that wait for each other take seconds
    try:
        return _facts(made, code)
    finally:
        torch.set_num_threads(threads)


def _facts(made: Layers, code: str) -> LayerFacts:
    # 1. what can be seen without running anything
    _check_form(made)
    if not any(weight.requires_grad for layer in made.layers for weight in layer.parameters()):
        raise ValueError("no weight that is trained: set requires_grad of at least one")
    tied = _tied(made)
    _check_buffers(made)
    layers = separated(made.layers, tied)
    _check_hooks(layers, made.layers)
    _open_gates(layers, made)
    fresh = or_none(deepcopy, list(layers))
    # 2. the layers, with two numbers of rows
    few, more = (Trial(layers, made, rows) for rows in (2, 3))
    for index, (two, three) in enumerate(zip(few.outputs, more.outputs, strict=True)):
        if two.shape[:1] != (2,) or three.shape[:1] != (3,) or two.shape[1:] != three.shape[1:]:
            raise ValueError(
                f"{layer_text(layers, index)}, which makes {tensor_text(two)} of 2 rows and {tensor_text(three)} of 3: "
                "let the first size be the rows, and the others not depend on them"
            )
    if few.is_real:
        few.check_alone(few.many_rows()[0])
        few.check_in_flight(more.inputs[-2:])
        if fresh is not None:
            few.check_first(fresh, more)
            if made.changes_buffers:
                few.check_saved(fresh)
    # 3. the loss
    check_loss(made, layers, (few, more))
    # 4. what is known now
    as_one, undivided = _divisions(layers, few) if few.is_real else (None, ())
    inputs = [few.inputs, *few.outputs[:-1]]
    entered = [tuple(few.inputs.shape[1:]), *(tuple(output.shape[1:]) for output in few.outputs[:-1])]
    weights = weights_of(layers)
    return LayerFacts(
        context=made.context,
        dtype=str((few.outputs[:-1] or few.outputs)[0].dtype).removeprefix("torch."),
        shapes=tuple(entered),
        kinds=_kinds(layers, entered),
        weights=sum(weight.numel() for weight in weights),
        random=tuple(few.random),
        trained=sum(weight.numel() for weight in weights if weight.requires_grad),
        frozen=tuple(index for index, layer in enumerate(layers) if not trained(layer)),
        as_one=as_one,
        undivided=tuple(undivided),
        data="" if made.data is None else _digest(rows_for_trial(made, _DIGESTED)),
        rows=None if made.data is None else (row_form(few.inputs), row_form(few.targets)),
        output=row_form(few.outputs[-1]),
        mixing=tuple(more.mixing() if more.is_real else ()),
        scattered=tuple(index for index, output in enumerate(few.outputs[:-1]) if not output.is_contiguous()),
        changes_buffers=made.changes_buffers,
        unsaved=tuple((few.unsaved | more.unsaved).values()),
        code=code,
        tied=tied,
        vocabulary=made.vocabulary,
        work=layer_work(layers, inputs),
    )


def _open_gates(layers: Sequence[nn.Module], made: Layers) -> None:
    """Fill trained weights that are about zero, as training does: what lies behind such a gate would not be seen.

    They stay as they are if the layers then fail, or make something that is not finite.
    """
    trainable = (weight for weight in weights_of(layers) if weight.requires_grad and not weight.is_meta)
    weights = [weight for weight in trainable if weight.numel()]
    closed = {weight: weight.detach().clone() for weight in weights if weight.detach().abs().max() < _ABOUT_ZERO}
    if not closed:
        return
    for weight in closed:  # copies of a tied weight stay equal
        weight.data.uniform_(0.05, 0.15, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), seeded(0):
        y = or_none(tried, lambda: nn.Sequential(*deepcopy(layers))(rows_for_trial(made, 2)[0]), "", "")
    if not isinstance(y, Tensor) or not y.isfinite().all():
        for weight, before in closed.items():
            weight.data.copy_(before)


def _digest(tensors: Iterable[Tensor]) -> str:
    parts = [tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def number_of_weights(made: Layers) -> int:
    """Return the number of weights of all layers. Raises ValueError if they are no layers."""
    _check_form(made)
    return sum(weight.numel() for weight in weights_of(made.layers))


def check_apart(made: Layers, again: Layers) -> None:
    """Raise ValueError if two calls of a function return the same trained weight, or buffer that forwards change."""
    before, layers = set[int]().union(*(_places(layer, again) for layer in again.layers)), list(made.layers)
    for index, layer in enumerate(layers):
        if not before.isdisjoint(_places(layer, made)):
            raise ValueError(
                f"{layer_text(layers, index)}, whose weights or buffers were made outside of the function, so that all "
                "its calls, of ranks and of runs, would train the same ones: make or copy them there"
            )


def _places(layer: nn.Module, made: Layers) -> set[int]:
    """Return what tells the tensors of a layer that training changes from others: themselves, and their memory."""
    tensors = [*trained(layer), *(layer.buffers() if made.changes_buffers else ())]
    return {*map(id, tensors), *map(place_of, tensors)} - {0}


def _divisions(layers: Sequence[nn.Module], trial: Trial) -> tuple[tuple[int, ...] | None, Sequence[str]]:
    """Return the layers that can only be divided as one, and why others cannot be divided."""
    as_one, undivided = list[int](), list[str]()
    for index, (layer, x) in enumerate(zip(layers, [trial.inputs, *trial.outputs], strict=False)):
        split = SplitBackward([layer])
        try:
            if not choose_division(split, layer, x, _seeded_run):
                as_one.append(index)
        except ValueError as error:
            undivided.append(undivided_text(index, layer, error))
        split.undo(layer)
    return tuple(as_one), undivided


def _seeded_run(layer: nn.Module, x: Tensor) -> Tensor:
    with seeded(0):
        y: Tensor = layer(x)
    return y


def _check_form(made: Layers) -> None:
    """Raise ValueError unless the attributes are what they have to be."""
    is_list = isinstance(made.layers, Sequence | nn.ModuleList | nn.Sequential)
    if not is_list or not len(made.layers):
        got = "an empty list" if is_list else f"a {type(made.layers).__name__}"
        raise ValueError(f"{got} of layers: give a list of at least one nn.Module")
    if made.data is not None:
        _check_data(made)
    elif not isinstance(made.context, int) or not 1 <= made.context <= _MOST_CONTEXT:
        raise ValueError(
            f"context={made.context!r}, which is not a number of tokens: give 1 to {_MOST_CONTEXT}, for example 16, "
            "or data of the model's own (data=...)"
        )
    if not isinstance(made.vocabulary, int) or not 2 <= made.vocabulary <= _MOST_VOCABULARY:
        raise ValueError(
            f"vocabulary={made.vocabulary!r}, which is not a number of tokens: give 2 to {_MOST_VOCABULARY}, "
            "256 for bytes"
        )
    layers = list(made.layers)
    _check_container(made.layers)
    for index, layer in enumerate(layers):
        if not isinstance(layer, nn.Module):
            raise ValueError(f"a {type(layer).__name__} as layer {index}: give an nn.Module")
        for name, weight in layer.named_parameters():
            _check_weight(f"{layer_text(layers, index)}, whose {name}", weight)
    if not callable(made.loss):
        raise ValueError(f"a {type(made.loss).__name__} as its loss: give a function of (output, targets)")
    if isinstance(made.loss, nn.Module) and any(True for _ in made.loss.parameters()):
        raise ValueError("a loss with weights, which belongs to no stage: move them into the last layer")


def _check_weight(which: str, weight: nn.Parameter) -> None:
    """Raise ValueError if no optimizer can train a weight."""
    if is_lazy(weight):
        raise ValueError(f"{which} has no size yet: give it its sizes")
    if 0 in [step for step, size in zip(weight.stride(), weight.shape, strict=True) if size > 1]:
        raise ValueError(f"{which} is expanded, so that nothing can be written into it: clone it")
    if weight.requires_grad and weight.dtype not in TYPES:
        raise ValueError(f"{which} is {tensor_text(weight)}: the optimizers take floating-point numbers")


def _check_container(whole: Any) -> None:
    """Raise ValueError if a module does more than to call its layers in turn."""
    if not isinstance(whole, nn.Module):
        return
    # torch has no public list of a module's hooks
    hooks = whole._forward_pre_hooks, whole._forward_hooks, whole._backward_pre_hooks, whole._backward_hooks
    if type(whole).forward not in (nn.Sequential.forward, nn.ModuleList.forward) or any(hooks):
        raise ValueError(
            f"a {type(whole).__name__} with a forward or a hook of its own, which stages of its layers would not run: "
            "move that into the layers, and give list(...) of them"
        )


def _check_data(made: Layers) -> None:
    """Raise ValueError unless the model's own data have a form that is known."""
    data: Any = made.data
    if made.context:
        raise ValueError(f"context={made.context!r} beside data of its own: leave context out")
    if not is_dataset(data) and not callable(data):
        raise ValueError(
            f"a {type(data).__name__} as data: give a map-style Dataset of (input, target), or a function "
            "(step, rows) -> (inputs, targets)"
        )
    if is_dataset(data) and not len(data):
        raise ValueError("data without an item: give at least one")


def _tied(made: Layers) -> tuple[TiedWeight, ...]:
    """Return the weights that several layers share. Raises ValueError if they do not declare it, or have none."""
    copies: dict[int, list[tuple[int, str]]] = {}
    for index, layer in enumerate(made.layers):
        for name, weight in layer.named_parameters():
            copies.setdefault(id(weight), []).append((index, name))
    tied = tuple(tuple(places) for places in copies.values() if len(places) > 1)
    if tied and not made.tied:
        (one, name), (other, _) = tied[0][:2]
        raise ValueError(
            f"layers {one} and {other} with one weight ({name}), which would become two if they are on two ranks: give "
            "each layer its own, or declare it with Layers(..., tied=True)"
        )
    if made.tied and not tied:
        raise ValueError("tied=True, but no two layers with one weight: let them share it (head.weight = first.weight)")
    return tied


def _check_hooks(layers: Sequence[nn.Module], originals: Iterable[nn.Module]) -> None:
    """Raise ValueError if a layer that was copied, as it shares weights, has hooks, which its copy lacks."""
    for index, (layer, original) in enumerate(zip(layers, originals, strict=True)):
        if layer is not original and has_hooks(original):
            raise ValueError(
                f"{layer_text(layers, index)}, which shares a weight that has a hook: each layer gets a copy of its "
                "own, without the hook, so register none on weights that layers share"
            )


def _check_buffers(made: Layers) -> None:
    """Raise ValueError if layers share a buffer that their forwards change."""
    owners: dict[int, int] = {}
    for index, layer in enumerate(made.layers if made.changes_buffers else ()):
        for name, buffer in layer.named_buffers():
            if (other := owners.setdefault(id(buffer), index)) != index:
                raise ValueError(
                    f"layers {other} and {index} with one buffer ({name}), which forwards change: on two ranks "
                    "it would become two, so give each layer its own"
                )


def _kinds(layers: Sequence[nn.Module], entered: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return, for each layer, the index of the first one that equals it; the first and the last are of their own.

    Layers before which none is trained do not equal others: they need no gradient of their input.
    """
    known: dict[Any, int] = {}
    ends = (0, len(layers) - 1)
    reached = accumulate((bool(trained(layer)) for layer in layers[:-1]), or_, initial=False)
    forms = [
        (tuple(_form(layer)), shape, is_reached)
        for layer, shape, is_reached in zip(layers, entered, reached, strict=True)
    ]
    return tuple(index if index in ends else known.setdefault(forms[index], index) for index in range(len(layers)))


def _form(layer: nn.Module) -> Iterator[Any]:
    """Yield what tells a layer from others: its modules with their plain attributes, and its tensors' shapes."""
    for name, module in layer.named_modules():
        yield name, type(module)
        for key, value in sorted(vars(module).items()):
            if not key.startswith("_"):
                yield key, repr(value)
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        yield name, tensor.shape, tensor.dtype, tensor.requires_grad


def layer_work(layers: Sequence[nn.Module], inputs: Sequence[Tensor]) -> tuple[LayerWork, ...]:
    """Return the operations of each layer's forward and backward per row, and the weights that it reads: no embeddings.

    The first size of each input is the rows. Nothing is returned if torch's counter cannot run a layer, for example one
    that computes gradients in its forward.
    """
    work, is_reached = list[LayerWork](), False
    for layer, x in zip(layers, inputs, strict=True):
        read = [module for module in layer.modules() if not isinstance(module, nn.Embedding)]
        weights = {id(each): each.numel() for module in read for each in module.parameters(recurse=False)}
        try:
            with FlopCounterMode(display=False) as forward:
                y = layer(x.detach().requires_grad_(is_reached))
            with FlopCounterMode(display=False) as backward:
                if y.requires_grad:
                    y.backward(torch.ones_like(y))
        except Exception:
            return ()
        layer.zero_grad()
        is_reached = is_reached or bool(trained(layer))
        flops = (counter.get_total_flops() / len(x) for counter in (forward, backward))
        work.append((*flops, sum(weights.values())))
    return tuple(work)
