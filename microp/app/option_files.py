"""Reads the files of a configuration, and says in one line why one cannot be read.

::

    conf/, -cd FOLDER, sweeps/ ── OptionFiles.load_config ──► keys and values
                                                         └──► ConfigError: the file, and what is wrong with it
"""

from __future__ import annotations

from hydra._internal.config_repository import ConfigRepository
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from microp.app.errors import ConfigError

UNREADABLE = (YAMLError, OSError, UnicodeError, RecursionError, OmegaConfBaseException)


class OptionFiles(ConfigRepository):
    """Hydra's files; what cannot be read is named."""

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Return a file's keys and values, None if there is no such file.

        Raises:
            ConfigError: the file cannot be read, or does not hold keys and values.
        """
        name = f"{config_path.removesuffix('.yaml')}.yaml"
        try:
            found = super().load_config(config_path)
        except UNREADABLE as error:
            raise ConfigError([f"{name}: {file_problem(error)}"]) from error
        except ValueError as error:  # a list of defaults of a wrong form
            raise ConfigError([f"{name}: {str(error).splitlines()[0]}: write keys and values"]) from error
        if found is not None and not isinstance(found.config, DictConfig):
            raise ConfigError([f"{name}: {NO_KEYS}"])
        return found

    def group_exists(self, config_path: str) -> bool:
        """Return whether there is a group of this name, which may be too long for one."""
        try:
            return bool(super().group_exists(config_path))
        except OSError:
            return False


def file_problem(error: BaseException) -> str:
    """Return why a YAML file cannot be read, with the remedy."""
    match error:
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
