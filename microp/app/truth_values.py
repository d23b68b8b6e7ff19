"""Makes omegaconf refuse a number as a truth value, unless it is 0 or 1.

::

    again=1  again=yes ──► True        again=7 ──► refused; omegaconf would take any number but 0 for True
"""

from __future__ import annotations

from typing import Any

from omegaconf import BooleanNode
from omegaconf.errors import ValidationError

_convert: Any = vars(BooleanNode)["_validate_and_convert_impl"]


def refuse_numbers() -> None:
    """Replace a method of omegaconf, which has no public way to do so."""
    BooleanNode._validate_and_convert_impl = _truth_value  # type: ignore[assignment, method-assign]


def _truth_value(node: BooleanNode, value: Any) -> bool:
    if isinstance(value, int) and value not in (0, 1):
        raise ValidationError("Value '$VALUE' is not a valid bool (type $VALUE_TYPE)")
    return bool(_convert(node, value))
