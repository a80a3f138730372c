"""Mechanisms, accounting, ledger, masks, randomness: mathematics; no method is known here.

The names for use from outside are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concilium.privacy.identity import Identity as Identity
    from concilium.privacy.mechanisms import randomize_bits as randomize_bits

_PLACES = {"Identity": "concilium.privacy.identity", "randomize_bits": "concilium.privacy.mechanisms"}

__all__ = ["Identity", "randomize_bits"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'concilium.privacy' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
