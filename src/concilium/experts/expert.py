"""One patient's expert: a trained network, or the one severity that the patient ever had; and how it is kept.

A patient whose severity never changes teaches nothing but that number, and a network would only come near it: such an
expert is the number itself. An expert is as private as the stay it learned: it does not leave the hospital.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from concilium.errors import RecordsError
from concilium.experts.network import Weights


@dataclass(frozen=True, eq=False)
class Expert:
    """`weights` of its network, or None and a `constant`; `septic`: its patient had the outcome."""

    weights: Weights | None
    constant: float
    septic: bool


class KeptExpert(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An expert as it is written: name, shape and little-endian numbers of each array."""

    constant: float
    septic: bool
    arrays: list[tuple[str, list[int], bytes]] | None


def write_expert(expert: Expert) -> bytes:
    arrays = None
    if expert.weights is not None:
        arrays = [
            (name, list(values.shape), np.ascontiguousarray(values, dtype="<f8").tobytes())
            for name, values in expert.weights.items()
        ]
    return msgspec.msgpack.encode(KeptExpert(expert.constant, expert.septic, arrays))


def read_expert(data: bytes) -> Expert:
    """The expert in these bytes; RecordsError where there is none."""
    try:
        kept = msgspec.msgpack.decode(data, type=KeptExpert)
        weights = None
        if kept.arrays is not None:
            weights = {
                name: np.frombuffer(raw, dtype="<f8").reshape(shape) for name, shape, raw in kept.arrays
            }
    except (msgspec.DecodeError, ValueError) as error:
        raise RecordsError(f"this is no expert ({error})") from None
    return Expert(weights, kept.constant, kept.septic)
