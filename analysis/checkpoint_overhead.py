"""What recomputing activations costs in time, and what it saves in memory.

::

    step_ms │        ● always            penalty: a launch's step over that of the same launch
            │   ● segments                        with every activation kept
            │      ○ except_last         predicted: the schedule, simulated with measured F, B and
            │                  ● never              R, against `never`'s F and B
            └──────────────────── MiB

Bytes are counted beside GPipe's memory law; see `memory_law`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from analysis import plot
from analysis.command import main
from analysis.exhibit import Exhibit, drawn
from analysis.memory_law import laws
from analysis.prediction import measured_steps
from analysis.statistics import LAUNCH, over_launches, paired
from analysis.store import Store, records, worst_rank_mib
from analysis.timeline import schedule_of
from microp.costs import Costs, of_steps
from microp.records import read_spans
from microp.schedule import Schedule
from microp.simulate import simulate
from microp.trace import makespan

NAME = "checkpoint_overhead"
POLICIES = ("never", "except_last", "always", "segments")
SAME = ["model", "ranks", "batch_size", "schedule", "chunks"]  # in all of which two policies are compared
POINT = ["model", "schedule", "checkpointing", "chunks"]


def exhibits(store: Store) -> list[Exhibit]:
    """Three figures: the penalty, the memory, and both."""
    runs = store.runs(NAME)
    if runs.empty:
        return []
    runs = runs.drop_duplicates([*POINT, LAUNCH]).reset_index(drop=True)
    compared = compare(runs)
    made = [pareto(runs, compared), penalty(compared), memory(runs)]
    return drawn(made, store.missing(NAME))


# --- time ------------------------------------------------------------------------------------------


def compare(runs: pd.DataFrame) -> pd.DataFrame:
    """The launches that recompute, with those of the same launch that keep everything.

    Returns:
        their rows with `ratio`, step over step; `predicted`, the same as simulated with the F, B
        and R that they took; `R alone`, with `never`'s F and B and their R; and `kept`, peak
        activations over peak activations, of the worst rank.
    """
    runs = runs.assign(worst_mib=worst_rank_mib(runs))
    plain = runs[runs["checkpointing"] == "never"]
    others = runs[runs["checkpointing"] != "never"]
    saved = paired(others, plain, SAME, "worst_mib").rename(columns={"ratio": "kept"})
    both = paired(saved, plain, SAME, "step_ms.median")
    launch = itemgetter(*SAME, LAUNCH)
    without = {launch(row): row for row in records(plain)}
    predicted = [predict(without[launch(row)], row) for row in records(both)]
    return both.assign(**pd.DataFrame(predicted, both.index, ["predicted", "R alone"]))


def predict(plain: dict[str, Any], row: dict[str, Any]) -> tuple[float, float]:
    """What recomputation should make of a step: simulated with the times of `row`, over that with those of `plain`.

    Returns:
        a step's time over the measured one of `plain`: with F, B and R of `row`, whose forward
        keeps nothing and whose backward finds what it needs in the cache; and with `plain`'s F
        and B and the R of `row`. NaN where there is no trace.
    """
    folder = Path(plain["folder"])
    spans, steps = read_spans(folder), measured_steps(folder, plain["ranks"])
    again = measured_steps(Path(row["folder"]), row["ranks"])
    if not spans or not steps or not again:
        return float("nan"), float("nan")
    schedule, spare_last = schedule_of(spans, plain["schedule"]), bool(row["config.checkpointing.spare_last"])
    costs = of_steps(schedule, steps, spans)
    dearer = with_recomputation(schedule, costs, again, spare_last)
    own, share = of_steps(schedule, again, spans), 1 - spare_last / schedule.chunks
    backward = tuple(b - r * share for b, r in zip(own.backward, dearer.recompute, strict=True))
    own = replace(dearer, forward=own.forward, backward=backward)
    before, *after = (float(makespan(simulate(schedule, each))) for each in (costs, own, dearer))
    with_own, with_plain = (1 + (each - before) / plain["step_ms.median"] for each in after)
    return with_own, with_plain


def with_recomputation(schedule: Schedule, costs: Costs, steps: Sequence[Any], spare_last: bool) -> Costs:
    """`costs` with the recomputation that the ranks' rows of `steps` name, a microbatch, in milliseconds."""
    number = schedule.chunks - spare_last
    per_rank = [
        median(step[rank]["recompute_ms"] for step in steps) / max(1, number * len(schedule.stages_of(rank)))
        for rank in range(len(schedule.ranks))
    ]
    recompute = tuple(per_rank[schedule.placement[stage]] for stage in range(schedule.stages))
    return replace(costs, recompute=recompute, spared=(schedule.chunks - 1,) if spare_last else ())


def penalty(compared: pd.DataFrame) -> Exhibit | None:
    """Step time over that of `never`, against M, beside its prediction."""
    if compared.empty:
        return None
    table = over_launches(compared, POINT, ["ratio", "predicted", "R alone", "kept"])
    table["overhead"] = table["ratio"] - 1
    for name in ("predicted", "R alone"):
        table[f"overhead / {name}"] = table["overhead"] / (table[name] - 1)
    figure = _panels(table, "ratio", "predicted", "step time over never's")
    for axis in figure.axes:
        axis.axhline(1, color="0.6", linewidth=0.8)
        axis.set_ylim(0.9, 0.1 + table[["ratio", "predicted"]].max().max())
    text = (
        "Step time over that of the same launch with every activation kept. Markers: median of launches, paired by "
        "launch; bars: 95 % bootstrap interval (long ones leave the panel); broken: predicted, the schedule simulated "
        "with the F, B and R that were measured, over the same with the F and B of the run that keeps everything. How "
        f"far the overhead (ratio - 1) lies from the prediction's: {_misses(table, 'predicted')}. With R alone, added "
        "to the F and B of the run that keeps everything, one would expect more, since a forward that keeps nothing is "
        f"cheaper, and so is a backward whose activations are still in the cache: {_misses(table, 'R alone')}."
    )
    return Exhibit("checkpoint-overhead-penalty", "What recomputation costs", text, figure, table, compared)


def _misses(table: pd.DataFrame, predicted: str) -> str:
    """How far the measured overhead lies from the predicted one."""
    steady = table[~table["ratio.wide"]]
    miss, of_steady = ((own[f"overhead / {predicted}"] - 1).abs() for own in (table, steady))
    return (
        f"{miss.median():.0%} in the median of {len(miss)} points ({(miss <= 0.1).sum()} are within 10 %), "
        f"{miss.max():.0%} at most; of the {len(steady)} whose spread is not too wide "
        f"{(of_steady <= 0.1).sum()} are within 10 %"
    )


# --- memory ----------------------------------------------------------------------------------------


def memory(runs: pd.DataFrame) -> Exhibit | None:
    """Peak activations of the worst rank against M, and the law."""
    table = laws(runs, POINT)
    if table.empty:
        return None
    worst = table.loc[table.groupby(POINT, sort=True)["activation_mib"].idxmax()]
    for part in (".low", ".high"):
        worst[f"activation_mib{part}"] = worst["activation_mib"]
    worst["activation_mib.wide"] = False
    figure = _panels(worst, "activation_mib", "counted", "peak activations of a rank, MiB")
    for axis in figure.axes:
        axis.set_yscale("log", base=2)
        plot.plain(axis.yaxis)
    text = (
        "Peak bytes of activations on the rank that holds most, exact, from a step under a meter. Broken: GPipe's law, "
        "n a without recomputation and n b + the largest segment with it, from the batch's shape and from 1F1B's runs "
        f"at the smallest M: {table['counted error'].abs().max():.1%} off at most, over "
        f"{len(table)} points and ranks. With (a - b)/g for the segment, as if the head were spread over all of them, "
        f"{table['law error'].abs().max():.1%}."
    )
    used = runs[runs["peak_activation_mib"].notna()]
    return Exhibit("checkpoint-overhead-memory", "What recomputation saves", text, figure, table, used)


# --- both ------------------------------------------------------------------------------------------


def pareto(runs: pd.DataFrame, compared: pd.DataFrame) -> Exhibit | None:
    """Step time against peak activations."""
    runs = runs.assign(worst_mib=worst_rank_mib(runs)).dropna(subset=["worst_mib"])
    if runs.empty:
        return None
    table = over_launches(runs, POINT, ["step_ms.median", "worst_mib"])
    best = [plot.front(own, "worst_mib", "step_ms.median") for _, own in table.groupby("model")]
    table["front"] = table.index.isin([label for labels in best for label in labels])
    models = sorted(table["model"].unique())
    figure, axes = plot.sheet(1, len(models), (3.8, 3.2))
    for axis, model in zip(axes[0], models, strict=True):
        own = table[table["model"] == model]
        plot.scatter(axis, own, "worst_mib", "step_ms.median", "checkpointing", _policies(own))
        axis.set_xscale("log", base=2)
        plot.plain(axis.xaxis)
        axis.set(title=model, xlabel="peak activations of a rank, MiB", ylim=(0, 1.3 * own["step_ms.median"].max()))
    axes[0, 0].set_ylabel("step time, ms")
    plot.legend(figure, [plot.FRONT])
    text = (
        "Step time against peak activations of the rank that holds most, a marker for each schedule and M; the line "
        "joins what nothing else beats in both. Bars: 95 % bootstrap interval over launches; long ones leave the panel."
    )
    if not compared.empty:
        cheapest = compared.groupby("checkpointing")[["ratio", "kept"]].median()
        text += " In the median over schedules and M: " + "; ".join(
            f"{name} takes {line['ratio']:.2f} of never's time and {line['kept']:.2f} of its activations"
            for name, line in cheapest.reindex([p for p in POLICIES if p in cheapest.index]).iterrows()
        )
        text += "."
    return Exhibit("checkpoint-overhead-pareto", "Memory against time", text, figure, table, runs)


def _policies(table: pd.DataFrame) -> dict[Any, plot.Look]:
    """The looks of all policies, and the usual ones first, so that a policy has the same look in every figure."""
    return plot.looks([*POLICIES, *sorted(set(table["checkpointing"]) - set(POLICIES))])


def _panels(table: pd.DataFrame, value: str, predicted: str, label: str) -> Any:
    """A row of panels for each model, a column for each schedule, over M; `predicted` in broken lines."""
    models, schedules = sorted(table["model"].unique()), plot.in_order(sorted(table["schedule"].unique()))
    figure, axes = plot.sheet(len(models), len(schedules), (2.7, 2.3), sharey="row")
    for (model, schedule), own in table.groupby(["model", "schedule"]):
        axis = axes[models.index(model), schedules.index(schedule)]
        named = {name: look for name, look in _policies(own).items() if name in set(own["checkpointing"])}
        shifted = plot.beside(own, "chunks", "checkpointing", named)
        plot.lines(axis, shifted, "chunks", value, "checkpointing", named, predicted)
        plot.powers(axis, own["chunks"], plot.CHUNKS)
        axis.set_title(f"{model}, {schedule}")
    for axis in axes[:, 0]:
        axis.set_ylabel(label)
    plot.legend(figure, [plot.THEORY])
    return figure


if __name__ == "__main__":
    sys.exit(main(NAME, exhibits))
