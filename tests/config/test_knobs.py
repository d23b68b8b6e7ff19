"""What was asked is what is recorded: keys that do not exist or that nothing uses, and names that cannot be set."""

import pytest
from configs import sweep_of

from microp.config import compose_config, job_of, make_job, read_config
from microp.config.config import compose_points, composer, evaluate, read_composed, register, what_runs
from microp.config.knobs import Knobs


def points(*words: str):
    """The points of `microp -m WORDS`: their settings, with what is said of all."""
    register()
    with composer():
        composed = compose_points(sweep_of(*words))
    knobs, configs = Knobs(), []
    for point in composed:
        asked, lacking = read_composed(point.config)
        knobs.add(asked, lacking)
        configs.append(what_runs(asked))
    return configs, knobs.problems, knobs.notes


SOME = {
    "partition=uniform,skewed": "partition.share=0.7",
    "schedule=1f1b,interleaved": "schedule.stages_per_rank=4",
    "checkpointing=never,segments": "checkpointing.segments=4",
    "replicas=1,2": "sync.bucket_mb=5",
    "data=synthetic,text": "data.path=/dev/null",
    "device=cpu,emulated": "device.latency_ms=2",
}


@pytest.mark.parametrize("axis", SOME)
def test_a_knob_that_only_some_points_use_is_not_asked_of_the_others(axis):
    """The first point does not use it: it is the configuration, and has the ids, as if the knob had not been typed."""
    word, first = SOME[axis], axis.partition(",")[0]
    (without, with_it), problems, [note] = points(axis, word)
    assert problems == []
    assert note.startswith(f"{word.partition('=')[0]} is not used by {first}")
    assert without == read_config(compose_config(first))
    if not first.startswith("data"):
        assert make_job(without).run_id == job_of(first).run_id
    assert with_it != read_config(compose_config(axis.replace(f"={first.partition('=')[2]},", "=")))


GIVES = {
    "(1 + 2) * -3 / 2": -4.5,
    "  16 *\t4 ": 64,
    "'ab' * 2 + \"c\"": "ababc",
    "[1] + 2 * ['x']": [1, "x", "x"],
    "None == null and not false": True,
    '"lifo" == "lifo" and "never" not in ("never", "except_last")': False,
    "256 if 'mlp' == 'mlp' else 1 / 0": 256,  # as in Python, what does not decide is not computed
}


@pytest.mark.parametrize("text", GIVES)
def test_an_expression_has_python_s_value(text):
    value = evaluate(text)
    assert (value, type(value)) == (GIVES[text], type(GIVES[text]))


REFUSED = [
    *("chunks * 2", "__import__('os')", "open('x')", "().__class__", "'a'.join.__self__", "lambda: 1", "1 +", ""),
    *("1 / 0", "1 + 'a'", "9 ** 9 ** 9", "'a' * 10 ** 9", "(" * 499 + "1" + ")" * 499),
]


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:30])
def test_what_is_no_expression_of_numbers_strings_and_lists_is_refused(text):
    with pytest.raises(ValueError, match="^cannot compute "):
        evaluate(text)
