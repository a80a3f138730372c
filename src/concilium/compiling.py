"""Kernels compiled by numba and kept on disk where that can be written, so that a later process loads them.

Where it cannot (a service under `ProtectSystem=strict`, a full disk) each process compiles for itself: slower to start,
and nothing else. The folder is the package's `__pycache__`, or `NUMBA_CACHE_DIR`. Whoever can write there has code run
by whoever reads it, so it is never a shared temporary folder.

numba itself is loaded with the first call of a kernel: that takes longer than all else that most commands load.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_one_at_a_time = threading.RLock()


class _Kernel:
    """A function of a module. Its first call puts numba's dispatcher into the module instead."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function, self._options = function, options
        self._dispatcher: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return self.prepare()(*arguments)

    def prepare(self) -> Any:
        with _one_at_a_time:
            if self._dispatcher is None:
                self._dispatcher = _make_dispatcher(self._function, self._options)
                names = self._function.__globals__
                used = (*self._function.__code__.co_names, self._function.__name__)
                kernels = {name: names[name] for name in used if isinstance(names.get(name), _Kernel)}
                # What a kernel calls first, and itself last: another thread may call it from then on.
                for name, kernel in kernels.items():
                    names[name] = kernel.prepare()
        return self._dispatcher


def compiled(**options: Any) -> Callable[[F], F]:
    """Compile a function on its first call; it lets other threads run meanwhile."""

    def decorate(function: F) -> F:
        return cast(F, _Kernel(function, options))

    return decorate


def _make_dispatcher(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    import numba

    kernel: Any = numba.njit(nogil=True, **options)(function)
    with contextlib.suppress(RuntimeError):  # there is no folder to keep it in
        kernel.enable_caching()
        keep = kernel._cache.save_overload

        def keep_if_possible(*arguments: Any) -> None:
            with contextlib.suppress(OSError):
                keep(*arguments)

        kernel._cache.save_overload = keep_if_possible
        _take_turns(kernel)
    return kernel


def _take_turns(kernel: Any) -> None:
    """Have one process at a time compile this kernel, and the others load what it kept: where several begin at once,
    each would spend seconds on the same. Kernels call each other in one direction, so that nobody waits in a circle."""
    from numba.core.compiler_lock import global_compiler_lock

    compile_it, held = kernel.compile, threading.local()
    path = Path(kernel._cache.cache_path, f"{kernel._cache._cache_file._index_name}.lock")

    def compile_in_turn(signature: Any) -> Any:
        with contextlib.ExitStack() as stack:
            stack.enter_context(global_compiler_lock)
            if not getattr(held, "turn", False):  # a kernel that calls itself has its turn
                with contextlib.suppress(OSError):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    turn = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                    stack.callback(os.close, turn)
                    fcntl.flock(turn, fcntl.LOCK_EX)
                held.turn = True
                stack.callback(setattr, held, "turn", False)
            return compile_it(signature)

    kernel.compile = compile_in_turn
