"""`python -m microp.check`: is this machine fit, and is the mathematics right?

::

    ranks start and talk ........ a tensor goes round all ranks and comes back whole
    gradients ................... equal the unpartitioned model's, bit for bit
    memory ...................... falls with checkpointing
    bubble ...................... ranks idle at the start and at the end of a step, as predicted

Real processes on the CPU, small models, under a minute. Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from microp import launch, monolith
from microp.comms import Comms, CommsSettings
from microp.data import Text
from microp.device import DeviceSettings
from microp.engine import EngineSettings
from microp.model import Gpt, Mlp
from microp.partition import uniform
from microp.plan import Plan
from microp.records import read_rows, read_spans
from microp.replicate import SyncSettings
from microp.schedules import gpipe, one_f_one_b
from microp.stage import Checkpointing
from microp.terminal import err, out
from microp.trace import idle_edges, makespan
from microp.train import Trainer

RANKS = 2
NEVER = Checkpointing("never", 0, False)
ALWAYS = Checkpointing("always", 1, False)
PLAN = Plan(
    run_id="check",
    schedule=gpipe(RANKS, 4),
    partition=uniform(8, RANKS),
    model=Mlp("mlp", 8, 256, "float32"),
    checkpointing=NEVER,
    data=Text("text", None),
    device=DeviceSettings("cpu", 1),
    backend=CommsSettings("auto", 30).backend("cpu"),
    timeout_s=30,
    batch_size=128,
    steps=5,
    warmup_steps=2,
    learning_rate=1e-3,
    seed=0,
    engine=EngineSettings("microp", False),
    sync=SyncSettings("flat", "library"),
)


def talk(plan: Plan, comms: Comms, _local_rank: int, _attempt: Path) -> bool:
    """Pass a tensor from rank to rank and back to the first; whether it comes back whole."""
    token = torch.arange(1000, dtype=torch.float32)
    after, before = (comms.rank + 1) % plan.ranks, (comms.rank - 1) % plan.ranks
    if comms.rank == 0:
        comms.send_tensor(token, after)
        token = comms.recv_tensor([1000], before)
    else:
        comms.send_tensor(comms.recv_tensor([1000], before) + 1, after)
    return comms.rank > 0 or torch.equal(token, torch.arange(1000) + float(plan.ranks - 1))


def gradients(plan: Plan, comms: Comms, local_rank: int, _attempt: Path) -> dict[int, list[Tensor]]:
    """Run two steps; the second one's gradients of this rank's layers, by layer."""
    trainer = Trainer(plan, comms, plan.device.open(local_rank, plan.workload))
    for step in range(2):
        trainer.load(step)
        trainer.step(step)
    return {
        index: monolith.gradients_of(layer)
        for number, stage in trainer.stages.items()
        for index, layer in zip(plan.partition.layers_of(number), stage.layers, strict=True)
    }


def check_talk(folder: Path) -> tuple[bool, str]:
    results = launch.run_elastic(PLAN, folder, 3, talk)
    return all(results.values()), f"{RANKS} ranks started; 1000 numbers went round and came back"


def check_gradients(folder: Path) -> tuple[bool, str]:
    worst, cases = 0.0, 0
    models = (PLAN.model, Gpt("gpt", 4, 32, "float32", 4, 16, 0.1))
    for model, build in zip(models, (gpipe, one_f_one_b), strict=True):
        for checkpointing in (NEVER, ALWAYS):
            plan = replace(
                PLAN,
                schedule=build(RANKS, 3),
                model=model,
                partition=uniform(model.layers, RANKS),
                checkpointing=checkpointing,
            )
            ranks = launch.run_elastic(plan, folder, 3, gradients)
            got = {index: grads for rank in ranks.values() for index, grads in rank.items()}
            *_, expected = monolith.steps(plan, 2)
            pairs = [
                pair for index, want in enumerate(expected.gradients) for pair in zip(got[index], want, strict=True)
            ]
            worst = max(worst, *(float((a - b).abs().max()) for a, b in pairs))
            cases += len(pairs)
    return worst == 0, f"largest difference {worst:g} over {cases} tensors (gpipe, 1f1b; mlp, gpt; never, always)"


def check_memory(folder: Path) -> tuple[bool, str]:
    peaks = {}
    for checkpointing in (NEVER, ALWAYS):
        attempt = folder / checkpointing.name
        attempt.mkdir()
        launch.run_elastic(replace(PLAN, checkpointing=checkpointing, batch_size=512), attempt, 3)
        peaks[checkpointing.name] = [read_rows(attempt, rank)[-1]["peak_memory_mib"] for rank in range(RANKS)]
    fell = all(with_it < without for with_it, without in zip(peaks["always"], peaks["never"], strict=True))
    shown = {name: ", ".join(f"{peak:.2f}" for peak in values) for name, values in peaks.items()}
    return fell, f"peak MiB per rank: never {shown['never']}; always {shown['always']}"


def check_bubble(folder: Path) -> tuple[bool, str]:
    launch.run_elastic(replace(PLAN, batch_size=512), folder, 3)
    spans = read_spans(folder)
    (first_before, first_after), (last_before, last_after) = idle_edges(spans)[0], idle_edges(spans)[RANKS - 1]
    total = makespan(spans)
    text = (
        f"of a step, rank {RANKS - 1} idles {last_before / total:.1%} at the start and {last_after / total:.1%} "
        f"at the end, rank 0 {first_before / total:.1%} and {first_after / total:.1%}"
    )
    return last_before > first_before and last_after > first_after, text


CHECKS: dict[str, Callable[[Path], tuple[bool, str]]] = {
    "ranks start and talk": check_talk,
    "gradients equal the monolith's": check_gradients,
    "memory falls with checkpointing": check_memory,
    "the trace shows the bubble": check_bubble,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the safety checks; exit code 1 if any fails."""
    argparse.ArgumentParser(prog="python -m microp.check", description=__doc__).parse_args(arguments)
    torch.set_num_threads(1)  # the monolith's sums in the ranks' order
    failed = 0
    for name, check in CHECKS.items():
        with tempfile.TemporaryDirectory() as folder, err.status(name):
            try:
                passed, figure = check(Path(folder))
            except launch.RankError as error:
                passed, figure = False, str(error)
        failed += not passed
        verdict = "[green]pass[/]" if passed else "[red]FAIL[/]"
        out.print(f"{verdict}  {name:32} {figure}", soft_wrap=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
