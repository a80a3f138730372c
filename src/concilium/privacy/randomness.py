"""The one source of randomness for privacy: the operating system's generator, 64 bits at a time.

Claim: every random bit of this package comes from `os.urandom`, unbuffered, so a forked or restored process
never repeats one. OpenDP (called in mechanisms.py only) uses OpenSSL's generator, which the operating system
seeds and which re-seeds itself after a fork. A test reads the sources for any other.

Tests may fix the noise: `seeded` replays one stream, `zero_noise` makes every mechanism return what it was
given. Both refuse to start unless the environment says CONCILIUM_FIX_NOISE=tests-only, and nothing in the
package calls them: no study file and no option can seed a release, and the variable alone changes nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ConciliumError

SWITCH = "CONCILIUM_FIX_NOISE"
SWITCHED_ON = "tests-only"

_source: Callable[[int], bytes] = os.urandom
_zero = False


def draw_bytes(count: int) -> bytes:
    """Random bytes."""
    return _source(count)


def draw_words(count: int) -> NDArray[np.uint64]:
    """Independent words of 64 random bits."""
    return np.frombuffer(draw_bytes(8 * count), dtype="<u8").astype(np.uint64, copy=False)


def draw_below(bound: int, count: int) -> NDArray[np.uint64]:
    """Independent integers, uniform on 0 ... bound - 1, without the bias of a remainder (bound <= 2^63)."""
    words = draw_words(count)
    uneven = 2**64 % bound
    if uneven:
        words = words.copy()
        limit = np.uint64(2**64 - uneven)
        while (again := np.flatnonzero(words >= limit)).size:
            words[again] = draw_words(again.size)
    return words % np.uint64(bound)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Replay one stream of bits; tests only. It is shared by all threads: two threads race for its order."""
    global _source
    _refuse_outside_tests()
    turn = itertools.count()
    before, _source = _source, lambda count: hashlib.shake_256(f"{seed}:{next(turn)}".encode()).digest(count)
    try:
        yield
    finally:
        _source = before


@contextmanager
def zero_noise() -> Iterator[None]:
    """Every mechanism, in every thread, returns its input; tests only. Keys and masks stay random."""
    global _zero
    _refuse_outside_tests()
    before, _zero = _zero, True
    try:
        yield
    finally:
        _zero = before


def noise_is_zero() -> bool:
    """Whether a test holds the noise at zero."""
    return _zero


def source_is_seeded() -> bool:
    """Whether a test replays a stream of its own."""
    return _source is not os.urandom


def _refuse_outside_tests() -> None:
    if os.environ.get(SWITCH) != SWITCHED_ON:
        raise ConciliumError(
            f"noise can be fixed in tests only, because it would undo the protection of every patient: "
            f"set {SWITCH}={SWITCHED_ON} in a test's environment, never at a hospital"
        )
