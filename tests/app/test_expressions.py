"""What an expression of a configuration may say, and what it may not."""

from __future__ import annotations

import pytest

from microp.app.config import evaluate

GIVES = {
    "16 * 4": 64,
    "1 + 2 * 3 - 4": 3,
    "7 / 2": 3.5,
    "7 // 2": 3,
    "-7 % 4": 1,
    "2 ** 10": 1024,
    "2 ** -1": 0.5,
    "2 ** 0.5": 2**0.5,
    "1e-3 + .5": 0.501,
    "(1 + 2) * -3": -9,
    "+3": 3,
    "2 ** 400 > 0": True,
    "'a' + \"b\"": "ab",
    "'ab' * 2": "abab",
    "2 * [1, 'x']": [1, "x", 1, "x"],
    "[1] + [2]": [1, 2],
    "True": True,
    "true and not false": True,
    "null": None,
    "None == null": True,
    "1 < 2 <= 2 != 3": True,
    "1 < 1 / 1 < 0 / 1": False,
    '"gpipe" == "naive" and 0 > 0': False,
    '"lifo" == "lifo" and "never" not in ("never", "except_last")': False,
    "'a' in 'cat' and 3 in [1, 2, 3]": True,
    "1 and 'x'": "x",
    "0 or ''": "",
    "True or 1 / 0": True,  # as in Python, what does not decide is not computed
    "256 if 'mlp' == 'mlp' else 1 / 0": 256,
    "  16 *\t4 ": 64,
    "['layer', 'row']": ["layer", "row"],
}


@pytest.mark.parametrize("text", GIVES)
def test_an_expression_has_python_s_value(text):
    value = evaluate(text)
    assert value == GIVES[text]
    assert type(value) is type(GIVES[text])


REFUSED = [
    *("chunks * 2", "__import__('os')", "open('x')", "().__class__", "'a'.join.__self__", "lambda: 1", "1 +", ""),
    *("1 / 0", "1 + 'a'", "9 ** 9 ** 9", "'a' * 10 ** 9", "(" * 499 + "1" + ")" * 499),
]


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:30])
def test_what_is_no_expression_of_numbers_strings_and_lists_is_refused(text):
    with pytest.raises(ValueError, match="^cannot compute "):
        evaluate(text)
