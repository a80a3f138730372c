"""Conversations in tests that ask nobody: their counts come from lists."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any


def drain(conversation: Generator[Any, Any, Any]) -> Any:
    """What comes of a conversation that asks nobody."""
    try:
        asked = next(conversation)
    except StopIteration as end:
        return end.value
    raise AssertionError(f"it asked {asked}")


def at_once(answer: Callable[..., Any]) -> Callable[..., Generator[Any, Any, Any]]:
    """A function as a conversation that asks nobody."""

    def converse(*asked: Any) -> Generator[Any, Any, Any]:
        yield from ()
        return answer(*asked)

    return converse
