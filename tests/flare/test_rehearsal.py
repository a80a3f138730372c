"""What a site's process loads while it reads its records is what its first questions need."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("nvflare")

# In a process of its own: here, others have loaded them.
LOADED = """
import sys
from concilium.transports.flare.site_job import rehearse
from concilium.protocol import counts
assert "numba" not in sys.modules
rehearse()
print(sum(bool(getattr(one, "nopython_signatures", ())) for one in vars(counts).values()))
"""


def test_kernels_are_loaded_and_nothing_goes_wrong():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
    assert not done.stderr
