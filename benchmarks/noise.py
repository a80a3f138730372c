"""How long private noise takes, beside numpy's generator, which is fast and protects nobody.

Run: python benchmarks/noise.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from concilium.privacy.mechanisms import add_gaussian, add_laplace, randomize_bits, randomize_codes
from concilium.privacy.shares import draw_gaussian_share, draw_laplace_share

COUNTS = np.zeros(5_240, dtype=np.int64)
BITS = np.zeros(1_000_000, dtype=bool)
CODES = np.zeros(1_000_000, dtype=np.int64)
PEER = np.random.default_rng(0)


def measure(work: Callable[[], object], times: int = 9) -> float:
    """Milliseconds, the best of several: what the work takes when nothing else is in the way."""
    work()
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return 1000 * best


def numpy_flips() -> object:
    return BITS ^ (PEER.random(BITS.size) < 1 / (1 + np.e))


def numpy_codes() -> object:
    return np.where(PEER.random(CODES.size) < 0.1, PEER.integers(0, 20, CODES.size), CODES)


def numpy_laplace() -> object:
    return COUNTS + np.rint(PEER.laplace(0, 10, COUNTS.size)).astype(np.int64)


def numpy_gaussian() -> object:
    return COUNTS + np.rint(PEER.normal(0, 10, COUNTS.size)).astype(np.int64)


def numpy_polya() -> object:
    return PEER.negative_binomial(1 / 9, 0.1, COUNTS.size) - PEER.negative_binomial(1 / 9, 0.1, COUNTS.size)


ROWS: list[tuple[str, str, Callable[[], object], Callable[[], object]]] = [
    ("1,000,000 bits flipped, epsilon 1", "200", lambda: randomize_bits(BITS, 1), numpy_flips),
    ("1,000,000 codes of 20, epsilon 4", "", lambda: randomize_codes(CODES, 20, 4), numpy_codes),
    ("5,240 counts, Laplace, scale 10", "60", lambda: add_laplace(COUNTS, "0.1"), numpy_laplace),
    ("5,240 counts, Gaussian, sd 10", "60", lambda: add_gaussian(COUNTS, 100), numpy_gaussian),
    ("5,240 counts, Gaussian, sd 2", "", lambda: add_gaussian(COUNTS, 4), numpy_gaussian),
    (
        "5,240 Laplace shares, 10 sites",
        "",
        lambda: draw_laplace_share(COUNTS.size, "0.1", 1, 10),
        numpy_polya,
    ),
    (
        "5,240 Gaussian shares, 10 sites",
        "",
        lambda: draw_gaussian_share(COUNTS.size, 900, 10),
        numpy_gaussian,
    ),
]


def main() -> None:
    table = Table(title="Noise: milliseconds, best of nine")
    for heading in ("what", "Concilium", "at most", "numpy, not private", "ratio"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for what, limit, private, plain in ROWS:
        ours, theirs = measure(private), measure(plain)
        table.add_row(what, f"{ours:.2f}", limit, f"{theirs:.2f}", f"{ours / theirs:.0f} x")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
