"""Makes the text of `--help`: every key with its default and a line of help, every option, every stored sweep.

::

    key      default: conf/      help: `Attributes:` of its settings class, or `Args:` of its builder
    option   help: the first line of its file
    sweep    help: the comment at the top of its file, whose last line has its points and minutes
"""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

from hydra.utils import get_method
from omegaconf import OmegaConf

from microp.app.knobs import default_values, own_option, uses
from microp.app.places import CONF, SWEEPS, sweep_names
from microp.app.schema import GROUPS, CostsConfig, SearchConfig, SimulateConfig, is_fixed, schema_of

WIDTH = 22  # of the column of keys and options


def lines_of_keys(documented: Any) -> dict[str, str]:
    """Return the help of each key that a class documents under `Attributes:`, or a function under `Args:`."""
    found: dict[str, str] = {}
    for each in reversed(inspect.getmro(documented)) if inspect.isclass(documented) else (documented,):
        _, _, section = re.sub(r"^Args:$", "Attributes:", inspect.cleandoc(each.__doc__ or ""), flags=re.M).partition(
            "Attributes:\n"
        )
        body = re.split(r"\n\S", section, maxsplit=1)[0]
        for key, text in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", body, re.M):
            found[key] = _first_sentence(" ".join(text.split()))
    return found


def key_helps() -> dict[str, str]:
    """Return the help of every key, `""` for one without: `chunks`, `schedule.drain`, `costs.forward`, ..."""
    top = lines_of_keys(SimulateConfig)
    found = {key: top.get(key, "") for key in _values("base") if key != "defaults"}
    for group in GROUPS:
        for option in _options(group):
            keys = own_option(group, option)
            documented = get_method(keys["builder"]) if "builder" in keys else schema_of(group, keys)
            helps = lines_of_keys(documented)
            found |= {f"{group}.{key}": helps.get(key, "") for key in keys if not is_fixed(group, key)}
    return found


def cost_helps() -> dict[str, str]:
    """Return the help of the keys that only a price has."""
    helps = lines_of_keys(CostsConfig)
    return {f"costs.{key}": helps.get(key, "") for key in _values("price")["costs"]} | {
        "output": lines_of_keys(SimulateConfig)["output"]
    }


def key_page(of: str) -> str:
    """Return the keys, the groups and their options as text, for a `run`, a `price` or an `order`."""
    helps, lines = key_helps(), []
    base = _values("base")
    for key, text in helps.items():
        if "." not in key:
            lines += _entry(f"{key}={_text(base[key])}", text)
    defaults = {group: option for each in base["defaults"] if isinstance(each, dict) for group, option in each.items()}
    for group in GROUPS:
        lines += ["", f"{group}={defaults[group]}", *_group(group, helps)]
    if of in ("price", "order"):
        lines += ["", "costs"]
        values = _values("price")
        for key, text in cost_helps().items():
            value = values["output"] if key == "output" else values["costs"][key.partition(".")[2]]
            lines += _entry(f"  {key}={_text(value)}", text)
    if of == "order":
        helps = lines_of_keys(SearchConfig)
        lines += ["", "search"]
        for key, value in _values("order")["search"].items():
            lines += _entry(f"  search.{key}={_text(value)}", helps[key])
    return "\n".join(lines)


def sweep_page() -> str:
    """Return the stored sweeps: name, question, points and minutes."""
    lines: list[str] = []
    for name in sweep_names():
        question, size = about_sweep(name)
        if not name.endswith("_quick"):
            lines += _entry(name, f"{question} ({size})" if size else question)
        else:
            lines += _entry(name, size)
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
    options = {name: default_values(group, name) for name in _options(group)}
    for name in options:
        comment = (CONF / group / f"{name}.yaml").read_text().splitlines()[0].removeprefix("# ")
        yield from _entry(f"    {name}", comment)
    for key in (key for key in helps if key.startswith(f"{group}.")):
        knob = key.partition(".")[2]
        having = {name: _text(keys[knob]) for name, keys in options.items() if knob in keys and uses(key, name)}
        values = dict.fromkeys(having.values())
        value = next(iter(values)) if len(values) == 1 else ""
        only = "" if len(having) == len(options) else f" ({', '.join(having)})"
        if len(values) > 1:
            only = f" ({', '.join(f'{name}: {each}' for name, each in having.items())})"
        yield from _entry(f"  {key}={value}", helps[key] + only)


def _entry(left: str, text: str) -> list[str]:
    """Return a key or an option and its help, which is wrapped beside it."""
    width = max(80, min(shutil.get_terminal_size().columns, 120)) - 1
    wrapped = textwrap.wrap(text, width - WIDTH - 2) or [""]
    first = [f"{left:{WIDTH}}  {wrapped[0]}"] if len(left) <= WIDTH else [left, " " * (WIDTH + 2) + wrapped[0]]
    return [*first, *(" " * (WIDTH + 2) + line for line in wrapped[1:])]


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[^.]{3})\. ", text, maxsplit=1)[0].removesuffix(".").replace("`", "")


def _options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def _values(name: str) -> dict[str, Any]:
    values = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"), resolve=False)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    return "" if value == "???" else str(value)
