"""Checks the layers of a user's own model without numbers, and finds out what the rest of microp needs to know of them.

::

    layers on the meta device ── forward with 2 rows and with 3 ──► LayerFacts, or ValueError with what does not fit

The meta device has tensors with a shape and a type but without numbers, so that a large model is checked in no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from microp.model.own import Layers, separated
from microp.settings import LayerFacts, TiedWeight

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LONGEST = 200  # characters of what an exception says
_MOST = 1_000_000  # numbers of the logits with which a loss is tried
_MOST_CONTEXT = 1_000_000


def inspect_layers(made: Layers, code: str) -> LayerFacts:
    """Run the layers on the meta device and return what is known of them.

    Args:
        made: the layers, which are on the meta device.
        code: the digest of the function's source file.

    Raises:
        ValueError: something does not fit; what follows `<function> returns`.
    """
    _check_form(made)
    tied = _tied(made)
    layers = [layer.to("meta") for layer in separated(made.layers, tied)]
    few, more = (_Trial(layers, made, rows) for rows in (2, 3))
    for index, (one, other) in enumerate(zip(few.outputs, more.outputs, strict=True)):
        if one.shape[:1] != (2,) or other.shape[:1] != (3,) or one.shape[1:] != other.shape[1:]:
            raise ValueError(
                f"{layer_text(layers, index)}, which makes {tensor_text(one)} of 2 rows and {tensor_text(other)} of 3: "
                "let the first size be the rows, and the others not depend on them"
            )
    for trial in (few, more):
        _check_loss(made, trial.outputs[-1], trial.tokens)
    types = [output.dtype for output in few.outputs[:-1]] or [few.outputs[-1].dtype]
    _check_mean(made, few.outputs[-1])
    tensors = {id(p): p for layer in layers for p in layer.parameters()}
    entered = [(made.context,), *(tuple(output.shape[1:]) for output in few.outputs[:-1])]
    return LayerFacts(
        context=made.context,
        dtype=str(types[0]).removeprefix("torch."),
        shapes=tuple(entered),
        kinds=_kinds(layers, entered),
        weights=sum(p.numel() for p in tensors.values()),
        random=tuple(few.random),
        changes_buffers=made.changes_buffers,
        code=code,
        tied=tied,
        vocabulary=made.vocabulary,
    )


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
    if not isinstance(made.vocabulary, int) or not 2 <= made.vocabulary <= _MOST:
        raise ValueError(
            f"vocabulary={made.vocabulary!r}, which is not a number of tokens: give 2 to {_MOST}, 256 for bytes"
        )
    layers = list(made.layers)
    for index, layer in enumerate(layers):
        if not isinstance(layer, nn.Module):
            raise ValueError(f"a {type(layer).__name__} as layer {index}: give an nn.Module")
        for name, weight in layer.named_parameters():
            if is_lazy(weight):
                raise ValueError(f"{layer_text(layers, index)}, whose {name} has no size yet: give it its sizes")
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
    """One forward of all layers on the meta device, each checked.

    Attributes:
        tokens: the input.
        outputs: the output of each layer.
        random: the layers that draw random numbers.
    """

    def __init__(self, layers: Sequence[nn.Module], made: Layers, rows: int) -> None:
        self._layers, self._made = layers, made
        self.outputs: list[Tensor] = []
        self.random: list[int] = []
        self.tokens = x = torch.empty((rows, made.context), dtype=torch.int64, device="meta")
        for index in range(len(layers)):
            x = self._run(index, x)
            self.outputs.append(x)

    def _run(self, index: int, x: Tensor) -> Tensor:
        layer, name = self._layers[index], layer_text(self._layers, index)
        entered = x.detach().requires_grad_(x.is_floating_point()).clone()
        version, buffers, numbers = entered._version, _versions(layer), _numbers(layer)
        with Watch(entered) as seen:
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
        if not y.requires_grad:
            raise ValueError(
                f"{name}, whose output has no gradient: join it and its neighbour with weights to one layer "
                "(nn.Sequential), and do not detach"
            )
        if not y.is_contiguous():
            raise ValueError(f"{name}, whose output is not contiguous in memory: add .contiguous() to it")
        if seen.vocabulary is not None and seen.vocabulary < (wanted := self._made.vocabulary):
            raise ValueError(
                f"{name}, which embeds {seen.vocabulary} different tokens: the data have tokens from 0 to "
                f"{wanted - 1}, give it {wanted}"
            )
        if seen.draws:
            self.random.append(index)
        return y

    def _check_buffers(self, name: str, changed: Sequence[str]) -> None:
        if not self._made.changes_buffers:
            raise ValueError(
                f"{name}, whose forward changes {changed[0]} from one microbatch to the next: use a layer that does "
                "not, or declare it with Layers(..., changes_buffers=True)"
            )


def _check_loss(made: Layers, output: Tensor, tokens: Tensor) -> None:
    given = f"(output {tensor_text(output)}, targets {tensor_text(tokens)})"
    loss = tried(lambda: made.loss(output, tokens), f"a loss that fails for {given}", "make them fit")
    if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
        got = tensor_text(loss) if isinstance(loss, Tensor) and loss.requires_grad else "no tensor with a gradient"
        raise ValueError(f"a loss that makes {got} of {given}: return the mean over the rows, one number")


_ATEN = torch.ops.aten
_PRODUCTS = {_ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default, _ATEN.baddbmm.default, _ATEN.convolution.default}


class Watch(TorchDispatchMode):
    """Watches the operations of a layer.

    Attributes:
        draws: whether one draws random numbers.
        vocabulary: the number of different tokens that it embeds; None if it embeds none.
    """

    def __init__(self, entered: Tensor) -> None:
        super().__init__()
        self._entered, self.draws = entered, False
        self.vocabulary: int | None = None

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
        return func(*args, **(kwargs or {}))


def tried(call: Callable[[], Any], what: str, remedy: str) -> Any:
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a layer may be the user's own, and exit
        said = " ".join(f"{type(error).__name__}: {error}".split())
        said = said if len(said) <= LONGEST else f"{said[: LONGEST - 3]}..."
        raise ValueError(f"{what} ({said}): {remedy}") from error


def _check_mean(made: Layers, output: Tensor) -> None:
    """Raise ValueError if the loss is not the mean over the rows; not if it cannot be tried with random numbers."""
    rows = 3
    if output[0].numel() * rows > _MOST:
        return
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((rows, *output.shape[1:]), generator=generator).to(output.dtype)
    targets = torch.randint(0, made.vocabulary, (rows, made.context), generator=generator)
    try:
        whole, first, rest = (
            float(made.loss(logits[part], targets[part])) for part in (slice(0, 3), slice(0, 1), slice(1, 3))
        )
    except IndexError as error:
        raise ValueError(
            f"a loss that fails for targets from 0 to {made.vocabulary - 1} (IndexError: {error}): let the last "
            f"layer make {made.vocabulary} numbers for each token"
        ) from error
    except Exception:  # it may need numbers of another kind
        return
    mean = (first + 2 * rest) / 3
    if abs(whole - mean) > 0.01 * max(abs(whole), abs(mean)):
        raise ValueError(
            f"a loss that is not the mean over the rows ({whole:.4g} for three rows, {first:.4g} and {rest:.4g} for "
            "the first one and the other two): microbatches would not add up, so divide it by the number of rows"
        )


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
