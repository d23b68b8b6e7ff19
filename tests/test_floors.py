"""The house: an import only goes down a floor, a package is entered by its door, each outside package has few doors.

All that microp takes from private parts of other packages is listed: for correctness or for the product's speed.
"""

import ast
import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]

FLOORS = [
    {"schedule", "system"},
    {"settings", "trace", "comms"},
    {"job", "model"},
    {"simulator"},
    {"device", "profiling", "orders"},
    {"planner", "replicas", "records"},
    {"engine", "mirror", "results", "config", "foreign"},
    {"worker", "terminal"},
    {"points", "labs"},
    {"commands"},
    {"microp"},  # the files at the top, one per command
]
DOORS = {  # outside package -> the packages that may import it; `trace.drawing` is one module of trace
    "hydra": {"config", "points", "commands.pricing"},
    "omegaconf": {"config", "points", "commands"},
    "torch.distributed": {"comms", "worker", "engine"},
    "wandb": {"mirror"},
    "wandb_workspaces": {"mirror"},
    "matplotlib": {"trace.drawing"},
    "seaborn": set(),
    "ortools": {"orders"},
    "rich": {"terminal"},
    "IPython": {"terminal"},
    "yaml": {"records", "config", "foreign", "commands.importing", "terminal.run_comparison"},
    "pandas": {"results", "records.statistics", "commands", "terminal"},
}
WITHOUT_TORCH = {"schedule", "system", "settings", "job", "trace", "simulator", "profiling", "planner", "orders"}
WITHOUT_TORCH |= {"records", "results", "mirror", "foreign"}
FOR_ANALYSIS = WITHOUT_TORCH | {"terminal"}
FILES = sorted((ROOT / "microp").rglob("*.py"))
ANALYSIS = sorted((ROOT / "analysis").glob("*.py"))


def package_of(path: Path) -> str:
    """The package that a file belongs to; `microp` for the files at the top."""
    inside = path.relative_to(ROOT / "microp")
    return inside.parts[0] if len(inside.parts) > 1 else "microp"


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


def test_an_import_goes_down_or_stays_inside():
    known = set().union(*FLOORS)
    assert {package_of(path) for path in FILES} == known
    for path in FILES:
        package = package_of(path)
        used = {imported.split(".")[1] for imported in imports(path) if imported.startswith("microp.")} - {package}
        for other in used:
            other = other if other in known else "microp"
            assert floor(other) < floor(package), f"{name(path)} imports {other}, which is not on a lower floor"


def test_a_package_is_entered_by_its_door():
    """Names of another package come from its `__init__`; a module of it is imported whole, as `terminal.console`."""
    for path in (*FILES, *ANALYSIS):
        package = package_of(path) if path in FILES else "analysis"
        for imported in imports(path):
            parts = imported.split(".")
            if parts[0] != "microp" or len(parts) < 4 or parts[1] == package:
                continue  # `microp.package.name` comes from the door
            door = ROOT / "microp" / Path(*parts[1:3]) / "__init__.py"  # a package inside one, as schedule.builders
            assert door.exists(), f"{name(path)} imports {imported}: import it from microp.{parts[1]}"


def test_each_outside_package_has_few_doors():
    for path, (outside, packages) in product(FILES, DOORS.items()):
        package = package_of(path)
        used = any(imported == outside or imported.startswith(f"{outside}.") for imported in imports(path))
        assert not used or {package, f"{package}.{path.stem}"} & packages, f"{name(path)} uses {outside}"


COMPOSES = {"config", "terminal", "points", "commands.pricing"}
WITH_TORCH = set().union(*FLOORS) - {"microp", "commands"} - WITHOUT_TORCH - COMPOSES
ALONE = [  # what is imported before, and the modules of microp that are imported after it, each alone
    ("sys", {"run"}),
    ("numpy", WITHOUT_TORCH),
    ("yaml", COMPOSES),
    ("torch", WITH_TORCH),
]


def test_what_each_package_loads_when_it_is_imported_alone():
    """Each module in ALONE is imported in a fork of one interpreter, which imports the packages before them in turn."""
    code = (
        "import os, sys\n"
        f"for first, modules in {ALONE}:\n"
        "    __import__(first)\n"
        "    for module in sorted(modules):\n"
        "        if not os.fork():\n"
        "            __import__(f'microp.{module}')\n"
        "            print(module, *sys.modules, flush=True)\n"
        "            os._exit(0)\n"
        "        assert not os.wait()[1], module\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    lines = [line.split() for line in done.stdout.splitlines()]
    loaded = {module: set(all_of_them) for module, *all_of_them in lines}
    assert loaded.keys() == {"run"} | COMPOSES | WITHOUT_TORCH | WITH_TORCH
    not_wanted = {
        **{key: {"torch", "pandas", "wandb", "matplotlib", "hydra"} for key in WITHOUT_TORCH},
        **{key: {"torch", "wandb", "matplotlib"} for key in COMPOSES},
        "worker": {"hydra", "omegaconf", "pandas", "wandb", "matplotlib", "rich"},  # every rank imports it
        "run": {"hydra", "torch", "pandas", "numpy"},  # likewise, by name
    }
    for module, names in not_wanted.items():
        assert not loaded[module] & names, module


def test_analysis_needs_no_torch():
    for path in ANALYSIS:
        used = imports(path)
        assert {each.split(".")[1] for each in used if each.startswith("microp.")} <= FOR_ANALYSIS, name(path)
        assert not any(each.split(".")[0] in ("torch", "wandb", "hydra") for each in used), name(path)


def test_every_module_says_its_one_job():
    for path in (*FILES, *ANALYSIS):
        assert ast.get_docstring(parsed(path)), f"{name(path)}: every module says its one job"


def test_a_command_is_a_screen():
    for path in FILES:
        assert package_of(path) != "microp" or len(path.read_text().splitlines()) <= 60, name(path)


def test_tests_mirror_the_packages():
    packages = {path.name for path in (ROOT / "microp").iterdir() if (path / "__init__.py").exists()}
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py"))}
    assert folders == packages | {"analysis"}


ALLOWED = {
    # torch shows each tensor that is made only to such a mode; profilers are too slow within a step
    "device/meters.py": {"torch.utils._python_dispatch.TorchDispatchMode"},
    # it takes 0.02 ms of what it times, torch.profiler.record_function 0.1
    "device/marking.py": {"torch._C._profiler._RecordFunctionFast"},
    # a setting of torch's compiler that has no public name
    "model/stage.py": {"torch._functorch.config"},
    # types and memory without computing
    "model/autocast.py": {"torch._subclasses.fake_tensor.FakeTensorMode"},
    # `backward` and `grad` compare shapes in Python, 25 to 35 us a call; a layer may return any nest of tensors
    "model/split_backward.py": {"torch.autograd.graph._engine_run_backward", "torch.utils._pytree"},
    # which operations a layer calls, and with what
    "model/watch.py": {"torch.utils._python_dispatch.TorchDispatchMode"},
    # one call for all small gradients
    "model/weight_gradients.py": {"torch._foreach_add_"},
}


def private_names(path: Path) -> set[str]:
    """The private names of other packages that a file imports, or uses of a module that it has imported."""
    tree, found, modules = parsed(path), set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name: alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}": alias.asname or alias.name for alias in node.names}
        else:
            continue
        for name, known_as in names.items():
            if name.partition(".")[0] in ("microp", "__future__"):
                continue
            modules[known_as] = name
            if any(is_private(part) for part in name.split(".")):
                found.add(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and isinstance(node.value, ast.Name):
            found |= {f"{modules[node.value.id]}.{node.attr}"} if node.value.id in modules else set()
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("vars", "getattr", "setattr") and node.args:
            of, *named = map(ast.unparse, node.args)
            hidden = not named or is_private(named[0].strip("'"))
            found |= {f"{of} {named[:1]}"} if of in modules and hidden else set()
        if isinstance(node, ast.Attribute) and node.attr in ("f_locals", "tb_frame"):
            found.add(node.attr)
    return found - {"os._exit"}  # documented


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_private_names_of_other_packages_are_those_of_the_list():
    found = {str(path.relative_to(ROOT / "microp")): names for path in FILES if (names := private_names(path))}
    assert found == ALLOWED
    assert not any(map(private_names, ANALYSIS))
