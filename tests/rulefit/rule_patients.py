"""Made-up patients whose outcome depends on a rule and a line, and small houses of them."""

from __future__ import annotations

import msgspec
import numpy as np

import concilium as cc
from concilium.models.prediction import NewPatients
from concilium.protocol.messages import Answer, encode, find_signed, open_envelope, open_reply
from concilium.records.columns import Coded, Numbers
from concilium.records.table import Records
from concilium.rulefit.design import build

EDGES = [round(edge, 1) for edge in np.linspace(-2.5, 2.5, 41).tolist()]
COLUMNS = ("a", "b", "c", "d")
BINS = dict.fromkeys(COLUMNS, EDGES)


def draw(patients, seed):
    draws = np.random.default_rng(seed)
    table = draws.normal(size=(patients, len(COLUMNS)))
    chance = 1 / (1 + np.exp(-3 * np.where(table[:, 0] > 0.5, 1.0, -1.0) * (table[:, 1] < 0.3) - table[:, 2]))
    return table, (draws.random(patients) < chance).astype(np.uint8)


def records_of(table, outcome):
    numbers = {name: Numbers(table[:, index].copy(), by_itself=True) for index, name in enumerate(COLUMNS)}
    return Records({**numbers, "y": Coded((outcome + 1).astype(np.uint8), (0, 1), by_itself=True)})


def deal(table, outcome, sites):
    """The same patients at several sites."""
    return [records_of(table[part::sites], outcome[part::sites]) for part in range(sites)]


def open_house(table, outcome, sites, **options):
    parts = deal(table, outcome, sites)
    return cc.House([open_site(part, records) for part, records in enumerate(parts)], **options)


def open_site(part, records):
    """A site that holds out the same patients each time it is opened."""
    return cc.Site(f"site {part}", records, division_key=f"the key of site {part}".encode())


def rows_of(table, outcome, **more):
    """One dict per patient, with other columns beside."""
    rows = [dict(zip(COLUMNS, numbers, strict=True)) for numbers in table.tolist()]
    return [
        {**row, "y": int(y), **{name: values[i] for name, values in more.items()}}
        for i, (row, y) in enumerate(zip(rows, outcome, strict=True))
    ]


def site_of(rows, name="site", **options):
    return cc.Site(name, cc.Records.from_rows(rows), **options)


def design_of(terms, records):
    """The design that terms make of any patients."""
    return build(terms, len(records), NewPatients(records))


def small_rulefit(**options):
    """A RuleFit that takes no time: the penalty is the paper's, and there is no limit on terms."""
    given = {"bins": BINS, "trees": 15, "penalty": 0.01, "max_terms": "all", "release": "exact"}
    if options.get("release") == "private":
        given = {"bins": BINS}
    return cc.RuleFit(**{"target": "y", **given, **options})


class Forging:
    """A site that answers one kind of question with something of its own, properly signed."""

    def __init__(self, site, kind, body):
        self.name, self._site, self._kind, self._body = site.name, site, kind, body
        self.identity, self.introduce = site.identity, site.introduce

    def answer(self, message):
        reply = self._site.answer(message)
        opened = open_reply(reply)
        if open_envelope(message).kind != self._kind or not isinstance(opened, Answer):
            return reply
        forged = msgspec.structs.replace(opened, body=self._body, signature=b"")
        return encode(
            msgspec.structs.replace(forged, signature=self._site.identity.sign(find_signed(forged)))
        )
