"""Batches of bytes, or of tokens, that depend only on (seed, step).

::

    corpus   ...i m p o r t   t o r c h \\n...
    a row       [m p o r t   t o]           inputs    made on the rank of the first stage
                  [p o r t   t o r]         targets   made on the rank of the last stage

Both ranks draw the same positions of the corpus, so no data need to be sent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from microp.model.layers import Model
from microp.model.loss_check import NewTargets
from microp.model.own import Layers, own_rows
from microp.model.randomness import derive_seed
from microp.settings import DataSettings, TextSettings, TokenSettings

Windows = Callable[[int], Tensor]
"""step -> (rows, context + 1) int64: the inputs are all columns but the last, the targets all but the first."""


def open_batches(
    settings: DataSettings, model: Model, rows: int, context: int, seed: int
) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Return a function that returns the inputs and the targets of a step's batch: the model's own data, or text.

    It raises ValueError if own data have other rows than the trial was given, or targets with which the loss is no mean
    over rows.
    """
    if model.data is not None and model.facts.output:
        new = NewTargets(Layers((), model.loss, data=model.data), model.facts.output)

        def own(step: int) -> tuple[Tensor, Tensor]:
            inputs, targets = own_rows(model.data, step, rows, seed, model.facts)
            new.check(step, targets)
            return inputs, targets

        return own
    windows = open_data(settings, rows, context, seed)
    return lambda step: ((window := windows(step))[:, :-1], window[:, 1:])


def open_data(settings: DataSettings, rows: int, context: int, seed: int) -> Windows:
    """Return a function that returns the batch of a given step, with `context` input tokens per row."""
    windows = None
    if isinstance(settings, TextSettings | TokenSettings):  # every row that can be drawn, as a view of the corpus
        windows = np.lib.stride_tricks.sliding_window_view(_corpus(settings), context + 1)

    def draw(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(seed, "batch", step))
        if windows is None:
            return torch.randint(0, 256, (rows, context + 1), generator=generator)
        starts = torch.randint(0, len(windows), (rows,), generator=generator)
        return torch.from_numpy(windows[starts.numpy()].astype(np.int64))

    return draw


def _corpus(settings: TextSettings | TokenSettings) -> Any:
    if isinstance(settings, TokenSettings):
        return settings.open()
    return library_text() if settings.path is None else _read(settings)


@cache
def library_text() -> Any:
    """Return the bytes of Python's standard library, the text that is used without `data.path`; read once."""
    return _read(TextSettings("text", None))


def _read(settings: TextSettings) -> Any:
    return np.frombuffer(b"".join(path.read_bytes() for path in settings.files()), np.uint8)
