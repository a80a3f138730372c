"""Threads that are used again, let go of what they did, end by themselves, and are not looked for after a fork."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
import weakref

import pytest

from concilium.transports import lingering_workers
from concilium.transports.embedded import Embedded


def run(count=1):
    """The threads that do so many things at once."""
    seen, here = [], threading.Barrier(count + 1)

    def work():
        seen.append(threading.get_ident())
        here.wait(20)

    for _ in range(count):
        lingering_workers.start(work)
    here.wait(20)
    return set(seen)


def wait_for(number):
    """Until so many workers have come back."""
    end = time.monotonic() + 20
    while len(lingering_workers._spare) < number and time.monotonic() < end:
        time.sleep(0.005)


def test_a_thread_that_is_free_is_used_again_and_a_busy_one_is_not():
    first = run(3)
    assert len(first) == 3
    wait_for(3)
    assert run(2) < first | run(1)
    held = threading.Event()
    lingering_workers.start(lambda: held.wait(20))
    assert len(run(2)) == 2
    held.set()


def test_threads_end_when_nothing_comes(monkeypatch):
    monkeypatch.setattr(lingering_workers, "LINGER", 0.05)
    own = run(2)
    end = time.monotonic() + 20
    while {thread.ident for thread in threading.enumerate()} & own and time.monotonic() < end:
        time.sleep(0.02)
    assert not {thread.ident for thread in threading.enumerate()} & own
    assert run(1)  # and others are made


def test_many_hand_work_to_workers_that_are_about_to_end(monkeypatch):
    monkeypatch.setattr(lingering_workers, "LINGER", 0.001)
    done = []
    for _ in range(300):
        answered = threading.Event()
        lingering_workers.start(lambda answered=answered: (done.append(1), answered.set()))
        assert answered.wait(20)
        time.sleep(0.001)
    assert len(done) == 300


def test_a_worker_holds_nothing_of_what_it_did():
    class Site:
        name = "s"

        def answer(self, message):
            return b"yes"

    site = Site()
    gone = weakref.ref(site)
    assert Embedded({"s": site}).ask({"s": b"?"}, 5) == {"s": b"yes"}
    del site
    wait_for(1)
    gc.collect()
    assert gone() is None


def ask_in_child(results):
    site = type("Site", (), {"name": "s", "answer": lambda self, message: b"yes"})()
    results.put(Embedded({"s": site}).ask({"s": b"?"}, 5))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_makes_its_own():
    run(2)
    wait_for(2)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=ask_in_child, args=(results,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert results.get() == {"s": b"yes"}
