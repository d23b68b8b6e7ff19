"""Evaluates the expressions of a configuration, without Python's `eval`.

::

    skip: ${calc:'"${schedule.name}" == "naive" and ${repeat} > 0'}
                 │ OmegaConf inserts the values
                 ▼
    evaluate('"gpipe" == "naive" and 1 > 0') ──► False

Python parses the expression, and this module evaluates it node by node. Names (except true, false and null) and calls
are not allowed, so an expression has access to nothing else. Its length and its values are bounded, so it is quick.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

MAX_TEXT = 1000  # characters of an expression
MAX_SIZE = 10_000  # characters and elements of a value
MAX_BITS = 1024  # bits of an integer
SHOWN = 60  # characters of an expression in an error message

ALLOWED = (
    "allowed are numbers, strings, true, false, null, lists, "
    "+ - * / // % **, comparisons, in, and, or, not, and A if B else C"
)
WORDS = {"true": True, "false": False, "null": None}  # as YAML spells Python's True, False and None
NUMBERS = (int, float)  # and bool, a subclass of int
SEQUENCES = (str, list, tuple)

ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
NODES = (
    *(ast.List, ast.Tuple, ast.Load, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.And, ast.Or, ast.Compare, ast.IfExp),
    *(*ARITHMETIC, *SIGNS, *COMPARISONS),
)


def evaluate(text: str) -> Any:
    """Return the value of an expression: a number, a string, a boolean, None, a list or a tuple.

    Raises:
        ValueError: the text is not an expression, contains something that is not allowed, or cannot be computed.
    """
    try:
        if len(text) > MAX_TEXT:
            raise ValueError(f"it has {len(text)} characters, and at most {MAX_TEXT} are allowed")
        tree = ast.parse(text.strip(), mode="eval")
        _check(tree)
        return _value(tree.body)
    except (RecursionError, MemoryError):
        problem = "it is nested too deeply"
    except SyntaxError:
        problem = "it is not an expression"
    except OverflowError:
        problem = "the result is too large"
    except (ValueError, TypeError, ArithmeticError) as error:
        problem = str(error)
    shown = " ".join(text.split())
    shown = shown if len(shown) <= SHOWN else f"{shown[: SHOWN - 3]}..."
    raise ValueError(f"cannot compute {shown!r}: {problem}; {ALLOWED}") from None


def _check(tree: ast.Expression) -> None:
    """Raise ValueError if a node is not allowed, also in a branch that would not be evaluated."""
    for node in ast.walk(tree.body):
        match node:
            case ast.Constant(value=value):
                allowed = value is None or isinstance(value, (str, *NUMBERS))
            case ast.Name(id=name):
                allowed = name in WORDS
            case _:
                allowed = isinstance(node, NODES)
        if not allowed:
            raise ValueError(f"{_said(node)} is not allowed")


def _value(node: ast.expr) -> Any:
    """Return the value of a node; raise ValueError if it is complex or larger than allowed."""
    value = _compute(node)
    if isinstance(value, complex):
        raise ValueError("the result is a complex number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError(f"a number has more than {MAX_BITS} bits")
    if _size(value) > MAX_SIZE:
        raise ValueError(f"a value has more than {MAX_SIZE} characters or elements")
    return value


def _compute(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return WORDS[name]
        case ast.List(elts=elements):
            return [_value(element) for element in elements]
        case ast.Tuple(elts=elements):
            return tuple(_value(element) for element in elements)
        case ast.BinOp(left=left, op=op, right=right):
            return _arithmetic(op, _value(left), _value(right))
        case ast.UnaryOp(op=sign, operand=operand):
            return SIGNS[type(sign)](_value(operand))
        case ast.BoolOp(op=op, values=values):
            return _logic(isinstance(op, ast.And), values)
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _comparison(_value(left), ops, others)
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            return _value(body if _value(test) else otherwise)
    raise AssertionError(node)


def _arithmetic(op: ast.operator, left: Any, right: Any) -> Any:
    """Return the result of an operation on two numbers, the sum of two sequences, or a repeated sequence.

    Raises:
        ValueError: the result could be too large; it is refused before it is computed.
    """
    numbers = isinstance(left, NUMBERS) and isinstance(right, NUMBERS)
    if isinstance(op, ast.Pow) and numbers and isinstance(left, int) and left.bit_length() * abs(right) > MAX_BITS:
        raise ValueError(f"a power has more than {MAX_BITS} bits")
    if isinstance(op, ast.Mult) and not numbers:
        sequence, times = (left, right) if isinstance(left, SEQUENCES) else (right, left)
        if isinstance(sequence, SEQUENCES) and isinstance(times, int) and _size(sequence) * times > MAX_SIZE:
            raise ValueError(f"a repetition has more than {MAX_SIZE} characters or elements")
    if isinstance(op, ast.Mod) and not numbers:
        raise ValueError("% is for numbers, not for formatting")
    return ARITHMETIC[type(op)](left, right)


def _logic(is_and: bool, nodes: list[ast.expr]) -> Any:
    """Return the first value that decides, as in Python; the operands after it are not evaluated."""
    for node in nodes[:-1]:
        value = _value(node)
        if bool(value) is not is_and:
            return value
    return _value(nodes[-1])


def _comparison(left: Any, ops: list[ast.cmpop], nodes: list[ast.expr]) -> bool:
    """Return the value of a chain such as `a < b <= c`: each operand is compared with the next."""
    for op, node in zip(ops, nodes, strict=True):
        right = _value(node)
        if not COMPARISONS[type(op)](left, right):
            return False
        left = right
    return True


def _size(value: Any) -> int:
    """Return the number of characters of a string, or of elements of a sequence, with nested ones."""
    if isinstance(value, str):
        return len(value)
    return 1 + sum(map(_size, value)) if isinstance(value, (list, tuple)) else 1


def _said(node: ast.AST) -> str:
    """Return the name of a node that is not allowed, in a user's words."""
    match node:
        case ast.Name(id=name):
            return f"the name {name} (a string needs quotes)"
        case ast.Constant(value=value):
            return f"a value of type {type(value).__name__}"
        case ast.operator() | ast.unaryop() | ast.cmpop():
            return f"the operator {type(node).__name__}"
    return SAID.get(type(node), type(node).__name__)


SAID: dict[type[ast.AST], str] = {
    ast.Call: "a call",
    ast.Attribute: "an attribute",
    ast.Subscript: "a subscript",
    ast.JoinedStr: "an f-string",
    ast.Lambda: "a lambda",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.Dict: "a dictionary",
    ast.Set: "a set",
    ast.NamedExpr: "an assignment",
    ast.Starred: "a starred element",
}
