"""A forward of all layers of a user's own model, in which each layer is checked.

::

    tokens ── layer 0 ── layer 1 ── ... ──► outputs, or ValueError with what does not fit
                 └ watched: what it reads, writes, draws and makes
                   with numbers: does it make the same again, also without a graph? is its backward linear?

A layer of a pipeline has only the tensor from the layer before it, may be recomputed, and meets other microbatches on
other ranks: so what it makes may depend on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from microp.model.division import random_gradient
from microp.model.own import Layers, own_rows
from microp.model.randomness import seeded
from microp.model.split_backward import trained
from microp.model.watch import Watch, change_by, device_of, layer_text, place_of, tensor_text, tried

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MOST = 4_000_000  # numbers in a tensor for a trial
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}  # of two results that must be equal; of lower types:
COARSE = 0.02
_TRIES = 16  # forwards of a layer that must make the same: half of them may draw the same by chance
_SAME = 16  # equal rows
_TRY_S = 1.0  # seconds that all layers may take for that


class Trial:
    """One forward of all layers, each checked."""

    def __init__(self, layers: Sequence[nn.Module], made: Layers, rows: int) -> None:
        self._layers, self._made = layers, made
        device = device_of(layers)
        self.is_real = device.type != "meta"  # whether the tensors have numbers
        self.outputs: list[Tensor] = []  # what each layer makes
        self.random: list[int] = []  # the layers that draw random numbers
        self.unsaved: dict[int, str] = {}  # layers that change what is not in their state_dict, and what that is
        self.inputs, self.targets = (tensor.to(device) for tensor in rows_for_trial(made, rows))
        x = self.inputs
        for index in range(len(layers)):
            x = self._run(index, x)
            self.outputs.append(x)

    def _run(self, index: int, x: Tensor) -> Tensor:
        layer, name = self._layers[index], layer_text(self._layers, index)
        # 1. run the layer, and watch it
        leaf, entered = entering(x, any(map(trained, self._layers[:index])))
        version, memory, buffers, numbers = entered._version, _memory(layer), _buffers(layer), _numbers(layer)
        with seeded(0) as draws, Watch(entered) as seen:
            what = f"{name}, which fails for its input {tensor_text(entered)}"
            given = " (or the data: let them return what it takes)" if not index and self._made.data is not None else ""
            y = tried(partial(layer, entered), what, f"make them fit{given}")
        # 2. what it writes
        if entered._version != version or place_of(entered) in seen.written:
            raise ValueError(
                f"{name}, which writes into its input, from which a recomputation starts: let it make a new tensor"
            )
        _check_weights(layer, f"{name}, whose forward", memory, seen.written)
        now = _numbers(layer)
        changed = [
            key for key, state in _buffers(layer).items() if buffers.get(key) != state or state[2] in seen.written
        ]
        changed += [key for key, value in numbers.items() if now.get(key) != value]
        if changed and not self._made.changes_buffers:
            raise ValueError(
                f"{name}, whose forward changes {changed[0]} from one microbatch to the next: use a layer that does "
                "not, or declare it with Layers(..., changes_buffers=True)"
            )
        if lost := sorted({*changed} - layer.state_dict().keys()) if changed else []:
            self.unsaved[index] = f"{name} changes {lost[0]}"
        # 3. what it makes
        self._check_output(index, leaf, y)
        # 4. what it reads
        self._check_reads(index, seen, [tensor for tensor in leaves_of(y) if tensor is not leaf])
        wanted = 0 if self._made.data is not None else self._made.vocabulary
        if seen.vocabulary is not None and seen.vocabulary < wanted:
            raise ValueError(
                f"{name}, which embeds {seen.vocabulary} different tokens: the data have tokens from 0 to "
                f"{wanted - 1}, give it {wanted}"
            )
        # 5. with numbers: its backward, and whether it then makes the same again
        if self.is_real:
            _check_backward(layer, name, leaf, y)
            self._check_same(layer, name, x, y)
            if self._made.changes_buffers and y.requires_grad:
                some = iter((random_gradient(y), y.detach()))
                if change := change_by(layer, lambda: _gradients(layer, leaf, y, next(some))):
                    raise ValueError(
                        f"{name}, whose backward changes what the layer keeps ({change}): each schedule runs backwards "
                        "at other times between forwards, so let only forwards change it"
                    )
        if seen.draws or draws():
            self.random.append(index)
        return y

    def _check_output(self, index: int, leaf: Tensor, y: Any) -> None:
        layer, name = self._layers[index], layer_text(self._layers, index)
        if not isinstance(y, Tensor):
            got = "None" if y is None else f"a {type(y).__name__}"
            raise ValueError(f"{name}, which makes {got} of {tensor_text(leaf)}: let it return one tensor")
        is_plain = type(y) in (Tensor, nn.Parameter) and y.layout is torch.strided and not y.is_nested
        if more := [*vars(y)] if is_plain else [f"{type(y).__name__} {y.layout}"]:
            raise ValueError(
                f"{name}, whose output is more than a plain tensor ({more[0]}): another rank gets its numbers alone, "
                "so let a plain tensor between the layers have all that later ones need"
            )
        if index < len(self._layers) - 1:
            if y.dtype not in TYPES:
                raise ValueError(f"{name}, which makes {tensor_text(y)}: let it return floating-point numbers")
            if index and y.dtype != self.outputs[0].dtype:
                raise ValueError(
                    f"{name}, which makes {tensor_text(y)}, and layer 0, which makes {tensor_text(self.outputs[0])}: "
                    "let the tensors between layers have one type"
                )
        if not y.requires_grad and (leaf.requires_grad or trained(layer)):
            raise ValueError(
                f"{name}, whose output has no gradient: join it and its neighbour with weights to one layer "
                "(nn.Sequential), and use no detach, and behind frozen layers no reentrant checkpoint"
            )
        if leaf.requires_grad and not any(tensor is leaf for tensor in leaves_of(y)):
            raise ValueError(
                f"{name}, which cuts the gradient of its input: the layers before it would not be trained, so freeze "
                "their weights (requires_grad_(False)), or do not detach"
            )

    def _check_reads(self, index: int, seen: Watch, leaves: Sequence[Tensor]) -> None:
        """Raise ValueError if a layer reads a weight of another one, of which another rank would have a copy."""
        own = set(self._layers[index].parameters())
        read = [tensor for tensor in chain(seen.weights, leaves) if id(tensor) not in seen.made]
        read += [weight for weight in weights_of(self._layers) if place_of(weight) in seen.memory]  # also by their data
        foreign = [tensor for tensor in read if tensor.requires_grad and tensor not in own]
        if self._made.changes_buffers:  # else they are the same on each rank
            others = [
                buffer for layer in self._layers if layer is not self._layers[index] for buffer in layer.buffers()
            ]
            foreign += [buffer for buffer in others if place_of(buffer) in seen.memory]
        if foreign:
            raise ValueError(
                f"{layer_text(self._layers, index)}, which reads {owner_text(self._layers, foreign[0])}: on another "
                "rank it would read a copy that nobody trains, so give the layer its own, or let both own a weight "
                "(self.weight = other.weight) with Layers(..., tied=True)"
            )

    def _check_same(self, layer: nn.Module, name: str, x: Tensor, y: Tensor) -> None:
        """Raise ValueError if the layer makes something else of the same input, with the same seeds."""
        end = perf_counter() + _TRY_S / len(self._layers)
        for turn in range(_TRIES):
            with torch.set_grad_enabled(turn > 0):
                again = _again(layer, x)
            if (again is not None or turn) and self._differ(again, y):
                when = "the second time" if turn else "without a graph, as in the forward of a recomputed stage"
                raise ValueError(
                    f"{name}, which makes something else of the same input {when}, or fails: let it keep nothing from "
                    "one forward to the next, not ask for torch.is_grad_enabled(), and draw random numbers from torch, "
                    "random or numpy.random, and not from a source of its own"
                )
            if turn and perf_counter() > end:
                break
        call = partial(or_none, _both_ways, layer, x, random_gradient(y))
        if not self._made.changes_buffers and (change := change_by(layer, call)):
            raise ValueError(f"{name}, which keeps something, as a count of calls ({change}): let it keep nothing")

    def check_alone(self, inputs: Tensor) -> None:
        """Raise ValueError if a layer depends on what other layers keep, or on more of their outputs than the numbers.

        It would make something else when others have been given another input since, or of a copy of its input.
        """
        # of a layer that changes with each forward a copy that has what its own forwards have kept until now
        alone = [or_none(deepcopy, layer) if self._made.changes_buffers else layer for layer in self._layers]
        passed, x = self.replay(inputs), inputs
        for index, layer in enumerate(self._layers if not self._made.changes_buffers else ()):
            with torch.no_grad():
                again = _again(layer, x)
                with seeded(0):
                    x = layer(x)  # as within a stage
            if again is None or not are_equal(again, x):
                raise ValueError(
                    f"{layer_text(self._layers, index)}, which makes something else of a copy of its input: another "
                    "rank gets a copy, so let it use the numbers alone"
                )
        self.replay(inputs[:1].expand_as(inputs))
        for index, layer in reversed([*enumerate(alone)]):
            again = _again(layer, passed[index]) if layer is not None else passed[index + 1]
            if again is None or not are_equal(again, passed[index + 1]):
                raise ValueError(
                    f"{layer_text(self._layers, index)}, which depends on what another layer keeps: on another rank "
                    "that is not there, so pass it on in the tensor between the layers"
                )

    def check_in_flight(self, others: Tensor) -> None:
        """Raise ValueError if a backward depends on what the forwards of another microbatch have kept since its own."""
        runs = list(self._runs(self.inputs))
        at_once = [or_none(_gradients, layer, *run) for layer, run in zip(self._layers, runs, strict=True)]
        self.replay(others)
        for index, (layer, before) in enumerate(zip(self._layers, at_once, strict=True)):
            later = or_none(_gradients, layer, *runs[index])
            if before is not None and (later is None or not all(map(are_equal, later, before, map(size_of, before)))):
                raise ValueError(
                    f"{layer_text(self._layers, index)}, whose backward depends on what the newest forward has kept: "
                    "that may be of another microbatch, so let each forward keep what its backward needs in a variable "
                    "of its own, and not in the module"
                )

    def check_first(self, fresh: Sequence[nn.Module], other: Trial) -> None:
        """Raise ValueError if a layer makes something else if its first input, of these copies, is another trial's."""
        for index, (layer, y) in enumerate(zip(fresh, self.outputs, strict=True)):
            for trial in (other, self):
                again = _again(layer, trial.outputs[index - 1] if index else trial.inputs)
            if again is not None and self._differ(again, y):
                raise ValueError(
                    f"{layer_text(self._layers, index)}, in which the first input decides what it makes of later ones: "
                    "ranks and replicas begin with others, so set it when the layer is made"
                )

    def check_saved(self, fresh: Sequence[nn.Module]) -> None:
        """Add to `unsaved` the layers that make something else than these copies, given their state_dict."""
        for index, (layer, restored) in enumerate(zip(self._layers, fresh, strict=True)):
            or_none(restored.load_state_dict, layer.state_dict())
            x = self.outputs[index - 1] if index else self.inputs
            y, again = _again(layer, x), _again(restored, x)
            if y is None or again is None or not torch.allclose(again, y, 1e-6, 1e-6 * size_of(y), equal_nan=True):
                self.unsaved.setdefault(index, f"{layer_text(self._layers, index)} changes something")

    def _differ(self, again: Tensor | None, y: Tensor) -> bool:
        """Return whether a layer that changes no buffers has made something else, or has failed."""
        return not self._made.changes_buffers and (again is None or not are_equal(again, y))

    def replay(self, x: Tensor) -> list[Tensor]:
        """Run all layers once more, without a check, and return the input of each and the output of the last."""
        return [x, *(y.detach() for _, y in self._runs(x))]

    def _runs(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Run all layers once more, and yield of each the leaf that gets its input's gradient, and what it makes."""
        for index, layer in enumerate(self._layers):
            leaf, entered = entering(x)
            with seeded(0):
                what = f"{layer_text(self._layers, index)}, which fails for {len(x)} rows"
                y = tried(partial(layer, entered), what, "let it take any number")
            x = y.detach()
            yield leaf, y

    def many_rows(self) -> tuple[Tensor, Tensor]:
        """Return inputs with each token of the vocabulary, or with as many as take no long time, and their targets."""
        made = self._made
        if made.data is not None:
            inputs, targets = rows_for_trial(made, max(2, min(64, MOST // max(1, self.outputs[-1][0].numel()))))
            return inputs.to(self.inputs.device), targets.to(self.inputs.device)
        rows = max(2, min(-(-made.vocabulary // made.context), MOST // max(1, self.outputs[-1][0].numel())))
        order = torch.randperm(made.vocabulary, generator=torch.Generator().manual_seed(0))
        tokens = order.repeat(2 * made.context)[: rows * made.context].view(rows, -1).to(self.inputs.device)
        return tokens, tokens

    def mixing(self) -> list[int]:
        """Return the layers of which rows, or their gradients, depend on the rows beside them."""
        mixing = []
        for index, (layer, x) in enumerate(zip(self._layers, [self.inputs, *self.outputs], strict=False)):
            training = [module for module in layer.modules() if module.training]
            if index in self.random:
                layer.eval()  # without dropout
            if _mixes(layer, x, self.outputs[index]):
                mixing.append(index)
            for module in training:
                module.training = True
        return mixing


def _mixes(layer: nn.Module, x: Tensor, y: Tensor) -> bool:
    """Return whether rows of a layer, or gradients, depend on the rows beside them; not if it draws numbers."""
    drawn = []
    for seed in (0, 1):
        with seeded(seed):
            drawn.append(or_none(layer, entering(x)[1]))
    if drawn[0] is None or not are_equal(*drawn):
        return False
    # without the last row, and behind many copies of a row, which may fill what a layer keeps for it
    for some, rows in ((x, slice(0, -1)), (torch.cat([x[:1]] * _SAME), slice(-2, None))):
        gradient = random_gradient(torch.cat([y] * _SAME)[: len(some)])
        whole, fewer = _both_ways(layer, some, gradient), _both_ways(layer, some[rows], gradient[rows])
        if not all(_are_near(one, other[rows]) for one, other in zip(fewer, whole, strict=True)):
            return True
    # the copies once more: the gradients of weights may be divided by how many they are
    parts = slice(-2), slice(-2, None)
    whole, *added = (_of_weights(layer, some[rows], gradient[rows]) for rows in (slice(None), *parts))
    size = max(map(size_of, (gradient, *whole)))
    return not all(are_equal(one + other, both, size) for one, other, both in zip(*added, whole, strict=True))


def _of_weights(layer: nn.Module, x: Tensor, gradient: Tensor) -> list[Tensor]:
    """Return the gradients of a layer's trained weights; `gradient`: of the output."""
    if not trained(layer):
        return []
    with seeded(0):
        layer(entering(x)[1]).backward(gradient)
    made = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in trained(layer)]
    layer.zero_grad()
    return made


def _are_near(some: Tensor, rows: Tensor) -> bool:
    """Return whether tensors differ by rounding only: a product of fewer rows may be added up in another order."""
    if not some.is_floating_point():
        return are_equal(some, rows)
    return torch.allclose(some, rows, rtol=1e-3, atol=1e-5 * size_of(rows), equal_nan=True)


def rows_for_trial(made: Layers, rows: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of some rows: of the model's own data, or random tokens.

    Raises:
        ValueError: the data make something else, or not the same twice.
    """
    if made.data is None:
        tokens = torch.randint(0, made.vocabulary, (rows, made.context), generator=torch.Generator().manual_seed(rows))
        return tokens, tokens
    what, remedy = (
        "data that fail",
        "let each item be (input, target), or the function return (inputs, targets) of as many rows as it is asked for",
    )
    first, again = (tried(partial(own_rows, made.data, 1, rows, 0), what, remedy) for _ in range(2))
    if any(not torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(first, again, strict=True)):
        raise ValueError(
            "data that are others the second time: let them follow from the item or the step, and draw from torch, "
            "random or numpy.random"
        )
    return first


def _again(layer: nn.Module, x: Tensor) -> Tensor | None:
    """Return what a layer makes of an input, with the random numbers of its trial; None if it fails."""
    with seeded(0):
        return or_none(layer, entering(x)[1])


def _both_ways(layer: nn.Module, x: Tensor, gradient: Tensor) -> list[Tensor]:
    """Return a layer's output, and the gradient of its input if it has one; `gradient`: of the output."""
    leaf, entered = entering(x)
    with seeded(0):
        y = layer(entered)
    if y.requires_grad:
        y.backward(gradient)
        layer.zero_grad()
    return [y] if leaf.grad is None else [y, leaf.grad]


def _check_backward(layer: nn.Module, name: str, leaf: Tensor, y: Tensor) -> None:
    """Raise ValueError if the backward depends on more than the gradient, or not linearly on it."""
    if not y.requires_grad:
        return

    def gradients(*given: Tensor) -> list[Tensor]:
        run = partial(_gradients, layer, leaf, y, *given)
        made: list[Tensor] = tried(run, f"{name}, whose backward fails", "make it work")
        return made

    memory, one = _memory(layer), random_gradient(y)
    other = one.flip(0)
    factors = (0, 2**12, 2**-12) if y.dtype in TOLERANCE else (0, 2)  # a hook may add, clip or drop some
    with seeded(0) as draws:
        alone, scaled = gradients(one), [gradients(factor * one) for factor in factors]
        second, after, both = gradients(other), gradients(one, other), gradients(one + other)
    _check_weights(layer, f"{name}, whose backward", memory)
    if draws():
        raise ValueError(f"{name}, whose backward draws random numbers: draw them in the forward")
    if any(gradient.is_sparse for gradient in alone):
        raise ValueError(f"{name}, which makes sparse gradients: the optimizers take dense ones, use sparse=False")
    is_linear = all(
        are_equal(torch.where(made.isfinite(), factor * single, made), made, size_of(made))  # what does not overflow
        for factor, many in zip(factors, scaled, strict=True)
        for single, made in zip(alone, many, strict=True)
    )
    rounding = max(map(size_of, (*alone, one))) * TOLERANCE.get(y.dtype, COARSE)  # of a sum that is 0
    for parts in zip(alone, second, after, both, strict=True):
        first, added = parts[0] + parts[1], rounding + COARSE * max(map(size_of, parts))  # a layer may round inside
        is_linear &= all(torch.allclose(each, first, rtol=0, atol=added, equal_nan=True) for each in parts[2:])
    if not is_linear:
        raise ValueError(
            f"{name}, whose backward is not linear in the gradient that it is given, for example because a hook or "
            "a Function clips or scales it: the gradients of microbatches would not add up to the batch's"
        )


def _gradients(layer: nn.Module, leaf: Tensor, y: Tensor, *given: Tensor) -> list[Tensor]:
    """Return the gradients of a layer's input and weights, summed over some of its output, by default a random one."""
    for each in given or [random_gradient(y)] * y.requires_grad:
        y.backward(each.clone(), retain_graph=True)  # gradients may be views of it
    made = [tensor.grad for tensor in (leaf, *layer.parameters()) if tensor.grad is not None]
    leaf.grad = None
    layer.zero_grad()
    return made


def _check_weights(layer: nn.Module, who: str, before: dict[str, Any], written: Collection[int] = ()) -> None:
    """Raise ValueError if weights, or their gradients, are not as `before`, or where something was written."""
    for key, memory in _memory(layer).items():
        if memory != before.get(key) or memory[1] in written:
            raise ValueError(
                f"{who} writes into its weight {key} or its gradient, or freezes it: microbatches and replicas would "
                "do so at other times than one process, so leave that to the optimizer"
            )


def entering(x: Tensor, is_reached: bool = True) -> tuple[Tensor, Tensor]:
    """Return a leaf that gets the gradient of `x`, if that is wanted, and what enters a layer, which is no leaf."""
    leaf = x.detach().requires_grad_(x.is_floating_point() and is_reached)
    return leaf, leaf.clone()


def or_none(function: Callable[..., Any], *given: Any) -> Any:
    """Return a function's result; None if it fails."""
    try:
        return function(*given)
    except Exception:
        return None


def leaves_of(output: Tensor) -> list[Tensor]:
    """Return the leaves of a tensor's graph that accumulate a gradient."""
    nodes, known, leaves = [output.grad_fn], set(), []
    while nodes:
        node = nodes.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        nodes += [before for before, _ in node.next_functions]
    return leaves


def weights_of(layers: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return the weights of some layers, each once."""
    return list(dict.fromkeys(weight for layer in layers for weight in layer.parameters()))


def owner_text(layers: Sequence[nn.Module], weight: Tensor) -> str:
    """Return which weight this is: that of a layer, or of none of them."""
    for index, layer in enumerate(layers):
        for name, parameter in (*layer.named_parameters(), *layer.named_buffers()):
            if parameter is weight:
                return f"{name} of {layer_text(layers, index)}"
    return f"a tensor {list(weight.shape)} with a gradient that is no weight of a layer"


def are_equal(a: Tensor, b: Tensor, scale: float = 1.0) -> bool:
    """Return whether two results are equal but for the order in which they were added up; `scale`: their size."""
    tolerance = TOLERANCE.get(a.dtype, COARSE)
    return a.shape == b.shape and torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def size_of(gradient: Tensor) -> float:
    """Return the largest size of the numbers that are finite; what is not, the first step names."""
    return float(gradient.detach().abs().nan_to_num(0, 0, 0).max()) if gradient.numel() else 0.0


def _memory(layer: nn.Module) -> dict[str, tuple[int, int, bool, bool]]:
    """Return for each weight how often it was written, where it is, and whether it has no gradient and is trained."""
    return {name: (w._version, place_of(w), w.grad is None, w.requires_grad) for name, w in layer.named_parameters()}


def _buffers(layer: nn.Module) -> dict[str, tuple[int, int, int]]:
    """Return for each buffer which tensor it is, how often it was written, and where it is."""
    return {name: (id(buffer), buffer._version, place_of(buffer)) for name, buffer in layer.named_buffers()}


def _numbers(layer: nn.Module) -> dict[str, str]:
    """Return the plain numbers that the modules of a layer keep, as text."""
    values = [(path, key, value) for path, module in layer.named_modules() for key, value in vars(module).items()]
    return {f"{path}.{key}".lstrip("."): repr(value) for path, key, value in values if isinstance(value, int | float)}
