"""Trains a job in a pipeline and in one process, and lets a trained gpt write text, for lab 10."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from microp.job import Job
from microp.model import open_data
from microp.records import read_rows
from microp.terminal import Board
from microp.worker import launch_ranks, monolith

TEMPERATURE = 0.8  # below 1, likely bytes become likelier


def train(job: Job, attempt: Path) -> list[float]:
    """Train in the pipeline, which writes into the folder `attempt`; return the loss of each step."""
    board = Board()
    board.open([job.steps])
    with board.point("the pipeline", job.steps, attempt / "steps.rank0.jsonl"):
        launch_ranks(job, attempt, 10)
    board.close()
    return [row["loss"] for row in read_rows(attempt, job.ranks - 1) if row["phase"] == "measured"]


def train_alone(job: Job, progress: Path) -> list[float]:
    """Train in this process, which writes a line per step into the file `progress`; return the loss of each step."""
    torch.set_num_threads(1)
    board, losses = Board(), []
    board.open([job.steps])
    with board.point("one process", job.steps, progress), progress.open("w", buffering=1) as lines:
        for step in monolith.steps(job, job.steps):
            losses.append(step.loss)
            lines.write("\n")
    board.close()
    return losses


def sample(job: Job, model: nn.Module, count: int) -> str:
    """Return `count` bytes that the model writes after a row of the data, the same ones each time, as text."""
    generator = torch.Generator().manual_seed(job.seed)
    context = job.model.row_bytes
    written = open_data(job.data, 1, context, job.seed)(job.training_steps)[:, :-1]
    with torch.no_grad():
        for _ in range(count):
            logits = model(written[:, -context:])[0, -1]
            byte = torch.multinomial(torch.softmax(logits / TEMPERATURE, -1), 1, generator=generator)
            written = torch.cat([written, byte[None]], 1)
    lines = bytes(written[0, context:].tolist()).decode(errors="backslashreplace").split("\n")
    return "\n".join("".join(c if c.isprintable() else repr(c)[1:-1] for c in line) for line in lines)
