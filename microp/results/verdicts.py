"""Says in a few sentences which of a command's runs are faster: faster, slower, or too noisy to say.

::

    schedule  repeat  step ms
    gpipe     0       50.2
    1f1b      0       48.1     ──►  1f1b is 4.1 % faster than gpipe [2.2 %, 6.0 %], 3 launches each
    ...

Runs are compared if one thing differs between them, besides the launch: the first value is what the others are
compared with. Engines, or ways to sum, that ran in turn in one launch are compared by the ratios that the table shows:
each is the median over the turns of a launch, so that what slows down both in a turn is no difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from microp.job import NOT_ASKED
from microp.results.comparison import compare
from microp.results.frames import read_runs
from microp.results.run_rows import PointRow, recorded_point
from microp.results.swept import swept
from microp.schedule.builders import LOOPED, V_SHAPED
from microp.system import flatten

ALIKE, NOISY = 1.01, 2.0  # from here on two times of one launch each are different, and if one is disturbed
LINES = 4  # of comparisons; `python -m microp.runs` compares any two groups
BRACKETS = "[ ]: 95 % interval of the difference or of the ratio, over launches"
LAUNCH = "repeat"
_LENGTH = ("steps", "warmup_steps", LAUNCH)
# What a pipeline and one process that answer the same question may differ in.
HOW = (*("schedule", "chunks", "ranks", "partition", "checkpointing", "engine", "sync", "comms"), *NOT_ASKED, *_LENGTH)
_TURNS = {("torch", "microp"): "engines", ("ddp", "torch_ddp"): "syncs"}  # ran in turn: where the summary has them


def verdicts(rows: Sequence[PointRow]) -> list[str]:
    """Return what the launches say about which is faster, as sentences; none if there is nothing to compare."""
    rows = [row for row in rows if row.summary["step_ms"]]
    keys = swept([row.config for row in rows]) if rows else {}
    keys.pop(LAUNCH, None)
    points: dict[str, list[PointRow]] = {}
    for row, *values in zip(rows, *keys.values(), strict=True):
        texts = zip(keys, values, strict=True)  # the option of a group, `key=value` of another key
        names = [value if isinstance(row.config.get(key), Mapping) else f"{key}={value}" for key, value in texts]
        points.setdefault(" ".join(names), []).append(row)
    pairs = [pair for name, launches in points.items() for pair in _in_turn(name, launches)]
    if not pairs and len(keys) == 1 and not unscaled([row.config for row in rows]):
        (base, first), *others = points.items()
        for name, launches in others:
            some = doubt(row.disturbed for row in (*launches, *first))
            pairs.append(_Pair(name, base, _times(launches), _times(first), doubt=some))
    return _sentences(pairs)


def doubt(disturbed: Iterable[object]) -> str:
    """Return what a verdict ends with if some of its launches, by their `disturbed`, are; else nothing."""
    return "; disturbed launches are among them" * any(disturbed)


def unscaled(configs: Iterable[Mapping[str, Any]]) -> str | None:
    """Return why the times of these points do not compare; None if they do.

    Nominal times that do not count the rows of a microbatch, or the layers of a stage, let the same model take longer
    where there are more microbatches, or more stages, and rows cost nothing.

    Args:
        configs: the configurations of runs, nested or with dotted keys.
    """
    nominal = [flat for flat in map(flatten, configs) if _is_nominal(flat)]
    sizes = [*map(uncounted, nominal)]
    lacking = [name for name in ("layer", "row") if len({own[name] for own in sizes if name in own}) > 1]
    if not lacking:
        return None
    per = sorted({*lacking, *(name for flat in nominal for name in flat["device.per"])})
    what = {"layer": "stage, whatever its layers", "row": "microbatch, whatever its rows"}
    more = {"layer": "more stages of the same model", "row": "more chunks of the same batch"}
    same = {"layer": "stages", "row": "chunks and batch_size"}
    return (
        f"the nominal times are per {', and per '.join(what[name] for name in lacking)}, so "
        f"{' and '.join(more[name] for name in lacking)} take longer{', and more rows do not' * ('row' in lacking)}: "
        f"compare points of equal {', '.join(same[name] for name in lacking)}, or set device.per=[{','.join(per)}], "
        f"with device.forward_ms and device.backward_ms of one {' and '.join(per)}"
    )


def uncounted(config: Mapping[str, Any]) -> dict[str, float]:
    """Return what the nominal times of a point do not count, as `row` those of a microbatch, as `layer` the stages.

    Times of points compare where it is the same. It is empty where times are not nominal.
    """
    flat = flatten(config)
    if not _is_nominal(flat):
        return {}
    sizes = {
        "layer": flat["ranks"] * _stages_per_rank(flat),
        "row": flat["batch_size"] / flat["replicas"] / flat["chunks"],
    }
    return {name: size for name, size in sizes.items() if name not in flat["device.per"]}


def _is_nominal(flat: Mapping[str, Any]) -> bool:
    return flat.get("device.name") == "emulated" and not isinstance(flat.get("profile"), str)  # which counts both


def _stages_per_rank(flat: Mapping[str, Any]) -> int:
    own = flat.get("schedule.stages_per_rank")  # NaN in a table in which other schedules have it
    names = {flat.get("schedule.name"), flat.get("schedule.of")}
    return int(own) if own and own == own else 1 if names.isdisjoint((*V_SHAPED, *LOOPED)) else 2


def one_process(rows: Sequence[PointRow]) -> Iterator[str]:
    """Yield whether the fastest pipeline among the rows is faster than one process with one microbatch, per question.

    A run of one process is among the rows, or else in the folder of their runs, if there is one of as many steps; its
    model, batch and device are the same; what differs between questions is named. What `noise` leaves open, and what is
    more times as fast than there are ranks, is too noisy to say.
    """
    here = {row.folder for row in rows}
    folders = {row.folder.parents[1] for row in rows}
    recorded = [row for runs in folders for run in runs.glob("*-m1-k1-*") for row in read_runs(run)[0]]
    known = {row.folder: row for row in (*rows, *map(recorded_point, recorded))}.values()
    alike = _alike((row for row in known if row.summary["status"] == "finished"), HOW)
    alike = [runs for runs in alike if any(row.folder in here for row in runs)]
    differing = swept([{key: value for key, value in runs[0].config.items() if key not in HOW} for runs in alike])
    for number, runs in enumerate(alike):
        launches = [(_median_ms(own), own[0]) for own in _alike(runs, (LAUNCH, *NOT_ASKED))]
        is_single = len(launches) == len(runs)
        alone = [each for each in launches if each[1].config["chunks"] == _ranks(each[1]) == 1]
        several = [each for each in launches if each[1].config["ranks"] > 1]
        pipelines = [each for each in several if each[1].summary["schedule"] != "naive"] or several
        if alone and pipelines and not unscaled(row.config for row in runs):
            as_long = [each for each in alone if _length(each[1]) in {_length(pipeline[1]) for pipeline in pipelines}]
            alone = as_long or alone
            alone = [each for each in alone if each[1].folder in here] or alone
            every, pipelines = len(pipelines), [each for each in pipelines if not each[1].disturbed] or pipelines
            of = "of these pipelines besides naive" if every < len(several) else "of these pipelines"
            which = "fastest" if every == len(pipelines) else "fastest undisturbed one"
            (alone_ms, one), (best_ms, best) = (min(each, key=lambda launch: launch[0]) for each in (alone, pipelines))
            what = "emulated process" if one.summary["device"] == "emulated" else "process"
            faster = f"{alone_ms / best_ms:.2f} times as fast" if best_ms < alone_ms else "no pipeline here is faster"
            slow, fast = sorted((one.summary["step_ms"], best.summary["step_ms"]), key=lambda step: -step["median"])
            is_disturbed = bool(one.disturbed or best.disturbed)
            why = noise(slow, fast, is_disturbed) if is_disturbed or is_single else ""
            if alone_ms > best_ms * _ranks(best):
                why = f"{faster} is more than {_ranks(best)} ranks can be"
            if why:
                faster, is_single = f"too noisy to say which is faster: {why}", False
            policy = best.config["checkpointing"]["name"]
            recomputes = f", checkpointing={policy}," if policy != one.config["checkpointing"]["name"] else ""
            question = " ".join(f"{key}={values[number]}" for key, values in differing.items() if values[number] != "-")
            yield (
                f"{question}{': ' * bool(question)}one {what} takes {alone_ms:.4g} ms for this step{_mark(one)}; "
                f"{best.summary['schedule']} with chunks={best.config['chunks']}{recomputes} on {_ranks(best)} ranks"
                f"{f', the {which} {of},' if every > 1 else ''} takes {best_ms:.4g} ms"
                f"{_mark(best)}: {faster}{', in one launch each' * is_single}"
            )


def noise(slow: Mapping[str, float], fast: Mapping[str, float], is_disturbed: bool) -> str:
    """Return why neither of two launches may be called the faster one, by median, p10 and p90; empty if one may."""
    if is_disturbed and slow["median"] < NOISY * fast["median"]:
        return f"disturbed, and less than {NOISY:g} times apart"
    if slow["p10"] <= fast["p90"]:
        return "the steps overlap (p10 to p90)"
    return "less than 1 % apart" if slow["median"] < ALIKE * fast["median"] else ""


def _mark(row: PointRow) -> str:
    return " (disturbed)" if row.disturbed else ""


def _length(row: PointRow) -> tuple[int, int]:
    return row.config["steps"], row.config["warmup_steps"]


def _ranks(row: PointRow) -> int:
    return int(row.config["ranks"] * row.config["replicas"])


def _median_ms(launches: Sequence[PointRow]) -> float:
    return float(median(row.summary["step_ms"]["median"] for row in launches))


def _alike(rows: Iterable[PointRow], free: Sequence[str]) -> list[list[PointRow]]:
    """Return the rows in groups whose configurations differ in nothing but the keys and groups `free`."""
    groups: dict[str, list[PointRow]] = {}
    for row in rows:
        question = {key: value for key, value in row.config.items() if key not in free}
        groups.setdefault(json.dumps(question, sort_keys=True, default=str), []).append(row)
    return list(groups.values())


class _Pair(NamedTuple):
    """Two groups of launches: what they are called, and their times by launch."""

    name: str
    other: str
    times: dict[int, float]
    others: dict[int, float]  # 1 for each launch, if `times` are ratios
    of: str = ""
    doubt: str = ""


def _sentences(pairs: Sequence[_Pair]) -> list[str]:
    compared = [compare(pair.times, pair.others) for pair in pairs]
    if compared and all(1 in comparison.launches for comparison in compared):  # the same sentence for all
        names = list(dict.fromkeys(pair.name for pair in pairs))
        some = ", ".join([*names[:LINES], *["..."] * (len(names) > LINES)])
        return [compared[0].sentence(some, pairs[0].other)]
    said = [
        f"{pair.of}{result.sentence(pair.name, pair.other)}{pair.doubt}"
        for pair, result in zip(pairs, compared, strict=True)
    ]
    if (more := len(said) - LINES) > 0:
        said[LINES:] = [f"{more} more comparisons: python -m microp.runs"]
    return [*said, BRACKETS] if any("[" in sentence for sentence in said) else said


def _times(rows: Sequence[PointRow]) -> dict[int, float]:
    """Return the median step time of each launch, by its number."""
    return {int(row.config[LAUNCH]): row.summary["step_ms"]["median"] for row in rows}


def _in_turn(point: str, rows: Sequence[PointRow]) -> Iterator[_Pair]:
    """Yield what ran in turn within each launch of a point."""
    for (name, other), key in _TURNS.items():
        shown = {int(row.config[LAUNCH]): (row.summary.get(key) or {"ratio": {}})["ratio"] for row in rows}
        ratios = {launch: ratio for launch, of in shown.items() if (ratio := of.get(f"{name}/{other}"))}
        if ratios:
            some = doubt(row.disturbed for row in rows)
            yield _Pair(name, other, ratios, dict.fromkeys(ratios, 1.0), f"{point}: " if point else "", some)
