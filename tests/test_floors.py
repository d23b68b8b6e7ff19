"""The house: an import only goes down a floor, and each outside package has one door."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FLOORS = [
    {"schedule", "schedule_io", "schedules", "partition", "validate", "deadlock", "excerpt"}
    | {"trace", "transfer", "reduction", "comms", "seeding", "pacing"},
    {
        "costs",
        "program",
        "simulate",
        "memory",
        "render",
        "model",
        "data",
        "split",
        "stage",
        "device",
        "emulated",
        "mailboxes",
        "buckets",
        "syncs",
        "lookahead",
        "accounting",
        "footprint",
        "replay",
    },
    {"engine", "limit", "peer", "plan", "records", "replicate", "tracking"},
    {"train", "monolith", "summary"},
    {
        "app",
        "builder",
        "pricing",
        "points",
        "config",
        "rules",
        "launch",
        "terminal",
        "point",
        "sweep",
        "run",
        "check",
        "null_stages",
        "wandb_grid",
        "labs",
        "__main__",
    },
]
SAME_FLOOR = {  # who may know a neighbour
    "schedules": {"schedule", "schedule_io", "costs"},  # closed forms are of costs
    "schedule_io": {"schedule"},
    "comms": {"pacing"},
    "validate": {"schedule", "deadlock", "excerpt"},
    "deadlock": {"schedule"},
    "excerpt": {"schedule"},
    "trace": {"schedule"},
    "reduction": {"schedule", "trace"},
    "program": {"costs"},
    "simulate": {"costs", "program"},
    "memory": {"costs"},
    "model": set(),
    "stage": {"model", "split"},
    "device": {"stage"},
    "syncs": {"buckets", "device"},
    "footprint": {"device", "memory", "model", "stage"},
    "emulated": {"device", "costs"},
    "limit": {"engine"},
    "peer": {"engine"},
    "plan": {"engine", "peer", "replicate"},
    "tracking": {"records"},
    "replay": {"costs", "simulate"},
    "monolith": {"train"},
    "summary": {"train"},
}
DOORS = {
    "hydra": {"app", "builder", "config", "points", "pricing", "run"},
    "omegaconf": {"app", "builder", "config", "points", "pricing", "sweep", "run"},
    "torch.distributed": {"comms", "launch", "peer"},
    "wandb": {"tracking"},
    "matplotlib": {"render"},
    "seaborn": set(),
    "rich": {"terminal"},
    "yaml": {"app", "tracking"},
}
STDLIB_ONLY = {
    *("schedule", "schedules", "validate", "deadlock", "excerpt", "partition", "trace", "transfer", "seeding"),
    *("reduction", "costs", "program", "simulate", "memory", "render", "replay", "records"),
}


def imports(path: Path, everywhere: bool = True) -> set[str]:
    """The modules a file imports; `everywhere` also inside functions, but not for types only."""
    found: set[str] = set()

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if everywhere or not inside:
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
        for child in ast.iter_child_nodes(node):
            visit(child, inside or isinstance(node, ast.FunctionDef))

    visit(ast.parse(path.read_text()), False)
    return found


ROOMS = {
    path: path.stem if path.parent == ROOT / "microp" or path.stem == "__main__" else path.parent.name
    for path in sorted((ROOT / "microp").rglob("*.py"))
    if path != ROOT / "microp" / "__init__.py"
}


def floor(room: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_import_goes_down(path):
    room = ROOMS[path]
    known = {name.split(".")[1] for name in imports(path) if name.startswith("microp.")} - {room}
    rooms = known & set().union(*FLOORS)
    for other in rooms:
        if floor(room) < len(FLOORS) - 1 and other not in SAME_FLOOR.get(room, set()):
            assert floor(other) < floor(room), f"{room} imports {other}, which is not on a lower floor"


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_outside_package_has_one_door(path):
    for package, rooms in DOORS.items():
        used = any(name == package or name.startswith(f"{package}.") for name in imports(path))
        assert not used or ROOMS[path] in rooms, f"{ROOMS[path]} uses {package}"


@pytest.mark.parametrize("path", [p for p, r in ROOMS.items() if r in STDLIB_ONLY], ids=lambda path: path.stem)
def test_the_value_rooms_know_no_torch(path):
    assert not any(name.split(".")[0] == "torch" for name in imports(path))


def test_no_circle():
    """Importing any one room alone works."""
    names = sorted({ROOMS[path] for path in ROOMS} - {"__main__"})
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module('microp.' + name)"
    subprocess.run([sys.executable, "-c", code, *names], check=True, cwd=ROOT)


def loaded(module: str) -> set[str]:
    code = f"import {module}, sys; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_a_rank_imports_neither_hydra_nor_pandas_nor_wandb():
    assert not loaded("microp.launch") & {"hydra", "omegaconf", "pandas", "wandb", "matplotlib", "rich"}


def test_analysis_imports_neither_torch_nor_wandb():
    assert not loaded("analysis.timeline") & {"torch", "wandb", "hydra"}


def test_run_is_light():
    """Every rank imports the main module by name."""
    assert not loaded("microp.run") & {"hydra", "torch", "pandas"}


@pytest.mark.parametrize("path", [*ROOMS, *sorted((ROOT / "analysis").glob("*.py"))], ids=lambda p: p.stem)
def test_a_module_is_one_idea(path):
    assert len(path.read_text().splitlines()) <= 300
    assert ast.get_docstring(ast.parse(path.read_text())), "every module says its one job"
