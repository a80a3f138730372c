"""What the gate adds to a question: `Site.answer` with a ledger on disk against the bare statistic; and what it takes
three embedded hospitals to agree to a study. With the first they number their patients, which lasts.

python benchmarks/gate.py [questions]      default 300 questions about 10,000 patients x 40 attributes
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import concilium as cc
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import VERSION, Answer, Envelope, digest_question, encode, open_reply
from concilium.protocol.run import Run
from concilium.protocol.schema import name_classes
from concilium.protocol.terms import prove
from concilium.records.columns import Coded
from concilium.records.table import Records

PATIENTS, ATTRIBUTES = 10_000, 40


def write(run: Run, name: str, body: bytes) -> bytes:
    """One question of an agreed study, proven to the site, under an id of its own."""
    kind = AskCounts.kind
    digest = digest_question(run.study, kind, "exact", hashlib.sha256(body).digest(), b"")
    return encode(
        Envelope(
            version=VERSION,
            id=name,
            study=run.study,
            kind=kind,
            release="exact",
            body=body,
            proof=prove(run._proof_keys["a"], name, digest, None),
        )
    )


def draw_records(draw: np.random.Generator) -> Records:
    columns = {
        f"x{i:02d}": Coded(draw.integers(1, 4, PATIENTS).astype(np.uint8), ("a", "b", "c"))
        for i in range(ATTRIBUTES)
    }
    return Records({**columns, "y": Coded(draw.integers(1, 3, PATIENTS).astype(np.uint8), ("n", "p"))})


def agree(draw: np.random.Generator) -> tuple[float, float]:
    """Seconds to agree to the first study that three embedded hospitals hear of, and to the second."""
    house = cc.House([cc.Site(name, draw_records(draw)) for name in "abc"])
    seconds = []
    for purpose in ("first", "second"):
        house.purpose = purpose
        run = house.open(cc.DecisionTree("y").draft())
        start = time.perf_counter()
        run.begin()
        seconds.append(time.perf_counter() - start)
    return seconds[0], seconds[1]


def main(questions: int) -> None:
    draw = np.random.default_rng(4)
    records = draw_records(draw)
    question = AskCounts(
        query="",
        target="y",
        classes=name_classes("y", ("n", "p")),
        attributes=tuple(
            Attribute(name, (), ("a", "b", "c"), missing=False, other=False)
            for name in records.names
            if name != "y"
        ),
        tree=[],
        nodes=[0],
    )
    with tempfile.TemporaryDirectory() as folder:
        site = cc.Site("a", records, ledger=Path(folder) / "a.ledger")
        cohort = site._context.view.select("", "y")
        run = cc.House([site]).open(cc.DecisionTree("y").draft())
        run.begin()
        messages = [write(run, f"question-{number}", encode(question)) for number in range(questions)]
        assert isinstance(open_reply(site.answer(messages[0])), Answer)
        whole, bare = [], []
        for message in messages[1:]:
            start = time.perf_counter()
            question.compute(cohort)
            middle = time.perf_counter()
            site.answer(message)
            whole.append(time.perf_counter() - middle)
            bare.append(middle - start)
    ours, peer = statistics.median(whole), statistics.median(bare)
    print(f"a question about {PATIENTS:,} patients x {ATTRIBUTES} attributes, median of {questions - 1}")
    print(f"  the bare statistic             {1e3 * peer:6.2f} ms")
    print(f"  Site.answer, ledger on disk    {1e3 * ours:6.2f} ms")
    print(f"  the gate adds                  {1e3 * (ours - peer):6.2f} ms   (target: under 1 ms)")
    first, later = (statistics.median(times) for times in zip(*[agree(draw) for _ in range(21)], strict=True))
    print("three hospitals of that size agree")
    print(f"  to their first study           {1e3 * first:6.2f} ms")
    print(f"  to a later one                 {1e3 * later:6.2f} ms   (target: under 5 ms)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
