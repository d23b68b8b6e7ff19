"""Checks the loss of a user's own model: is it the mean over the rows, and does it read nothing of other ranks?

::

    layers ──► output ─ watched ─► loss       what it reads and writes; again, after other inputs of the layers
    numbers of many rows ─────┬──► loss       together
                              └──► losses     one by one: their mean, and its gradient, must be the same

    in a step:   some rows ───┬──► loss       together, if targets of the model's own data have a number for the first
                 new targets ─┴──► losses     time; apart: their mean, and its gradient, must be the same
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from math import inf, isfinite, nan, prod

import torch
from torch import Tensor, nn

from microp.model.own import Layers, own_rows
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
from microp.model.watch import Watch, change_by, tensor_text, tried
from microp.settings import RowForm

_KINDS: tuple[Callable[[Tensor], Tensor], ...] = (  # any numbers, shares, some that are 0 as in a mask, large ones
    torch.Tensor.clone,
    lambda logits: logits.flatten(1).softmax(1).view_as(logits),
    torch.relu,
    lambda logits: 30 * logits,
)


_CHANGES = "a loss that makes another number of the same output: let it draw no random numbers, and keep nothing"
_OTHERS = 8  # rows of targets that the data do not have
_GROUP = 16  # new rows that are tried at once: more of them would hide one that weighs otherwise
_PLACES = 8  # numbers in a row that are told apart, as a label and a flag are
_MOST_OUTPUT = 500_000  # numbers that the last layer makes of a row, to try all new numbers of targets
_NAN = -0.5  # stands for NaN, which equals nothing


def check_loss(made: Layers, layers: Sequence[nn.Module], trials: Sequence[Trial]) -> None:
    """Raise ValueError if the loss would be another one, or have another gradient, in a pipeline."""
    for trial in trials:
        _check_call(made, layers, trial.outputs[-1], trial.targets)
    if trials[0].is_real:
        _check_alone(made, trials[0])
    _check_mean(made, trials[0].outputs[-1])


class NewTargets:
    """Tries the loss with numbers that targets have for the first time: one that it ignores, or weighs, may be rare.

    A number is new if it has not yet been in its place of a row; in long rows, in any. Those with a fraction measure
    something: only the least and the largest of a batch are tried, as what a loss leaves out may lie beyond a bound.
    """

    def __init__(self, made: Layers, output: RowForm) -> None:
        self._made, (self._shape, dtype) = made, output
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._seen: dict[int, Tensor] = {}  # the numbers in each place
        self._known: Tensor | None = None  # the targets of two rows of the trial

    def check(self, step: int, targets: Tensor) -> None:
        """Raise ValueError if the loss does not add up with new numbers in a batch's targets."""
        targets = targets.cpu()
        numbers = targets.reshape(len(targets), -1).double().nan_to_num(nan=_NAN, posinf=inf, neginf=-inf)
        width, size = numbers.shape[1], max(1, prod(self._shape))
        places = numbers.split(1, 1) if width <= _PLACES else [numbers]

        # 1. rows with new numbers; what losses ignore is often negative, 0 or the largest, and comes first
        new: dict[tuple[int, float], int] = {}  # place and number -> the first row with it
        for place, mine in enumerate(places):
            is_told = _is_whole(mine) | (mine == mine.min()) | (mine == mine.max())
            is_new = is_told & ~torch.isin(mine, self._seen.get(place, mine[:0]))
            for row, number in zip(is_new.nonzero()[:, 0].tolist(), mine[is_new].tolist(), strict=True):
                new.setdefault((place, number), row)
        order = sorted(new, key=lambda key: (key[1] > 0, -key[1]))
        if size > _MOST_OUTPUT:  # there is no time for all
            order = [key for key in order if key[1] <= 0 or key[1] == 255]
        rows = list(dict.fromkeys(new[key] for key in order))[: max(1, MOST // (4 * size))]

        # 2. where a row has too many numbers to tell one: each alone; and the rows, some at a time
        tried: list[Tensor] = []
        if width > _PLACES:
            alone = (number for _, number in order[: len(rows)] if number in (_NAN, number // 1))
            tried = [torch.full_like(targets[:1], nan if number == _NAN else number) for number in alone]
        if width <= _PLACES or size <= _MOST_OUTPUT:
            group = max(1, min(_GROUP, MOST // (4 * size), 1024 // max(1, width)))
            tried += [targets[rows[first : first + group]] for first in range(0, len(rows), group)]
        for some in filter(self._fails, tried):
            row = next(filter(self._fails, some.split(1)), some[:1]).flatten().tolist()
            told = [f"{number:.7g}" for number in dict.fromkeys(row)][:_PLACES]
            raise ValueError(
                f"a target of step {step} is {', '.join(told)}, which the loss ignores or weighs otherwise: "
                "microbatches would not add up, so let it divide by the number of rows"
            )
        for place, mine in enumerate(places if rows else ()):
            now = mine[rows]
            self._seen[place] = torch.cat([self._seen.get(place, mine[:0, 0]), now[_is_whole(now)]]).unique()

    def _fails(self, targets: Tensor) -> bool:
        """Return whether the loss of some rows and as many of the trial is not the mean of both, of any numbers."""
        if self._known is None:
            self._known = own_rows(self._made.data, 1, 2, 0)[1].cpu()
        count, generator = len(targets), torch.Generator().manual_seed(0)
        joined = torch.cat([targets, self._known[torch.arange(count) % 2]])
        logits = _numbers((2 * count, *self._shape), generator).to(self._dtype)
        for kind in _KINDS:
            given = kind(logits)
            if isfinite((or_none(_loss_of, self._made, given[count:], joined[count:]) or (nan,))[0]):
                # rounding may look like it once
                return all(_mean_problem(self._made, each, joined, 2) for each in (given, given.flip(0)))
        return False


def _is_whole(numbers: Tensor) -> Tensor:
    return (numbers == numbers.round()) | (numbers == _NAN)


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
    if kept and (problem := _mean_problem(made, output, targets, len(output))):  # it may take a part for a mask
        raise ValueError(problem)
    trial.replay(inputs[:1].expand_as(inputs))
    other = or_none(_loss_of, made, output, targets)
    differ = kept and other and not are_equal(kept[1], other[1], size_of(kept[1]))
    if (kept is None) != (other is None) or differ:
        raise ValueError(
            "a loss that depends on what a layer keeps, which may be on another rank: let the last layer return it"
        )


def _check_mean(made: Layers, output: Tensor) -> None:
    """Raise ValueError if the loss is not the mean over the rows, whatever the tokens; see `check_loss`."""
    logits, targets, groups = _rows_that_differ(made, output)
    said = "it is not finite"
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
            said = said and f"{type(error).__name__}: {error}"
            continue
        if wholes[0][0] != again and again == again:
            raise ValueError(_CHANGES)
        if all(isfinite(whole) for whole, _ in wholes):
            said = ""
            for group, whole in zip(groups, wholes, strict=True):
                shapes = f"output {tensor_text(given[group])}, targets {tensor_text(targets[group])}"
                _compare(whole, apart[group], given.dtype, shapes)
            if made.data is not None and targets.is_floating_point():
                others = _others(targets[:_OTHERS])
                if problem := _mean_problem(made, given[:_OTHERS], others, len(others)):
                    raise ValueError(problem)
    if change_by(made.loss, lambda: or_none(_loss_of, made, logits[groups[0]], targets[groups[0]])):
        raise ValueError(_CHANGES)
    if said:
        raise ValueError(f"a loss that cannot be tried with numbers ({said}): let it take any of the last layer's")


def _others(targets: Tensor) -> Tensor:
    """Return other targets between the least and the most of some, and 0; shares, if the last dimension has shares."""
    low, high = min(0.0, float(targets.min())), max(0.0, float(targets.max()))
    draws = torch.rand(targets.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if targets.dim() > 1 < targets.shape[-1] and torch.allclose(targets.sum(-1), torch.ones(()).to(targets), atol=1e-3):
        return (draws / draws.sum(-1, keepdim=True)).to(targets)
    return (low + (high - low or 1.0) * draws).to(targets)


def _mean_problem(made: Layers, given: Tensor, targets: Tensor, parts: int) -> str | None:
    """Return why the loss of some rows is not the mean of equal parts; None also if it takes no such targets."""
    try:
        apart = [_loss_of(made, *part) for part in zip(given.chunk(parts), targets.chunk(parts), strict=True)]
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
    logits = _numbers((rows, *output.shape[1:]), generator)
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


def _numbers(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return random numbers, those of each row of another size."""
    normal = torch.randn(shape, generator=generator, dtype=torch.float32)
    return normal * torch.rand(shape[0], generator=generator).mul_(4).view(-1, *[1] * (len(shape) - 1))


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
