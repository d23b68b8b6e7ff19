"""The errors that a user can act on, and the form of their messages."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from difflib import get_close_matches

from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from microp.config.schema import all_keys
from microp.system import sweep_names

# By these Hydra and its libraries refuse what a user typed or wrote into a file; a ConfigError is a ValueError.
REFUSED = (HydraException, OmegaConfBaseException, YAMLError, ValueError, RecursionError)
tracebacks = logging.getLogger("microp.tracebacks")  # shown with hydra.verbose=true, and with HYDRA_FULL_ERROR=1


class ConfigError(ValueError):
    """A configuration is wrong; nothing has been started.

    Attributes:
        problems: one sentence per problem: the value, the rule, what to set instead.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class RunError(RuntimeError):
    """A run failed; the message names the rank, the action and the step."""


class Stop(BaseException):
    """Ends a command in which the next point would fail too; the message is one line with the remedy.

    It is no Exception, because Hydra keeps the Exceptions of a point until the last point has run.
    """


def refusal(error: BaseException) -> list[str]:
    """Return why a configuration is refused: our own sentences, or the first line of another library's error.

    The nearest key, option or stored sweep is added to an unknown one.
    """
    if isinstance(error, ConfigError):
        return error.problems
    led = error.__cause__ or (error.__context__ if isinstance(error, ConfigCompositionException) else None)
    cause = led if isinstance(led, OmegaConfBaseException) else None
    texts = [" ".join(str(error).split()) if isinstance(error, YAMLError) else first_line(error)]
    if cause is not None and first_line(cause) not in texts[0]:
        texts[0] = texts[0].removesuffix(f": {type(cause).__name__} raised while composing config:")
        texts.append(first_line(cause))
    key, names = "", []
    if isinstance(error, OverrideParseException):
        key = error.override
    elif isinstance(error, MissingConfigException):
        group, _, key = str(error.missing_cfg_file).rpartition("/")
        names = list(error.options or []) if group else sweep_names()
    elif isinstance(source := cause or error, OmegaConfBaseException):
        key = str(source.full_key or source.key or "")
        names = all_keys() if isinstance(source, ConfigAttributeError | ConfigKeyError) else []
    if key not in " ".join(texts):
        texts.insert(0, key)
    texts[0] = texts[0].removeprefix("In 'base': ")  # microp's own file; another one's name helps
    text = ": ".join(text.removesuffix(".") for text in texts if text) or type(error).__name__
    if near := get_close_matches(key, names, 1):
        return [f"{text} (did you mean {near[0]}?)"]
    if isinstance(error, MissingConfigException):
        return [f"{text}: use one of {', '.join(names)}, or -cd FOLDER, which has {error.missing_cfg_file}.yaml"]
    return [f"{text}: several values are a sweep, add -m" if text.startswith("Ambiguous value") else text]


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return str(error).strip().partition("\n")[0].strip()


def log_traceback(error: BaseException) -> None:
    """Log the whole traceback of an error, with what caused it, which the user is told in one line."""
    tracebacks.debug("%s", type(error).__name__, exc_info=error)
