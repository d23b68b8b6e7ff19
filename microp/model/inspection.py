"""Checks the layers of a user's own model, and finds out what the rest of microp needs to know of them.

::

    layers ── forward with 2 rows and with 3 ──► LayerFacts, or ValueError with what does not fit
    loss   ── numbers of many rows, together and one by one

On the meta device, whose tensors have a shape and a type but no numbers, a large model is checked in no time. Layers
with numbers are also run several times, which shows whether they make the same of the same input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import chain
from math import isfinite
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from microp.model.division import choose_division, undivided_text
from microp.model.own import Layers, seeded, separated
from microp.model.split_backward import SplitBackward, trained
from microp.settings import LayerFacts, LayerWork, TiedWeight

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LONGEST = 200  # characters of what an exception says
_MOST = 4_000_000  # numbers with which a loss is tried
_MOST_VOCABULARY = _MOST_CONTEXT = 1_000_000
_TRIES = 16  # forwards of a layer that must make the same: half of them may draw the same by chance
_TRY_S = 1.0  # seconds that all layers may take for that
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}  # of two results that must be equal; of lower types:
_COARSE = 0.02


def inspect_layers(made: Layers, code: str) -> LayerFacts:
    """Run the layers and return what is known of them.

    Args:
        made: the layers, all on the CPU, or all on the meta device.
        code: the digest of the function's source file.

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
    _check_form(made)
    tied = _tied(made)
    layers = separated(made.layers, tied)
    fresh = _or_none(deepcopy, list(layers))
    few, more = (_Trial(layers, made, rows) for rows in (2, 3))
    for index, (one, other) in enumerate(zip(few.outputs, more.outputs, strict=True)):
        if one.shape[:1] != (2,) or other.shape[:1] != (3,) or one.shape[1:] != other.shape[1:]:
            raise ValueError(
                f"{layer_text(layers, index)}, which makes {tensor_text(one)} of 2 rows and {tensor_text(other)} of 3: "
                "let the first size be the rows, and the others not depend on them"
            )
    if few.is_real:
        few.check_alone(few.most_tokens())
        if fresh is not None:
            few.check_first(fresh, more)
    for trial in (few, more):
        _check_loss(made, layers, trial.outputs[-1], trial.tokens)
    if few.is_real:
        _check_loss_alone(made, few, few.most_tokens())
    types = [output.dtype for output in few.outputs[:-1]] or [few.outputs[-1].dtype]
    _check_mean(made, few)
    as_one, undivided = _divisions(layers, few) if few.is_real else ([], [])
    tensors = {id(p): p for layer in layers for p in layer.parameters()}
    entered = [(made.context,), *(tuple(output.shape[1:]) for output in few.outputs[:-1])]
    return LayerFacts(
        context=made.context,
        dtype=str(types[0]).removeprefix("torch."),
        shapes=tuple(entered),
        kinds=_kinds(layers, entered),
        weights=sum(p.numel() for p in tensors.values()),
        random=tuple(few.random),
        trained=sum(p.numel() for p in tensors.values() if p.requires_grad),
        as_one=tuple(as_one),
        undivided=tuple(undivided),
        mixing=tuple(more.mixing() if more.is_real else ()),
        changes_buffers=made.changes_buffers,
        code=code,
        tied=tied,
        vocabulary=made.vocabulary,
        work=layer_work(layers, [few.tokens, *few.outputs[:-1]]),
    )


def number_of_weights(made: Layers) -> int:
    """Return the number of weights of all layers. Raises ValueError if they are no layers."""
    _check_form(made)
    return sum(p.numel() for p in {p for layer in made.layers for p in layer.parameters()})


def _divisions(layers: Sequence[nn.Module], trial: _Trial) -> tuple[list[int], list[str]]:
    """Return the layers that can only be divided as one, and why others cannot be divided."""
    as_one, undivided = [], []
    for index, (layer, x) in enumerate(zip(layers, [trial.tokens, *trial.outputs], strict=False)):
        split = SplitBackward([layer])
        try:
            if not choose_division(split, layer, x, _seeded_run):
                as_one.append(index)
        except ValueError as error:
            undivided.append(undivided_text(index, layer, error))
        split.undo(layer)
    return as_one, undivided


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
    if not isinstance(made.context, int) or not 1 <= made.context <= _MOST_CONTEXT:
        raise ValueError(
            f"context={made.context!r}, which is not a number of tokens: give 1 to {_MOST_CONTEXT}, for example 16"
        )
    if not isinstance(made.vocabulary, int) or not 2 <= made.vocabulary <= _MOST_VOCABULARY:
        raise ValueError(
            f"vocabulary={made.vocabulary!r}, which is not a number of tokens: give 2 to {_MOST_VOCABULARY}, "
            "256 for bytes"
        )
    layers = list(made.layers)
    for index, layer in enumerate(layers):
        if not isinstance(layer, nn.Module):
            raise ValueError(f"a {type(layer).__name__} as layer {index}: give an nn.Module")
        for name, weight in layer.named_parameters():
            if is_lazy(weight):
                raise ValueError(f"{layer_text(layers, index)}, whose {name} has no size yet: give it its sizes")
            if weight.requires_grad and weight.dtype not in TYPES:
                raise ValueError(
                    f"{layer_text(layers, index)}, whose {name} is {tensor_text(weight)}: the optimizers take "
                    "floating-point numbers"
                )
    if not callable(made.loss):
        raise ValueError(f"a {type(made.loss).__name__} as its loss: give a function of (output, targets)")
    if isinstance(made.loss, nn.Module) and any(True for _ in made.loss.parameters()):
        raise ValueError("a loss with weights, which belongs to no stage: move them into the last layer")


def _tied(made: Layers) -> tuple[TiedWeight, ...]:
    """Return the weights that several layers share.

    Raises:
        ValueError: they share weights and do not declare it, or the other way round.
    """
    copies: dict[int, list[tuple[int, str]]] = {}
    for index, layer in enumerate(made.layers):
        for name, weight in layer.named_parameters():
            copies.setdefault(id(weight), []).append((index, name))
    found = tuple(tuple(each) for each in copies.values() if len(each) > 1)
    if found and not made.tied:
        (one, name), (other, _) = found[0][:2]
        raise ValueError(
            f"layers {one} and {other} with one weight ({name}), which would become two if they are on two ranks: give "
            "each layer its own, or declare it with Layers(..., tied=True)"
        )
    if made.tied and not found:
        raise ValueError("tied=True, but no two layers with one weight: let them share it (head.weight = first.weight)")
    return found


class _Trial:
    """One forward of all layers, each checked."""

    def __init__(self, layers: Sequence[nn.Module], made: Layers, rows: int) -> None:
        self._layers, self._made = layers, made
        device = device_of(layers)
        self.is_real = device.type != "meta"
        self.outputs: list[Tensor] = []
        self.random: list[int] = []
        self.tokens = self.random_tokens(rows)
        self.run(self.tokens)

    def random_tokens(self, rows: int) -> Tensor:
        """Return an input of this number of rows."""
        generator = torch.Generator().manual_seed(rows)
        tokens = torch.randint(0, self._made.vocabulary, (rows, self._made.context), generator=generator)
        return tokens.to(device_of(self._layers))

    def run(self, x: Tensor) -> Tensor:
        """Run all layers and return the last output; the other ones are in `outputs`."""
        self.outputs = []
        for index in range(len(self._layers)):
            x = self._run(index, x)
            self.outputs.append(x)
        return x

    def _run(self, index: int, x: Tensor) -> Tensor:
        layer, name = self._layers[index], layer_text(self._layers, index)
        leaf = x.detach().requires_grad_(x.is_floating_point())
        entered = leaf.clone()
        version, buffers, numbers = entered._version, _versions(layer), _numbers(layer)
        memory = _memory(layer)
        with seeded(0) as draws, Watch(entered) as seen:
            y = tried(
                lambda: layer(entered), f"{name}, which fails for its input {tensor_text(entered)}", "make them fit"
            )
        if not isinstance(y, Tensor):
            got = "None" if y is None else f"a {type(y).__name__}"
            raise ValueError(f"{name}, which makes {got} of {tensor_text(entered)}: let it return one tensor")
        if entered._version != version:
            raise ValueError(
                f"{name}, which writes into its input, from which a recomputation starts: let it make a new tensor"
            )
        written = [key for key, place in _memory(layer).items() if place != memory[key] or place[1] in seen.written]
        if written:
            raise ValueError(
                f"{name}, whose forward writes into its weight {written[0]}: microbatches and replicas would write at "
                "other times than one process, so leave that to the optimizer"
            )
        changed = [key for key, value in _versions(layer).items() if buffers.get(key) != value]
        after = _numbers(layer)
        if changed := changed or [key for key, value in numbers.items() if after.get(key) != value]:
            self._check_buffers(name, changed)
        last = index == len(self._layers) - 1
        if not last and y.dtype not in TYPES:
            raise ValueError(f"{name}, which makes {tensor_text(y)}: let it return floating-point numbers")
        if not last and index and y.dtype != self.outputs[0].dtype:
            raise ValueError(
                f"{name}, which makes {tensor_text(y)}, and layer 0, which makes {tensor_text(self.outputs[0])}: "
                "let the tensors between layers have one type"
            )
        if not y.requires_grad and (leaf.requires_grad or trained(layer)):
            raise ValueError(
                f"{name}, whose output has no gradient: join it and its neighbour with weights to one layer "
                "(nn.Sequential), and do not detach"
            )
        leaves = _leaves(y)
        if leaf.requires_grad and not any(t is leaf for t in leaves) and any(map(trained, self._layers[:index])):
            raise ValueError(
                f"{name}, which cuts the gradient of its input: the layers before it would not be trained, so freeze "
                "their weights (requires_grad_(False)), or do not detach"
            )
        self._check_reads(index, seen, [tensor for tensor in leaves if tensor is not leaf])
        if seen.vocabulary is not None and seen.vocabulary < (wanted := self._made.vocabulary):
            raise ValueError(
                f"{name}, which embeds {seen.vocabulary} different tokens: the data have tokens from 0 to "
                f"{wanted - 1}, give it {wanted}"
            )
        if self.is_real:
            self._check_same(layer, name, x, y)
            self._check_backward(layer, name, leaf, y)
        if seen.draws or draws():
            self.random.append(index)
        return y

    def _check_reads(self, index: int, seen: Watch, leaves: Sequence[Tensor]) -> None:
        """Raise ValueError if a layer reads a weight of another one, of which another rank would have a copy."""
        own = set(self._layers[index].parameters())
        for other, layer in enumerate(self._layers):
            for weight_name, weight in layer.named_parameters():
                if weight.requires_grad and weight not in own and _place(weight) in seen.memory:
                    raise ValueError(
                        f"{layer_text(self._layers, index)}, which reads the memory of {weight_name} of "
                        f"{layer_text(self._layers, other)}: on another rank it would be a copy that nobody trains, so "
                        "give the layer its own, or let both own one nn.Parameter with Layers(..., tied=True)"
                    )
        for tensor in chain(seen.weights, leaves):
            if tensor in own or not tensor.requires_grad or id(tensor) in seen.made:
                continue
            raise ValueError(
                f"{layer_text(self._layers, index)}, which reads {_owner_text(self._layers, tensor)}: on another rank "
                "it would read a copy that nobody trains, so give the layer a weight of its own, or let both own it "
                "(self.weight = other.weight) with Layers(..., tied=True)"
            )

    @staticmethod
    def _check_backward(layer: nn.Module, name: str, leaf: Tensor, y: Tensor) -> None:
        """Raise ValueError if the backward depends on more than the gradient, or not linearly on it."""
        if not y.requires_grad:
            return
        gradient = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y.dtype)
        found = []
        with seeded(0) as draws:
            for factor in (1, 2):
                given = factor * gradient
                tried(lambda: y.backward(given, retain_graph=True), f"{name}, whose backward fails", "make it work")  # noqa: B023
                found.append([tensor.grad for tensor in (leaf, *layer.parameters()) if tensor.grad is not None])
                leaf.grad = None
                layer.zero_grad()
        if draws():
            raise ValueError(f"{name}, whose backward draws random numbers: draw them in the forward")
        if any(gradient.is_sparse for gradient in found[0]):
            raise ValueError(f"{name}, which makes sparse gradients: the optimizers take dense ones, use sparse=False")
        if not all(_equal(2 * one, two, _size(two)) for one, two in zip(*found, strict=True)):
            raise ValueError(
                f"{name}, whose backward is not linear in the gradient that it is given, for example because a hook or "
                "a Function clips it: the gradients of microbatches would not add up to the batch's"
            )

    def _check_same(self, layer: nn.Module, name: str, x: Tensor, y: Tensor) -> None:
        """Raise ValueError if the layer makes something else of the same input, with the same seeds."""
        end, what = perf_counter() + _TRY_S / len(self._layers), f"{name}, which fails for its input a second time"
        for turn in range(_TRIES):
            entered = x.detach().requires_grad_(x.is_floating_point()).clone()
            with seeded(0), torch.set_grad_enabled(turn > 0):
                other = tried(lambda: layer(entered), what, "let it not") if turn else _or_none(layer, entered)  # noqa: B023
            if other is not None and not self._made.changes_buffers and not _equal(other, y):
                when = "the second time" if turn else "without a graph, as in the forward of a recomputed stage"
                raise ValueError(
                    f"{name}, which makes something else of the same input {when}: let it keep nothing from one "
                    "forward to the next, not ask for torch.is_grad_enabled(), and draw random numbers from torch, "
                    "random or numpy.random, and not from a source of its own"
                )
            if turn and perf_counter() > end:
                break

    def replay(self, x: Tensor) -> list[Tensor]:
        """Run all layers once more, without a check, and return the input of each and the output of the last."""
        passed = [x]
        for index, layer in enumerate(self._layers):
            entered = passed[-1].requires_grad_(passed[-1].is_floating_point()).clone()
            with seeded(0):
                what = f"{layer_text(self._layers, index)}, which fails for {len(x)} rows"
                passed.append(tried(lambda: layer(entered), what, "let it take any number").detach())  # noqa: B023
        return passed

    def check_alone(self, tokens: Tensor) -> None:
        """Raise ValueError if a layer makes something else when other layers have been given another input since."""
        passed = self.replay(tokens)
        self.replay(tokens.flip(0))
        for index in reversed(range(len(self._layers))):
            x = passed[index].detach()
            with seeded(0):
                again = _or_none(self._layers[index], x.requires_grad_(x.is_floating_point()).clone())
            if not self._made.changes_buffers and (again is None or not _equal(again, passed[index + 1])):
                raise ValueError(
                    f"{layer_text(self._layers, index)}, which depends on what another layer keeps: on another rank "
                    "that is not there, so pass it on in the tensor between the layers"
                )

    def check_first(self, fresh: Sequence[nn.Module], other: _Trial) -> None:
        """Raise ValueError if a layer makes something else if its first input, of these copies, is another trial's."""
        for index, (layer, y) in enumerate(zip(fresh, self.outputs, strict=True)):
            for trial in (other, self):
                x = trial.outputs[index - 1] if index else trial.tokens
                with seeded(0):
                    again = _or_none(layer, x.detach().requires_grad_(x.is_floating_point()).clone())
            if not self._made.changes_buffers and again is not None and not _equal(again, y):
                raise ValueError(
                    f"{layer_text(self._layers, index)}, in which the first input decides what it makes of later ones: "
                    "ranks and replicas begin with others, so set it when the layer is made"
                )

    def most_tokens(self) -> Tensor:
        """Return an input with each token of the vocabulary, or with as many as take no long time."""
        made = self._made
        rows = max(2, min(-(-made.vocabulary // made.context), _MOST // max(1, self.outputs[-1][0].numel())))
        order = torch.randperm(made.vocabulary, generator=torch.Generator().manual_seed(0))
        return order.repeat(2 * made.context)[: rows * made.context].view(rows, -1).to(self.tokens.device)

    def mixing(self) -> list[int]:
        """Return the layers of which rows, or their gradients, depend on the rows beside them."""
        mixing = []
        for index, (layer, x) in enumerate(zip(self._layers, [self.tokens, *self.outputs], strict=False)):
            if index in self.random:
                continue
            whole, fewer = self._both_ways(layer, x), self._both_ways(layer, x[:-1])
            if not all(_equal(one, other[:-1]) for one, other in zip(fewer, whole, strict=True)):
                mixing.append(index)
        return mixing

    @staticmethod
    def _both_ways(layer: nn.Module, x: Tensor) -> list[Tensor]:
        """Return a layer's output, and the gradient of its input if it has one."""
        leaf = x.detach().requires_grad_(x.is_floating_point())
        with seeded(0):
            y = layer(leaf.clone())
        if not leaf.requires_grad or not y.requires_grad:
            return [y]
        gradient = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y)
        y.backward(gradient)
        layer.zero_grad()
        return [y] if leaf.grad is None else [y, leaf.grad]

    def _check_buffers(self, name: str, changed: Sequence[str]) -> None:
        if not self._made.changes_buffers:
            raise ValueError(
                f"{name}, whose forward changes {changed[0]} from one microbatch to the next: use a layer that does "
                "not, or declare it with Layers(..., changes_buffers=True)"
            )


def _check_loss(made: Layers, layers: Sequence[nn.Module], output: Tensor, tokens: Tensor) -> None:
    given = f"(output {tensor_text(output)}, targets {tensor_text(tokens)})"
    leaf, targets = output.detach().requires_grad_(), tokens.clone()
    entered = leaf.clone()
    version = targets._version
    with seeded(0) as draws, Watch(entered) as seen:
        loss = tried(lambda: made.loss(entered, targets), f"a loss that fails for {given}", "make them fit")
    if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
        got = tensor_text(loss) if isinstance(loss, Tensor) and loss.requires_grad else "no tensor with a gradient"
        raise ValueError(f"a loss that makes {got} of {given}: return the mean over the rows, one number")
    if targets._version != version:
        raise ValueError("a loss that writes into its targets, which are the next steps' data: let it copy them first")
    for tensor in chain(seen.weights, _leaves(loss)):
        if tensor is not leaf and tensor.requires_grad and id(tensor) not in seen.made:
            raise ValueError(
                f"a loss that reads {_owner_text(layers, tensor)}, which may be on another rank: let the last layer "
                "return what the loss needs; a penalty on weights is optimizer.weight_decay"
            )
    if seen.draws or draws():
        raise ValueError("a loss that draws random numbers, which depend on the microbatches: draw them in a layer")


def _check_loss_alone(made: Layers, trial: _Trial, tokens: Tensor) -> None:
    """Raise ValueError if the loss depends on what layers keep, which is of their newest input."""
    output = trial.replay(tokens)[-1]
    kept = _or_none(_loss_of, made, output, tokens)
    trial.replay(tokens.flip(0))
    other = _or_none(_loss_of, made, output, tokens)
    differ = kept and other and not _equal(kept[1], other[1], _size(kept[1]))
    if (kept is None) != (other is None) or differ:
        raise ValueError(
            "a loss that depends on what a layer keeps, which may be on another rank: let the last layer return it"
        )


def _or_none(function: Callable[..., Any], *given: Any) -> Any:
    """Return a function's result; None if it fails."""
    try:
        return function(*given)
    except Exception:
        return None


def _place(tensor: Tensor) -> int:
    """Return where a tensor's memory is; 0 if it has none, or is of a kind that hides it."""
    return tensor.untyped_storage().data_ptr() if type(tensor) in (Tensor, nn.Parameter) else 0


def _memory(layer: nn.Module) -> dict[str, tuple[int, int]]:
    """Return for each weight how often it was written, and where it is."""
    return {name: (weight._version, _place(weight)) for name, weight in layer.named_parameters()}


def _leaves(output: Tensor) -> list[Tensor]:
    """Return the leaves of a tensor's graph that accumulate a gradient."""
    nodes, known, found = [output.grad_fn], set(), []
    while nodes:
        node = nodes.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        nodes += [before for before, _ in node.next_functions]
    return found


def _owner_text(layers: Sequence[nn.Module], weight: Tensor) -> str:
    """Return which weight this is: that of a layer, or of none of them."""
    for index, layer in enumerate(layers):
        for name, own in layer.named_parameters():
            if own is weight:
                return f"{name} of {layer_text(layers, index)}"
    return f"a tensor {list(weight.shape)} with a gradient that is no weight of a layer"


def device_of(layers: Sequence[nn.Module]) -> torch.device:
    """Return the device of the layers."""
    tensors = chain.from_iterable((*layer.parameters(), *layer.buffers()) for layer in layers)
    return next((tensor.device for tensor in tensors), torch.get_default_device())


def _equal(a: Tensor, b: Tensor, scale: float = 1.0) -> bool:
    """Return whether two results are equal but for the order in which they were added up; `scale`: their size."""
    tolerance = _TOLERANCE.get(a.dtype, _COARSE)
    return a.shape == b.shape and torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _size(gradient: Tensor) -> float:
    """Return the largest size of the numbers that are finite; what is not, the first step names."""
    return float(gradient.abs().nan_to_num(0, 0, 0).max()) if gradient.numel() else 0.0


_ATEN = torch.ops.aten
_PRODUCTS = {_ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default, _ATEN.baddbmm.default, _ATEN.convolution.default}


class Watch(TorchDispatchMode):
    """Watches the operations of a layer or a loss.

    Attributes:
        draws: whether one draws random numbers.
        weights: the weights that they read.
        memory: where the memory is that they read or write; nothing without numbers.
        written: where the memory is into which they write.
        made: the ids of the tensors that they made, which live as long as this object.
        vocabulary: the number of different tokens that are embedded; None if none are.
    """

    def __init__(self, entered: Tensor) -> None:
        super().__init__()
        self._entered, self.draws = entered, False
        self.vocabulary: int | None = None
        self.weights: dict[nn.Parameter, None] = {}
        self.made: dict[int, Any] = {}
        self.memory: set[int] = set()
        self.written: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to say so to torch's compiler would import it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        types_of = {each.dtype for each in args if isinstance(each, Tensor)} if func in _PRODUCTS else set()
        if len(types_of) > 1:  # the meta device computes what a real one refuses
            raise TypeError(f"a product of {' and '.join(sorted(map(str, types_of)))}")
        self.draws |= torch.Tag.nondeterministic_seeded in func.tags
        if func is _ATEN.embedding.default and args[1] is self._entered:
            self.vocabulary = args[0].shape[0]
        given = [each for arg in args for each in (arg if isinstance(arg, list | tuple) else (arg,))]
        self.weights |= {each: None for each in given if isinstance(each, nn.Parameter)}
        self.memory |= {_place(each) for each in given if isinstance(each, Tensor)} - {0}
        if func._schema.is_mutable and isinstance(args[0], Tensor):
            self.written |= {_place(args[0])} - {0}
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, list | tuple) else (result,):
            if isinstance(each, Tensor):
                self.made[id(each)] = each
        return result


def tried(call: Callable[[], Any], what: str, remedy: str) -> Any:
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a layer may be the user's own, and exit
        said = " ".join(f"{type(error).__name__}: {error}".split())
        said = said if len(said) <= LONGEST else f"{said[: LONGEST - 3]}..."
        raise ValueError(f"{what} ({said}): {remedy}") from error


def _check_mean(made: Layers, trial: _Trial) -> None:
    """Raise ValueError if the loss is not the mean over the rows, whatever the tokens.

    The rows differ in what they are worth: their numbers have other sizes, and each has few tokens, at its end another
    one than the row before. So a loss that leaves a token out, or weighs tokens, is no mean over the rows. All tokens
    of a small vocabulary are tried; of a large one those from both ends, since padding is often the first or the last.
    """
    output, vocabulary = trial.outputs[-1], made.vocabulary
    numbers = output[0].numel()
    rows = max(2, min(vocabulary + 16, _MOST // max(1, numbers)))
    blocks = min(made.context, max(8, min(64, -(-vocabulary // rows))))
    generator = torch.Generator().manual_seed(0)
    ends = torch.tensor([end for token in range(8) for end in (token, vocabulary - 1 - token)]).clamp(0, vocabulary - 1)
    order = torch.cat([ends, torch.randperm(vocabulary, generator=generator)])
    block = torch.arange(made.context) * blocks // made.context
    stride = 1 if rows > vocabulary or output.dim() < 3 else blocks
    targets = order[(stride * torch.arange(rows)[:, None] + blocks - 1 - block) % len(order)]
    normal = torch.randn((rows, *output.shape[1:]), generator=generator, dtype=torch.float32)
    logits = normal * torch.rand(rows, generator=generator).mul_(4).view(-1, *[1] * (output.dim() - 1))
    if output.shape[1:] == (made.context, vocabulary):  # some are sure of their tokens, as after training
        logits.scatter_add_(2, targets[..., None], torch.rand((*targets.shape, 1), generator=generator).mul_(12))
    groups = [slice(first, first + blocks + 1) for first in range(0, rows, blocks + 1)]  # of the rows that have a token
    _check_mean_of(made, trial, logits.to(output.dtype), targets, [*groups, slice(0, rows)])  # one has only some


def _check_mean_of(made: Layers, trial: _Trial, logits: Tensor, targets: Tensor, groups: Sequence[slice]) -> None:
    failed: Exception | None = None
    for kind in (torch.Tensor.clone, lambda logits: logits.flatten(1).softmax(1).view_as(logits), None):
        try:
            if kind is None:  # a loss that needs numbers of the last layer
                if not trial.is_real:
                    break
                targets, groups = trial.random_tokens(8), [slice(0, 8)]
                with torch.no_grad():
                    given = trial.run(targets).detach()
            else:
                given = kind(logits)
            apart = [_loss_of(made, given[row : row + 1], targets[row : row + 1], 0.5) for row in range(len(given))]
            wholes = [_loss_of(made, given[group], targets[group]) for group in groups]
            again, _ = _loss_of(made, given[groups[0]], targets[groups[0]])
        except IndexError as error:
            raise ValueError(
                f"a loss that fails for targets from 0 to {made.vocabulary - 1} (IndexError: {error}): let the last "
                f"layer make {made.vocabulary} numbers for each token"
            ) from error
        except Exception as error:  # it may need numbers of another kind
            failed = error
            continue
        if wholes[0][0] != again and again == again:
            raise ValueError(
                "a loss that makes another number of the same output: let it draw no random numbers, and keep nothing"
            )
        if not all(map(isfinite, (whole for whole, _ in wholes))):
            continue
        for group, (whole, gradient) in zip(groups, wholes, strict=True):
            parts = apart[group]
            mean = sum(part for part, _ in parts) / len(parts)
            if not abs(whole - mean) <= _TOLERANCE.get(given.dtype, _COARSE) * max(abs(whole), abs(mean)):
                raise ValueError(
                    f"a loss that is not the mean over the rows ({whole:.6g} for {len(parts)} rows, {mean:.6g} the "
                    "mean of their own): microbatches would not add up, so divide it by the number of rows, and let "
                    "every row and every token count the same (no ignore_index, no mask, no class weights)"
                )
            if not _equal(gradient, torch.cat([part for _, part in parts]) / len(parts), _size(gradient)):
                raise ValueError(
                    "a loss whose gradient is not the mean over the rows: microbatches would not add up, so let every "
                    "row and every token count the same (no ignore_index, no mask, no class weights, no hardest "
                    "tokens), and a Function use the gradient that it is given"
                )
        return
    said = "it is not finite" if failed is None else f"{type(failed).__name__}: {failed}"
    raise ValueError(f"a loss that cannot be tried with numbers ({said}): let it take any numbers of the last layer")


def _loss_of(made: Layers, logits: Tensor, targets: Tensor, factor: float = 1.0) -> tuple[float, Tensor]:
    """Return the loss and its gradient, which the backward of `factor` gives; zeros if it has none."""
    leaf = logits.detach().requires_grad_()
    loss = made.loss(leaf.clone(), targets.clone())
    loss.backward(torch.full_like(loss, factor))
    return float(loss.detach()), torch.zeros_like(leaf) if leaf.grad is None else leaf.grad / factor


def _versions(layer: nn.Module) -> dict[str, tuple[int, int]]:
    """Return for each buffer which tensor it is and how often it was written."""
    return {name: (id(buffer), buffer._version) for name, buffer in layer.named_buffers()}


def _numbers(layer: nn.Module) -> dict[str, str]:
    """Return the plain numbers that the modules of a layer keep, as text."""
    every = [(path, *each) for path, own in layer.named_modules() for each in vars(own).items()]
    return {f"{path}.{key}".lstrip("."): repr(value) for path, key, value in every if isinstance(value, int | float)}


def _kinds(layers: Sequence[nn.Module], entered: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return, for each layer, the index of the first one that equals it; the first and the last are of their own."""
    known: dict[Any, int] = {}
    ends = (0, len(layers) - 1)
    forms = [(tuple(_form(layer)), shape) for layer, shape in zip(layers, entered, strict=True)]
    return tuple(index if index in ends else known.setdefault(forms[index], index) for index in range(len(layers)))


def _form(layer: nn.Module) -> Iterator[Any]:
    """Yield what tells a layer from others: its modules with their plain attributes, and its tensors' shapes."""
    for name, module in layer.named_modules():
        yield name, type(module)
        for key, value in sorted(vars(module).items()):
            if not key.startswith("_"):
                yield key, repr(value)
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        yield name, tensor.shape, tensor.dtype


def layer_text(layers: Sequence[nn.Module], index: int) -> str:
    return f"layer {index} ({type(layers[index]).__name__})"


def tensor_text(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def layer_work(layers: Sequence[nn.Module], inputs: Sequence[Tensor]) -> tuple[LayerWork, ...]:
    """Return the operations of each layer's forward per row, and the weights that it reads: all but embeddings.

    Nothing is returned if torch's counter cannot run a layer, for example one that computes gradients in its forward.

    Args:
        inputs: what enters each of them; the first size is the rows.
    """
    try:
        return tuple((_flops(layer, x) / len(x), _read(layer)) for layer, x in zip(layers, inputs, strict=True))
    except RuntimeError:
        return ()


def _read(layer: nn.Module) -> int:
    modules = [module for module in layer.modules() if not isinstance(module, nn.Embedding)]
    weights = {id(each): each.numel() for module in modules for each in module.parameters(recurse=False)}
    return sum(weights.values())


def _flops(layer: nn.Module, entered: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        layer(entered.detach())
    return counter.get_total_flops()
