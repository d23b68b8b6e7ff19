"""Which keys tell the points of a command apart, and what is the same in all of them."""

import pytest
from stored import store_run

from microp.config.config import compose_config, plain, read_config
from microp.results import SelectionError, asked, column_named, find, same, spelling, swept


def configs(*points: str):
    return [plain(read_config(compose_config(*point.split()))) for point in points]


SIZES = ["[4,12]", "[8,8]"]
SWEPT = {
    ("model.dim=64", "model.dim=128"): {"model.dim": ["64", "128"]},
    ("learning_rate=1e-3", "learning_rate=1e-5"): {"learning_rate": ["0.001", "1e-05"]},
    ("data.path=a.txt", ""): {"data.path": ["a.txt", "null"]},
    ("schedule=gpipe", "schedule=1f1b"): {"schedule": ["gpipe", "1f1b"]},
    ("schedule=gpipe schedule.drain=lifo", "schedule=gpipe"): {"schedule.drain": ["lifo", "fifo"]},
    tuple(f"partition=sizes partition.sizes={each}" for each in SIZES): {"partition.sizes": SIZES},
    ("tracking=offline", "tracking=disabled"): {"tracking": ["offline", "disabled"]},
    ("chunks=4", "chunks=4"): {},
    # gpt's heads follow from the option; a width that is swept does not
    ("model=mlp batch_size=64", "model=gpt batch_size=64"): {"model": ["mlp", "gpt"]},
    ("model=mlp model.dim=64 batch_size=32", "model=mlp model.dim=32 batch_size=32", "model=gpt"): (
        {"model": ["mlp", "mlp", "gpt"], "model.dim": ["64", "32", "64"]}
    ),
    ("model=mlp batch_size=32", "model=gpt model.heads=2", "model=gpt model.heads=4"): (
        {"model": ["mlp", "gpt", "gpt"], "model.heads": ["-", "2", "4"]}
    ),
}


@pytest.mark.parametrize("points", SWEPT, ids=" | ".join)
def test_the_columns_are_the_keys_that_differ(points):
    found = swept(configs(*points), typed=["seed=1"])
    assert found == SWEPT[points]
    assert list(found) == list(SWEPT[points])


def test_columns_come_in_the_order_in_which_they_were_typed_and_the_launch_last():
    points = configs("chunks=2 ranks=2 model.dim=64", "chunks=4 ranks=1 model.dim=32 repeat=1")
    assert list(swept(points)) == ["ranks", "chunks", "model.dim", "repeat"]
    assert list(swept(points, ["repeat=0", "model.dim=64", "chunks=2"])) == ["model.dim", "chunks", "ranks", "repeat"]


def test_a_key_that_was_typed_as_one_value_is_no_column_where_some_options_do_not_use_it():
    times = {"1f1b": None, "dualpipe": 3.0, "chimera": 3.0}
    runs = [{"schedule": {"name": name}, "device": {"name": "emulated", "reduce_ms": ms}} for name, ms in times.items()]
    assert asked(runs, [[f"schedule={name}", "device.reduce_ms=3"] for name in times]) == {"schedule": [*times]}


def test_what_is_the_same_is_what_was_typed_and_what_matters():
    points = configs("schedule=1f1b chunks=2 seed=3 output_dir=x", "schedule=1f1b chunks=4 seed=3 output_dir=x")
    typed = ["schedule=1f1b", "chunks=2", "seed=3", "output_dir=x", "tracking=offline"]
    assert " ".join(same(points, typed)) == (
        "schedule=1f1b ranks=2 model=mlp device=cpu comms=auto batch_size=8192 partition=uniform "
        "checkpointing=never seed=3"
    )


RUNS = {  # the name of a run in these tests: its configuration
    "gpipe 4": ("schedule=gpipe", "chunks=4"),
    "gpipe 8": ("schedule=gpipe", "chunks=8", "model.dim=64"),
    "1f1b 4": ("schedule=1f1b", "chunks=4"),
    "1f1b 16": ("schedule=1f1b", "chunks=16"),
    "sizes": ("schedule=1f1b", "partition=sizes", "partition.sizes=[4,12]"),
    "failed": ("schedule=zb_h1", "chunks=12", "engine.batch_weights=true"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with the runs above, one started each minute, and their names by id."""
    outputs = tmp_path_factory.mktemp("runs")
    status, env = {"failed": "failed"}, {"1f1b 16": {"processor": "AMD EPYC"}}
    names = {}
    for minute, (name, overrides) in enumerate(RUNS.items()):
        more = {"status": status.get(name, "finished"), "env": env.get(name)}
        names[store_run(outputs, *overrides, minute=minute, step_ms=50.0 + minute, **more)] = name
    return outputs, names


def passing(runs, *filters: str) -> set[str]:
    outputs, names = runs
    return {names[run] for run in find([str(outputs), *filters]).rows["run_id"]}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["schedule=gpipe"], {"gpipe 4", "gpipe 8"}),
        (["schedule!=gpipe"], {"1f1b 4", "1f1b 16", "sizes", "failed"}),
        (["schedule=gpipe,zb_h1"], {"gpipe 4", "gpipe 8", "failed"}),
        (["chunks >= 12"], {"1f1b 16", "failed"}),
        (["chunks<8", "schedule=1f1b"], {"1f1b 4", "sizes"}),
        (["chunks<=8 schedule=1f1b,gpipe model.dim=64"], {"gpipe 8"}),
        (["chunks>4,schedule=1f1b,gpipe"], {"gpipe 8", "1f1b 16"}),
        (["chunks=8.0"], {"gpipe 8"}),
        (["step_ms>53"], {"sizes"}),
        (["step_ms.median<51"], {"gpipe 4"}),
        (["partition.sizes=[4,12]"], {"sizes"}),
        (["partition.sizes=null", "schedule=1f1b"], {"1f1b 4", "1f1b 16"}),
        (["engine.batch_weights=True"], {"failed"}),
        (["processor=AMD EPYC chunks=16"], {"1f1b 16"}),
        (["peak_memory_mib>40"], {"1f1b 16"}),  # the largest of [46, 20]; the failed run has none
        (["commit=c0ffee"], set(RUNS)),
        (["chunks=abc"], set()),
    ],
)
def test_a_filter(runs, filters, expected):
    assert passing(runs, *filters) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("modeldim=4", "modeldim is no column of these runs: did you mean model.dim"),
        ("zzz=4", "zzz is no column of these runs: write for example schedule, model.dim, step_ms or status"),
        ("chunks>abc", "chunks>abc: abc is not a number: write for example chunks>4"),
        ("chunks=", "chunks= has no value after =: write for example chunks=4, or chunks=null"),
        (">4", ">4 is neither a folder nor a filter"),
    ],
)
def test_bad_filters_are_refused_with_the_remedy(runs, text, reason):
    with pytest.raises(SelectionError) as refused:
        passing(runs, text)
    assert reason in str(refused.value)


def test_every_spelling_that_is_offered_names_a_column(runs):
    """A summary's `schedule` and the configuration's `schedule.name` are both called schedule: the latter is meant."""
    columns = list(find([str(runs[0])]).all)
    assert all(column_named(spelling(column), columns) for column in columns)
    assert column_named("schedule", columns) == "config.schedule.name"
    assert column_named("model.dim", columns) == "config.model.dim"
    assert column_named("bubble", columns) == "bubble.measured"
