"""The points of a command: planned, run, resumed, on this machine, with torchrun, or as jobs of Slurm.

::

    run_app ─► SweepCallback checks and plans all points ─► run_point ─► an attempt on disk ─► a table
"""

from microp.points.hydra_app import BAD_INPUT, Point, PointsCallback, run_app
from microp.points.next_commands import used_words
from microp.points.planned import Planned, finished_points, plan_sweep, write_points
from microp.points.point import run_point
from microp.points.run import board, run_attempt
