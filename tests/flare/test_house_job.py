"""The house's process of a job, beside what tests/flare/test_network.py has it do."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("nvflare")

ENDING = """
import sys
import concilium.transports.flare.house_job
from nvflare.apis.impl.wf_comm_server import WFCommServer
WFCommServer()._cleanup_inflight_tensor_downloads(None)
print([name for name in ("torch", "concilium.experts.experts") if name in sys.modules])
"""


def test_a_job_of_tables_ends_without_loading_what_only_others_need():
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
