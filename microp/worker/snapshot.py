"""Saves and loads the training, each rank its own layers, and leaves the trained weights.

::

    rank 0   layer 0, 1 ─► .step-15.draft/ ┐                    ┌─► snapshot.json ─► step-15/ ─► older ones removed
    rank 1   layer 2, 3 ─► .step-15.draft/ ┴─ on disk, barrier ─┘

    a resumed attempt:   warm-up steps ─► load step-15 ─► step 15, 16, ...

Layers are saved by their index in the model, so that other ranks can load them. A file is what `torch.save` makes of
tensors in dictionaries, and is read with `weights_only`, which executes nothing. torch.distributed.checkpoint is not
used: it unpickles its metadata, and needs a process group.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn

from microp.comms import Comms, Place
from microp.job import Job
from microp.records import RecordError, StepRow, in_words, snapshots, unwritable
from microp.worker.failure import DivergedError, not_finite, remedy
from microp.worker.trainer import Trainer


class Snapshots:
    """The snapshots of one attempt, as one rank writes and loads them."""

    def __init__(self, job: Job, comms: Comms, trainer: Trainer, attempt: Path) -> None:
        self._job, self._comms, self._trainer, self._attempt = job, comms, trainer, attempt
        self._states = 1 + job.optimizer.states  # tensors per weight
        self._settings, self._at = job.snapshot, partial(comms.heartbeats.at, comms.world_rank)

    def before(self, step: int, diverged: str | None = None) -> StepRow:
        """Load or save the training before a step, as the job asks.

        A rank that cannot go on says why, as `diverged`, and still meets the other ranks where they wait for all.

        Returns:
            `snapshot_ms`, the time of saving in milliseconds; nothing if nothing was saved.

        Raises:
            DivergedError: the loss or weights are not finite, on some rank; nothing is saved, older snapshots stay.
            WriteError: a snapshot cannot be written; the message names it. Older ones are still there.
            OSError: the ranks write to disks of several hosts.
        """
        self.resume(step)
        every, began = self._settings.every, perf_counter_ns()
        saves = every is not None and step > self._job.first_step and step % every == 0
        leaves = self._settings.final and step == self._job.training_steps
        if saves or leaves:
            self._check_finite(step, diverged)
        elif diverged:
            self._at(Place.BARRIER)
            self._comms.barrier()  # the other ranks load their batch
            raise DivergedError(diverged)
        if saves:
            self._save(step)
        if leaves:
            self._leave_weights(step)
        return {"snapshot_ms": (perf_counter_ns() - began) / 1e6} if saves or leaves else {}

    def resume(self, step: int) -> None:
        """Load the training, if this is the step at which the run goes on from a snapshot."""
        if self._job.resumed and step == self._job.resumed.step:
            self._load(Path(self._job.resumed.folder))

    def _check_finite(self, step: int, diverged: str | None) -> None:
        """Raise DivergedError on all ranks if the loss or weights of any rank are not finite."""
        self._at(Place.SAVING, step)
        every = self._comms.gather_all((diverged, not_finite(self._trainer.layers)))
        if said := [loss for loss, _ in every if loss]:
            raise DivergedError(diverged or said[0])
        if found := [(*bad, rank) for rank, (_, bad) in enumerate(every) if bad]:
            layer, name, rank = max(found)
            raise DivergedError(
                f"weights are not finite after step {step - 1} ({name} of layer {layer}, on rank {rank}), and are not "
                f"saved: {remedy(self._job, step - 1)}"
            )

    def _save(self, step: int) -> None:
        folder = snapshots.snapshot_folder(self._attempt, step)
        draft = snapshots.draft_of(folder)
        self._write_layers(draft, step, folder, with_optimizer=True)
        if self._comms.world_rank == 0:
            with _naming(folder, self._size(self._states)):
                self._check_all_there(draft)
                snapshots.write_manifest(draft, self._job, step)
                for path in (draft / snapshots.MANIFEST, draft):
                    _to_disk(path)
                draft.rename(folder)
                _to_disk(folder.parent)
            resumed = self._job.resumed if self._settings.resume else None
            snapshots.remove_older(self._attempt, self._settings.keep, resumed)

    def _leave_weights(self, step: int) -> None:
        path = self._attempt / snapshots.WEIGHTS
        parts = snapshots.draft_of(self._attempt / "layers")
        self._write_layers(parts, step, path, with_optimizer=False)
        if self._comms.world_rank == 0:
            with _naming(path, self._size(1)):
                self._check_all_there(parts)
                layers = [snapshots.layer_file(parts, index) for index in range(self._job.model.layers)]
                saved = [(index, _read(file)["weights"].items()) for index, file in enumerate(layers)]
                _write(snapshots.draft_of(path), {f"{i}.{name}": tensor for i, own in saved for name, tensor in own})
                _to_disk(snapshots.draft_of(path))
                snapshots.draft_of(path).replace(path)
                _to_disk(path.parent)
            snapshots.remove(parts)

    def _write_layers(self, folder: Path, step: int, wanted: Path, *, with_optimizer: bool) -> None:
        """Write this rank's layers, of which other replicas have the same, and wait for the other ranks."""
        self._at(Place.SAVING, step)
        if self._comms.replica == 0:
            with _naming(wanted, self._size(self._states if with_optimizer else 1)):
                folder.mkdir(parents=True, exist_ok=True)
                for index, layer in self._trainer.layers.items():
                    state = {"optimizer": self._optimizer_of(layer)} if with_optimizer else {}
                    weights = {name: _copy(tensor) for name, tensor in layer.state_dict().items()}
                    _write(snapshots.layer_file(folder, index), {"weights": weights, **state})
                if with_optimizer:  # else the files are read and removed
                    for index in self._trainer.layers:
                        _to_disk(snapshots.layer_file(folder, index))
        self._at(Place.BARRIER)
        self._comms.barrier()
        self._at(Place.SAVING)

    def _optimizer_of(self, layer: nn.Module) -> dict[str, dict[str, Tensor]]:
        """Return the optimizer's state of each parameter; none before its first step."""
        state = self._trainer.optimizer.state
        return {
            name: {key: _copy(value) for key, value in state[parameter].items() if isinstance(value, Tensor)}
            for name, parameter in layer.named_parameters()
            if parameter in state
        }

    def _size(self, states: int) -> int:
        """Return about how many bytes this rank writes if it saves `states` tensors per weight."""
        weights = (tensor for layer in self._trainer.layers.values() for tensor in layer.state_dict().values())
        return states * sum(int(tensor.nbytes) for tensor in weights)

    def _check_all_there(self, folder: Path) -> None:
        for index in range(self._job.model.layers):
            if not snapshots.layer_file(folder, index).exists():
                raise OSError(f"layer {index} was written on another host's disk: give an output_dir that all share")

    def _load(self, folder: Path) -> None:
        self._at(Place.RESUMING, self._job.first_step)
        optimizer = self._trainer.optimizer
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        numbers = {parameter: number for number, parameter in enumerate(parameters)}
        state: dict[int, Any] = {}
        for index, layer in self._trainer.layers.items():
            weights, states = _read_layer(snapshots.layer_file(folder, index))
            layer.load_state_dict(weights)
            if bad := not_finite({index: layer}):
                raise RecordError(f"{bad[1]} of layer {index} is not finite in {folder}: go on from another snapshot")
            for name, parameter in layer.named_parameters():
                if name in states:
                    state[numbers[parameter]] = states[name]
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _copy(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU with a storage of its own, which is all that is then written."""
    return tensor.detach().clone().cpu()


def _read(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def _read_layer(path: Path) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Return what a snapshot holds of a layer: its weights, and the optimizer's state of its parameters.

    Raises:
        RecordError: the file cannot be read.
    """
    try:
        saved = _read(path)
        return saved["weights"], saved["optimizer"]
    except Exception as error:  # the file may hold anything
        more = "it holds more than tensors, and only tensors are loaded"
        problem = more if isinstance(error, pickle.UnpicklingError) else in_words(error)
        raise RecordError(f"{path} is not of this layer ({problem}): go on from another snapshot") from error


def _write(path: Path, value: Any) -> None:
    """Write a value to a file; in memory first, because torch names no reason if a file cannot be written."""
    made = BytesIO()
    torch.save(value, made)
    with path.open("wb") as file:
        file.write(made.getbuffer())


def _to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _naming(wanted: Path, nbytes: int) -> Iterator[None]:
    """Raise an OSError of the system again as WriteError, with the name and the size of what cannot be written."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise unwritable(wanted, error, nbytes) from error
