"""What does recomputation of activations cost in time, and what does it save in memory?

::

    step_ms │        ● always            penalty: step time over that of the same launch with
            │   ● segments                        every activation kept (`never`)
            │      ○ except_last         simulated: the schedule simulated with the measured F, B
            │                  ● never              and R, over the same with `never`'s F and B
            └──────────────────── MiB

Measured bytes are compared with GPipe's memory law; see `memory_law`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import looks, plot, scales
from analysis.command import run
from analysis.exhibit import Exhibit, counted, markers, percent
from analysis.memory_law import laws
from analysis.prediction import measured_steps
from analysis.words import doubts, middle, sentences, widest
from microp.records import LAUNCH, over_launches, paired, read_spans
from microp.results import records, worst_rank_mib
from microp.schedule import Schedule
from microp.simulator import Costs, calibrate_steps, schedule_of, simulate
from microp.trace import makespan

NEEDS = "runs with checkpointing=never and with another policy, for the same model, schedule and M"
POLICIES = ("never", "except_last", "always", "segments")
SAME = ["model", "ranks", "batch_size", "schedule", "chunks"]  # two policies are compared where these agree
POINT = ["model", "schedule", "checkpointing", "chunks"]


def prepared(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs, one row per point and launch, and those of them that `compare` can compare."""
    runs = runs.drop_duplicates([*POINT, LAUNCH]).reset_index(drop=True)
    return runs, compare(runs)


def exhibits(both: tuple[pd.DataFrame, pd.DataFrame]) -> list[Exhibit | None]:
    """Return up to three figures: memory against time, the penalty, and the memory."""
    runs, compared = both
    return [pareto(runs, compared), penalty(compared), memory(runs)]


def answer(both: tuple[pd.DataFrame, pd.DataFrame]) -> str:
    """Return a sentence per policy on time and memory, each over the points that have a run without recomputation."""
    _, compared = both
    if compared.empty:
        return ""
    table = _alike(compared)
    order = [*POLICIES, *sorted(set(table["checkpointing"]) - set(POLICIES))]
    told = [_policy(name, own) for name in order if not (own := table[table["checkpointing"] == name]).empty]
    if (most := table.groupby("checkpointing").size().max()) > 1:
        told.append(f"figures are medians, with ranges, over up to {most} combinations of model, schedule and M")
    return sentences([*told, widest(table, ["ratio"])])


def _alike(compared: pd.DataFrame) -> pd.DataFrame:
    """Return the points of those combinations that have all policies, else their medians would not compare."""
    table = over_launches(compared, POINT, ["ratio", "simulated", "kept"])
    alike = table.groupby([key for key in POINT if key != "checkpointing"], dropna=False)["checkpointing"]
    in_all = alike.transform("size") == table["checkpointing"].nunique()
    return table[in_all] if in_all.any() else table


def _policy(policy: str, table: pd.DataFrame) -> str:
    """Return the cost and the saving of one policy; the ranges are over models, schedules and M."""
    noisy = doubts(table, "ratio")  # which are none of the memory
    text = f"with {policy}, a step takes {middle(table['ratio'])} times as long as with checkpointing=never{noisy}"
    if table["simulated"].notna().any():
        text += f", by simulation {middle(table['simulated'])},"
    if table["kept"].notna().any():
        text += f" and keeps {middle(table['kept'])} of the peak activations"
    return text


# --- time ------------------------------------------------------------------------------------------


def compare(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that recompute, each beside the run of the same launch that keeps everything.

    Four columns are added: `ratio`, of step times; `simulated`, the same with the run's own F, B and R; `R alone`,
    simulated with its R, but `never`'s F and B; and `kept`, the ratio of peak activations on the worst rank.
    """
    runs = runs.assign(worst_mib=worst_rank_mib(runs))
    plain = runs[runs["checkpointing"] == "never"]
    saved = paired(runs[runs["checkpointing"] != "never"], plain, SAME, "worst_mib").rename(columns={"ratio": "kept"})
    both = paired(saved, plain, SAME, "step_ms.median")
    launch = itemgetter(*SAME, LAUNCH)
    without = {launch(row): row for row in records(plain)}
    simulated = [simulated_ratios(without[launch(row)], row) for row in records(both)]
    return both.assign(**pd.DataFrame(simulated, both.index, ["simulated", "R alone"]))


def simulated_ratios(plain: dict[str, Any], row: dict[str, Any]) -> tuple[float, float]:
    """Return the simulated ratios of step times, of `row`, which recomputes, over `plain`, which does not.

    The first has F, B and R of `row`, the second F and B of `plain` and R of `row`; both are NaN without traces. The F
    and B of `row` are shorter: its forward keeps nothing, and its backward finds the rebuilt activations in the cache.
    """
    folder = Path(plain["folder"])
    spans, steps = read_spans(folder), measured_steps(folder, plain["ranks"])
    again = measured_steps(Path(row["folder"]), row["ranks"])
    if not spans or not steps or not again:
        return float("nan"), float("nan")
    schedule, spare_last = schedule_of(spans, plain["schedule"]), bool(row["config.checkpointing.spare_last"])
    costs = calibrate_steps(schedule, steps, spans)
    dearer = with_recomputation(schedule, costs, again, spare_last)
    own, share = calibrate_steps(schedule, again, spans), 1 - spare_last / schedule.chunks
    backward = tuple(b - r * share for b, r in zip(own.backward, dearer.recompute, strict=True))
    own = replace(dearer, forward=own.forward, backward=backward)
    before, *after = (float(makespan(simulate(schedule, each))) for each in (costs, own, dearer))
    with_own, with_plain = (1 + (each - before) / plain["step_ms.median"] for each in after)
    return with_own, with_plain


def with_recomputation(schedule: Schedule, costs: Costs, steps: Sequence[Any], spare_last: bool) -> Costs:
    """Return `costs` with the recomputation time per microbatch and stage, in ms, that `steps` recorded."""
    number = schedule.chunks - spare_last
    per_rank = [
        median(step[rank]["recompute_ms"] for step in steps) / max(1, number * len(schedule.stages_of(rank)))
        for rank in range(len(schedule.ranks))
    ]
    recompute = tuple(per_rank[schedule.placement[stage]] for stage in range(schedule.stages))
    return replace(costs, recompute=recompute, spared=(schedule.chunks - 1,) if spare_last else ())


def penalty(compared: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the step time relative to `never` against M, measured and simulated."""
    if compared.empty:
        return None
    table = over_launches(compared, POINT, ["ratio", "simulated", "R alone", "kept"])
    table["overhead"] = table["ratio"] - 1
    for name in ("simulated", "R alone"):
        table[f"overhead / {name}"] = table["overhead"] / (table[name] - 1)
    keys = [looks.dotted("simulated, in the same colour"), looks.thin("1: every activation kept")]
    figure = _panels(table, "ratio", "simulated", "step time / that of never", keys)
    for axis in figure.axes:
        axis.axhline(1, **looks.THIN)
        axis.set_ylim(min(0.9, table["ratio"].min() - 0.05), 0.1 + table[["ratio", "simulated"]].max().max())
    text = (
        "Step time over that of the same launch with every activation kept. Dotted: simulated with the run's own F, B "
        f"and recomputation R. The overhead (ratio - 1) differs from the simulated one by "
        f"{_misses(table, 'simulated')}. "
        "Simulated with R added to the F and B of the run that keeps everything, which leaves out that a forward "
        "without activations to keep and a backward that finds them in the cache are shorter, it differs by "
        f"{_misses(table, 'R alone')}. {markers(compared)}"
    )
    return Exhibit("checkpoint-overhead-penalty", "The cost of recomputation", text, figure, table, compared)


def _misses(table: pd.DataFrame, simulated: str) -> str:
    """Return the distance of the measured overhead from the simulated one as text."""
    table = table.dropna(subset=[f"overhead / {simulated}"])
    if table.empty:
        return "an unknown amount, because no run left a trace"
    miss = (table[f"overhead / {simulated}"] - 1).abs()
    return (
        f"{percent(miss.median(), 0)} in the median and {percent(miss.max(), 0)} at most "
        f"({counted(len(miss), 'point')}, {(miss <= 0.1).sum()} within 10 %)"
    )


# --- memory ----------------------------------------------------------------------------------------


def memory(runs: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the peak activations on the worst rank against M, with the memory law."""
    used = runs[runs["peak_activation_mib"].notna()]
    table = laws(used, POINT)
    if table.empty:
        return None
    table = table.merge(over_launches(used, POINT, []), on=POINT)
    worst = table.loc[table.groupby(POINT, sort=True)["activation_mib"].idxmax()]
    ends = dict.fromkeys(("activation_mib.low", "activation_mib.high"), worst["activation_mib"])
    worst = worst.assign(**ends, **{"activation_mib.wide": False})
    key = looks.dotted("closed form: GPipe's memory law, in the same colour")
    figure = _panels(worst, "activation_mib", "counted", "peak activations of a rank, MiB", [key])
    for axis, (_, _, own) in zip(figure.axes, _split(worst), strict=True):
        scales.logarithmic(axis.yaxis, [*own["activation_mib"], *own["counted"]])
    text = (
        "Peak bytes of activations on the rank that holds most, counted exactly in a separate step. Dotted: closed "
        "form (GPipe's memory law) for n microbatches in flight, n a without recomputation and n b + the largest "
        "segment with it; activations a, inputs of segments b and the segment are those of the 1F1B runs with the "
        f"smallest M. Its largest error over {counted(len(table), 'point')} and ranks is "
        f"{percent(table['counted error'].abs().max())}; with g equal segments, (a - b)/g, it is "
        f"{percent(table['law error'].abs().max())}."
    )
    return Exhibit("checkpoint-overhead-memory", "The saving of recomputation", text, figure, table, used)


# --- both ------------------------------------------------------------------------------------------


def pareto(runs: pd.DataFrame, compared: pd.DataFrame) -> Exhibit | None:
    """Return the figure of the step time against peak activations."""
    runs = runs.assign(worst_mib=worst_rank_mib(runs)).dropna(subset=["worst_mib"])
    if runs.empty:
        return None
    table = over_launches(runs, POINT, ["step_ms.median", "worst_mib"])
    table["front"] = plot.on_front(table, ["model"], "worst_mib", runs, POINT)
    models = sorted(table["model"].unique())
    figure, axes = plot.panels(len(models), 3.0)
    shapes = looks.looks(sorted(table["schedule"].unique()))
    for axis, model in zip(axes, models, strict=True):
        own = table[table["model"] == model]
        for policy, look in _policies(own).items():
            for schedule, shape in shapes.items():
                same = own[(own["checkpointing"] == policy) & (own["schedule"] == schedule)]
                pair = looks.Look(look.colour, shape.marker, "")
                plot.points(axis, same, "worst_mib", "step_ms.median", pair, f"{schedule}, {policy}")
        plot.draw_front(axis, own[own["front"]], "worst_mib", "step_ms.median")
        plot.titled(axis, model, "peak activations of a rank, MiB", "step time, ms")
        scales.logarithmic(axis.xaxis, own["worst_mib"])
        axis.set_ylim(0, 1.3 * own["step_ms.median"].max())
    plot.legend(figure)
    text = (
        "Step time against peak activations of the rank that holds most, one marker per schedule, policy and M. "
        f"{plot.about_front(table)}{markers(runs)}"
    )
    if not compared.empty:
        costs = _alike(compared)
        told = "; ".join(
            f"{name} has {own['ratio'].median():.2f} of the step time{doubts(own, 'ratio')} and "
            f"{own['kept'].median():.2f} of the activations"
            for name in POLICIES
            if not (own := costs[costs["checkpointing"] == name]).empty
        )
        text += f" Relative to never, in the median over the models, schedules and M that have all policies: {told}."
    return Exhibit("checkpoint-overhead-pareto", "Memory against time", text, figure, table, runs)


def _policies(table: pd.DataFrame) -> dict[Any, looks.Look]:
    """Return the looks of all policies. The usual policies come first, so that each looks the same in every figure."""
    return looks.looks([*POLICIES, *sorted(set(table["checkpointing"]) - set(POLICIES))])


def _split(table: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield the title, the horizontal axis and the rows of each panel: with a single M, one for all schedules."""
    chunks = table["chunks"].unique()
    models = sorted(table["model"].unique())
    if len(chunks) == 1:
        for model in models:
            yield f"{model}, M = {chunks[0]}", "policy of recomputation", table[table["model"] == model]
        return
    for schedule, model in product(looks.in_order(sorted(table["schedule"])), models):
        own = table[(table["schedule"] == schedule) & (table["model"] == model)]
        if not own.empty:
            yield f"{model}, {schedule}", plot.CHUNKS, own


def _panels(table: pd.DataFrame, value: str, simulated: str, label: str, legend: Sequence[Line2D]) -> Figure:
    """Return a figure of `value` with `simulated` dotted, against M, or against the policy if there is a single M."""
    groups = list(_split(table))
    figure, axes = plot.panels(len(groups))
    for axis, (title, x, own) in zip(axes, groups, strict=True):
        (_against_chunks if x == plot.CHUNKS else _against_policy)(axis, own, value, simulated)
        plot.titled(axis, title, x, label)
    plot.legend(figure, legend)
    return figure


def _against_chunks(axis: Axes, own: pd.DataFrame, value: str, simulated: str) -> None:
    named = {name: look for name, look in _policies(own).items() if name in set(own["checkpointing"])}
    shifted = plot.beside(own, "chunks", "checkpointing", named)
    plot.lines(axis, shifted, "chunks", value, "checkpointing", named, simulated)
    scales.powers(axis, own["chunks"])


def _against_policy(axis: Axes, own: pd.DataFrame, value: str, simulated: str) -> None:
    policies = [name for name in _policies(own) if name in set(own["checkpointing"])]
    for number, (schedule, look) in enumerate(shapes := looks.looks(sorted(own["schedule"].unique())).items()):
        same = own[own["schedule"] == schedule]
        same = same.assign(at=same["checkpointing"].map(policies.index) + 0.2 * (number - (len(shapes) - 1) / 2))
        for row in records(same):
            plot.computed(axis, [row["at"] - 0.1, row["at"] + 0.1], [row[simulated]] * 2, look.colour)
        plot.points(axis, same, "at", value, look._replace(line=""), str(schedule))
    scales.categories(axis, policies)


if __name__ == "__main__":
    run(__file__)
