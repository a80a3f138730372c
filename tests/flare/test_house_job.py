"""The house's process of a job, beside what tests/flare/test_network.py has it do."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from concilium.errors import HouseError
from concilium.privacy.identity import Identity
from concilium.transports.flare.own_files import HouseFile

pytest.importorskip("nvflare")

ENDING = """
import sys
import concilium.transports.flare.house_job
from nvflare.apis.impl.wf_comm_server import WFCommServer
WFCommServer()._cleanup_inflight_tensor_downloads(None)
print([name for name in ("torch", "concilium.experts.experts") if name in sys.modules])
"""


def test_a_job_of_tables_ends_without_loading_what_only_others_need():
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_a_resumed_study_that_the_house_does_not_know_is_not_begun_anew(tmp_path):
    """It would be proposed, and charged, a second time."""
    own = HouseFile(tmp_path, {})
    ticket = "0" * 32
    with pytest.raises(HouseError, match="submit it without --resume"), own.take_up(ticket, 30, resumed=True):
        pass
    assert not (tmp_path / "studies").exists()
    with own.take_up(ticket, 30) as work:
        work.keep("mark", 1)
    with own.take_up(ticket, 30, resumed=True) as work:
        assert work.recall("mark", int) == 1


CONSULTATION = """
[study]
name = "burns"
method = "consultation"
target = "death"
positive = 1
[privacy]
release = "exact"
[bins]
age = [30, 50, 70]
[consultation]
grid = ["age"]
requesters = ["surgery"]
signers = ["{signer}"]
"""


def test_a_consultation_that_is_submitted_without_a_pass_asks_no_hospital(tmp_path):
    """Past the command that asks, by a job of one's own."""
    from concilium.transports.flare.house_job import FlareHouse
    from concilium.transports.flare.job import SubmittedStudy

    described = tmp_path / "meta.json"
    described.write_text(json.dumps({"submitter_name": "ana@example.org"}))
    workspace = SimpleNamespace(get_job_meta_path=lambda job: described)
    context = SimpleNamespace(get_workspace=lambda: workspace, get_job_id=lambda: "1")
    signer = Identity.create().fingerprint
    submitted = SubmittedStudy(
        name="burns",
        study=CONSULTATION.format(signer=signer),
        method="consultation",
        ticket="0" * 32,
        sites=("north",),
    )
    outcome = FlareHouse()._conduct(submitted, tmp_path / "kit", tmp_path, None, context)
    assert outcome.ended == "failed"
    assert "the house hands out no counts: this consultation is asked with a pass" in outcome.problem
