"""Which private method ranks patients better, curves or RuleFit, by what is public of a study.

Measured on eight tables, dealt to ten hospitals (docs/shapes.md, Private). Curves are better, but for the one table
with more cells than this (49 attributes, 2,800 patients), where noise hides most: RuleFit has a line for each number,
and shortens the whole row of a patient, which holds risks together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from concilium.models.method import PrivateMethod
from concilium.models.private_start import states_attributes
from concilium.protocol.attributes import Attribute

MANY_CELLS = 500


def find_better(method: PrivateMethod[Any], attributes: Sequence[Attribute]) -> str:
    """In words the method that is better for these stated attributes; nothing where that is the study's."""
    cells = sum(one.size for one in attributes)
    better = "rulefit" if cells > MANY_CELLS else "shapes"
    number = getattr(method, "measured", None) is not None  # which a private RuleFit does not predict
    if not states_attributes(method) or method.method == better or number:
        return ""
    return f'with {cells} cells under noise, method = "{better}" usually predicts better'
