"""A table that grew or was corrected is said on the card of the studies that follow, as far as it tells of no few."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium as cc
from concilium.protocol.terms import TableNews

ROWS = [
    {"mrn": f"p{i:03}", "sex": "fm"[i % 2], "ward": "abc"[i % 3], "death": int(i % 5 == 0)} for i in range(60)
]
SAID = "the table of north has changed since the version before that it answered from: "


def fit(tmp_path, rows, release="exact", series=None, **options):
    """What the cards of a study over two hospitals say of the first one's table."""
    schema = dict.fromkeys(("sex", "ward", "death"), "code")
    patients = cc.Patients(table=cc.Records.from_rows(rows, schema), series=series, by="mrn")
    other = [{**row, "mrn": f"s{i}"} for i, row in enumerate(ROWS)]
    sites = [
        cc.Site("north", patients, ledger=tmp_path / "north.ledger"),
        cc.Site("south", cc.Records.from_rows(other, schema)),
        cc.Site("west", cc.Records.from_rows(other, schema)),
    ]
    tree = cc.DecisionTree("death", attributes=["sex", "ward"], release=release, max_depth=1, **options).fit(
        cc.House(sites)
    )
    entries = sites[0].ledger.entries()
    sites[0].ledger.close()
    assert tree.card.refusals == []
    return [line.removeprefix(SAID) for line in tree.card.warnings if line.startswith(SAID)], entries


def test_studies_after_a_change_say_it_on_their_cards_and_it_is_entered(tmp_path):
    assert fit(tmp_path, ROWS)[0] == []
    assert fit(tmp_path, ROWS)[0] == []
    more = [*ROWS[8:], *({**row, "mrn": f"q{i}"} for i, row in enumerate(ROWS[:12]))]
    changed = [{**row, "ward": "d"} if index < 5 else row for index, row in enumerate(more)]
    said, entries = fit(tmp_path, changed)
    assert said == ["12 added, 5 corrected, 8 taken out"]
    (entry,) = (entry for entry in entries if entry.kind == "study.propose")
    assert (entry.mode, entry.numbers) == ("exact", 3)
    assert (
        fit(tmp_path, changed[::-1])[0] == said
    )  # the order never matters; the version before is still that one
    again = [*changed, *({**row, "mrn": f"r{i}"} for i, row in enumerate(ROWS[:4]))]
    assert fit(tmp_path, again)[0] == ["4 added, fewer than 4 corrected, fewer than 4 taken out"]


def test_what_is_held_beside_the_table_counts_too(tmp_path):
    def make(shift):
        return cc.Series({"HR": np.arange(60.0)[None, :] + shift}, ids=[row["mrn"] for row in ROWS])

    assert fit(tmp_path, ROWS, series=make(0))[0] == []
    said, _ = fit(tmp_path, ROWS, series=make(1))
    assert said == ["fewer than 4 added, 60 corrected, fewer than 4 taken out"]


def test_neither_masked_nor_private_studies_tell_it(tmp_path):
    """Under masks a house learns sums; under noise nothing may depend on a patient who was corrected."""
    more = [*ROWS, *({**row, "mrn": f"q{i}"} for i, row in enumerate(ROWS[:12]))]
    values = {"death": ["0", "1"], "sex": ["f", "m"], "ward": ["a", "b", "c"]}
    assert fit(tmp_path, ROWS)[0] == []
    for release, options in (("masked", {}), ("private", {"epsilon": 1.0, "values": values})):
        said, entries = fit(tmp_path, more, release, **options)
        assert said == []
        assert all(entry.kind != "study.propose" for entry in entries)


@given(*[st.integers(0, 9)] * 3, st.integers(1, 6))
def test_no_small_number_is_told_and_a_small_change_is_as_none(added, corrected, gone, floor):
    news = TableNews.of(added, corrected, gone, floor)
    counts = (added, corrected, gone)
    if max(counts) < floor:
        assert news is None
        return
    assert news is not None
    for told, count in zip((news.added, news.corrected, news.gone), counts, strict=True):
        assert told == (count if count >= floor else None)
    lowered = [0 if count < floor else count for count in counts]
    assert TableNews.of(*lowered, floor) == news


@pytest.mark.parametrize("wrong", [-1, 2**60, "5"])
def test_a_site_cannot_say_what_is_no_count(wrong):
    from concilium.errors import MessageError
    from concilium.protocol.messages import decode, encode
    from concilium.protocol.terms import Agreed

    body = encode(Agreed(b"k" * 32, TableNews(wrong, None, None, 4)))
    with pytest.raises(MessageError):
        decode(body, Agreed)
