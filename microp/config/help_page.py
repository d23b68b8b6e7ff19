"""Makes the text of `--help`: every key with its default and a line of help, every option, every stored sweep.

::

    key      default: conf/      help: its comment there, or in its settings class, or `Args:` of its builder
    option   help: the first line of its file
    sweep    help: the comment at the top of its file, whose last line has its points and minutes
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import Any, cast, get_type_hints

from hydra.utils import get_method

from microp.config import schema
from microp.config.knobs import NOT_FOR, uses
from microp.planner import KNOBS
from microp.system import CONF, about_sweep, sweep_names

WIDTH = 22  # of the column of keys and options
WIDEST = 60  # of a list that is shown as a default
_FILES = {"config": (), "simulate": ("price",), "order": ("order", "price"), "plan": ("plan",), "profile": ("profile",)}
_ALL = ("batch_size", "dtype", "output_dir", "model", "device")
_ORDER = ("ranks", "chunks", "seed", "activation_limit", "partition", "schedule", "checkpointing")
_COUNT = {  # the keys and groups of a run that count for another command; where none are listed, all do
    "profile": (*_ALL, "optimizer"),
    "plan": (*_ALL, "ranks", "profile", "optimizer", "sync", "comms"),
    "order": (*_ALL, *_ORDER, "profile", "optimizer"),
}
_TRAINING = {f"optimizer.{key}" for key in ("weight_decay", "decay", "warmup_steps", "betas")}  # take no other time
_SILENT = {  # options and keys that another command takes, as its runs have them, and that change nothing it prints
    "profile": {"device=emulated", "device=estimate", *_TRAINING},
    "order": {"costs.reduction", "device.memory_gib", *_TRAINING},
    "plan": {"comms.timeout_s", "sync.all_reduce", "sync.bucket_mb", "sync.first_bucket_mb", *_TRAINING},
}


@cache
def lines_of_keys(documented: Any) -> dict[str, str]:
    """Return the help of each key: the comment beside or above a class's field, or a function's `Args:`."""
    if not inspect.isclass(documented):
        _, _, section = inspect.cleandoc(documented.__doc__ or "").partition("Args:\n")
        body = re.split(r"\n\S", section, maxsplit=1)[0]
        return {key: _first_sentence(text) for key, text in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", body, re.M)}
    helps: dict[str, str] = {}
    for kind in filter(is_dataclass, reversed(inspect.getmro(documented))):
        module = inspect.getsource(sys.modules[kind.__module__])
        body = re.split(rf"^class {kind.__name__}\b", module, flags=re.M)[1].partition("\n\n\n")[0]
        for above, key, beside in re.findall(r"((?:^    # .*\n)*)^    (\w+): [^#\n]*(?:  # (.*))?$", body, re.M):
            helps[key] = _first_sentence(above.replace("    # ", "") or beside)
    return helps


def key_page(of: str) -> str:
    """Return the keys of a command as text: its own, then those of a run that count for it, with the options."""
    base, options, kind = schema.values_of("base"), schema.default_options(), cast(Any, schema.KINDS[of])
    hints, texts, lines = get_type_hints(kind), lines_of_keys(kind), list[str]()
    values = {key: value for file in _FILES[of] for key, value in schema.values_of(file).items() if key in hints}
    count = _COUNT.get(of, (*base, *options))
    left_out = {*NOT_FOR.get(of, ()), *_SILENT.get(of, ())}
    for key in sorted(
        values.keys() - base.keys(), key=lambda key: (isinstance(values[key], dict), key == "costs", key)
    ):
        if of == "plan" and key == "search":  # what is searched is typed as the keys of a run
            for name, helped in lines_of_keys(hints[key]).items():
                typed, before = ",".join(map(str, values[key][name] or ())), "schedule." * (name in KNOBS)
                lines += _entry(f"{before}{name}={typed if len(typed) < WIDEST else ''}", helped)
        elif isinstance(values[key], dict):
            own = {name: value for name, value in values[key].items() if f"{key}.{name}" not in left_out}
            lines += ["", *_keys(f"{key}.", own, lines_of_keys(hints[key]))]
        else:
            lines += _keys("", {key: values[key]}, texts)
    lines += [""] if lines else []
    lines += _keys("", {key: (base | values)[key] for key in base if key in hints and key in count}, texts)
    for group, option in options.items():
        if group in count:
            lines += ["", f"{group}={option}", *_group(group, left_out)]
    return "\n".join(lines)


def _keys(before: str, values: dict[str, Any], texts: dict[str, str]) -> list[str]:
    return [line for key, value in values.items() for line in _entry(f"{before}{key}={_text(value)}", texts[key])]


def _group(group: str, left_out: Collection[str]) -> Iterator[str]:
    """Yield the options of a group, and their keys with the options that use them."""
    names = [name for name in schema.options_of(group) if f"{group}={name}" not in left_out]
    options = {name: schema.default_values(group, name) for name in names}
    texts: dict[str, dict[str, str]] = {}  # of each option: builders may mean different things by a key
    for name, keys in options.items():
        file = (CONF / group / f"{name}.yaml").read_text()
        yield from _entry(f"    {name}", file.splitlines()[0].removeprefix("# "))
        texts[name] = lines_of_keys(get_method(keys["builder"]) if "builder" in keys else schema.schema_of(group, keys))
        texts[name] |= dict(re.findall(r"^(\w+): [^#\n]*# (.*)", file, re.M)) if "builder" in keys else {}
    for key in dict.fromkeys(key for keys in options.values() for key in keys if f"{group}.{key}" not in left_out):
        having = {name: _text(keys[key]) for name, keys in options.items() if key in keys and uses(group, key, name)}
        if not having or schema.is_fixed(group, key):
            continue
        is_one, only = len(set(having.values())) == 1, ""
        if not is_one or len(having) < len(options):
            only = f" ({', '.join(name if is_one else f'{name}: {value}' for name, value in having.items())})"
        said: dict[str, list[str]] = {}
        for name in having:
            said.setdefault(texts[name][key], []).append(name)
        differ = "; ".join(f"{', '.join(names)}: {text}" for text, names in said.items())
        text = differ if len(said) > 1 and is_one else f"{[*said][-1]}{only}"
        yield from _entry(f"  {group}.{key}={next(iter(having.values())) if is_one else ''}", text)


def sweep_page() -> str:
    """Return the stored sweeps: name, question, points and minutes."""
    lines: list[str] = []
    for name in sweep_names():
        question, size = about_sweep(name)
        lines += _entry(name, size if name.endswith("_quick") else f"{question} ({size})")
    return "\n".join(lines)


def _entry(left: str, text: str) -> list[str]:
    """Return a key or an option and its help, which is wrapped beside it."""
    width = max(80, min(shutil.get_terminal_size().columns, 120)) - 1
    margin = " " * (WIDTH + 2)
    if len(left) <= WIDTH:
        return textwrap.wrap(text, width, initial_indent=f"{left:{WIDTH}}  ", subsequent_indent=margin) or [left]
    return [left, *textwrap.wrap(text, width, initial_indent=margin, subsequent_indent=margin)]


def _first_sentence(text: str) -> str:
    line = " ".join(text.split())
    return re.split(r"(?<=[^.]{3})\. ", line, maxsplit=1)[0].removesuffix(".").replace("`", "")


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    return "" if value == "???" or str(value).startswith("${") else str(value)  # its help says what a formula gives
