"""Under which numbers patients leave a hospital that hands on entries of each: 1, 2, ... in an order of its own.

The order follows from the hospital's identity, the study and the patients' ids. So the hospital, and nobody else, can
tell later who has which number (`Site.name_patients`), and the numbers of two studies have nothing to do with each
other. Assumption: the identity stays secret, and SHA-256 with a secret key looks random to whoever has no key.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from concilium.privacy.identity import Identity, statement
from concilium.records.columns import Value, label


def derive_order(identity: Identity, study: str) -> bytes:
    """The key that orders the patients of a study, the same also after a rotation of the identity."""
    return identity.derive(statement("concilium/patient-numbers@1", study.encode()))


def order_patients(key: bytes, ids: Sequence[Value | None]) -> NDArray[np.intp]:
    """The rows of these patients in the order of their numbers."""
    tickets = [hmac.digest(key, label(patient).encode("utf-8", "surrogatepass"), "sha256") for patient in ids]
    return np.array(sorted(range(len(tickets)), key=tickets.__getitem__), dtype=np.intp)
