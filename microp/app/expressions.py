"""Evaluates the expressions of a configuration, without Python's `eval`.

::

    skip: ${calc:'"${schedule.name}" == "naive" and ${repeat} > 0'}
                 │ OmegaConf inserts the values
                 ▼
    evaluate('"gpipe" == "naive" and 1 > 0') ──► False

simpleeval bounds the length of what is computed. There are no functions, and no names except true, false and null.
"""

from __future__ import annotations

from typing import Any

from simpleeval import EvalWithCompoundTypes, InvalidExpression

WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}  # YAML's and Python's


def evaluate(text: str) -> Any:
    """Return the value of an expression.

    Raises:
        ValueError: it is no expression, is not allowed, or cannot be computed.
    """
    try:
        return EvalWithCompoundTypes(names=WORDS, functions={}).eval(text.strip())
    except (InvalidExpression, SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"cannot compute {text!r}: {error or 'it is nested too deeply'}") from None
