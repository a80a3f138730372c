"""Asking sites of this process: who is asked beside whom, who is left behind, and what a failing site says."""

from __future__ import annotations

import gc
import os
import threading
import weakref

from concilium.protocol.messages import Silence
from concilium.transports.embedded import Embedded


class Meeting:
    """A site that answers once another one is answering too."""

    def __init__(self, name, barrier):
        self.name, self._barrier = name, barrier

    def answer(self, message):
        self._barrier.wait(600)
        return message


class Waiting:
    """A site that answers when the test says so; `asked` lists all that were asked."""

    def __init__(self, name, asked, released):
        self.name, self._asked, self._released = name, asked, released

    def answer(self, message):
        self._asked.append(self.name)
        self._released.wait(20)
        return message


class Failing:
    name = "failing"

    def answer(self, message):
        raise ValueError("no such thing")


def test_every_site_gets_its_own_message_and_a_failure_is_told():
    barrier = threading.Barrier(1)
    sites = {f"s{i}": Meeting(f"s{i}", barrier) for i in range(40)} | {"failing": Failing()}
    messages = {name: name.encode() for name in sites}
    replies = Embedded(sites).ask(messages, 600)
    assert list(replies) == list(messages)
    assert isinstance(silence := replies.pop("failing"), Silence)
    assert str(silence) == "ValueError: no such thing"
    assert replies == {name: message for name, message in messages.items() if name != "failing"}
    assert Embedded(sites).ask({}, 30) == {}


def test_long_answers_are_given_beside_each_other():
    barrier = threading.Barrier(3)
    sites = {name: Meeting(name, barrier) for name in "abc"}
    messages = dict.fromkeys(sites, b"question")
    assert Embedded(sites).ask(messages, 600) == messages


def test_who_was_not_reached_in_time_is_not_asked_afterwards(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    asked, released = [], threading.Event()
    before = set(threading.enumerate())
    sites = {f"s{i:02d}": Waiting(f"s{i:02d}", asked, released) for i in range(40)}
    replies = Embedded(sites).ask(dict.fromkeys(sites, b"question"), 0.3)
    reached = list(asked)
    released.set()
    for worker in set(threading.enumerate()) - before:
        worker.join(600)
    assert 1 <= len(reached) < len(sites)
    assert asked == reached == sorted(reached)
    assert {str(reply) for reply in replies.values()} == {"no answer within 0.3 s"}


def test_sites_that_hang_do_not_silence_the_others():
    released = threading.Event()
    hanging = {f"h{i}": Waiting(f"h{i}", [], released) for i in range(os.cpu_count() + 1)}
    sites = hanging | {f"s{i}": Meeting(f"s{i}", threading.Barrier(1)) for i in range(10)}
    replies = Embedded(sites).ask(dict.fromkeys(sites, b"question"), 3)
    released.set()
    assert {name for name, reply in replies.items() if isinstance(reply, Silence)} == set(hanging)


def test_nothing_is_held_of_a_site_that_answered():
    site = Meeting("s", threading.Barrier(1))
    gone = weakref.ref(site)
    before = set(threading.enumerate())
    assert Embedded({"s": site}).ask({"s": b"?"}, 600) == {"s": b"?"}
    del site
    for worker in set(threading.enumerate()) - before:
        worker.join(600)
    gc.collect()
    assert gone() is None
