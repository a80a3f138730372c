"""Kernels compiled by numba and kept on disk where that can be written, so that a later process loads them.

Where it cannot (a service under `ProtectSystem=strict`, a full disk) each process compiles for itself: slower to start,
and nothing else. The folder is the package's `__pycache__`, or `NUMBA_CACHE_DIR`. Whoever can write there has code run
by whoever reads it, so it is never a shared temporary folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[F], F]:
    """Compile a function on its first call; it lets other threads run meanwhile."""

    def decorate(function: F) -> F:
        kernel: Any = numba.njit(nogil=True, **options)(function)
        with contextlib.suppress(RuntimeError):  # there is no folder to keep it in
            kernel.enable_caching()
            keep = kernel._cache.save_overload

            def keep_if_possible(*arguments: Any) -> None:
                with contextlib.suppress(OSError):
                    keep(*arguments)

            kernel._cache.save_overload = keep_if_possible
        compiled_function: F = kernel
        return compiled_function

    return decorate
