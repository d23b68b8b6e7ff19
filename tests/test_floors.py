"""The house: an import only goes down a floor, a package is entered by its door, each outside package has few doors."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = [
    {"schedule", "settings"},
    {"job", "trace", "comms", "slurm"},
    {"simulator", "model"},
    {"device", "planner"},
    {"replicas", "store"},
    {"engine", "terminal"},
    {"worker"},
    {"app"},
    {"commands", "labs"},  # commands: the files at the top of microp/, its interface included
]
DOORS = {  # outside package -> the packages that may import it; `trace.drawing` is one module of trace
    "hydra": {"app"},
    "omegaconf": {"app"},
    "torch.distributed": {"comms", "worker", "engine"},
    "wandb": {"store"},
    "wandb_workspaces": {"store"},
    "matplotlib": {"trace.drawing"},
    "PIL": {"trace.picture"},
    "seaborn": set(),
    "ortools": {"planner"},
    "rich": {"terminal"},
    "yaml": {"store", "app"},
    "pandas": {"store", "app", "terminal"},
}
WITHOUT_TORCH = {"schedule", "settings", "slurm", "job", "trace", "simulator", "planner", "store"}
FOR_ANALYSIS = {"schedule", "settings", "job", "trace", "simulator", "planner", "store"}
FILES = sorted((ROOT / "microp").rglob("*.py"))


def package_of(path: Path) -> str:
    """The package that a file belongs to; `commands` for the files at the top of `microp/`."""
    inside = path.relative_to(ROOT / "microp")
    return inside.parts[0] if len(inside.parts) > 1 else "commands"


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    """The modules and names that a file imports, also inside functions, but not for types only."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(parsed(path))
    return found


def floor(package: str) -> int:
    return next(number for number, packages in enumerate(FLOORS) if package in packages)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_package_has_a_floor():
    packages = {package_of(path) for path in FILES}
    assert packages == set().union(*FLOORS)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_an_import_goes_down_or_stays_inside(path):
    package = package_of(path)
    known = {imported.split(".")[1] for imported in imports(path) if imported.startswith("microp.")} - {package}
    for other in known:
        other = other if other in set().union(*FLOORS) else "commands"
        assert floor(other) < floor(package), f"{package} imports {other}, which is not on a lower floor"


@pytest.mark.parametrize("path", [*FILES, *sorted((ROOT / "analysis").glob("*.py"))], ids=name)
def test_a_package_is_entered_by_its_door(path):
    """Names of another package come from its `__init__`; a module of it is imported whole, as `terminal.console`."""
    package = package_of(path) if path.is_relative_to(ROOT / "microp") else "analysis"
    for imported in imports(path):
        parts = imported.split(".")
        if parts[0] != "microp" or len(parts) < 4 or parts[1] == package:
            continue  # `microp.package.name` comes from the door
        door = ROOT / "microp" / Path(*parts[1:3]) / "__init__.py"  # a package inside a package, as schedule.builders
        assert door.exists(), f"{name(path)} imports {imported}: import it from microp.{parts[1]}"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_each_outside_package_has_few_doors(path):
    package = package_of(path)
    for outside, packages in DOORS.items():
        used = any(imported == outside or imported.startswith(f"{outside}.") for imported in imports(path))
        assert not used or {package, f"{package}.{path.stem}"} & packages, f"{name(path)} uses {outside}"


@cache
def loaded(modules: str, first: str = "sys") -> dict[str, set[str]]:
    """Import each of these modules in a process of its own; what is loaded then, by the module.

    They are forks of one interpreter, which has imported `first` alone.
    """
    code = (
        f"import {first}, os, sys\n"
        f"for module in {modules.split()}:\n"
        "    if not os.fork():\n"
        "        __import__(module)\n"
        "        print(module, *sys.modules)\n"
        "        sys.exit()\n"
        "    assert not os.wait()[1], module\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {module: set(all_of_them) for module, *all_of_them in lines}


def names(packages: set[str]) -> str:
    return " ".join(f"microp.{package}" for package in sorted(packages))


@pytest.mark.parametrize("package", sorted(WITHOUT_TORCH))
def test_these_packages_do_without_torch(package):
    found = loaded(names(WITHOUT_TORCH))[f"microp.{package}"]
    assert not found & {"torch", "pandas", "wandb", "matplotlib", "hydra"}


def test_every_package_can_be_imported_alone():
    others = set().union(*FLOORS) - {"commands"} - WITHOUT_TORCH
    assert loaded(names(others), "torch").keys() == {f"microp.{package}" for package in others}


def test_a_rank_imports_neither_hydra_nor_pandas_nor_wandb():
    found = loaded(names({"worker"}))["microp.worker"]
    assert not found & {"hydra", "omegaconf", "pandas", "wandb", "matplotlib", "PIL", "rich"}


def test_the_main_module_is_light():
    """Every rank imports it by name."""
    assert not loaded("microp.run")["microp.run"] & {"hydra", "torch", "pandas", "numpy"}


def test_composing_a_configuration_takes_no_torch():
    for found in loaded("microp.app.hydra_app microp.app.pricing").values():
        assert not found & {"torch", "wandb", "matplotlib"}


@pytest.mark.parametrize("path", sorted((ROOT / "analysis").glob("*.py")), ids=name)
def test_analysis_needs_no_torch(path):
    used = imports(path)
    assert {each.split(".")[1] for each in used if each.startswith("microp.")} <= FOR_ANALYSIS
    assert not any(each.split(".")[0] in ("torch", "wandb", "hydra") for each in used)


@pytest.mark.parametrize("path", [*FILES, *sorted((ROOT / "analysis").glob("*.py"))], ids=name)
def test_a_module_is_one_idea(path):
    assert len(path.read_text().splitlines()) <= 300
    assert ast.get_docstring(parsed(path)), "every module says its one job"


@pytest.mark.parametrize("path", [path for path in FILES if package_of(path) == "commands"], ids=name)
def test_a_command_is_a_screen(path):
    """It parses, calls and prints."""
    assert len(path.read_text().splitlines()) <= 55


def test_tests_mirror_the_packages():
    packages = {path.name for path in (ROOT / "microp").iterdir() if (path / "__init__.py").exists()}
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py"))}
    assert folders == packages | {"commands", "analysis"}
