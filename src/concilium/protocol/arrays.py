"""Arrays as they travel: a raw little-endian buffer with its shape and dtype, checked before it is believed."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError

DTYPES = frozenset({"u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f8"})
MAX_DIMENSIONS = 4


class Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`data` holds exactly prod(shape) items of `dtype`, in C order."""

    dtype: str
    shape: list[int]
    data: bytes


def pack(values: NDArray[np.generic]) -> Array:
    """An array ready to travel, in its own dtype."""
    little = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
    return Array(little.dtype.str.lstrip("<|"), list(values.shape), little.tobytes())


def unpack(array: Array, shape: tuple[int, ...] | None = None) -> NDArray[np.generic]:
    """The array that travelled (a view of its buffer), or MessageError if buffer, shape and dtype disagree."""
    if array.dtype not in DTYPES:
        raise MessageError(f"an array of dtype {array.dtype[:20]!r} is not accepted")
    if len(array.shape) > MAX_DIMENSIONS or any(not 0 <= size < 2**40 for size in array.shape):
        raise MessageError("an array's shape is out of range")
    if shape is not None and tuple(array.shape) != shape:
        raise MessageError(f"an array has shape {tuple(array.shape)} where {shape} was expected")
    dtype = np.dtype("<" + array.dtype)
    if math.prod(array.shape) * dtype.itemsize != len(array.data):
        raise MessageError("an array's buffer does not fit its shape")
    return np.frombuffer(array.data, dtype=dtype).reshape(array.shape)
