"""Measures the memory of a model's layers by running microbatches through each different one.

::

    bytes alive    │            ╭╮ in_backward
                   │         ╭──╯╰╮        ╭╮ in_weight
                   │         │    ╰────────╯╰╮
                   │ ────────╯               ╰────
                   └────┬──────┬───────┬──────┬───
                        F  activation  B  pending  W

Each layer is measured at two numbers of rows, because its memory is a linear function of them, but for the small
products of W: which of them are added in one call depends on the rows. A large model is measured with fewer rows,
and one of very many weights with fake tensors: nothing is computed, and its layers count as divided by parts.
With slices of the sequence the units of a microbatch are measured one by one: a later one holds more keys and values.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from math import ceil, prod
from weakref import ref

import torch

from microp.device.meters import MemoryMeter
from microp.model import SMALL, Batch, Model, Sliced, Stage, adds_in_product, build_model, fake_tensors
from microp.settings import AS_WRITTEN, NEVER, Computing, ModelSettings, OwnSettings
from microp.simulator import MOST_ROWS, NOTHING, WORK, LayerBytes, LayerMemory, Size

LARGEST = 10_000_000  # weights; the layers of a larger model are fake
LARGEST_OWN = 200_000_000  # the same of a user's own, which may look at their numbers


def probe_layers(
    settings: ModelSettings, rows: float, split: bool, computing: Computing = AS_WRITTEN, slices: int = 1
) -> list[LayerMemory]:
    """Return the memory of every layer; layers that are equal are measured once.

    Args:
        rows: the rows of a microbatch at which the sizes are exact.
        split: whether the backward is divided into I and W.
        slices: the number of slices of a row; the memory is that of the first, whose `later` has the others.

    Raises:
        ValueError: a layer of a user's own fails.
    """
    largest = LARGEST_OWN if isinstance(settings, OwnSettings) else LARGEST
    is_fake, threads = settings.weights > largest, torch.get_num_threads()
    torch.set_num_threads(1)  # the work is small; on busy cores, threads that wait for each other take seconds
    measured: dict[int, LayerMemory] = {}
    try:
        with fake_tensors() if is_fake else nullcontext():
            model = build_model(settings)
            for kind in dict.fromkeys(settings.kinds):
                measured[kind] = _Probe(settings, model, kind, split, computing, slices, is_fake).measure(rows)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a layer may be the user's own, and exit
        raise ValueError(f"layer {kind} cannot be measured: {type(error).__name__}: {error}") from error
    finally:
        torch.set_num_threads(threads)
    return [measured[kind] for kind in settings.kinds]


class _Watched:
    """Tells how many bytes of a tensor are still in use by others."""

    def __init__(self, tensor: torch.Tensor | None) -> None:
        self._storage = None if tensor is None else ref(tensor.untyped_storage())

    @property
    def bytes(self) -> int:
        storage = self._storage() if self._storage else None
        return storage.nbytes() if storage is not None else 0


class _Copy(torch.nn.Module):
    """Copies what enters, as the output of a layer before the next one, and watches the copies."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: list[_Watched] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        copy = x.clone()
        self.watched.append(_Watched(copy))
        return copy


class _Probe:
    """One layer, built as a stage of its own to run microbatches under a memory meter."""

    def __init__(
        self,
        settings: ModelSettings,
        model: Model,
        index: int,
        split: bool,
        computing: Computing,
        slices: int,
        is_fake: bool,
    ) -> None:
        self._settings, self._computing, self._model, self._split = settings.of_slice(slices), computing, model, split
        self._slices, self._is_fake = slices, is_fake
        [self._layer] = model.build([index], 0)
        self._first, self._index = index == 0, index
        self._loss = model.loss if index == settings.layers - 1 else None
        parameters = list(self._layer.parameters())
        self._weights = sum(p.nbytes for p in parameters if p.requires_grad)
        self._fixed = sum(each.nbytes for each in (*parameters, *self._layer.buffers())) - self._weights
        linears = [module for module in self._layer.modules() if isinstance(module, torch.nn.Linear)]
        self._linear_weights = [p for linear in linears for p in linear.parameters() if p.requires_grad]
        self._places = prod(self._settings.boundary(1, max(1, index))[1:-1]) if settings.layers > 1 else 1
        self._work = sum(p.numel() for p in parameters) * self._places
        self._stage = partial(  # of three microbatches
            Stage,
            loss=self._loss,
            checkpointing=NEVER,
            chunks=3 * slices,
            computing=computing,
            slices=slices,
            is_reached=index > settings.first_trained,
        )

    def measure(self, rows: float) -> LayerMemory:
        """Return the layer's memory, linear between two numbers of rows, the larger of them `rows` if it is small."""
        more = max(2, min(ceil(rows), MOST_ROWS, WORK // max(1, self._work)))
        fewer = more // 2
        slices = []
        for less, much in zip(self._send(fewer), self._send(more), strict=True):
            slopes = [(low, (high - low) / (more - fewer)) for low, high in zip(less, much, strict=True)]
            sizes = [Size(low - slope * fewer, slope) for low, slope in slopes]
            memory = LayerMemory._make([self._weights, *sizes[1:-1], (), 0, much.is_idle])
            slices.append(memory._replace(products=Size(much.products)))
        masks = [part.past.mask for part in self._layer.modules() if isinstance(part, Sliced) and self._slices > 1]
        common = max((mask.nbytes for mask in masks if mask is not None), default=0)
        return slices[0]._replace(later=tuple(slices[1:]), common=common)

    def _send(self, rows: int) -> list[LayerBytes]:
        """Run microbatches of `rows` rows and return the memory of one, slice by slice, that adds to gradients."""
        count = self._slices
        split = range(2 * count) if self._split else ()
        subject = self._stage(layers=[self._layer], divided=split)
        sample = None if self._is_fake else self._model.sample(self._index, 2, self._computing)
        subject.divide([sample], [self._index])
        inputs, targets = (
            [*(each.chunk(count, 1) if count > 1 else [each])] * 3 for each in self._model.some_rows(rows)
        )
        weights = [1 / (3 * count)] * 3 * count
        subject.load(Batch(0, inputs if self._first else None, targets if self._loss else None, weights))
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as thread:  # with real tensors
            small = thread.submit(self._small_products, rows).result() if split else 0
        meter = MemoryMeter(subject.tensors())
        found: dict[int, LayerBytes] = {}
        entries: dict[int, _Watched] = {}
        in_first_graphs = linear = None
        with meter:
            for first in (0, count):
                for unit in range(first, first + count):
                    before = meter.peak_bytes = meter.bytes
                    entered = self._input(rows)
                    output = subject.forward(unit, entered)
                    sent, with_output = output.nbytes, meter.bytes
                    del output
                    shared = 0 if self._loss else sent - (with_output - meter.bytes)
                    entries[unit] = _Watched(entered)
                    del entered
                    found[unit - first] = NOTHING._replace(
                        activation=meter.bytes - before,
                        shared=shared,
                        input_kept=entries[unit].bytes,
                        in_taped=meter.peak_bytes - meter.bytes,
                    )
                for unit in reversed(range(first, first + count)):
                    own = found[unit - first]
                    before = meter.peak_bytes = meter.bytes
                    gradient = None if self._loss else self._entering(rows, self._index + 1)
                    subject.backward(unit, gradient)
                    given = _Watched(gradient)
                    del gradient
                    in_backward, left = meter.peak_bytes - before, meter.bytes - before + own.activation
                    input_pending, gradient_pending = entries[unit].bytes, given.bytes
                    meter.peak_bytes = with_pending = meter.bytes
                    in_weight = in_graphs = freed = 0
                    if split:  # Linears and other modules apart, with all that waits for W
                        waiting = subject.waiting(unit)
                        linears, graphs = [*waiting.linears], [*waiting.graphs]
                        waiting.graphs = []
                        subject.weight_gradient(unit, None)
                        in_weight, made = meter.peak_bytes - with_pending, meter.bytes - with_pending
                        meter.peak_bytes, waiting.graphs = meter.bytes, [*graphs]
                        subject.weight_gradient(unit, None)
                        in_graphs, freed = meter.peak_bytes - with_pending, with_pending - meter.bytes
                        if linear is None:
                            linear, in_first_graphs = made, in_graphs
                        del linears, graphs
                    pending = with_pending - meter.bytes if split else 0
                    products = min(in_weight, small)
                    found[unit - first] = own._replace(
                        pending=pending,
                        returned=left - pending,
                        in_backward=in_backward,
                        in_weight=in_weight - products,
                        products=products,
                        in_graphs=in_graphs,
                        freed=freed,
                        input_pending=input_pending,
                        gradient_pending=gradient_pending,
                    )
            undivided = self._send_undivided(subject, meter, rows)
        subject.layers.zero_grad()
        subject.undo_division()
        of_forward, of_input_gradient = self._saved_inputs(rows, sample, subject.batch)
        boundary = 0 if self._first else self._entering(rows, self._index).nbytes
        return [
            found[at]._replace(
                weights=self._weights,
                boundary=boundary,
                in_forward=forward,
                past=past,
                in_full=full,
                in_first_graphs=in_first_graphs or 0,
                linear=linear or 0,
                frozen=self._fixed,
                input_unsaved=max(0, found[at].input_kept - of_forward[at]),
                pending_unsaved=max(0, found[at].input_pending - of_input_gradient[at]),
                is_idle=self._index < self._settings.first_trained,
            )
            for at, (forward, past, full) in enumerate(undivided)
        ]

    def _saved_inputs(self, rows: int, sample: torch.Tensor | None, batch: Batch) -> list[list[int]]:
        """Return the bytes of what enters that operations keep from F to B, and from I to W, slice by slice."""
        if self._first or self._computing.compile:
            return [[self._entering(rows, max(1, self._index)).nbytes] * self._slices] * 2
        copy, units = _Copy(), range(self._slices)
        subject = self._stage(layers=[copy, self._layer], divided=units if self._split else ())
        subject.divide([None, sample], [self._index - 1, self._index])
        subject.load(batch)
        saved, pending = [], []
        for unit in units:
            subject.forward(unit, self._entering(rows, self._index))
            saved.append(copy.watched[unit].bytes)
        for unit in reversed(units):
            subject.backward(unit, None if self._loss else self._entering(rows, self._index + 1))
        if self._split:
            pending = [copy.watched[unit].bytes for unit in units]
        for unit in units if self._split else ():
            subject.weight_gradient(unit, None)
        subject.undo_division()
        subject.layers.zero_grad()
        return [saved, pending or saved]

    def _small_products(self, rows: int) -> int:
        """Return the bytes of the Linears' small products that W adds in one call, apart from the product."""
        rows, threads = rows * self._places, torch.get_num_threads()
        small = [p for p in self._linear_weights if p.nbytes <= SMALL]
        if self._computing.dtype is None:
            small = [p for p in small if p.dim() < 2 or not adds_in_product(rows, *p.shape, p.dtype, p.device, threads)]
        return sum(p.nbytes for p in small)

    def _send_undivided(self, subject: Stage, meter: MemoryMeter, rows: int) -> list[tuple[int, int, int]]:
        """Run forwards that keep nothing, and a microbatch whose backward is not divided.

        Returns:
            For each slice what the forward needs beside its input, what it keeps even so, and what the backward needs
            beside what its forward kept.
        """
        units, forwards, backwards = range(2 * self._slices, 3 * self._slices), [], []
        for unit in units:
            x = self._input(rows)
            before = meter.peak_bytes = meter.bytes
            subject.try_forward(unit, x)
            past = meter.bytes - before
            forwards.append((meter.peak_bytes - before - past, past))
            del x
        subject.load(subject.batch)
        for unit in units:
            subject.forward(unit, self._input(rows))
        for unit in reversed(units):
            held = meter.peak_bytes = meter.bytes
            subject.backward(unit, None if self._loss else self._entering(rows, self._index + 1))
            backwards.append(meter.peak_bytes - held)
        return [(*forward, full) for forward, full in zip(forwards, reversed(backwards), strict=True)]

    def _input(self, rows: int) -> torch.Tensor | None:
        return None if self._first else self._entering(rows, self._index)

    def _entering(self, rows: int, layer: int) -> torch.Tensor:
        dtype = getattr(torch, self._settings.entering(layer, self._computing))
        return torch.zeros(self._settings.boundary(rows, layer), dtype=dtype)
