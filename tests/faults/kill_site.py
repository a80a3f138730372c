"""Kills a site with SIGKILL at random moments while it answers, many times; prints what was found afterwards.

Run as a script: KILLS LEDGER. Each life of the site is a real process, forked from this one (so that imports are
paid once), that opens the ledger file and answers from a pipe: to the proposal of one study, in each life again, and to
its questions. A question whose answer was not seen is asked again, with the same id, in the next life, as a house does.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path

import msgspec

import concilium as cc
from concilium.privacy.identity import Identity
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import VERSION, Answer, Envelope, decode, encode, open_reply
from concilium.protocol.schema import AskSchema, SchemaSeen, share_schema
from concilium.protocol.terms import (
    Agreed,
    Propose,
    Terms,
    derive_proof_key,
    name_study,
    prove,
    sign_terms,
    today,
)

ROWS = [{"a": i % 3, "b": "xyz"[i * 7 % 3], "y": i * i % 5 % 2} for i in range(300)]
HOUSE = Identity.create()
DRAFT = cc.DecisionTree("y").draft()
TERMS = Terms(
    house=HOUSE.public,
    exchange_key=HOUSE.exchange_key,
    nonce="killed-at-random",
    purpose="to be killed",
    method=DRAFT.method,
    parameters=dict(DRAFT.parameters),
    models=DRAFT.models,
    price=None,
    participants=("a",),
    identities=(),
    colluders=None,
    ends=today().isoformat(),
).encoded
STUDY = name_study(TERMS)


def send(pipe: int, data: bytes) -> None:
    data = struct.pack("<I", len(data)) + data
    while data:
        data = data[os.write(pipe, data) :]


def receive(pipe: int) -> bytes | None:
    """One framed message, or None when the other end is gone before it was whole."""
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack("<I", data[:4])[0]:
        part = os.read(pipe, 1 << 16)
        if not part:
            return None
        data += part
    return data[4:]


def open_site(ledger: str | None = None) -> cc.Site:
    site = cc.Site("a", cc.Records.from_rows(ROWS), ledger=ledger)
    site.introduce({}, HOUSE.fingerprint)
    return site


def live(ledger: str, inbox: int, outbox: int) -> None:
    site = open_site(ledger)
    while (message := receive(inbox)) is not None:
        send(outbox, site.answer(message))


def begin_life(ledger: str) -> tuple[int, int, int]:
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(in_write)
            os.close(out_read)
            live(ledger, in_read, out_write)
        finally:
            os._exit(0)
    os.close(in_read)
    os.close(out_write)
    return child, in_write, out_read


def question() -> bytes:
    """The body of a question for counts."""
    site = open_site()
    key = read_key(site.answer(proposal()))
    asked = encode(AskSchema(query="", target="y"))
    reply = open_reply(site.answer(envelope(key, "warm-up-1", "tree.schema", asked)))
    assert isinstance(reply, Answer)
    seen = decode(reply.body, SchemaSeen)
    schema = share_schema({"a": seen}, {}, "y")
    count = AskCounts(query="", target="y", classes=schema.classes, attributes=schema.attributes)
    reply = open_reply(site.answer(envelope(key, "warm-up-2", "counts", encode(count))))
    assert isinstance(reply, Answer)
    return encode(count)


def proposal() -> bytes:
    proposed = Propose(terms=TERMS, signature=sign_terms(TERMS, HOUSE))
    return envelope(b"", "proposal-1", proposed.kind, encode(proposed))


def read_key(reply: bytes) -> bytes:
    """What the questions of the study are proven with to the site that agreed to it."""
    agreed = open_reply(reply)
    assert isinstance(agreed, Answer), msgspec.to_builtins(agreed)
    return derive_proof_key(HOUSE, decode(agreed.body, Agreed).exchange_key, STUDY, "a")


def envelope(key: bytes, name: str, kind: str, body: bytes) -> bytes:
    plain = Envelope(version=VERSION, id=name, study=STUDY, kind=kind, release="exact", body=body)
    return encode(msgspec.structs.replace(plain, proof=prove(key, name, plain.digest, None)))


def measure_life(body: bytes) -> float:
    """Seconds that a site needs here and now to open a ledger, agree to the study and answer three questions."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        child, inbox, outbox = begin_life(f"{folder}/a.ledger")
        send(inbox, proposal())
        key = read_key(receive(outbox) or b"")
        for number in range(3):
            send(inbox, envelope(key, f"measured-{number}", "counts", body))
            receive(outbox)
        lived = time.monotonic() - start
        os.close(inbox)
        os.waitpid(child, 0)
        os.close(outbox)
    return lived


def main(kills: int, ledger: str) -> dict[str, int]:
    chance = random.Random(kills)
    body = question()
    answers: dict[str, bytes] = {}
    key = b""
    asked = killed = during = 0
    while killed < kills:
        if killed % 25 == 0:
            lifetime = measure_life(body)
        child, inbox, outbox = begin_life(ledger)
        dies = time.monotonic() + chance.uniform(0.0, 2 * lifetime)
        name, message = "", proposal()
        while True:
            send(inbox, message)
            asked += 1
            waiting = True
            ready, _, _ = select.select([outbox], [], [], max(0.0, dies - time.monotonic()))
            if not ready:
                break
            reply = receive(outbox)
            assert reply is not None, "the site ended by itself"
            assert isinstance(open_reply(reply), Answer), msgspec.to_builtins(open_reply(reply))
            if name:
                answers[name] = reply
            else:
                key = read_key(reply)
            waiting = False
            if time.monotonic() >= dies:
                break
            name = f"question-{len(answers):06d}"
            message = envelope(key, name, "counts", body)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        killed += 1
        during += waiting
        last = receive(outbox)  # what left the site before it died has arrived, too
        if last is not None and name:
            answers[name] = last
        os.close(inbox)
        os.close(outbox)
    with cc.Ledger(ledger) as book:
        verified = book.verify()
        entered = [entry.question for entry in book.entries() if entry.question.startswith("question-")]
        studies = [(record.id, record.status) for record in book.studies.list()]
    site = cc.Site(
        "a", cc.Records.from_rows(ROWS), ledger=ledger
    )  # which goes on without being proposed to again
    changed = sum(site.answer(envelope(key, n, "counts", body)) != a for n, a in answers.items())
    return {
        "kills": killed,
        "kills_while_answering": during,
        "asked": asked,
        "answers_seen": len(answers),
        "entries": len(entered),
        "entered_twice": len(entered) - len(set(entered)),
        "answers_without_entry": len(set(answers) - set(entered)),
        "entries_without_answer_seen": len(set(entered) - set(answers)),
        "answers_changed_on_repeat": changed,
        "agreed_once": int(studies == [(STUDY, "agreed")]),
        "verified": verified,
    }


if __name__ == "__main__":
    Path(sys.argv[2]).unlink(missing_ok=True)
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2])))
