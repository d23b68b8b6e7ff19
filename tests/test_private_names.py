"""All that microp takes from private parts of other packages: each for correctness or for the product's speed."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]

ALLOWED = {
    "device/meters.py": {
        # torch shows each tensor that is made only to such a mode; profilers are too slow within a step
        "torch.utils._python_dispatch.TorchDispatchMode"
    },
    "model/compiled.py": {
        "torch._functorch.config"  # a setting of torch's compiler that has no public name
    },
    "model/autocast.py": {
        "torch._subclasses.fake_tensor.FakeTensorMode"  # which types a layer makes, without computing
    },
    "model/split_backward.py": {
        # `backward` and `grad` compare shapes in Python, 25 to 35 us a call
        "torch.autograd.graph._engine_run_backward",
        "torch.utils._pytree",  # a layer may take and return any nest of tensors
    },
    "model/watch.py": {
        "torch.utils._python_dispatch.TorchDispatchMode"  # which operations a layer calls, and with what
    },
    "model/weight_gradients.py": {
        "torch._foreach_add_"  # one call for all small gradients
    },
}


def private_names(path: Path) -> set[str]:
    """The private names of other packages that a file imports, or uses of a module that it has imported."""
    tree, found, modules = ast.parse(path.read_text()), set(), {}
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
    found = {
        str(path.relative_to(ROOT / "microp")): names
        for path in sorted((ROOT / "microp").rglob("*.py"))
        if (names := private_names(path))
    }
    assert found == ALLOWED


def test_figures_need_none():
    for path in sorted((ROOT / "analysis").glob("*.py")):
        assert not private_names(path), path
