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
from microp.records import StepRow, snapshots, unwritable
from microp.worker.failure import DivergedError, not_finite, remedy
from microp.worker.trainer import Trainer


class Snapshots:
    """The snapshots of one attempt, as one rank writes and loads them."""

    def __init__(self, job: Job, comms: Comms, trainer: Trainer, attempt: Path) -> None:
        self._job, self._comms, self._trainer, self._attempt = job, comms, trainer, attempt
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
            ValueError: the model's own data make other rows than before the snapshot.
        """
        if self._job.resumed and step == self._job.resumed.step:
            self._load(Path(self._job.resumed.folder))
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
            folder = snapshots.snapshot_folder(self._attempt, step)
            with _naming(folder):
                self._save(step, folder)
        if leaves:
            path = self._attempt / snapshots.WEIGHTS
            with _naming(path):
                self._leave_weights(step, path)
        return {"snapshot_ms": (perf_counter_ns() - began) / 1e6} if saves or leaves else {}

    def _check_finite(self, step: int, diverged: str | None) -> None:
        """Raise DivergedError on all ranks if the loss or weights of any rank are not finite."""
        self._at(Place.SAVING, step)
        every = self._comms.gather_all((diverged, not_finite(self._trainer.layers)))
        if said := [loss for loss, _ in every if loss]:
            raise DivergedError(diverged or said[0])
        if bad_weights := [(*bad, rank) for rank, (_, bad) in enumerate(every) if bad]:
            layer, name, rank = max(bad_weights)
            raise DivergedError(
                f"weights are not finite after step {step - 1} ({name} of layer {layer}, on rank {rank}), and are not "
                f"saved: {remedy(self._job, step - 1)}"
            )

    def _save(self, step: int, folder: Path) -> None:
        draft = snapshots.draft_of(folder)
        self._write_layers(draft, step, with_optimizer=True)
        if self._comms.world_rank == 0:
            snapshots.write_manifest(draft, self._job, step, self._trainer.checksums)
            for path in (*draft.iterdir(), draft):
                _to_disk(path)
            draft.rename(folder)
            _to_disk(folder.parent)
            resumed = self._job.resumed if self._settings.resume else None
            snapshots.remove_older(self._attempt, self._settings.keep, resumed)

    def _leave_weights(self, step: int, path: Path) -> None:
        draft, parts = snapshots.draft_of(path), snapshots.draft_of(self._attempt / "layers")
        self._write_layers(parts, step, with_optimizer=False)
        if self._comms.world_rank == 0:
            weights: dict[str, Tensor] = {}
            for index in range(self._job.model.layers):
                layer = _read(snapshots.layer_file(parts, index))["weights"]
                weights |= {f"{index}.{name}": tensor for name, tensor in layer.items()}
            _write(draft, weights)
            _to_disk(draft)
            draft.replace(path)
            _to_disk(path.parent)
            snapshots.remove(parts)

    def _write_layers(self, folder: Path, step: int, *, with_optimizer: bool) -> None:
        """Write this rank's layers, of which other replicas have the same, and wait for the other ranks."""
        self._at(Place.SAVING, step)
        depth = self._job.schedule.depth
        if self._comms.replica == 0:
            folder.mkdir(parents=True, exist_ok=True)
            of_copies = {
                index for stage in self._trainer.stages if stage >= depth for index in self._job.layers_of(stage)
            }
            for index, layer in self._trainer.layers.items():
                if index in of_copies:  # the rank of the first copy writes it
                    continue
                state = {"optimizer": self._optimizer_of(layer)} if with_optimizer else {}
                weights = {name: _copy(tensor) for name, tensor in layer.state_dict().items()}
                _write(snapshots.layer_file(folder, index), {"weights": weights, **state})
        self._at(Place.BARRIER)
        self._comms.barrier()
        self._at(Place.SAVING)
        for index in range(self._job.model.layers if self._comms.world_rank == 0 else 0):
            if not snapshots.layer_file(folder, index).exists():
                raise OSError(f"layer {index} was written on another host's disk: give an output_dir that all share")

    def _optimizer_of(self, layer: nn.Module) -> dict[str, dict[str, Tensor]]:
        """Return the optimizer's state of each parameter; none before its first step."""
        state = self._trainer.optimizer.state
        return {
            name: {key: _copy(value) for key, value in state[parameter].items() if isinstance(value, Tensor)}
            for name, parameter in layer.named_parameters()
            if parameter in state
        }

    def _load(self, folder: Path) -> None:
        self._at(Place.RESUMING, self._job.first_step)
        optimizer = self._trainer.optimizer
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        numbers = {parameter: number for number, parameter in enumerate(parameters)}
        state: dict[int, Any] = {}
        for index, layer in self._trainer.layers.items():
            saved = _read(snapshots.layer_file(folder, index))
            layer.load_state_dict(saved["weights"])
            for name, parameter in layer.named_parameters():
                if name in saved["optimizer"]:
                    state[numbers[parameter]] = saved["optimizer"][name]
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        self._trainer.check_resumed(self._job.first_step - 1, snapshots.last_batch(folder))


@contextmanager
def _naming(wanted: Path) -> Iterator[None]:
    """Raise an OSError of the system again as WriteError, which says what cannot be written."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, ConnectionError | TimeoutError):
            raise
        raise unwritable(wanted, error) from error


def _copy(value: Any) -> Any:
    """Return a tensor on the CPU with a storage of its own, which is all that is then written; else the value."""
    return value.detach().clone().cpu() if isinstance(value, Tensor) else value  # such as `get_extra_state` returns


def _read(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


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
