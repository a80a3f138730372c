"""What a house may learn under masks of a hospital whose codes are swapped: nothing, since it receives sums."""

from __future__ import annotations

import concilium as cc
from concilium.evaluation.alarms import compare_hospitals

SCHEMA = {"sex": "code", "death": "code"}


def fit(*hospitals):
    tables = {f"h{place}": cc.Records.from_rows(rows, schema=SCHEMA) for place, rows in enumerate(hospitals)}
    alarms = list(compare_hospitals(tables, ["sex", "death"], []))
    return cc.DecisionTree("death", release="masked").fit(tables), alarms


def test_swapped_codes_leave_the_same_sums_as_honest_hospitals() -> None:
    """So that the alarm of a simulation, which has the tables, cannot be one of the house's across machines."""
    women = [{"sex": "f", "death": "ny"[place % 10 == 0]} for place in range(80)]
    men = [{"sex": "m", "death": "ny"[place % 2 == 0]} for place in range(80)]
    # At h0 most patients are women, and so at h1; h2 has their shares exchanged. Or all three have the same shares.
    swapped, about_swapped = fit(women[:36] + men[:4], women[36:72] + men[4:8], women[72:] + men[8:])
    honest, about_honest = fit(*(women[part::3] + men[part::3] for part in range(3)))
    assert any("h2: sex" in alarm and "exchanged" in alarm for alarm in about_swapped)
    assert about_honest == []
    assert swapped.body == honest.body
    assert swapped.card.alarms == honest.card.alarms
