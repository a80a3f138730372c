"""Kernels work where nothing can be kept on disk, and are kept where that can be."""

from __future__ import annotations

import errno

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
