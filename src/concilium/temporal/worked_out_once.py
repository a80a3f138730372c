"""What several sites of one process are asked at the same time is worked out by one of their threads, for all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

Asked = TypeVar("Asked")
Found = TypeVar("Found")


def work_out_once(find: Callable[[Asked], Found]) -> Callable[[Asked], Found]:
    """The same function, which remembers the last few results; whoever asks meanwhile waits for them."""
    remembered, lock = lru_cache(maxsize=8)(find), threading.Lock()

    @wraps(find)
    def find_once(asked: Asked) -> Found:
        with lock:
            return remembered(asked)

    return find_once
