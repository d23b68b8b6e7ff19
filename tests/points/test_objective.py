"""A run returns its objective, so that a sweeper such as Optuna's can choose the next point from those before it."""

from __future__ import annotations

import os

from user import ROOT, SMALL, ran, read

CHOOSER = '''
"""A sweeper that chooses each point after the one before it; Hydra takes sweepers only from `hydra_plugins`."""
import json
from pathlib import Path
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

class Chooser(Sweeper):
    def __init__(self, **_):
        pass

    def setup(self, *, hydra_context, task_function, config):
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments):
        found, chunks = {}, 2
        for number in range(3):
            [done] = self.launcher.launch([[f"chunks={chunks}", *arguments]], initial_job_idx=number)
            try:
                found[chunks] = done.return_value
                chunks += 1 if done.return_value > 0 else 99
            except Exception as error:
                found[chunks] = repr(error)
            if number == 1:
                chunks = 400
        Path("found.json").write_text(json.dumps(found))
'''


def test_a_sweeper_that_chooses_its_points_gets_their_step_times(tmp_path):
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins" / "chooser.py").write_text(CHOOSER)
    words = ["-m", "hydra.sweeper._target_=hydra_plugins.chooser.Chooser", "tracking=disabled", "comms=threads", *SMALL]
    done = ran(*words, folder=tmp_path, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    summaries = [read(path) for path in (tmp_path / "outputs" / "runs").glob("*/*/summary.json")]
    medians = {str(summary["chunks"]): summary["step_ms"]["median"] for summary in summaries}
    found = read(tmp_path / "found.json")
    assert "chunks=400 is more than batch_size=8" in found.pop("400")  # it fails, and the others count
    assert found == medians
    assert sorted(found) == ["2", "3"]
    [folder] = (tmp_path / "outputs" / "sweeps").iterdir()
    points = read(folder / "plan.json")["points"]
    assert [point["overrides"][0] for point in points] == ["chunks=2", "chunks=3"]
    table = (folder / "table.csv").read_text().splitlines()
    assert len(table) == 3
    assert "planned" not in "".join(table)
    assert "finished" in done.stdout
