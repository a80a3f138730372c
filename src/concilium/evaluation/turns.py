"""Work that stops wherever it asks something, and goes on when it is told the answer.

A method is written as one run of code that asks a house and waits. To have many of them ask together, each runs on a
thread of its own, and only one at a time: between two answers nothing else moves, so nothing depends on timing.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Finished(Generic[T]):
    """The work is done; this is what came of it."""

    result: T


class Abandoned(BaseException):
    """Nobody waits for this work any more. Not an Exception, so that no work takes it for its own failure."""


class Turn(Generic[T]):
    """One piece of work; `work` gets the turn, and calls `ask` on it."""

    def __init__(self, work: Callable[[Turn[T]], T]) -> None:
        self._work = work
        self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="concilium-fold", daemon=True)

    def begin(self) -> Any:
        """Run until the first question, which is returned, or until it is Finished."""
        self._thread.start()
        return self._wait()

    def tell(self, answer: Any) -> Any:
        """Answer its question (an exception is raised there), and run until the next, or until it is Finished."""
        self._told.put(answer)
        return self._wait()

    def ask(self, question: Any) -> Any:
        """Called by the work: stop here until the answer is told."""
        self._asked.put(question)
        answer = self._told.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def abandon(self) -> None:
        """End work that waits for an answer; without effect on what is finished."""
        if self._thread.is_alive():
            self._told.put(Abandoned())
            self._thread.join()

    def _wait(self) -> Any:
        said = self._asked.get()
        if isinstance(said, _Failed):
            self._thread.join()
            raise said.error
        if isinstance(said, Finished):
            self._thread.join()
        return said

    def _run(self) -> None:
        try:
            self._asked.put(Finished(self._work(self)))
        except BaseException as error:
            self._asked.put(_Failed(error))


@dataclass(frozen=True)
class _Failed:
    error: BaseException
