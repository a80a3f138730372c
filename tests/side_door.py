"""Does anything but charged noise depend on a patient? Run a study on two neighbouring data sets with the noise held
at zero and compare all that is visible from outside: which messages, of which size and shape, refusals, charges.

A private study passes `find_side_doors` for every pair of neighbours on which its noisy decisions agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

import concilium as cc
from concilium.errors import ConciliumError
from concilium.privacy.randomness import zero_noise
from concilium.protocol.messages import Answer, open_envelope, open_reply

# A budget that no study ends: where all is refused, there is nothing to compare.
UNLIMITED = cc.Policy(budget=cc.Budget("unlimited"))

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Seen:
    """One exchange as an outsider sees it, without what is random by design (ids, keys, masks, signatures)."""

    site: str
    kind: str
    asked: int
    answered: tuple[Any, ...]


class Watched:
    """A site whose exchanges are written down."""

    def __init__(self, site: cc.Site, seen: list[Seen]) -> None:
        self.site, self.name, self.identity, self.introduce = site, site.name, site.identity, site.introduce
        self._seen = seen

    def answer(self, message: bytes) -> bytes:
        reply = self.site.answer(message)
        envelope, opened = open_envelope(message), open_reply(reply)
        if isinstance(opened, Answer):
            shape = ("answer", len(opened.body), opened.charge, opened.ledger.count)
        else:
            shape = (
                "refusal",
                msgspec.to_builtins(opened).get("rule"),
                opened.reason,
                opened.asked,
                opened.left,
            )
        self._seen.append(Seen(self.name, envelope.kind, len(envelope.body), shape))
        return reply


def watch(
    sites: Mapping[str, Rows],
    study: Callable[[cc.House], Any],
    policy: cc.Policy = UNLIMITED,
    schema: Mapping[str, str] | None = None,
) -> list[Seen]:
    """Everything visible from outside while the study runs on these sites, in an order that no thread decides.

    Columns are stated (codes unless said otherwise): how a column is read must not depend on a patient.
    """
    seen: list[Seen] = []
    if schema is None:
        schema = {name: "code" for rows in sites.values() for row in rows for name in row}
    watched = [Watched(make_site(name, rows, schema, policy), seen) for name, rows in sites.items()]
    with zero_noise():
        try:
            study(cc.House(watched))
        except ConciliumError as error:
            seen.append(Seen("house", "error", 0, (type(error).__name__, str(error))))
    return sorted(seen, key=lambda exchange: (exchange.site, seen.index(exchange)))


def state(rows: Rows, **kinds: str) -> cc.Records:
    """These patients with every column stated, as private questions need it: codes unless said otherwise."""
    return cc.Records.from_rows(rows, schema={name: kinds.get(name, "code") for row in rows for name in row})


def make_site(name: str, rows: Rows, schema: Mapping[str, str], policy: cc.Policy) -> cc.Site:
    """A site with these patients; the columns are stated, so that they are the same if a site has none."""
    if rows:
        return cc.Site(
            name, cc.Records.from_rows(rows, schema=schema), policy, division_key=b"the key of these tests"
        )
    anyone = {column: "x" if kind == "code" else 1 for column, kind in schema.items()}
    empty = cc.Records.from_rows([anyone], schema=schema).take([])
    return cc.Site(name, empty, policy)


def find_side_doors(
    sites: Mapping[str, Rows],
    leave_out: tuple[str, int],
    study: Callable[[cc.House], Any],
    policy: cc.Policy = UNLIMITED,
    schema: Mapping[str, str] | None = None,
) -> list[tuple[Seen | None, Seen | None]]:
    """The exchanges that differ between these data and the same without one patient (site, row); none is right."""
    name, row = leave_out
    neighbour = {s: [r for i, r in enumerate(rows) if (s, i) != (name, row)] for s, rows in sites.items()}
    first, second = watch(sites, study, policy, schema), watch(neighbour, study, policy, schema)
    length = max(len(first), len(second))
    padded = [[*found, *[None] * (length - len(found))] for found in (first, second)]
    return [(one, other) for one, other in zip(*padded, strict=True) if one != other]
