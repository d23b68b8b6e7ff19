"""A profile is measured by its command, and then a run is predicted before its ranks start."""

import re
import time

import pytest
from configs import config as configured
from configs import warnings
from profiled import written
from typed import type_in
from user import ran, read

from microp.commands import profiling
from microp.config import lacks_profile, make_job, predict, predicted_seconds
from microp.config.config_checks import prediction_doubts
from microp.config.prediction import prices_of
from microp.profiling import TORCH, Transport
from microp.records import read_rows
from microp.settings import Computing
from microp.terminal import progress
from microp.trace.timeline import number

MODEL = ["model.layers=4", "model.dim=16", "batch_size=8"]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "LINE_S", 0.1)
        patch.setattr(profiling, "monotonic", lambda: 0.0)  # there is time for everything
        return folder, ran(*MODEL, "seconds=1", folder=folder, program="microp.profile")


def test_the_command_writes_a_profile_and_says_what_it_found(profiled):
    folder, done = profiled
    [path] = (folder / "outputs" / "profiles").glob("mlp-*.yaml")
    assert f"outputs/profiles/{path.name}" in done.stdout
    assert re.search("^measuring mlp for about 1 s\n(measuring mlp for about 1 s: [0-9]+ %\n)+", done.stderr)
    assert re.findall(r"^(\w+): hop ", done.stdout, re.M) == ["shm", "tcp", "gloo", "torch"]
    assert "peak of a rank: " in done.stdout


def test_a_run_is_predicted_before_its_ranks_start(profiled):
    folder, *_ = profiled
    done = ran(*MODEL, "steps=3", "warmup_steps=1", "seed=7", folder=folder)
    assert "no profile of this model" not in done.stderr
    [config] = (folder / "outputs" / "runs").glob("*/attempt-1/config.yaml")
    attempt = config.parent
    predicted = read(attempt / "predicted.json")
    assert predicted["source"].startswith("outputs/profiles/mlp-")
    assert (predicted["step_ms"] > 0, 0 < predicted["bubble"] < 1) == (True, True)
    assert 0 < predicted["at_peak_ms"] < read(attempt / "summary.json")["step_ms"]["median"]
    assert "of peak" in done.stdout
    assert read(attempt / "summary.json")["predicted"] == {k: v for k, v in predicted.items() if k != "source"}
    first_step = read_rows(attempt, 0)[0]["began_ns"] / 1e9 + time.time() - time.monotonic()  # as a file's time
    assert (attempt / "predicted.json").stat().st_mtime < first_step
    assert "predicted ms" in done.stdout
    assert f"predicted {number(predicted['step_ms'])} ms" in done.stdout


def predicted(folder, *typed: str):
    config = configured(*typed, f"output_dir={folder}")
    return predict(config, make_job(config)), predicted_seconds(config, make_job(config))


def test_without_a_profile_only_the_memory_is_predicted(tmp_path):
    found, seconds = predicted(tmp_path, *MODEL, "schedule=gpipe")
    source = "no times are known, layers are weighed by their FLOPs and bytes"
    assert (found.step_ms, found.bubble, found.source, seconds) == (None, None, source, None)
    fewer, _ = predicted(tmp_path, *MODEL, "schedule=1f1b")
    assert 0 < fewer.peak_memory_mib[1] < found.peak_memory_mib[1]  # the last rank holds one microbatch, not four
    emulated, _ = predicted(tmp_path, *MODEL, "schedule=1f1b", "device=emulated")
    assert fewer.peak_memory_mib == emulated.peak_memory_mib
    torch, _ = predicted(tmp_path, *MODEL, "engine=torch")
    assert torch.peak_memory_mib is None


def test_the_operations_of_a_step_at_the_peak_of_all_ranks(tmp_path):
    """F, I and W of Linear layers of width 64: two operations per weight and row, each."""
    typed = ["model.dim=64", "batch_size=32", "ranks=2"]
    written(tmp_path, *typed, peak_gflops=0.5)
    work = 3 * 32 * 2 * 64 * (15 * 64 + 256) - 32 * 2 * 64 * 64  # the first layer has no input gradient
    assert predicted(tmp_path, *typed)[0].at_peak_ms == pytest.approx(work / 2 / 0.5e9 * 1e3)
    assert predicted(tmp_path, *typed, "device=emulated")[0].at_peak_ms is None
    written(tmp_path, *typed, peak_gflops=None)  # as one that was made before it was measured
    assert predicted(tmp_path, *typed)[0].at_peak_ms is None


def test_a_profile_of_another_type_of_products_is_not_used(tmp_path):
    """Each type has a file of its own."""
    written(tmp_path, *MODEL)
    lowered = [*MODEL, "dtype=bf16"]
    assert predicted(tmp_path, *lowered)[0].step_ms is None
    config = configured(*lowered, f"output_dir={tmp_path}")
    said = lacks_profile(config, make_job(config))
    assert said.startswith("no profile of this model on this machine")
    assert " dtype=bf16 batch_size=8 " in said  # in the command that makes one
    written(tmp_path, *MODEL, computing=Computing("bf16"))
    assert predicted(tmp_path, *lowered)[0].step_ms is not None
    assert len(list((tmp_path / "profiles").iterdir())) == 2


def test_torch_s_runtime_is_predicted_with_its_own_time_between_actions(tmp_path):
    typed = [*MODEL, "schedule=1f1b", "chunks=4"]
    made = written(tmp_path, *MODEL)
    ours, _ = predicted(tmp_path, *typed)
    unknown, seconds = predicted(tmp_path, *typed, "engine=torch")
    assert (unknown.step_ms, seconds) == (None, None)
    written(tmp_path, *MODEL, transports={**made.transports, TORCH: Transport(1.0, 0.0, 0.5, 0.0)})
    torch, seconds = predicted(tmp_path, *typed, "engine=torch")
    assert torch.step_ms > ours.step_ms + 4 * 0.5
    assert seconds > 0
    assert torch.peak_memory_mib is None


def test_the_sums_over_replicas_are_estimated_from_hops(tmp_path):
    typed = [*MODEL, "ranks=1", "chunks=1"]
    made = written(tmp_path, *MODEL)
    alone, _ = predicted(tmp_path, *typed, "batch_size=2")
    two, _ = predicted(tmp_path, *typed, "batch_size=4", "replicas=2")
    assert two.peak_memory_mib is not None
    hop = made.transports["shm"]
    slower = 1 / made.alone_at(2)  # two replicas compute at once
    assert two.step_ms == pytest.approx(
        alone.step_ms + (slower - 1) * (alone.step_ms - 0.1 - 0.6) + 2 * hop.latency + 4 * hop.per_mib, rel=0.02
    )


def test_an_emulated_step_has_this_machine_s_optimizer_and_engine(tmp_path):
    typed = [*MODEL, "device=emulated", "device.forward_ms=5", "device.backward_ms=10", "chunks=2", "steps=10"]
    alone, seconds = predicted(tmp_path, *typed)
    assert alone.step_ms == 45  # (M + K - 1)(F + B)
    assert seconds == pytest.approx(0.045 * (10 + 5 + 1))  # 5 steps of warm-up, 1 for memory
    made = written(tmp_path, *MODEL)
    whole, _ = predicted(tmp_path, *typed)
    overheads = 3 * made.transports["shm"].overhead  # between the actions of the last rank, and before rank 0's last B
    weights = 2 * made.optimizer[1]  # of the 2 layers of a rank, 1 MiB each
    assert whole.step_ms == pytest.approx(45 + overheads + sum(made.edges) + made.optimizer[0] + weights, abs=1e-6)
    assert whole.peak_memory_mib == alone.peak_memory_mib


def test_sums_over_replicas_and_copies_end_an_emulated_step(tmp_path):
    """Each rank of Chimera sums its two stages."""
    times = ["device=emulated", "device.forward_ms=5", "device.backward_ms=10"]
    replicas = [*MODEL, *times, "chunks=2", "replicas=2"]
    assert predicted(tmp_path, *replicas)[0].step_ms is None
    assert predicted(tmp_path, *replicas, "device.reduce_ms=7")[0].step_ms == 52
    typed = [*MODEL, "chunks=4", "schedule=chimera"]
    without = predicted(tmp_path, *typed, *times)[0].step_ms
    assert predicted(tmp_path, *typed, *times, "device.reduce_ms=7")[0].step_ms == without + 14
    made = written(tmp_path, *MODEL)
    hop, config = made.transports["shm"], configured(*typed, f"output_dir={tmp_path}")
    costs = prices_of(config).costs(make_job(config).workload)
    assert costs.reduction == pytest.approx([hop.latency + 2 * hop.per_mib] * 4)  # 2 layers of 1 MiB


NO_F = {"forward": (0.0, 0.0), **dict.fromkeys(("full", "backward", "weight", "recompute"), (1.0, 2.0))}
DOUBTS = {
    "spread by 50%, and predictions can be as far off": {"spread": {"forward": 0.01, "full": 0.5}},
    "has an F of no time at all": {"layers": dict.fromkeys((0, 1, 3), NO_F)},
    "was measured beside other work (load average 2.5)": {"spread": {"forward": 0.01}, "load": 2.5},
}


def test_a_profile_that_may_be_far_off_is_doubted_where_it_is_used(tmp_path):
    config = configured(*MODEL, f"output_dir={tmp_path}")
    for said, changed in DOUBTS.items():
        written(tmp_path, *MODEL, **changed)
        assert not warnings(config)  # before a run there is none about a profile that nobody asked for
        assert said in " ".join(prediction_doubts(config, make_job(config)))
    for program in ("simulate partition=balanced", "plan ranks=2 schedule=gpipe chunks=2"):
        told = " ".join(type_in(tmp_path, f"{program} {' '.join(MODEL)} output_dir={tmp_path}").stderr.split())
        assert re.search(f"warning: [^:]*{re.escape(said)}", told)  # the last one
    written(tmp_path, *MODEL, spread={"forward": 0.01}, load=0.1)
    assert not re.search("far off|load average", " ".join(prediction_doubts(config, make_job(config))))
