"""How exact imported traces are: each of `foreign.traced`'s beside what `engine=torch` records of the same steps.

`python -m foreign.accuracy FOLDER...` prints the median, the 90th percentile and the worst of all steps and ranks. A
rank that waits for less than 1 % of a step waits for no other: between its actions lies the host's own time, 0.1 ms
each, which a profiler and `engine=torch` divide in other places. Its wait is compared with the step alone.
"""

import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
from foreign.test_traces import EVERY, files_of, read, timed

from microp.simulator import replay_steps
from microp.trace import bubble_fraction, makespan


def main(folders: list[Path]) -> None:
    off: dict[str, list[float]] = defaultdict(list)
    for folder in (folder / name for folder in folders for name in EVERY if (folder / name).exists()):
        traced, rows, _ = read(files_of(folder))
        for step, spans in traced.spans.items():
            own = timed(folder, step)
            off["bubble"].append(float(bubble_fraction(spans) - bubble_fraction(own)))
            for rank in range(len(traced.schedule.ranks)):
                ours, theirs = ([span for span in each if span.rank == rank] for each in (spans, own))
                assert [span.action for span in ours] == [span.action for span in theirs]
                work, true_work = (sum(span.end - span.start for span in each) for each in (ours, theirs))
                wait, true_wait = (sum(b.start - a.end for a, b in pairwise(each)) for each in (ours, theirs))
                off["compute, %"].append(100 * (work / true_work - 1))
                length = theirs[-1].end - theirs[0].start
                if true_wait > length / 100:
                    off["wait, % of itself"].append(100 * (wait / true_wait - 1))
                off["wait, % of the step"].append(100 * (wait - true_wait) / length)
        middle = list(traced.spans.values())[traced.middle]
        replayed = replay_steps(traced.schedule, [rows[traced.middle]], middle)
        off["replay, %"].append(100 * (1e6 * float(makespan(replayed)) / float(makespan(middle)) - 1))
    for name, values in off.items():
        middle_value, most, worst = np.quantile(np.abs(values), [0.5, 0.9, 1])
        print(f"{name:20s} {middle_value:8.4f} {most:8.4f} {worst:8.4f}  of {len(values)}")


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
