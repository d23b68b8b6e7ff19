"""Says in one line per problem why Hydra cannot compose a configuration.

::

    Error merging override chunks=abc                  ┐
    Value 'abc' of type 'str' could not be converted.. ┴─►  chunks=abc is not an integer: use a whole number
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from microp.app.errors import ConfigError
from microp.app.places import sweep_names
from microp.app.schema import FIXED, GROUPS
from microp.settings import quoted

# All errors by which Hydra and its libraries refuse what a user typed or wrote into a file.
REFUSED = (HydraException, OmegaConfBaseException, YAMLError, ValueError, RecursionError)

SEVERAL = r"(?:Ambiguous value for argument|Sweep parameters) '(.*?)'(?: requires --multirun)?$"


def hydra_problems(error: BaseException) -> list[str]:
    """Return the reasons why Hydra cannot compose a configuration, one line per problem."""
    if isinstance(error, ConfigError):
        return error.problems
    return [_one_line(_problem(error))]


def word_problems(word: str, error: BaseException) -> list[str]:
    """Return why Hydra refuses an override, one line per problem."""
    if "integer string conversion" in str(error):  # Python's limit, without the key
        return [f"{quoted(word)} has too many digits: use a smaller number"]
    if word.startswith("="):
        return [f"{quoted(word)} has no key: write key=value"]
    if word.startswith("~") and "does not exist" in str(error):
        return [f"{quoted(word)} takes away what is not there: leave it out"]
    return hydra_problems(error)


def in_a_line(error: OmegaConfBaseException) -> str:
    """Return an error as one line: its key, and what is wrong with the value."""
    return value_problem(error, error.full_key or "")


def value_problem(error: OmegaConfBaseException, key: str) -> str:
    """Return what is wrong with the value of a key, in one line."""
    return _one_line(_value_problem(str(error), key, error))


def option_problems(words: tuple[Any, ...]) -> list[str]:
    """Return what cannot be an override of a single configuration: an option such as -m, or no string at all."""
    found = []
    for word in words:
        if not isinstance(word, str):
            found.append(f"{word!r} is not an override: give strings, for example 'chunks=8'")
        elif word in ("-m", "--multirun"):
            found.append(f"{word} is for the command line: here use a loop over the values of a sweep")
        elif word.startswith("-"):
            found.append(f"{word} is an option of the command line: here only overrides are allowed, such as chunks=8")
    return [_one_line(problem) for problem in found]


def _problem(error: BaseException) -> str:
    cause, text = error.__cause__, str(error)
    match error:
        case OmegaConfBaseException():
            return in_a_line(error)
        case OverrideParseException() if "$\\{" in error.override:  # so Hydra's sweeper writes it
            return f"{error.override.replace(chr(92), '')} cannot be given to a sweep: write it into a file for -cn"
        case OverrideParseException() if error.override in sweep_names():
            return f"{error.override} is not an override: for the stored sweep of that name use -cn {error.override}"
        case OverrideParseException():
            return f"{error.override} is not an override: write key=value, and put special characters in quotes"
        case RecursionError():
            return "a value, or a list of defaults, refers to itself: leave the reference out"
        case MissingConfigException():
            return _missing(error)
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        typed = re.match(r"Could not override '(.*)'", text)
        return unknown_key(typed[1] if typed else str(cause.full_key), _root_of(cause))
    if isinstance(cause, OmegaConfBaseException):
        return in_a_line(cause)
    if several := re.match(SEVERAL, text.partition("\n")[0]):
        return _several(several[1])
    if exists := re.search(r"An item is already at '(.*)'", text):
        return f"+{exists[1]} is a key already: leave out the +"
    in_file = re.match(r"In '(.*?)': (.*)", text, re.DOTALL)
    if in_file and (problem := _problem_in_file(in_file[2], error.__context__)):
        return f"in {in_file[1]}: {problem}"
    return _first_sentences(text or str(cause))


def _several(word: str) -> str:
    """Return that an override with several values is for a sweep, or for a list."""
    key, _, values = word.partition("=")
    use = "use -m on the command line or a loop in Python"
    if re.match(r"\w+\(", values):
        return f"{word} is for a sweep: {use}"
    return f"{word} has several values: for a sweep {use}, for a list {key}=[{values}]"


def _missing(error: MissingConfigException) -> str:
    """Return what is wrong with the name of an option or of a configuration."""
    name, text = str(error.missing_cfg_file), str(error)
    if "primary config" in text:
        return f"-cn {name} is not found"
    group, slash, option = name.rpartition("/")
    if not slash or error.options is None:
        return f"{_first_sentences(text).removesuffix('.')}: there is no such file"
    return no_option(group, option, list(error.options))


def no_group(group: str) -> str:
    """Return that there is no group of this name."""
    return f"{quoted(group)} is not a group: use one of {', '.join(GROUPS)}"


def no_option(group: str, value: str, options: Sequence[str]) -> str:
    """Return that a group has no option of this name, and which one may be meant."""
    if not options:
        return f"{group}={quoted(value)}: {no_group(group)}"
    near = get_close_matches(value, options, 1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"{group}={quoted(value)} is not an option of {group}: use one of {', '.join(options)}{meant}"


def no_run(name: str) -> str:
    """Return that a file for `-cn` is not the configuration of a run."""
    file = f"{name.removesuffix('.yaml')}.yaml"
    return f"{file} is not the configuration of a run: let its defaults list begin with `config`"


def given_twice(words: Sequence[str]) -> list[str]:
    """Return which keys have several values, one sentence per key; Hydra takes the last one."""
    given: dict[str, list[str]] = {}
    for word in dict.fromkeys(words):
        given.setdefault(key_of(word), []).append(quoted(word))
    return [f"{' '.join(several)}: {several[-1]} counts" for several in given.values() if len(several) > 1]


def _problem_in_file(text: str, context: BaseException | None) -> str | None:
    """Return what is wrong in a file, from what Hydra says of it; None if that is something else."""
    if unmatched := re.match(r"Could not override '(.*)'. No match in the defaults list", text):
        return f"override {unmatched[1]}: {no_group(unmatched[1])}"
    text = text.partition(" raised while composing config:\n")[2]
    if not text:
        return None
    key = re.search(r"full_key: (\S+)", text)
    full_key = key[1] if key else ""
    if re.match(r"Key '.*' (not in|is not in struct)", text):
        return unknown_key(full_key, _root_of(context) if isinstance(context, OmegaConfBaseException) else None)
    return _value_problem(text, full_key, context)


def key_of(word: str) -> str:
    """Return the key of an override: `chunks` of `++chunks=3`."""
    return word.lstrip("+~").partition("=")[0]


def unknown_key(key: str, root: DictConfig | None, value: str = "") -> str:
    """Return that a key with this value is unknown, and which one, or which stored sweep, may be meant."""
    tree = OmegaConf.to_container(root, resolve=False) if root is not None else {}
    assert isinstance(tree, dict)
    if not key.startswith("hydra"):
        tree.pop("hydra", None)
    known = [each for each in _dotted(tree) if each != key and each.rpartition(".")[2] not in FIXED]
    group, _, rest = key.partition(".")
    path, node, rest = _deepest(tree, key)
    if rest and path:
        own = [name for name in node if name not in FIXED and name != rest]
        near = get_close_matches(rest, own, 1)
        use = f"did you mean {path}.{near[0]}?" if near else f"its keys are {', '.join(own)}" if own else "it has none"
        if not node:  # a mapping that takes any key
            use = f"to add it write +{key}={quoted(value) or '...'}"
        what = f"{path}={node['name']}" if "name" in node and path in GROUPS else path
        return f"{key} is not a key of {what}: {use}"
    ends = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    alike = [name for name in known if ("." in name) == ("." in key)]  # a group before its keys
    near = ends[:2] or get_close_matches(key, alike, 2) or get_close_matches(key, known, 2)
    use = f"did you mean {' or '.join(near)}?" if near else "see all keys with --help"
    stored = sweep_names()
    if key in ("experiment", "sweep") or value in stored:
        name = next(iter(get_close_matches(value, stored, 1)), "NAME")
        use = f"for a stored sweep use -cn {name}"
    what = "price" if "costs" in tree else "run"
    if what == "run" and group in ("costs", "output"):
        use = "it is one of python -m microp.simulate, which prices a schedule"
    return f"{key} is not a key of a {what}: {use}"


def _deepest(tree: dict[Any, Any], key: str) -> tuple[str, dict[Any, Any], str]:
    """Return the longest beginning of a dotted key that has keys of its own, what it holds, and the key's rest."""
    path, rest = "", key
    while (first := rest.partition("."))[1] and isinstance(tree.get(first[0]), dict):
        path, tree, rest = f"{path}.{first[0]}".lstrip("."), tree[first[0]], first[2]
    return path, tree, rest


def _root_of(error: OmegaConfBaseException) -> DictConfig | None:
    """Return the whole configuration in which an error occurred, or None if the error does not know it."""
    node = error.parent_node
    root = None if node is None else node._get_root()
    return root if isinstance(root, DictConfig) else None


def taken_away(key: str) -> str:
    """Return that a key was taken away, by `~key`."""
    return f"~{key} takes away a key that every run needs: leave ~{key} out"


def not_used(what: str, by: str, remedy: str) -> str:
    """Return that a key has no effect, for example `partition.share=0.8` by `partition=uniform`."""
    return f"{quoted(what)} is not used by {by}: {remedy}"


def use_one(group: str, options: Sequence[str]) -> str:
    """Return the advice to choose one of these options."""
    return f"use {group}={options[0]}" if len(options) == 1 else f"use {group}={' or '.join(options)}"


def _dotted(tree: dict[Any, Any], before: str = "") -> Iterator[str]:
    """Yield the keys of a tree, and the dotted keys below them."""
    for key, value in tree.items():
        yield f"{before}{key}"
        if isinstance(value, dict):
            yield from _dotted(value, f"{before}{key}.")


# What OmegaConf says of the value of a key ─► the same with the remedy; {0}, {1} are the groups of the pattern.
_VALUES = {
    r"Value '(.*)' of type '.*' could not be converted to Integer$": "{key}={0} is not an integer: use a whole number",
    r"Value '(.*)' of type '.*' could not be converted to Float$": "{key}={0} is not a number: use for example 0.5",
    r"Value '(.*)' of type '.*' could not be converted to (\w+)$": "{key}={0} is not a value of type {1}",
    r"Value '(.*)' is not a valid bool": "{key}={0} is not a truth value: use true or false",
    r"Cannot convert '.*' to string: '(.*)'$": "{key}={0} is not a text: give one value without brackets",
    r"Cannot merge DictConfig with ListConfig|.*is not a ListConfig, list or tuple": "{key} is a list: "
    "use {key}=[...] with its values between commas",
    r"field '.*' is not Optional$": "{key}=null: {key} needs a value: give one, or leave the key out for its default",
    r"Missing mandatory value": "{key} has no value: set {key}=...",
    r"Invalid value '(.*)', expected one of \[(.*)\]": "{key}={0} is none of {1}: use one of these",
    r"Value (.*) \(\w+\) is not a valid input for <enum": "{key}={0} is not one word: use one of --help",
    r".*NoneType is not a subclass of": "{key}=null: every element needs a value: give one, or leave it out",
    r".*is not a subclass of \w+\. value: (.*)$": "{key} has keys of its own and cannot be {0}: set these keys",
    r"Unsupported interpolation type (\S+)$": "{key} uses ${{{0}:...}}, which is not known: "
    "use ${{calc:'...'}} or a key, as in ${{chunks}}",
    r"Interpolation key '(.*)' not found$": "{key} uses ${{{0}}}, which is not a key: use one, as ${{chunks}}",
    r"Key .* is incompatible with \(str\)": "{key} is not a key: keys are words, leave it out",
    r"Recursive interpolation": "{key} refers to itself, through ${{...}}: give one of the keys a value",
    r".*Environment variable '(.*)' not found": "{key} uses ${{oc.env:{0}}}, which is not in the environment: set {0}",
}


def _merging(error: BaseException | None) -> list[dict[str, Any]]:
    """Return the names that omegaconf had where it failed to merge a file, whose key its error may not tell."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)] if error else []
    names = [frame.f_locals for frame in frames if frame.f_code.co_name == "_map_merge"]
    return [each for each in names if "src_node" in each]


_RESOLVING = re.compile(r"^(ValueError raised while resolving interpolation|While dereferencing interpolation '.*?'): ")


def _value_problem(text: str, key: str, error: BaseException | None) -> str:
    """Return what is wrong with the value of a key, from OmegaConf's error and its message."""
    if not key and (merging := _merging(error)):
        last, key = merging[-1], ".".join(str(names["key"]) for names in merging)
        if isinstance(last["dest_node"], DictConfig) and isinstance(last["src_node"], ListConfig):
            return f"{key} has keys of its own and cannot be {quoted(last['src_node'])}: set these keys"
    text = _RESOLVING.sub("", text.partition("\n    full_key:")[0])
    for pattern, sentence in _VALUES.items():
        if found := re.match(pattern, text, re.DOTALL):
            optional = re.match(r"field '(.*)' is", text)
            return sentence.format(*found.groups(), key=key or (optional[1] if optional else "a value"))
    return f"{key}: {text}" if key and not key.startswith("hydra.overrides") else text


def _first_sentences(text: str) -> str:
    """Return Hydra's own text in one line, without its advice to add keys and without its search path."""
    lines = []
    for line in text.partition("Config search path:")[0].partition("\n    ")[0].splitlines():
        if line.strip() and not line.startswith(("To append", "See https", "Available options")):
            lines.append(line.strip())
    return " ".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())
