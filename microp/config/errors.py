"""The errors that a user can act on, and the form of their messages."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from microp.config.schema import GROUPS, all_keys, values_of
from microp.settings import quoted
from microp.system import sweep_names

SWEPT = "in a file it stands so: `hydra: {mode: MULTIRUN, sweeper: {params: {KEY: VALUES}}}`"
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


def typed_words() -> argparse.Namespace:
    """Return what the command line says of where a configuration is; other words are ignored."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-cd", "--config-dir")
    parser.add_argument("-cn", "--config-name")
    parser.add_argument("-c", "--cfg")  # else it would be read as an abbreviation of -cd
    return parser.parse_known_args()[0]


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
    if isinstance(error, OverrideParseException):
        if "=~" in error.override:  # a shell leaves it as it is after a word
            return [f"{quoted(error.override)}: only a shell knows what ~ stands for, write the whole path"]
        if error.override not in texts[0]:
            texts.insert(0, error.override)
    key, names = "", []
    if isinstance(error, MissingConfigException):
        group, _, key = str(error.missing_cfg_file).rpartition("/")
        names = list(error.options or []) if group else sweep_names()
    elif isinstance(source := cause or error, OmegaConfBaseException):
        key = str(source.full_key or source.key or "")
        known = all_keys() if isinstance(source, ConfigAttributeError | ConfigKeyError) else []
        names = [name for name in known if name != key]  # another command has this one
        if key not in " ".join(texts):
            texts.insert(0, key)
    elif match := re.search("Could not override '([^'@]*)", texts[0]):  # in a file's defaults list
        key, names = match[1], list(GROUPS)
    texts[0] = texts[0].removeprefix("In 'base': ")  # microp's own file; another one's name helps
    text = ": ".join(text.removesuffix(".") for text in texts if text) or type(error).__name__
    is_own = isinstance(error, MissingConfigException) and key not in " ".join(sys.argv) and text[:3] != "In "
    is_own = is_own or "Value 'calc:" in text or "appears more than once" in text
    if (own := typed_words().config_name) and is_own:
        text = f"In '{own}': {text.partition(': Value ')[0]}"
    remedy = _remedy(text, key)
    alike = [name for name in names if key in (name.rpartition(".")[2], _initials(name))]
    near = [] if remedy else [name for name in alike if "." in name] or get_close_matches(key, names, 1) or alike
    text += remedy
    if isinstance(error, MissingConfigException) and not near:
        text += _where(str(error.missing_cfg_file), text, names)
    return [f"{text} (did you mean {near[0]}?)" if near else text]


def _remedy(text: str, key: str) -> str:
    """Return what to do where another library's error does not say it; empty if it does."""
    group, _, knob = key.partition(".")
    several = "several values are a sweep, as 4,8 with -m, or as 4,8 and no list below a file's hydra.sweeper.params"
    several += ", and in Python a list for microp.sweep"
    word = re.search("load '([^'=]+)=([^']+)'", text)
    remedies = {
        **({word[0]: f"a file chooses an option by `override {word[1]}: {word[2]}`"} if word else {}),
        "Ambiguous value": "several values are a sweep, add -m",
        "of type 'list'": several,
        "is not a ListConfig": "a list is written [VALUE]",
        "of type 'ListConfig'": several,
        **dict.fromkeys(
            ("is not defined for", "invalid decimal"),
            """a key is written ${chunks}, and names in quotes, ${calc:'"${model.name}" == "gpt"'}""",
        ),
        "'calc:": "an expression is written ${calc:'...'}",
        "more than once": "name one base there, `config`, and an option of a group by `override GROUP: NAME`",
        "load 'override ": "an option of a group needs a colon, `override GROUP: NAME`",
        "is defined before": "overrides are the last lines of a defaults list, before _self_",
        f"Key '{group}.{knob}' not in": f"in a file a key stands below its group, `{group}: {{{knob}: VALUE}}`",
    }
    if group in ("mode", "sweeper", "params") or key == "hydra.params":
        remedies["not in '"] = SWEPT
    if key in values_of("base"):  # a file that lacks it is no configuration of a command
        remedies["is not in struct"] = "let the file's defaults list begin with `config`"
    if "hydra.sweeper" in text:
        remedies["'"] = f'{SWEPT}, several in quotes, as `chunks: "4,8"`'
    if re.search("Value '[^']*,", text):
        remedies["of type 'str'"] = several
    if key in GROUPS:
        remedies["No match in the defaults list"] = "let the file's defaults list begin with `config`"
        remedies["Cannot assign"] = f"a file chooses an option in its defaults list, by `override {key}: NAME`"
    return next((f": {remedy}" for words, remedy in remedies.items() if words in text), "")


def _where(missing: str, text: str, names: Sequence[str]) -> str:
    """Return what to do about a file of the configuration that is not there."""
    if missing.startswith("schema/"):
        base = missing.removeprefix("schema/")
        return f": this file of yours is for python -m microp.{'run' if base == 'config' else base}"
    if text.startswith("In ") or missing.startswith("hydra/"):
        return ""
    known = f"; {missing.rpartition('/')[0]} is one of {', '.join(names)}" if "/" in missing else ""
    return f": -cd FOLDER names the folder that has {missing}.yaml{known}"


def _initials(name: str) -> str:
    return "".join(word[0] for word in name.split("_") if word)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return str(error).strip().partition("\n")[0].strip()


def log_traceback(error: BaseException) -> None:
    """Log the whole traceback of an error, with what caused it, which the user is told in one line."""
    tracebacks.debug("%s", type(error).__name__, exc_info=error)
