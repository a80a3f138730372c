"""What went wrong is told to whoever asked without a cell: by a hospital's gate, and by a house's job."""

from __future__ import annotations

import logging
from fractions import Fraction

import msgspec
import pytest

import concilium as cc
from agreed import deliver
from concilium import errors
from concilium.errors import ConciliumError
from concilium.protocol import site as gate
from concilium.protocol.messages import VERSION, Envelope, Refusal, encode, open_reply
from concilium.protocol.schema import AskSchema

MARKER = "MARKER-" + "51cc0d"
ROWS = [{"note": f"{MARKER} {i}", "sex": f"{MARKER}-{i % 2}", "age": 20.5 + i, "y": i % 2} for i in range(60)]

# Whose sentence quotes the question alone; what is added to them is looked at first.
LEAVING = {
    "BudgetError", "CannotResume", "DoesNotFit", "FormulaError", "HouseError", "MaskError", "MessageError",
    "MissingExtra", "QueryError", "RunStopped", "StudyError", "StudyPending",
}  # fmt: skip


def all_kinds(kind=ConciliumError):
    yield kind
    for below in kind.__subclasses__():
        yield from all_kinds(below)


def make(kind):
    """An error of this kind that quotes a cell as far as it takes a sentence."""
    arguments = {
        "UnknownCode": (MARKER, (MARKER,)),
        "QueryError": ("a problem", MARKER),
        "FormulaError": (MARKER, MARKER),
        "BudgetError": ("rho", Fraction(1), Fraction(1), Fraction(1)),
        "StudyPending": ("study", ["a"]),
        "MissingExtra": ("excel", "reading"),
    }
    return kind(*arguments.get(kind.__name__, (MARKER,)))


KINDS = [kind for kind in all_kinds() if kind.__module__ == errors.__name__]


def test_an_error_stays_unless_it_is_known_to_quote_no_cell():
    assert {kind.__name__ for kind in KINDS if kind.leaves} == LEAVING


@pytest.mark.parametrize(
    "kind", [*KINDS, ValueError, MemoryError, RecursionError], ids=lambda kind: kind.__name__
)
def test_whatever_goes_wrong_behind_the_gate_is_refused(monkeypatch, caplog, kind):
    site = cc.Site("a", cc.Records.from_rows(ROWS))
    question = encode(AskSchema(query="", target="y"))
    message = encode(
        Envelope(
            version=VERSION, id="question-1", study="s", kind="tree.schema", release="exact", body=question
        )
    )

    def fail(*_):
        raise make(kind) if issubclass(kind, ConciliumError) else kind(MARKER)

    monkeypatch.setattr(gate, "open_question", fail)
    with caplog.at_level(logging.INFO, "concilium"):
        answer = site.answer(message)
    assert isinstance(open_reply(answer), Refusal)
    if kind.__name__ not in LEAVING - {"QueryError"}:
        assert MARKER.encode() not in answer
        assert MARKER in caplog.text or kind.__name__ == "QueryError"


QUERIES = (
    "",
    "note = 'x'",
    "note > 3",
    "age = 'x'",
    "nothing = 1",
    "sex = 1 and age < 'a'",
    "note is missing",
)
TARGETS = ("y", "note", "age", "sex", "nothing")


def test_no_question_brings_a_cell_back_in_a_refusal():
    site = cc.Site("a", cc.Records.from_rows(ROWS), policy=cc.Policy(allow=("note",)))
    refused = 0
    for place, (query, target) in enumerate((query, target) for query in QUERIES for target in TARGETS):
        for bins in ({}, {"note": [1.0, 2.0]}, {"age": [1.0]}, {"nothing": [1.0]}):
            asked = encode(AskSchema(query=query, target=target, bins=bins))
            name = f"question-{place}-{len(bins)}-{''.join(bins)}"
            envelope = Envelope(
                version=VERSION, id=name, study="s", kind="tree.schema", release="exact", body=asked
            )
            reply = open_reply(deliver(site, encode(envelope)))
            if isinstance(reply, Refusal):
                refused += 1
                assert MARKER not in msgspec.json.encode(reply).decode(), (query, target, bins)
    assert refused > 40
