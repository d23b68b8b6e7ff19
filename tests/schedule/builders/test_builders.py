"""What holds for every builder, and the orders themselves, drawn."""

import inspect
import re
from fractions import Fraction
from itertools import islice
from pathlib import Path

import pytest
import yaml
from catalogue import BUILDERS, LOOPED, Builder, grid, label, lengths, pictured

from microp.schedule import Op, from_text, from_torch_csv, to_text, to_torch_csv, validate
from microp.schedule import builders as schedules
from microp.simulator import Costs, even_shares, simulate
from microp.trace import bubble_fraction

CONF = Path(__file__).parents[3] / "conf" / "schedule"
NAMED = [(name, builder) for name, builders in BUILDERS.items() for builder in builders]
each_named = pytest.mark.parametrize(("name", "build"), NAMED, ids=label)


@each_named
def test_every_schedule_runs_to_its_end_and_is_written_as_text(name: str, build: Builder, whole: bool) -> None:
    """Without `--whole` every other K and M, or, of a schedule with many shapes, some of them for each shape."""
    step = 1 if whole else 2 + len(BUILDERS[name]) // 3
    for ranks, chunks in islice(lengths(name, whole=whole), NAMED.index((name, build)) % step, None, step):
        schedule = validate(build(ranks, chunks))
        assert (len(schedule.ranks), schedule.chunks) == (ranks, chunks)
        assert schedule.name.removesuffix("_lifo").startswith(name)
        assert from_text(to_text(schedule)) == schedule
        assert from_torch_csv(to_torch_csv(schedule), schedule.name, schedule.slices, schedule.copies) == schedule


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_option_names_its_builder_and_all_its_knobs(path: Path) -> None:
    option = yaml.safe_load(path.read_text())
    builder = getattr(schedules, option.pop("builder").removeprefix("microp.schedule.builders."))
    assert option.pop("name") == path.stem
    ranks, chunks, *knobs = inspect.signature(builder).parameters.values()
    assert (ranks.name, chunks.name) == ("ranks", "chunks")
    named = [knob for knob in knobs if knob.kind is not knob.VAR_KEYWORD]
    defaults = {knob.name: "???" if knob.default is knob.empty else knob.default for knob in named}
    assert option == defaults
    assert path.stem == "file" or path.stem in BUILDERS


PAGE = (CONF.parents[1] / "microp/schedule/README.md").read_text()
DRAWN = [(name, "", inspect.getdoc(schedules.ORDERS[name])) for name in BUILDERS]
DRAWN += re.findall(r"^`(\w+)`([^\n]*):\n\n```\n(rank .*?)```", PAGE, re.M | re.S)


@pytest.mark.parametrize(("name", "keys", "text"), DRAWN, ids=label)
def test_a_picture_of_a_docstring_or_of_the_page_is_what_the_simulator_does(name: str, keys: str, text: str) -> None:
    build, picture = schedules.ORDERS[name], pictured(text)
    units = 1 + max(int(re.split("[FBIW]", cell)[1]) for row in picture for cell in row if cell not in ".=")
    slices = inspect.signature(build).parameters.get("slices")
    knobs = {key: yaml.safe_load(value) for key, value in re.findall(r"schedule\.(\w+)=(\w+)", keys)}
    assert picture == grid(build(len(picture), units // slices.default if slices else units, **knobs))


def test_the_page_draws_15_schedules() -> None:
    assert len(DRAWN) == len(BUILDERS) + 15


def test_the_bubbles_of_the_page_are_those_of_the_simulator() -> None:
    """At F = I = W."""
    rows = re.findall(r"^\| `(\w+)`(?:, `schedule\.(\w+)=(\w+)`)? \|.* (\.\d{3}) \|", PAGE, re.M)
    for name, key, value, bubble in rows:
        knobs = {key: {"true": True, "v": 2}.get(value, value)} if key else {}
        order = schedules.ORDERS[name](4, 8, **knobs, **({"extra_warmup": 1} if key == "overlap" else {}))
        times = (Fraction(4, order.depth),) * order.stages
        spans = simulate(order, Costs(times, times, times, shares=even_shares(order)))
        assert f"{float(bubble_fraction(spans)):.3f}" == f"0{bubble}", (name, key)
    assert len(rows) == len(BUILDERS) + 4


def test_rounds_that_ranks_do_not_divide_are_even_and_the_larger_come_first() -> None:
    forwards = [a for a in schedules.interleaved(2, 5).ranks[1] if a.op is Op.F]
    assert " ".join(map(str, forwards)) == "1F0 1F1 1F2 3F0 3F1 3F2 1F3 1F4 3F3 3F4"


def test_with_one_stage_a_rank_or_one_slice_the_orders_are_the_plain_ones() -> None:
    single = schedules.interleaved(4, 8, stages_per_rank=3, warmup=schedules.Warmup.single)
    for order, plain in (
        (schedules.interleaved(4, 8, stages_per_rank=1), schedules.eager_1f1b(4, 8)),
        (schedules.breadth_first(4, 8, stages_per_rank=1), schedules.gpipe(4, 8)),
        (schedules.zb_interleaved(4, 8, stages_per_rank=1), schedules.zb_h1(4, 8)),
        (schedules.seq_1f1b(4, 8, slices=1), schedules.one_f_one_b(4, 8)),
        (schedules.seq_1f1b(4, 8, slices=1, eager=True), schedules.eager_1f1b(4, 8)),
        (schedules.seq_1f1b(4, 8, slices=1, stages_per_rank=3), single),
    ):
        assert order.ranks == plain.ranks


def test_dualpipe_v_says_which_chunks_it_takes_and_a_rank_holds_at_least_one_stage() -> None:
    with pytest.raises(ValueError, match=r"'dualpipe_v' needs .*: chunks=7, ranks=4; use chunks=8 or more"):
        schedules.dualpipe_v(4, 7)
    for build in LOOPED.values():
        with pytest.raises(ValueError, match="stages_per_rank=0 is below 1: use at least 1"):
            build(2, 4, stages_per_rank=0)


@each_named
@pytest.mark.parametrize(("ranks", "chunks"), [(0, 4), (2, 0)])
def test_no_ranks_or_no_chunks_is_an_error_in_words(name: str, build: Builder, ranks: int, chunks: int) -> None:
    with pytest.raises(ValueError, match=f"{name}.*chunks={chunks}.*ranks={ranks}"):
        build(ranks, chunks)
