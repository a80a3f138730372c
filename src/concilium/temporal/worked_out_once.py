"""What several sites of one process are asked at the same time is worked out by one of their threads, for all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache, update_wrapper
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Found = TypeVar("Found")


class work_out_once(Generic[Asked, Found]):
    """The same function, which remembers the last few results; whoever asks meanwhile waits for them."""

    def __init__(self, find: Callable[[Asked], Found]) -> None:
        self._remembered, self._lock = lru_cache(maxsize=8)(find), threading.Lock()
        update_wrapper(self, find)

    def __call__(self, asked: Asked) -> Found:
        with self._lock:
            return self._remembered(asked)

    def forget(self) -> None:
        """As if nothing had been asked."""
        self._remembered.cache_clear()
