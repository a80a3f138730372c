"""Kills a site with SIGKILL at random moments while it answers, many times; prints what was found afterwards.

Run as a script: KILLS LEDGER. Each life of the site is a real process, forked from this one (so that imports are
paid once), that opens the ledger file and answers questions from a pipe. A question whose answer was not seen is
asked again, with the same id, in the next life, as a house does.
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
from concilium.federation.messages import VERSION, Answer, Envelope, decode, encode, open_reply
from concilium.federation.schema import AskSchema, SchemaSeen, share_schema
from concilium.trees.crosstables import AskCrosstables

ROWS = [{"a": i % 3, "b": "xyz"[i * 7 % 3], "y": i * i % 5 % 2} for i in range(300)]


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


def live(ledger: str, inbox: int, outbox: int) -> None:
    site = cc.Site("a", cc.Records.from_rows(ROWS), ledger=ledger)
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


def questions() -> tuple[bytes, bytes]:
    """A schema question's body, and a crosstable question's body with its template."""
    asked = AskSchema(query="", target="y")
    site = cc.Site("a", cc.Records.from_rows(ROWS))
    reply = open_reply(site.answer(envelope("warm-up-1", "tree.schema", encode(asked))))
    assert isinstance(reply, Answer)
    seen = decode(reply.body, SchemaSeen)
    schema = share_schema({"a": seen}, {}, "y")
    hidden = schema.hidden
    count = AskCrosstables(
        query="", target="y", classes=hidden.classes, attributes=hidden.attributes, tree=[], nodes=[0]
    )
    template = encode(schema.conditional(seen))
    assert isinstance(
        open_reply(site.answer(envelope("warm-up-2", "tree.crosstables", encode(count), template))), Answer
    )
    return encode(count), template


def envelope(name: str, kind: str, body: bytes, template: bytes = b"") -> bytes:
    return encode(
        Envelope(
            version=VERSION, id=name, study="kill", kind=kind, release="exact", body=body, template=template
        )
    )


def measure_life(body: bytes, template: bytes) -> float:
    """Seconds that a site needs here and now to open a ledger and answer three questions."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        child, inbox, outbox = begin_life(f"{folder}/a.ledger")
        for number in range(3):
            send(inbox, envelope(f"measured-{number}", "tree.crosstables", body, template))
            receive(outbox)
        lived = time.monotonic() - start
        os.close(inbox)
        os.waitpid(child, 0)
        os.close(outbox)
    return lived


def main(kills: int, ledger: str) -> dict[str, int]:
    chance = random.Random(kills)
    body, template = questions()
    answers: dict[str, bytes] = {}
    asked = killed = during = 0
    while killed < kills:
        if killed % 25 == 0:
            lifetime = measure_life(body, template)
        child, inbox, outbox = begin_life(ledger)
        dies = time.monotonic() + chance.uniform(0.0, 2 * lifetime)
        waiting = False
        while True:
            name = f"question-{len(answers):06d}"
            send(inbox, envelope(name, "tree.crosstables", body, template))
            asked += 1
            waiting = True
            ready, _, _ = select.select([outbox], [], [], max(0.0, dies - time.monotonic()))
            if not ready:
                break
            reply = receive(outbox)
            assert reply is not None, "the site ended by itself"
            assert isinstance(open_reply(reply), Answer), msgspec.to_builtins(open_reply(reply))
            answers[name] = reply
            waiting = False
            if time.monotonic() >= dies:
                break
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        killed += 1
        during += waiting
        last = receive(outbox)  # what left the site before it died has arrived, too
        if last is not None:
            answers[name] = last
        os.close(inbox)
        os.close(outbox)
    with cc.Ledger(ledger) as book:
        verified = book.verify()
        entered = [entry.question for entry in book.entries() if entry.question.startswith("question-")]
    site = cc.Site("a", cc.Records.from_rows(ROWS), ledger=ledger)
    changed = sum(
        site.answer(envelope(n, "tree.crosstables", body, template)) != a for n, a in answers.items()
    )
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
        "verified": verified,
    }


if __name__ == "__main__":
    Path(sys.argv[2]).unlink(missing_ok=True)
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2])))
