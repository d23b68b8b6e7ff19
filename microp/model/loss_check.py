"""Checks the loss of a user's own model: is it the mean over the rows, and does it read nothing of other ranks?

::

    layers ──► output ─ watched ─► loss       what it reads and writes; again, after other inputs of the layers
    numbers of many rows ─────┬──► loss       together
                              └──► losses     one by one: their mean, and its gradient, must be the same
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from math import inf, isfinite, nan

import torch
from torch import Tensor, nn

from microp.model.own import Layers
from microp.model.randomness import seeded
from microp.model.trial import (
    COARSE,
    MOST,
    TOLERANCE,
    Trial,
    are_equal,
    leaves_of,
    or_none,
    owner_text,
    rows_for_trial,
    size_of,
)
from microp.model.watch import Watch, tensor_text, tried

_KINDS: tuple[Callable[[Tensor], Tensor], ...] = (  # what a loss may ask of its numbers: any, or shares
    torch.Tensor.clone,
    lambda logits: logits.flatten(1).softmax(1).view_as(logits),
)


_CHANGES = "a loss that makes another number of the same output: let it draw no random numbers, and keep nothing"
_IGNORED = (-100, -1, 255)  # what losses ignore by custom; -100 is torch's default
_MISSING = (nan, 0.0, -1.0, -100.0, 255.0, -999.0, -9999.0, inf)  # the same of targets that are no integers
_OTHERS = 8  # rows of targets that the data do not have
_MOST_CLASSES, _MOST_NUMBERS = 1_000, 100_000_000  # that are tried: classes, and the numbers of all outputs with them


def check_loss(made: Layers, layers: Sequence[nn.Module], trials: Sequence[Trial]) -> tuple[float, ...]:
    """Raise ValueError if the loss would be another one, or have another gradient, in a pipeline.

    Returns the numbers with which it would be, if a target of the model's own data were one: the trial sees some rows
    only, and a number that does not count, or weighs more, may be rare.
    """
    for trial in trials:
        _check_call(made, layers, trial.outputs[-1], trial.targets)
    if trials[0].is_real:
        _check_alone(made, trials[0])
    return _check_mean(made, trials[0].outputs[-1])


def _check_call(made: Layers, layers: Sequence[nn.Module], output: Tensor, tokens: Tensor) -> None:
    """Raise ValueError if one call fails, or reads, writes or draws what it must not."""
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
    for tensor in chain(seen.weights, leaves_of(loss)):
        if tensor is not leaf and tensor.requires_grad and id(tensor) not in seen.made:
            raise ValueError(
                f"a loss that reads {owner_text(layers, tensor)}, which may be on another rank: let the last layer "
                "return what the loss needs; a penalty on weights is optimizer.weight_decay"
            )
    if seen.draws or draws():
        raise ValueError("a loss that draws random numbers, which depend on the microbatches: draw them in a layer")


def _check_alone(made: Layers, trial: Trial) -> None:
    """Raise ValueError if the loss depends on what layers keep, which is of their newest input."""
    inputs, targets = trial.many_rows()
    output = trial.replay(inputs)[-1]
    kept, again = (or_none(_loss_of, made, output, targets) for _ in range(2))
    if kept and again and kept[0] != again[0] and again[0] == again[0]:
        raise ValueError(_CHANGES)
    trial.replay(inputs.flip(0))
    other = or_none(_loss_of, made, output, targets)
    differ = kept and other and not are_equal(kept[1], other[1], size_of(kept[1]))
    if (kept is None) != (other is None) or differ:
        raise ValueError(
            "a loss that depends on what a layer keeps, which may be on another rank: let the last layer return it"
        )


def _check_mean(made: Layers, output: Tensor) -> tuple[float, ...]:
    """Raise ValueError if the loss is not the mean over the rows, whatever the tokens; see `check_loss`."""
    logits, targets, groups = _rows_that_differ(made, output)
    failed: Exception | None = None
    for kind in _KINDS:
        try:
            given = kind(logits)
            apart = [_loss_of(made, given[row : row + 1], targets[row : row + 1], 0.5) for row in range(len(given))]
            wholes = [_loss_of(made, given[group], targets[group]) for group in groups]
            again, _ = _loss_of(made, given[groups[0]], targets[groups[0]])
        except IndexError as error:
            if made.data is not None:
                raise ValueError(f"a loss that fails for the targets of the data (IndexError: {error})") from error
            raise ValueError(
                f"a loss that fails for targets from 0 to {made.vocabulary - 1} (IndexError: {error}): let the last "
                f"layer make {made.vocabulary} numbers for each token"
            ) from error
        except Exception as error:  # it may need numbers of another kind
            failed = error
            continue
        if wholes[0][0] != again and again == again:
            raise ValueError(_CHANGES)
        if all(isfinite(whole) for whole, _ in wholes):
            for group, whole in zip(groups, wholes, strict=True):
                shapes = f"output {tensor_text(given[group])}, targets {tensor_text(targets[group])}"
                _compare(whole, apart[group], given.dtype, shapes)
            return () if made.data is None else _uneven(made, given, targets)
    said = "it is not finite" if failed is None else f"{type(failed).__name__}: {failed}"
    raise ValueError(f"a loss that cannot be tried with numbers ({said}): let it take any numbers of the last layer")


def _uneven(made: Layers, given: Tensor, targets: Tensor) -> tuple[float, ...]:
    """Return the numbers with one of which as a target the loss is no mean over the rows.

    Tried are what losses ignore by custom, and the classes that the output may stand for, in the first of two rows.

    Raises:
        ValueError: it is none for other targets that are no integers, of the size that those of the data have.
    """
    if targets.dtype is torch.bool:
        return ()
    if targets.is_floating_point():
        if problem := _mean_problem(made, given[:_OTHERS], _others(targets[:_OTHERS])):
            raise ValueError(problem)
        numbers: Sequence[float] = _MISSING
    else:
        classes = min(max(given.shape[1:], default=0), _MOST_CLASSES, _MOST_NUMBERS // given[:2].numel())
        numbers = (*_IGNORED, *range(classes))
    uneven = []
    for number in numbers:
        tried_targets = targets[:2].clone()
        with suppress(RuntimeError):  # the type of the targets has no such number
            tried_targets.view(2, -1)[0, 0] = number
        if _mean_problem(made, given[:2], tried_targets):
            uneven.append(number)
    return tuple(uneven)


def _others(targets: Tensor) -> Tensor:
    """Return other targets between the least and the most of some, and 0; shares, if the last dimension has shares."""
    low, high = min(0.0, float(targets.min())), max(0.0, float(targets.max()))
    draws = torch.rand(targets.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if targets.dim() > 1 < targets.shape[-1] and torch.allclose(targets.sum(-1), torch.ones(()).to(targets), atol=1e-3):
        return (draws / draws.sum(-1, keepdim=True)).to(targets)
    return (low + (high - low or 1.0) * draws).to(targets)


def _mean_problem(made: Layers, given: Tensor, targets: Tensor) -> str | None:
    """Return why the loss of some rows is not the mean of their own; None also if it takes no such targets."""
    try:
        apart = [_loss_of(made, given[row : row + 1], targets[row : row + 1]) for row in range(len(given))]
        whole = _loss_of(made, given, targets)
    except Exception:  # a run with such a target fails too
        return None
    if not isfinite(whole[0]):  # as a run with such a target is
        return None
    try:
        _compare(whole, apart, given.dtype, f"output {tensor_text(given)}, targets that the data might have")
    except ValueError as error:
        return str(error)
    return None


def _rows_that_differ(made: Layers, output: Tensor) -> tuple[Tensor, Tensor, list[slice]]:
    """Return outputs and targets of many rows, and groups of rows of which a loss must be the mean.

    The rows differ in what they are worth: their numbers have other sizes, and each has few tokens, at its end another
    one than the row before. So a loss that leaves a token out, or weighs tokens, is no mean over the rows. All tokens
    of a small vocabulary are tried; of a large one those from both ends, since padding is often the first or the last.
    """
    vocabulary = made.vocabulary
    rows = max(2, min(vocabulary + 16, MOST // max(1, output[0].numel())))
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn((rows, *output.shape[1:]), generator=generator, dtype=torch.float32)
    logits = normal * torch.rand(rows, generator=generator).mul_(4).view(-1, *[1] * (output.dim() - 1))
    if made.data is not None:  # of which the targets are what they are
        halves = [slice(0, rows // 2), slice(rows // 2, rows)]
        return logits.to(output.dtype), rows_for_trial(made, rows)[1], [*halves, slice(0, rows)]
    blocks = min(made.context, max(8, min(64, -(-vocabulary // rows))))
    ends = torch.tensor([end for token in range(8) for end in (token, vocabulary - 1 - token)]).clamp(0, vocabulary - 1)
    order = torch.cat([ends, torch.randperm(vocabulary, generator=generator)])
    block = torch.arange(made.context) * blocks // made.context
    stride = 1 if rows > vocabulary or output.dim() < 3 else blocks
    targets = order[(stride * torch.arange(rows)[:, None] + blocks - 1 - block) % len(order)]
    if output.shape[1:] == (made.context, vocabulary):  # some are sure of their tokens, as after training
        logits.scatter_add_(2, targets[..., None], torch.rand((*targets.shape, 1), generator=generator).mul_(12))
    groups = [slice(first, first + blocks + 1) for first in range(0, rows, blocks + 1)]  # the rows that have one token
    return logits.to(output.dtype), targets, [*groups, slice(0, rows)]  # a group has only some of the tokens


def _compare(
    whole: tuple[float, Tensor], parts: Sequence[tuple[float, Tensor]], dtype: torch.dtype, shapes: str
) -> None:
    """Raise ValueError if the loss of some rows and its gradient are not the means of the rows' own."""
    (loss, gradient), mean = whole, sum(part for part, _ in parts) / len(parts)
    if not abs(loss - mean) <= TOLERANCE.get(dtype, COARSE) * max(abs(loss), abs(mean)):
        raise ValueError(
            f"a loss that is not the mean over the rows ({loss:.6g} for {len(parts)} rows, {mean:.6g} the "
            f"mean of their own; {shapes}): microbatches would not add up, so divide it by the number of rows, and let "
            "every row and every token count the same (no ignore_index, no mask; class weights only if they do not "
            "change what it is divided by: (weight[targets] * cross_entropy(..., reduction='none')).mean())"
        )
    if not are_equal(gradient, torch.cat([part for _, part in parts]) / len(parts), size_of(gradient)):
        raise ValueError(
            "a loss whose gradient is not the mean over the rows: microbatches would not add up, so let every "
            "row and every token count the same (no ignore_index, no mask, no hardest tokens; class weights only as "
            "(weight[targets] * cross_entropy(..., reduction='none')).mean()), and a Function use the gradient that "
            "it is given"
        )


def _loss_of(made: Layers, logits: Tensor, targets: Tensor, factor: float = 1.0) -> tuple[float, Tensor]:
    """Return the loss and its gradient, which the backward of `factor` gives; zeros if it has none."""
    leaf = logits.detach().requires_grad_()
    loss = made.loss(leaf.clone(), targets.clone())
    loss.backward(torch.full_like(loss, factor))
    return float(loss.detach()), torch.zeros_like(leaf) if leaf.grad is None else leaf.grad / factor
