"""Kernels work where nothing can be kept on disk, and are kept where that can be."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import numba
import pytest
from numba.core import caching

from concilium.compiling import compiled


def add(one, other):
    return one + other


def test_a_kernel_is_kept_for_later_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert compiled()(add)(1, 2) == 3
    assert list(tmp_path.rglob("*.nbi"))


def test_a_kernel_works_where_no_folder_can_be_written(monkeypatch):
    """As under ProtectSystem=strict: plain numba refuses to define the function at all."""
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator available"):
        numba.njit(cache=True)(add)
    assert compiled()(add)(1, 2) == 3


def test_a_kernel_works_where_the_disk_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", fail)
    with pytest.raises(OSError, match="No space left"):
        numba.njit(cache=True)(add)(1, 2)
    assert compiled()(add)(1, 2) == 3


CALLED = """
import sys, threading
import numpy as np
from concilium.trees import grouping

assert "numba" not in sys.modules
one, other = np.array([3, 1]), np.array([1, 3])
barrier, said = threading.Barrier(4), []

def call():
    barrier.wait()
    said.append(grouping._spread(one, other))

threads = [threading.Thread(target=call) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert "numba" in sys.modules
print(len(said), len(set(said)), len(grouping._spread.nopython_signatures), hasattr(grouping._entropy, "py_func"))
"""


def test_numba_is_loaded_by_the_first_call_and_by_several_at_once():
    """A kernel that calls others, which are not compiled either. In a process of its own: here, numba is loaded."""
    done = subprocess.run([sys.executable, "-c", CALLED], capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.returncode) == ("4 1 1 True\n", 0), done.stderr


TOGETHER = """
from concilium.trees import grouping
import numpy as np

grouping._spread(np.array([3, 1]), np.array([1, 3]))
print(sum(grouping._spread.stats.cache_misses.values()))
"""


def test_of_several_processes_one_compiles(tmp_path):
    """The others wait for it, and load what it kept."""
    command = [sys.executable, "-c", TOGETHER]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    begun = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert sorted(one.communicate(timeout=600)[0] for one in begun) == ["0\n", "0\n", "1\n"]
