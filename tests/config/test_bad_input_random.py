"""Random configurations are refused or made into a job; none hangs or ends in a traceback."""

from __future__ import annotations

from math import isfinite

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from user import read

from microp.config import ConfigError, compose_config, make_job, read_config
from microp.config.pricing_job import make_pricing_job
from microp.simulator import nominal_costs, simulate
from microp.sweep.points import run_attempt

OPTIONS = (
    "",
    "schedule=1f1b model=gpt checkpointing=segments",
    "schedule=interleaved partition=skewed replicas=2 sync=torch_ddp",
    "schedule=zb_v device=emulated checkpointing=except_last",
    "schedule=zb_h1 device=emulated replicas=2 sync=ddp partition=sizes",
    "schedule=breadth_first engine=torch data=synthetic",
    "schedule=v_min comms=threads engine=compare",
    "schedule=dualpipe_v comms=gloo tracking=disabled",
    "simulate schedule=zb_interleaved device=emulated",
    "simulate schedule=eager_1f1b costs.forward=1 costs.backward=2 checkpointing=always",
)
SMALL = st.integers(-1, 9).map(str)
ODD = ["null", "nan", "inf", "-inf", "1e30", "-1", "0", "0.5", "true", "abc", "[]", "[1,2]", "[null]", "1e400", "../x"]
LARGE = [str(10**9), str(10**18), str(10**40), "9" * 5000, "x" * 2000]
STRANGE = st.sampled_from(["", "{a: 1}", "'a b'", "'a\"><script>'", *ODD, *LARGE])
STRANGE |= st.text(st.characters(codec="utf-8"), max_size=8)
NUMBERS = ("ranks", "chunks", "replicas", "batch_size", "steps", "warmup_steps", "model.layers", "seed", "repeat")
KEYS = (
    *NUMBERS,
    *("learning_rate", "activation_limit", "skip", "again", "output_dir", "model.dim", "model.dtype", "model.heads"),
    *("model.context", "model.dropout", "partition.share", "partition.rank", "partition.sizes", "schedule.drain"),
    *("schedule.stages_per_rank", "checkpointing.segments", "engine.batch_weights", "sync.all_reduce"),
    *("sync.bucket_mb", "sync.first_bucket_mb", "data.path", "device.threads", "device.forward_ms"),
    *("device.backward_ms", "device.weight_ms", "device.recompute_ms", "device.latency_ms", "device.reduce_ms"),
    *("device.per", "comms.timeout_s", "tracking.project", "tracking.entity", "tracking.dir", "tracking.tags"),
    *("tracking.follow", "tracking.system_metrics", "launch.shutdown_s", "costs.forward", "costs.latency"),
)
WORDS = st.lists(
    st.tuples(st.sampled_from(NUMBERS), SMALL) | st.tuples(st.sampled_from(KEYS), STRANGE), max_size=4
).map(lambda pairs: [f"{key}={value}" for key, value in pairs])
QUICK = 20_000  # ranks times chunks that are simulated


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.sampled_from(OPTIONS), WORDS)
def test_a_random_configuration_is_refused_or_made_into_a_job(options, words):
    program, *options = options.split() if options.startswith("simulate") else ["config", *options.split()]
    try:
        config = read_config(compose_config(*options, *words, name=program))
        job = make_pricing_job(config) if program == "simulate" else make_job(config)
    except ConfigError:
        return
    schedule = job.schedule
    if len(schedule.ranks) * schedule.chunks <= QUICK:
        costs = job.costs if hasattr(job, "costs") else nominal_costs(job.device, job.workload)
        assert all(isfinite(span.end) for span in simulate(schedule, costs))


SMALL_RUNS = (
    "schedule=gpipe model=mlp checkpointing=except_last",
    "schedule=zb_v model=gpt checkpointing=never",
    "schedule=1f1b model=mlp checkpointing=segments",
)
TINY = "comms=threads tracking=disabled model.layers=6 model.dim=16 steps=1 warmup_steps=0"


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.sampled_from(SMALL_RUNS), st.integers(1, 3), st.integers(1, 4), st.integers(4, 9))
def test_a_small_one_runs(tmp_path_factory, options, ranks, chunks, rows):
    folder = tmp_path_factory.mktemp("run")
    words = f"{options} {TINY} ranks={ranks} chunks={chunks} batch_size={rows} output_dir={folder}".split()
    config = read_config(compose_config(*words))
    attempt = run_attempt(config, make_job(config), words)
    assert read(attempt / "status.json")["status"] == "finished"
    assert isfinite(read(attempt / "summary.json")["loss"]["last"])
