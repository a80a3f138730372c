"""Sums as they travel: signed whole numbers, and how many binary places they have (docs/methods.md, section 0.8).

Counts have none. Reals are written in fixed point, so that a sum over sites is the same to the last bit however it is
added up: flat, through regions or under masks. One body for all of it, written and read here alone, in the narrowest
words that hold the numbers, whatever their signs.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import MessageError
from concilium.protocol.messages import decode
from concilium.protocol.questions import Summed

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


# Reals are held to this; with the binary places below, the sum over all sites fits 63 bits.
BOUND = 2.0**30
MOST_PLACES = 32


class Sum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an answer that is added up over sites: words, each in units of 2^-places."""

    places: int
    words: Array


def write_sum(words: NDArray[np.integer], places: int) -> Sum:
    """Whole numbers in the narrowest words that hold them all."""
    return Sum(places, pack(words.astype(find_narrowest(words), order="C", copy=False)))


def find_narrowest(words: NDArray[np.integer]) -> np.dtype[np.integer]:
    low = 0 if words.dtype.kind == "u" else int(words.min(initial=0))
    high = int(words.max(initial=0))
    # Signed words reach one further below zero than above it.
    return np.min_scalar_type(high if low >= 0 else min(low, -1 - high))


def read_sum(data: bytes, question: Summed, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    """The numbers that a site or region answered a question with; MessageError unless they are what was asked for.

    `shape` is that of the question, for who reads many answers and has worked it out once.
    """
    answer = decode(data, Sum)
    if answer.places != question.binary_places:
        raise MessageError(
            f"numbers with {answer.places} binary places where {question.binary_places} were asked for"
        )
    words = unpack(answer.words, question.shape if shape is None else shape)
    if words.dtype.kind not in "iu":
        raise MessageError("a sum is made of whole numbers")
    if words.dtype == np.uint64 and words.max(initial=0) > np.iinfo(np.int64).max:
        raise MessageError("a number is too large to be added up")  # as a signed one it would be below zero
    check_counts(words, question)
    return words.astype(np.int64, copy=False) if words.dtype == np.uint64 else words


def check_counts(words: NDArray[Any], question: Summed) -> None:
    """MessageError where somebody counts fewer patients than none."""
    if words.dtype.kind != "u" and question.counts and words.min(initial=0) < 0:
        raise MessageError("a count of patients is below zero")


def add_sum(total: NDArray[np.int64], data: bytes, question: Summed) -> None:
    """Add to a total, of the question's shape, what a site or region answered; MessageError unless it is what was asked
    for, and fits."""
    words = read_sum(data, question, total.shape)
    before = total.copy()
    total += words
    wrapped = total < before if words.dtype.kind == "u" else (total < before) != (words < 0)
    if wrapped.any():
        raise MessageError("a number is too large to be added up")


def write_reals(reals: NDArray[np.float64], places: int) -> NDArray[np.int64]:
    """Reals in fixed point; what is beyond the bound, or no number, is held at it."""
    held = np.clip(reals, -BOUND, BOUND)
    held[np.isnan(held)] = BOUND
    return np.rint(np.ldexp(held, places)).astype(np.int64)


def read_reals(words: NDArray[np.int64], places: int) -> NDArray[np.float64]:
    """What words in fixed point stand for."""
    return np.ldexp(words.astype(np.float64), -places)


def bound_reals(places: int) -> int:
    """The largest number that `write_reals` writes."""
    return int(BOUND) << places


def choose_places(sites: int) -> int:
    """As many binary places as sums over so many sites have room for."""
    return MOST_PLACES - max(0, sites - 1).bit_length()
