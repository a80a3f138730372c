"""Asking sites of this process: who is asked beside whom, who is left behind, and what a failing site says."""

from __future__ import annotations

import os
import threading
import time

from conversation import ROWS, site_of

import concilium as cc
from concilium.protocol.region import Region
from concilium.protocol.transport import Silence
from concilium.transports.embedded import SHORT_ENOUGH, Embedded


class Meeting:
    """A site that answers once another one is answering too."""

    def __init__(self, name, barrier):
        self.name, self._barrier = name, barrier

    def answer(self, message):
        self._barrier.wait(20)
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


class Elsewhere:
    """A transport to sites of other processes."""

    names = ("far",)


def test_every_site_gets_its_own_message_and_a_failure_is_told():
    barrier = threading.Barrier(1)
    sites = {f"s{i}": Meeting(f"s{i}", barrier) for i in range(40)} | {"failing": Failing()}
    messages = {name: name.encode() for name in sites}
    replies = Embedded(sites).ask(messages, 30)
    assert list(replies) == list(messages)
    assert isinstance(silence := replies.pop("failing"), Silence)
    assert str(silence) == "ValueError: no such thing"
    assert replies == {name: message for name, message in messages.items() if name != "failing"}
    assert Embedded(sites).ask({}, 30) == {}


def test_long_answers_are_given_beside_each_other():
    barrier = threading.Barrier(3)
    sites = {name: Meeting(name, barrier) for name in "abc"}
    messages = dict.fromkeys(sites, b"question")
    assert Embedded(sites).ask(messages, 10) == messages


def test_who_was_not_reached_in_time_is_not_asked_afterwards(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    asked, released = [], threading.Event()
    before = set(threading.enumerate())
    sites = {f"s{i:02d}": Waiting(f"s{i:02d}", asked, released) for i in range(40)}
    replies = Embedded(sites).ask(dict.fromkeys(sites, b"question"), 0.3)
    reached = list(asked)
    released.set()
    for worker in set(threading.enumerate()) - before:
        worker.join(20)
    assert 1 <= len(reached) < len(sites)
    assert asked == reached == sorted(reached)
    assert {str(reply) for reply in replies.values()} == {"no answer within 0.3 s"}


def test_regions_of_this_process_are_asked_one_after_the_other(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    near = [Region(f"r{i}", cc.House([site_of(ROWS[i::2], name=f"s{i}")])) for i in range(2)]
    far = Region("far", cc.House(transport=Elsewhere()))
    members = {member.name: member for member in (*near, far, site_of(name="hospital"))}
    transport = Embedded(members)
    assert transport._most_workers(["r0", "r1"]) == 1
    for others in (["far"], ["r0", "far"], ["r0", "hospital"], ["hospital"]):
        assert transport._most_workers(others) == 7


class Quick:
    """A site that never waits, and notes on which thread it was asked; `seconds` it takes of the processor."""

    never_waits = True

    def __init__(self, name, seconds=0.0):
        self.name, self.seconds, self.asked_on = name, seconds, []

    def answer(self, message):
        self.asked_on.append(threading.current_thread())
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            pass
        return message


def test_sites_that_never_wait_answer_on_the_house_s_own_thread_while_answers_are_short():
    sites = {name: Quick(name) for name in "abcde"}
    transport, messages = Embedded(sites), dict.fromkeys("abcde", b"question")
    for _ in range(3):
        assert transport.ask(messages, 30) == messages
    assert {thread for site in sites.values() for thread in site.asked_on} == {threading.current_thread()}
    beside = {**sites, "w": Meeting("w", threading.Barrier(1))}
    before = {name: len(site.asked_on) for name, site in sites.items()}
    assert Embedded(beside).ask(dict.fromkeys(beside, b"question"), 30) == dict.fromkeys(beside, b"question")
    for name, site in sites.items():
        assert threading.current_thread() not in site.asked_on[before[name] :]


def test_where_they_take_long_others_answer_beside_them(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    sites = {name: Quick(name, 2 * SHORT_ENOUGH) for name in "abcd"}
    transport, messages = Embedded(sites), dict.fromkeys("abcd", b"question")
    assert transport.ask(messages, 30) == messages
    assert sites["a"].asked_on == [threading.current_thread()]
    assert all(threading.current_thread() not in sites[name].asked_on for name in "bcd")
    assert transport.ask(messages, 30) == messages
    assert all(threading.current_thread() is not site.asked_on[1] for site in sites.values())


def test_a_site_with_a_ledger_on_disk_may_wait(tmp_path):
    assert site_of(name="memory").never_waits
    records = cc.Records.from_rows(ROWS)
    assert not cc.Site("disk", records, ledger=tmp_path / "disk.ledger").never_waits
