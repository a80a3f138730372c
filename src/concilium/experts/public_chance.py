"""Numbers that look random and are the same for everybody: drawn from a public seed, never from a patient.

Networks begin with weights from here, so that no patient's expert depends on who else is there, or on what was drawn
before. It hides nothing: noise for privacy comes from privacy/randomness.py alone.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def draw_public(seed: int, purpose: str, count: int) -> NDArray[np.float64]:
    """So many numbers from -1 to 1, by SHAKE-256 of seed and purpose."""
    stream = hashlib.shake_256(f"concilium/public-chance@1 {seed} {purpose}".encode()).digest(8 * count)
    whole = np.frombuffer(stream, dtype="<u8") >> np.uint64(11)
    drawn: NDArray[np.float64] = whole.astype(np.float64) / 2.0**52 - 1.0
    return drawn
