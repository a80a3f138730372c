"""Hypothesis strategies that several test files share."""

from __future__ import annotations

from hypothesis import strategies as st

import concilium as cc

VALUES = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))


@st.composite
def tables(draw, most_rows=40, most_columns=5, most_values=4):
    """A categorical table as one dict per patient: text or integer columns, some cells missing, a known target."""
    columns = {}
    for index in range(draw(st.integers(1, most_columns))):
        count = draw(st.integers(1, most_values))
        values = [f"v{i}" for i in range(count)] if draw(st.booleans()) else list(range(count))
        columns[f"x{index}"] = st.sampled_from([*values, None] if draw(st.booleans()) else values)
    classes = draw(st.sampled_from([["no", "yes"], [0, 1], ["a", "b", "c"]]))
    row = st.fixed_dictionaries({**columns, "y": st.sampled_from(classes)})
    return draw(st.lists(row, min_size=1, max_size=most_rows))


@st.composite
def federations(draw, most_sites=8, **sizes):
    """A table dealt over 1-8 sites, each of which may lack some of the columns."""
    rows = draw(tables(**sizes))
    count = draw(st.integers(1, most_sites))
    deal = draw(st.lists(st.integers(0, count - 1), min_size=len(rows), max_size=len(rows)))
    names = [name for name in rows[0] if name != "y"]
    sites = {}
    for site in range(count):
        here = [row for row, to in zip(rows, deal, strict=True) if to == site]
        lacking = draw(st.sets(st.sampled_from(names))) if draw(st.integers(0, 4)) == 0 else set()
        if here:
            sites[f"s{site}"] = [{k: v for k, v in row.items() if k not in lacking} for row in here]
    return sites


def deal_tiers(data, members):
    """Hospitals dealt into regions, and these into larger ones, one to three times over."""
    for tier in range(data.draw(st.integers(1, 3))):
        homes = data.draw(st.lists(st.integers(0, 3), min_size=len(members), max_size=len(members)))
        grouped = {home: [m for m, at in zip(members, homes, strict=True) if at == home] for home in homes}
        # Home 0 stays as it is: a house may have hospitals and regions side by side.
        members = [*grouped.pop(0, [])]
        members += [cc.Region(f"tier {tier}, {home}", cc.House(group)) for home, group in grouped.items()]
    return members


@st.composite
def rare_houses(draw, most_sites=3):
    """Sites with a few categorical columns, and few patients with y = 1 among 0 and 2."""
    names = [f"x{i}" for i in range(draw(st.integers(1, 3)))]
    row = st.fixed_dictionaries(
        {name: st.sampled_from(["a", "b", None]) for name in names}
        | {"y": st.sampled_from([0, 0, 0, 0, 1, 2] if draw(st.booleans()) else [0, 0, 0, 0, 1])}
    )
    count = draw(st.integers(1, most_sites))
    return {f"s{i}": draw(st.lists(row, min_size=1, max_size=25)) for i in range(count)}
