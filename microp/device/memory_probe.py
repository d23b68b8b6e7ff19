"""Measures the memory of a model's layers by running microbatches through each different one.

::

    bytes alive    │            ╭╮ in_backward
                   │         ╭──╯╰╮        ╭╮ in_weight
                   │         │    ╰────────╯╰╮
                   │ ────────╯               ╰────
                   └────┬──────┬───────┬──────┬───
                        F  activation  B  pending  W

Each layer is measured at two numbers of rows, because its memory is a linear function of them, but for the small
products of W: which of them are added in one call depends on the rows. A large model is measured with fewer rows.
"""

from __future__ import annotations

from math import ceil, prod

import torch

from microp.device.meters import MemoryMeter
from microp.model import SMALL, Batch, Model, Stage, adds_in_product, build_model
from microp.settings import AS_WRITTEN, NEVER, Computing, ModelSettings
from microp.simulator import MOST_ROWS, LayerBytes, LayerMemory, Size

LARGEST = 200_000_000  # weights; a larger model is not built for a measurement
WORK = 1_000_000_000  # multiplications per microbatch; a larger microbatch is measured with fewer rows


def probe_layers(
    settings: ModelSettings, rows: float, split: bool, computing: Computing = AS_WRITTEN
) -> list[LayerMemory]:
    """Return the memory of every layer; layers that are equal are measured once.

    Args:
        rows: the rows of a microbatch at which the sizes are exact.
        split: whether the backward is divided into I and W.

    Raises:
        ValueError: the model has more than `LARGEST` weights, or a layer of a user's own fails.
    """
    if settings.weights > LARGEST:
        raise ValueError(f"the model has more than {LARGEST:,} weights: too many to be built and measured here")
    model, threads = build_model(settings), torch.get_num_threads()
    torch.set_num_threads(1)  # the work is small; on busy cores, threads that wait for each other take seconds
    measured: dict[int, LayerMemory] = {}
    try:
        for kind in settings.kinds:
            if kind not in measured:
                measured[kind] = _Probe(settings, model, kind, split, computing).measure(rows)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a layer may be the user's own, and exit
        raise ValueError(f"layer {kind} cannot be measured: {type(error).__name__}: {error}") from error
    finally:
        torch.set_num_threads(threads)
    return [measured[kind] for kind in settings.kinds]


class _Probe:
    """One layer, built as a stage of its own to run microbatches under a memory meter."""

    def __init__(self, settings: ModelSettings, model: Model, index: int, split: bool, computing: Computing) -> None:
        self._settings, self._computing, self._model, self._split = settings, computing, model, split
        [self._layer] = model.build([index], 0)
        self._first, self._index = index == 0, index
        self._loss = model.loss if index == settings.layers - 1 else None
        parameters = list(self._layer.parameters())
        self._weights = sum(p.nbytes for p in parameters if p.requires_grad)
        self._frozen = sum(p.nbytes for p in parameters) - self._weights
        linears = [module for module in self._layer.modules() if isinstance(module, torch.nn.Linear)]
        self._linear_weights = [p for linear in linears for p in linear.parameters() if p.requires_grad]
        self._places = prod(settings.boundary(1, max(1, index))[1:-1]) if settings.layers > 1 else 1
        self._work = sum(p.numel() for p in parameters) * self._places

    def measure(self, rows: float) -> LayerMemory:
        """Return the layer's memory, linear between two numbers of rows, the larger of them `rows` if it is small."""
        more = max(2, min(ceil(rows), MOST_ROWS, WORK // max(1, self._work)))
        fewer = more // 2
        at_more = self._send(more)
        slopes = [(low, (high - low) / (more - fewer)) for low, high in zip(self._send(fewer), at_more, strict=True)]
        sizes = [Size(low - slope * fewer, slope) for low, slope in slopes]
        return LayerMemory(self._weights, *sizes[1:])._replace(products=Size(at_more.products))

    def _send(self, rows: int) -> LayerBytes:
        """Run microbatches of `rows` rows and return the memory of one that adds to existing gradients."""
        split = (0, 1) if self._split else ()
        subject = Stage([self._layer], self._loss, NEVER, 3, split, computing=self._computing)
        subject.divide([self._model.sample(self._index, 2, self._computing)], [self._index])
        inputs, targets = ([each] * 3 for each in self._model.some_rows(rows))
        subject.load(Batch(0, inputs if self._first else None, targets if self._loss else None, [1 / 3] * 3))
        small = self._small_products(rows) if split else 0
        meter = MemoryMeter(subject.tensors())
        with meter:
            for microbatch in (0, 1):
                before = meter.bytes
                output = subject.forward(microbatch, self._input(rows))
                sent, with_output = output.nbytes, meter.bytes
                del output
                activation, meter.peak_bytes = meter.bytes - before, meter.bytes
                shared = 0 if self._loss else sent - (with_output - meter.bytes)
                subject.backward(microbatch, None if self._loss else self._entering(rows, self._index + 1))
                pending, in_backward = meter.bytes - before, meter.peak_bytes - before - activation
                meter.peak_bytes = meter.bytes
                if split:
                    subject.weight_gradient(microbatch, None)
                in_weight = meter.peak_bytes - before - pending
            in_forward, in_full = self._send_undivided(subject, meter, rows)
        subject.layers.zero_grad()
        subject.undo_division()
        products = min(in_weight, small)
        return LayerBytes(
            weights=self._weights,
            activation=activation,
            boundary=0 if self._first else self._entering(rows, self._index).nbytes,
            shared=shared,
            pending=pending if split else 0,
            in_backward=in_backward,
            in_weight=in_weight - products,
            products=products,
            in_forward=in_forward,
            in_full=in_full,
            frozen=self._frozen,
        )

    def _small_products(self, rows: int) -> int:
        """Return the bytes of the Linears' small products that W adds in one call, apart from the product."""
        rows, threads = rows * self._places, torch.get_num_threads()
        small = [p for p in self._linear_weights if p.nbytes <= SMALL]
        if self._computing.dtype is None:
            small = [p for p in small if p.dim() < 2 or not adds_in_product(rows, *p.shape, p.dtype, p.device, threads)]
        return sum(p.nbytes for p in small)

    def _send_undivided(self, subject: Stage, meter: MemoryMeter, rows: int) -> tuple[int, int]:
        """Run a forward that keeps nothing, and a microbatch whose backward is not divided.

        Returns:
            What the forward needs beside its input, and the backward beside what its forward kept.
        """
        x = self._input(rows)
        before = meter.peak_bytes = meter.bytes
        with torch.no_grad(), subject.autocast:
            subject.layers[0](subject.batch.inputs[0] if x is None else x)  # type: ignore[index]
        in_forward = meter.peak_bytes - before
        del x
        before = meter.bytes
        subject.forward(2, self._input(rows))
        held = meter.peak_bytes = meter.bytes
        subject.backward(2, None if self._loss else self._entering(rows, self._index + 1))
        return in_forward, meter.peak_bytes - held

    def _input(self, rows: int) -> torch.Tensor | None:
        return None if self._first else self._entering(rows, self._index)

    def _entering(self, rows: int, layer: int) -> torch.Tensor:
        dtype = getattr(torch, self._settings.entering(layer, self._computing))
        return torch.zeros(self._settings.boundary(rows, layer), dtype=dtype)
