"""Work that stops where it asks: answers reach it, failures come out, and nothing is left running."""

from __future__ import annotations

import threading

import pytest

from concilium.evaluation.turns import Abandoned, Finished, Turn


def add_up(turn):
    total = 0
    for name in ("a", "b"):
        total += turn.ask(name)
    return total


def test_questions_come_out_and_answers_go_in():
    turn = Turn(add_up)
    assert turn.begin() == "a"
    assert turn.tell(2) == "b"
    assert turn.tell(40) == Finished(42)


def test_work_that_asks_nothing_is_finished_at_once():
    assert Turn(lambda turn: "done").begin() == Finished("done")


def test_a_failure_comes_out_where_it_is_waited_for():
    def fail(turn):
        turn.ask("a")
        raise ValueError("wrong")

    turn = Turn(fail)
    turn.begin()
    with pytest.raises(ValueError, match="wrong"):
        turn.tell(1)


def test_an_exception_that_is_told_is_raised_in_the_work():
    def careful(turn):
        try:
            turn.ask("a")
        except KeyError:
            return "caught"

    turn = Turn(careful)
    turn.begin()
    assert turn.tell(KeyError("x")) == Finished("caught")


def test_abandoned_work_ends_and_takes_it_for_no_failure_of_its_own():
    ended = []

    def stubborn(turn):
        try:
            turn.ask("a")
        except Exception:
            ended.append("took it for its own")
        finally:
            ended.append("cleaned up")

    turns = [Turn(stubborn) for _ in range(3)]
    for turn in turns:
        turn.begin()
        turn.abandon()
        turn.abandon()
    assert ended == ["cleaned up"] * 3
    assert not [thread for thread in threading.enumerate() if thread.name == "concilium-fold"]
    assert not issubclass(Abandoned, Exception)
