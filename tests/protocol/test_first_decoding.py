"""The first messages of a kind, decoded by many threads at once, while garbage is collected: nothing crashes."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc, sys, threading
import msgspec
from concilium.protocol.messages import decode, encode

inner = [msgspec.defstruct(f"Inner{i}", [("a", list[int]), ("b", dict[str, float])]) for i in range(40)]
kinds = [msgspec.defstruct(f"Kind{i}", [("x", inner[i]), ("y", inner[i] | None), ("z", str)]) for i in range(40)]
data = [encode(kind(one([1], {"k": 0.5}), None, "z")) for kind, one in zip(kinds, inner)]
sys.setswitchinterval(1e-6)
gc.set_threshold(1)
ready = threading.Barrier(8)

def work():
    for kind, one in zip(kinds, data):
        ready.wait()
        for _ in range(5):
            decode(one, kind)

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("whole")
"""


def test_many_threads_may_meet_a_kind_for_the_first_time():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr[-500:]
