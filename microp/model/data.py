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

import numpy as np
import torch
from torch import Tensor

from microp.model.randomness import derive_seed
from microp.settings import DataSettings, TextSettings, TokenSettings

Windows = Callable[[int], Tensor]
"""step -> (rows, context + 1) int64: the inputs are all columns but the last, the targets all but the first."""


def open_data(settings: DataSettings, rows: int, context: int, seed: int) -> Windows:
    """Return a function that returns the batch of a given step.

    Args:
        context: the number of input tokens per row.
    """
    if isinstance(settings, TextSettings):
        return _text(settings, rows, context, seed)
    if isinstance(settings, TokenSettings):
        return _tokens(settings, rows, context, seed)

    def draw(step: int) -> Tensor:
        return torch.randint(0, 256, (rows, context + 1), generator=_generator(seed, step))

    return draw


def _text(settings: TextSettings, rows: int, context: int, seed: int) -> Windows:
    corpus = library_text() if settings.is_library else _read(settings)
    windows = corpus.unfold(0, context + 1, 1)  # every row that can be drawn, as a view

    def draw(step: int) -> Tensor:
        starts = torch.randint(0, len(windows), (rows,), generator=_generator(seed, step))
        return windows.index_select(0, starts).long()

    return draw


@cache
def library_text() -> Tensor:
    """Return the bytes of Python's standard library, the text that is used without `data.path`; read once."""
    return _read(TextSettings("text", None))


def _read(settings: TextSettings) -> Tensor:
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in settings.files())), dtype=torch.uint8)


def _tokens(settings: TokenSettings, rows: int, context: int, seed: int) -> Windows:
    tokens = settings.open()

    def draw(step: int) -> Tensor:
        starts = torch.randint(0, len(tokens) - context, (rows,), generator=_generator(seed, step))
        windows = [tokens[start : start + context + 1] for start in starts.tolist()]
        return torch.from_numpy(np.stack(windows).astype(np.int64))

    return draw


def _generator(seed: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, "batch", step))
