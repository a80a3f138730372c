"""One ledger, several processes, killed at any moment: over-counting is the worst that happens."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from fractions import Fraction

import pytest

from concilium.ledger.chain import Head
from concilium.ledger.ledger import Ledger

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")

COMMON = """
import hashlib, json, os, random, signal, sys, time
from concilium.errors import BudgetError
from concilium.ledger.ledger import Ledger

def charge(ledger, question, cost="1/1000"):
    def seal(head):
        return json.dumps([question, head.count, head.hash, os.urandom(400).hex()]).encode()
    answer = ledger.charge(question, "d", study="s", kind="count", mode="private", cost=cost, seal=seal)
    return hashlib.sha256(answer).hexdigest()

def fork(work):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            work(lambda *words: os.write(write, (" ".join(map(str, words)) + "\\n").encode()))
        finally:
            os._exit(0)
    os.close(write)
    return child, read

def drain(read):
    with os.fdopen(read) as lines:
        return [line.split() for line in lines.read().splitlines()]
"""

# Two writers at a time, each killed after a random moment; every writer begins with the questions of the last few
# that may or may not have been answered, as a house does that heard nothing.
KILLING = (
    COMMON
    + """
path, rounds, chance = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))
acknowledged, reached = [], [0, 0]
for round in range(rounds):
    def work(side):
        def run(say):
            ledger = Ledger(path, site="north", records="abc", budget=1000)
            for number in range(max(0, reached[side] - 3), 10**9):
                say(f"{side}-{number}", charge(ledger, f"{side}-{number}"))
        return run
    children = [fork(work(side)) for side in (0, 1)]
    for child, _ in sorted(children, key=lambda _: chance.random()):
        time.sleep(chance.random() * 0.04)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    for side, (_, read) in enumerate(children):
        heard = drain(read)
        acknowledged += heard
        reached[side] += sum(int(question.split("-")[1]) >= reached[side] for question, _ in heard)
json.dump(acknowledged, sys.stdout)
"""
)

# Killed while the file is being made: a new path every time.
MAKING = (
    COMMON
    + """
folder, rounds, chance = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))
begin = time.perf_counter()
child, read = fork(lambda say: Ledger(f"{folder}/unharmed.ledger", site="north", budget=1))
os.waitpid(child, 0)
os.close(read)
usual = time.perf_counter() - begin
for round in range(rounds):
    child, read = fork(lambda say: Ledger(f"{folder}/{round}.ledger", site="north", budget=1))
    time.sleep(chance.random() * 1.5 * usual)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read)
"""
)

# Several processes open one new path at once and spend until nothing is left; all ask the same first questions.
SPENDING = (
    COMMON
    + """
path, writers = sys.argv[1], int(sys.argv[2])
def work(side):
    def run(say):
        with Ledger(path, site="north", budget=30) as ledger:
            for number in range(10**9):
                question = f"shared-{number}" if number < 40 else f"{side}-{number}"
                try:
                    say(question, charge(ledger, question, "1/7"))
                except BudgetError as error:
                    say("refused", error.left)
                    return
    return run
children = [fork(work(side)) for side in range(writers)]
heard = [drain(read) for _, read in children]
for child, _ in children:
    os.waitpid(child, 0)
json.dump(heard, sys.stdout)
"""
)


def run(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stderr == ""
    return json.loads(done.stdout) if done.stdout else None


def digest(answer):
    return hashlib.sha256(answer).hexdigest()


KILLS = 60  # of two processes each


def test_no_kill_loses_an_answer_that_was_given_or_enters_one_twice(tmp_path):
    path = tmp_path / "north.ledger"
    acknowledged = run(KILLING, path, KILLS, 1)
    with Ledger.open_readonly(path) as look:
        seen = look.head()
    with Ledger(path, site="north", records="abc", budget=1000) as ledger:
        assert ledger.head() == seen
        entries = ledger.entries()
        assert ledger.verify() == len(entries)
        once = Counter(entry.question for entry in entries)
        assert set(once.values()) == {1}
        given = set(map(tuple, acknowledged))
        assert len(given) > KILLS
        assert len({question for question, _ in given}) == len(given), "a question got two answers"
        for question, heard in given:
            assert digest(ledger.recall(question, "d")) == heard
        # What was entered and not heard is at most what was under way: one per process killed.
        assert len(entries) - len(given) <= 2 * KILLS
        assert ledger.spent() == Fraction(len(entries), 1000)
        for entry in entries:
            _, count, link, _ = json.loads(ledger.recall(entry.question, "d"))
            assert (count, link) == (entry.sequence, entry.hash)


def test_a_kill_while_a_ledger_is_made_leaves_a_whole_one_or_none(tmp_path):
    run(MAKING, tmp_path, 40, 2)
    for path in tmp_path.glob("[!.]*.ledger"):
        with Ledger.open_readonly(path) as ledger:
            assert ledger.verify() == 0
    for number in range(40):
        with Ledger(tmp_path / f"{number}.ledger", site="north", budget=1) as ledger:
            assert ledger.head().count == 0


def test_processes_that_spend_at_once_never_overspend_and_never_fork_the_chain(tmp_path):
    path = tmp_path / "north.ledger"
    heard = run(SPENDING, path, 4)
    assert all(lines[-1] == ["refused", "0"] for lines in heard)
    given = {tuple(line) for lines in heard for line in lines[:-1]}
    shared = [{tuple(line) for line in lines[:40]} for lines in heard]
    assert all(answers == shared[0] for answers in shared)
    assert len(given) == 210
    with Ledger(path) as ledger:
        assert ledger.balance().left == 0
        assert ledger.verify() == 210
        assert {
            (entry.question, digest(ledger.recall(entry.question, "d"))) for entry in ledger.entries()
        } == given
        heads = [json.loads(ledger.recall(question, "d"))[1:3] for question, _ in given]
        assert sorted(count for count, _ in heads) == list(range(1, 211))
        assert all(ledger.holds(Head(count, link)) for count, link in heads)
    assert {file.name for file in tmp_path.iterdir()} == {"north.ledger", "north.ledger.head"}
