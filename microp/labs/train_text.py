"""Lab 10: training. A small gpt learns from real text, in a pipeline of two ranks and in one process.

::

    loss  5.5 ╲                   2 ranks, 1F1B ═ one process: the same numbers
               ╲___
          2.0      ‾‾‾──────      before: "\\xf1kQ..."    after: "def get(..."
              0         steps

The text is the source of Python's own library. Two minutes: `python -m microp.labs 10 steps=400`, or `--steps 400`.
"""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from microp.config import ConfigError, job_of
from microp.job import Job
from microp.labs.typed import bar, flags_of, parser_of, say
from microp.model import build_model, open_data
from microp.records import read_rows
from microp.system import run_command
from microp.terminal import Board, out
from microp.worker import launch_ranks, monolith

WORDS = (
    *("model=gpt", "model.layers=4", "batch_size=16", "schedule=1f1b", "ranks=2", "chunks=4"),
    *("learning_rate=0.003", "optimizer.decay=cosine", "warmup_steps=0", "snapshot.final=true"),
)
SAMPLE = 400  # bytes
TEMPERATURE = 0.8  # below 1, likely bytes become likelier


@contextmanager
def shown(name: str, job: Job, lines: Path) -> Iterator[None]:
    """Show the progress of a training that writes a line per step."""
    board = Board()
    board.open([job.steps])
    with board.point(name, job.steps, lines):
        yield
    board.close()


def train(job: Job, attempt: Path) -> list[float]:
    """Train in the pipeline, which writes into the folder `attempt`; return the loss of each step."""
    with shown("the pipeline", job, attempt / "steps.rank0.jsonl"):
        launch_ranks(job, attempt)
    return [row["loss"] for row in read_rows(attempt, job.ranks - 1) if row["phase"] == "measured"]


def train_alone(job: Job, progress: Path) -> list[float]:
    """Train in this process, which writes a line per step into the file `progress`; return the loss of each step."""
    torch.set_num_threads(1)
    losses = []
    with shown("one process", job, progress), progress.open("w", buffering=1) as lines:
        for step in monolith.steps(job, job.steps):
            losses.append(step.loss)
            lines.write("\n")
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


def main(arguments: list[str] | None = None) -> int:
    """Train twice, compare the losses, draw them, and print what the model writes."""
    parser = parser_of("train_text", __doc__)
    steps = "over which the learning rate falls (default: 2000, ten minutes)"
    parser.add_argument("--steps", metavar="N", type=int, default=2000, help=steps)
    parser.add_argument("--folder", type=Path, default=Path("outputs/train_text"), help="for the curve and the text")
    options = flags_of(parser, arguments)
    try:
        job = job_of(*WORDS, f"steps={options.steps}", f"optimizer.warmup_steps={max(0, options.steps // 20)}")
        options.folder.mkdir(parents=True, exist_ok=True)
    except (ConfigError, OSError) as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as attempt:
        pipeline, alone = train(job, Path(attempt)), train_alone(job, Path(attempt) / "alone")
        trained = torch.load(Path(attempt) / "weights.pt", weights_only=True)
    for step in sorted({*range(0, job.steps, max(1, job.steps // 20)), job.steps - 1}):
        print(bar(f"step {step:5}  loss {pipeline[step]:.3f}  ", pipeline[step], max(pipeline)))
    same = sum(one == other for one, other in zip(pipeline, alone, strict=True))
    caption = (
        f"Loss of each step of a gpt with {job.model.weights:,} weights, on 2 ranks with 1F1B and 4 microbatches, and "
        f"in one process: {same} of {job.steps} losses are the same bit for bit. One run each; from {alone[0]:.2f} to "
        f"{alone[-1]:.2f} nats per byte, where a guess among 256 bytes has 5.55."
    )
    model = nn.Sequential(*build_model(job.model).build(range(job.model.layers), job.seed))
    before = sample(job, model, SAMPLE)
    model.load_state_dict(trained)
    text = f"\nbefore training:\n{before}\n\nafter training:\n{sample(job, model, SAMPLE)}\n"
    (options.folder / "sample.txt").write_text(f"{caption}\n{text}")
    rows = [f"{step},{one!r},{other!r}" for step, (one, other) in enumerate(zip(pipeline, alone, strict=True))]
    curve = options.folder / "loss.csv"
    curve.write_text("\n".join(["step,pipeline,one_process", *rows, ""]))
    say(f"\n{caption}")
    for line in text.split("\n"):
        print("\n".join(textwrap.wrap(line, out.width, drop_whitespace=False)))
    print(f"{curve}: the loss of each step; sample.txt beside it: this text")
    return 0


if __name__ == "__main__":
    run_command(main)
