"""Reads the files of a configuration, and says in one line why one cannot be read.

::

    conf/, -cd FOLDER, sweeps/ ── OptionFiles.load_config ──► keys and values
                                                         └──► ConfigError: the file, and what is wrong with it
"""

from __future__ import annotations

import copy
import pickle
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.config_repository import ConfigRepository
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig
from omegaconf.errors import GrammarParseError, KeyValidationError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from microp.app.errors import ConfigError

MOST_VALUES = 100_000
State = tuple[str, str, int, int]  # the folder of a file, its name and what changes when it is written
_packaged: dict[tuple[str, str], bool] = {}  # whether a package of Python has a file, which does not change
_read: dict[State, bytes] = {}  # pickled: a file takes 30 times as long, `deepcopy` 3 times
UNREADABLE = (YAMLError, OSError, UnicodeError, RecursionError, OmegaConfBaseException)


@dataclass
class File(ConfigResult):
    """What a file holds, as Hydra's loader reads it; two of the same state are equal."""

    state: State = ("", "", 0, 0)


class OptionFiles(ConfigRepository):
    """Hydra's files; what cannot be read is named."""

    def __deepcopy__(self, memo: dict[int, Any]) -> OptionFiles:
        """Return a repository with the same sources; Hydra makes a copy for each composition, to change its list."""
        copied = copy.copy(self)
        copied.sources = list(self.sources)
        return copied

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Return a file's keys and values, None if there is no such file.

        Raises:
            ConfigError: the file cannot be read, or does not hold keys and values.
        """
        name = f"{config_path.removesuffix('.yaml')}.yaml"
        try:
            found = self._copy_of(config_path, self._state(config_path))
        except UNREADABLE as error:
            raise ConfigError([f"{name}: {file_problem(error)}"]) from error
        except ValueError as error:  # a list of defaults of a wrong form, or a value that is not of its tag
            why = str(error).splitlines()[0]
            advice = "write keys and values" if "defaults" in why else "leave the tag (!!) of that value out"
            raise ConfigError([f"{name}: {why}: {advice}"]) from error
        if found is not None and not isinstance(found.config, DictConfig):
            raise ConfigError([f"{name}: {NO_KEYS}"])
        return found

    def has_option(self, group: str, name: str | None) -> bool:
        """Return whether a group has an option of this name; its folders, unlike for a list of all, are not read."""
        if not name or "/" in name or name.endswith(".yaml"):
            return False
        return self._state(f"{group}/{name}") is not None

    def _state(self, config_path: str) -> State | None:
        """Return which file it is and what changes when it is written; None if there is none.

        What Hydra brings itself, and the schemas, which are registered once, do not change.
        """
        for source in self.sources:
            if source.scheme() != "file":
                if _holds(source, config_path):
                    return f"{source.provider} {source.full_path()}", config_path, 0, 0
                continue
            try:
                status = Path(source.path, f"{config_path.removesuffix('.yaml')}.yaml").stat()
            except (OSError, ValueError):
                continue
            if stat.S_ISREG(status.st_mode):
                return source.path, config_path, status.st_mtime_ns, status.st_size
        return None

    def _copy_of(self, config_path: str, state: State | None) -> ConfigResult | None:
        """Return what a file holds; a file that has not changed since it was read is not read again."""
        if state not in _read:
            if state is not None and state[2]:
                check_aliases(Path(state[0], f"{config_path.removesuffix('.yaml')}.yaml"))
            found = super().load_config(config_path)
            if state is None or found is None:
                return found
            file = File(**vars(found), state=state)
            _read[state] = pickle.dumps(file, pickle.HIGHEST_PROTOCOL)
        copied: File = pickle.loads(_read[state])
        return copied

    def group_exists(self, config_path: str) -> bool:
        """Return whether there is a group of this name, which may be too long for one."""
        try:
            return bool(super().group_exists(config_path))
        except OSError:
            return False


def _holds(source: ConfigSource, config_path: str) -> bool:
    """Return whether what is no folder, a package of Python or Hydra's store, has a file of this name."""
    if source.scheme() != "pkg":
        return source.is_config(config_path)
    key = source.full_path(), config_path
    if key not in _packaged:
        _packaged[key] = source.is_config(config_path)
    return _packaged[key]


def check_aliases(file: Path) -> None:
    """Raise YAMLError if a file's aliases stand for too many values: reading them would fill the memory."""
    text = file.read_bytes()
    if b"*" not in text or b"&" not in text:
        return
    sizes: dict[yaml.Node, int] = {}

    def size(node: yaml.Node) -> int:
        if node not in sizes:
            sizes[node] = 1  # one that contains itself is refused later
            parts = [] if isinstance(node, yaml.ScalarNode) else node.value
            pairs = [each if isinstance(each, tuple) else (each,) for each in parts]
            sizes[node] = 1 + sum(size(part) for pair in pairs for part in pair)
        return sizes[node]

    whole = yaml.compose(text, Loader=yaml.SafeLoader)
    if whole is not None and size(whole) > MOST_VALUES:
        raise TooManyValuesError(f"its aliases (*) stand for more than {MOST_VALUES} values: write fewer")


class TooManyValuesError(YAMLError):
    """The aliases of a file stand for too many values; the message says so."""


def file_problem(error: BaseException) -> str:
    """Return why a YAML file cannot be read, with the remedy."""
    match error:
        case KeyValidationError():
            return "a key is null, a date or a list: write a word before each colon"
        case GrammarParseError():
            return f"{error.full_key} has ${{...}} that cannot be read: write ${{key}}, or ${{calc:'2 * ${{ranks}}'}}"
        case TooManyValuesError():
            return str(error)
        case MarkedYAMLError(problem_mark=mark) if mark:
            return f"it is not YAML: {error.problem} in line {mark.line + 1}: correct that line"
        case RecursionError():
            return "it contains itself: leave out the alias (*) that stands inside what it means (&)"
        case UnicodeError() | YAMLError():
            return "it is not text: write it in UTF-8"
        case OSError(strerror=reason) if reason:
            return f"it cannot be read ({reason}): check the file"
    key = getattr(error, "full_key", None)  # of an error of omegaconf
    return NO_KEYS if isinstance(error, OSError) else f"{str(error).splitlines()[0]}: correct {key or 'that key'}"


NO_KEYS = "it does not hold keys and values: write lines such as `chunks: 8`"
