"""Passes: a hospital says, signed, who may ask; whatever was changed, is over or is of another signer, is refused."""

from __future__ import annotations

import msgspec
import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.consultations.passes import RequesterPass
from concilium.errors import ModelError, StudyError
from concilium.privacy.identity import Identity
from contract.patients import make, open_sites

HOSPITAL, STRANGER = Identity.create(), Identity.create()
PATIENT = {"age": 63, "sex": "m"}


def sign(identity=HOSPITAL, name="Dr. Weiss", roles=("cardiology",), ends="2999-01-01"):
    return RequesterPass.sign(identity, name, roles, ends=ends)


@pytest.fixture(scope="module")
def consultation():
    method = make(cc.Consultation, "exact").set_params(
        grid=["age", "sex"], requesters=["cardiology", "Dr. Gray"], signers=[HOSPITAL.fingerprint]
    )
    return method.fit(cc.House(open_sites()))


def test_name_or_role_of_a_signed_pass_may_ask(consultation):
    assert consultation.ask(PATIENT, requester=sign()).patients
    assert consultation.ask(PATIENT, requester=sign(name="Dr. Gray", roles=())).patients


@pytest.mark.parametrize(
    ("requester", "said"),
    [
        ("Dr. Gray", r"is asked with a pass \(--pass FILE\), signed by a hospital of the agreement"),
        ("", r"is asked with a pass"),
        (
            sign(roles=["surgery"]),
            "'Dr. Weiss' is not on the list of this consultation: cardiology, Dr. Gray",
        ),
        (
            sign(ends="2020-01-01"),
            "the pass of 'Dr. Weiss' ended on 2020-01-01: have the hospital sign a new one",
        ),
        (sign(STRANGER), f"is signed by {STRANGER.fingerprint}, and this consultation takes those of"),
    ],
    ids=["a name alone", "nobody", "another role", "an ended pass", "another signer"],
)
def test_everybody_else_is_refused_in_one_sentence(consultation, requester, said):
    with pytest.raises(ModelError, match=said):
        consultation.ask(PATIENT, requester=requester)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Dr. Gray"},
        {"roles": ("cardiology", "surgery")},
        {"roles": ()},
        {"name": "Dr. Weis", "roles": ("s", "cardiology")},
        {"ends": "2999-12-31"},
        {"identity": STRANGER.public},
        {"signature": b"0" * 64},
    ],
)
def test_whatever_is_changed_in_a_pass_shows(consultation, change):
    forged = msgspec.structs.replace(sign(), **change)
    with pytest.raises(ModelError, match="was changed after it was signed"):
        consultation.ask(PATIENT, requester=forged)


def test_a_pass_goes_through_its_file_and_the_command(consultation, tmp_path):
    HOSPITAL.save(tmp_path / "north.identity")
    run, place = CliRunner(), tmp_path / "weiss.pass"
    command = ["identity", "vouch", str(tmp_path / "north.identity"), "Dr. Weiss", "--role", "cardiology"]
    said = run.invoke(app, [*command, "--ends", "2999-01-01", "--out", str(place)])
    assert said.exit_code == 0, said.output
    assert RequesterPass.read(place) == sign()
    assert place.stat().st_mode & 0o077 == 0
    again = run.invoke(app, [*command, "--ends", "2999-01-01", "--out", str(place)])
    assert "the pass cannot be written (File exists)" in again.output
    consultation.save(tmp_path / "model.json")
    asked = run.invoke(app, ["ask", str(tmp_path / "model.json"), "age=63", "sex=m", "--pass", str(place)])
    assert asked.exit_code == 0, asked.output
    both = run.invoke(app, ["ask", str(tmp_path / "model.json"), "age=63", "--pass", str(place), "--as", "x"])
    assert "by a name (--as) or by a pass (--pass), not by both" in both.output
    (tmp_path / "no.pass").write_text("{}")
    with pytest.raises(ModelError, match=r"no.pass: this is not a pass"):
        RequesterPass.read(tmp_path / "no.pass")


def test_what_cannot_be_a_pass_is_not_signed():
    with pytest.raises(ModelError, match="a pass ends on a day such as 2027-06-30; got 'soon'"):
        sign(ends="soon")
    with pytest.raises(ModelError, match="a pass names somebody"):
        sign(name=" ")
    with pytest.raises(StudyError, match="'signers' of a Consultation: 'north' is not a fingerprint"):
        cc.Consultation("y", signers=["north"])
