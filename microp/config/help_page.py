"""Makes the text of `--help`: every key with its default and a line of help, every option, every stored sweep.

::

    key      default: conf/      help: the comment of its field in its settings class, or `Args:` of its builder
    option   help: the first line of its file
    sweep    help: the comment at the top of its file, whose last line has its points and minutes
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from hydra.utils import get_method

from microp.config.knobs import (
    base_values,
    default_options,
    default_values,
    options_of,
    own_option,
    uses,
    values_of,
)
from microp.config.schema import (
    GROUPS,
    CostsConfig,
    SearchConfig,
    SimulateConfig,
    is_fixed,
    schema_of,
)
from microp.system import CONF, SWEEPS, sweep_names

WIDTH = 22  # of the column of keys and options


@cache
def lines_of_keys(documented: Any) -> dict[str, str]:
    """Return the help of each key: the comment beside or above a class's field, or a function's `Args:`."""
    found: dict[str, str] = {}
    if not inspect.isclass(documented):
        _, _, section = inspect.cleandoc(documented.__doc__ or "").partition("Args:\n")
        body = re.split(r"\n\S", section, maxsplit=1)[0]
        texts = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", body, re.M)
        return {key: _first_sentence(" ".join(text.split())) for key, text in texts}
    for each in filter(is_dataclass, reversed(inspect.getmro(documented))):
        above: list[str] = []
        _, body = re.split(rf"^class {each.__name__}\b", inspect.getsource(sys.modules[each.__module__]), flags=re.M)
        for line in body.partition("\n\n\n")[0].splitlines():
            if line.startswith("    # "):
                above.append(line.removeprefix("    # "))
                continue
            if key := re.match(r"    (\w+): ", line):
                found[key[1]] = _first_sentence(" ".join(above) or line.partition("  # ")[2])
            above = []
    return found


def key_helps() -> dict[str, str]:
    """Return the help of every key, `""` for one without: `chunks`, `schedule.drain`, `device.forward_ms`, ..."""
    top = lines_of_keys(SimulateConfig)
    found = {key: top.get(key, "") for key in base_values() if key != "defaults"}
    for group in GROUPS:
        for option in options_of(group):
            keys = own_option(group, option)
            documented = get_method(keys["builder"]) if "builder" in keys else schema_of(group, keys)
            helps = lines_of_keys(documented)
            found |= {f"{group}.{key}": helps.get(key, "") for key in keys if not is_fixed(group, key)}
    return found


def cost_helps() -> dict[str, str]:
    """Return the help of the keys that only a price has."""
    helps = lines_of_keys(CostsConfig)
    return {f"costs.{key}": helps.get(key, "") for key in values_of("price")["costs"]} | {
        "output": lines_of_keys(SimulateConfig)["output"]
    }


def key_page(of: str) -> str:
    """Return the keys, the groups and their options as text, for a `run`, a `price` or an `order`."""
    helps, base, defaults = key_helps(), base_values(), default_options()
    lines = [line for key in base if key != "defaults" for line in _entry(f"{key}={_text(base[key])}", helps[key])]
    for group in GROUPS:
        lines += ["", f"{group}={defaults[group]}", *_group(group, helps)]
    price, costs = values_of("price"), cost_helps()
    values = {**price["costs"], "output": price["output"]}
    if of in ("price", "order"):
        lines += ["", "costs"]
        lines += [
            line for key in costs for line in _entry(f"  {key}={_text(values[key.removeprefix('costs.')])}", costs[key])
        ]
    if of == "order":
        texts = lines_of_keys(SearchConfig)
        lines += ["", "search"]
        for key, value in values_of("order")["search"].items():
            lines += _entry(f"  search.{key}={_text(value)}", texts[key])
    return "\n".join(lines)


def sweep_page() -> str:
    """Return the stored sweeps: name, question, points and minutes."""
    lines: list[str] = []
    for name in sweep_names():
        question, size = about_sweep(name)
        lines += _entry(name, size if name.endswith("_quick") else f"{question} ({size})")
    return "\n".join(lines)


def about_sweep(name: str) -> tuple[str, str]:
    """Return the question of a stored sweep, and its points and minutes if its file tells them."""
    comment = []
    for line in (SWEEPS / f"{name}.yaml").read_text().splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.removeprefix("#").strip())
    sizes = [line for line in comment if re.match(r"\d+ points, ", line)]
    return comment[0], sizes[0].removesuffix(".") if sizes else ""


def _group(group: str, helps: dict[str, str]) -> Iterator[str]:
    """Yield the options of a group, and their keys with the options that use them."""
    options = {name: default_values(group, name) for name in options_of(group)}
    for name in options:
        comment = (CONF / group / f"{name}.yaml").read_text().splitlines()[0].removeprefix("# ")
        yield from _entry(f"    {name}", comment)
    for key in (key for key in helps if key.startswith(f"{group}.")):
        knob = key.partition(".")[2]
        having = {name: _text(keys[knob]) for name, keys in options.items() if knob in keys and uses(key, name)}
        is_one, only = len(set(having.values())) == 1, ""
        if not is_one or len(having) < len(options):
            only = f" ({', '.join(name if is_one else f'{name}: {value}' for name, value in having.items())})"
        yield from _entry(f"  {key}={next(iter(having.values())) if is_one else ''}", helps[key] + only)


def _entry(left: str, text: str) -> list[str]:
    """Return a key or an option and its help, which is wrapped beside it."""
    width = max(80, min(shutil.get_terminal_size().columns, 120)) - 1
    wrapped = textwrap.wrap(text, width - WIDTH - 2) or [""]
    first = [f"{left:{WIDTH}}  {wrapped[0]}"] if len(left) <= WIDTH else [left, " " * (WIDTH + 2) + wrapped[0]]
    return [*first, *(" " * (WIDTH + 2) + line for line in wrapped[1:])]


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[^.]{3})\. ", text, maxsplit=1)[0].removesuffix(".").replace("`", "")


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    return "" if value == "???" or str(value).startswith("${") else str(value)  # its help says what a formula gives
