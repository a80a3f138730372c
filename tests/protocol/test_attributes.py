"""One form of attribute: its cells against a reading patient by patient, its union over sites, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import MessageError, RecordsError
from concilium.models.prediction import NewPatients
from concilium.protocol.attributes import (
    MOST_VALUES,
    NOWHERE,
    Attribute,
    AttributeSeen,
    _in_order,
    check_attributes,
    recode,
    unite,
)
from concilium.protocol.cohort import View
from concilium.protocol.schema import AskSchema, SchemaSeen, share_schema
from concilium.records.columns import Coded, Numbers, label
from concilium.records.grammar import canonical, measure

TEXT = ["a", "b", "A", "", " a", "5", "5.0", "05", "true", "1e3", "(missing)", "é"]
WHOLE = [0, 1, 2, 5, -3, 2**53, 2**53 + 1]
REAL = [0.5, 5.0, -0.0, 1e300, -1e300, 1e-300, 2.5]
ANY = [*TEXT, *WHOLE, *REAL, True, False]
EDGES = [-5.0, -0.0, 0.5, 1.0, 2.0, 5.0, 1e300]


def by_label(values):
    return list({label(value): value for value in values}.values())


@st.composite
def columns(draw):
    """A column of any kind, with values that nobody has."""
    kind = draw(st.sampled_from(["text", "whole", "real", "truth", "measured"]))
    pool = {"text": TEXT, "whole": WHOLE, "real": REAL, "truth": [False, True], "measured": REAL}[kind]
    if kind == "measured":
        numbers = np.array(draw(st.lists(st.sampled_from([*pool, np.nan]), min_size=1, max_size=12)))
        return Numbers(numbers, by_itself=True)
    values = by_label(draw(st.lists(st.sampled_from(pool), max_size=6)))
    codes = draw(st.lists(st.integers(0, len(values)), min_size=1, max_size=12))
    return Coded(np.array(codes, dtype=np.uint32), tuple(values), draw(st.booleans()), by_itself=True)


@st.composite
def attributes(draw):
    """An attribute of any form, perhaps as a site is told of it that has some of the values; and its whole form."""
    missing, other = draw(st.booleans()), draw(st.booleans())
    form = draw(st.sampled_from(["edges", "values", "narrow"]))
    if form == "edges":
        edges = tuple(sorted(draw(st.sets(st.sampled_from(EDGES), min_size=1))))
        attribute = Attribute("x", edges, (), missing, other)
        return attribute, attribute
    values = by_label(draw(st.lists(st.sampled_from(ANY), max_size=6)))
    attribute = Attribute("x", (), tuple(values), missing, other)
    if form == "values" or not values:
        return attribute, attribute
    own = draw(st.lists(st.sampled_from(values), unique_by=label))
    return attribute.narrow({label(value) for value in own}), attribute


def values_of(column):
    """What each patient has, None for missing."""
    if isinstance(column, Numbers):
        return [None if np.isnan(number) else float(number) for number in column.numbers]
    return [None if code == 0 else column.values[code - 1] for code in column.codes.tolist()]


def place(attribute, whole, value, *, by_itself):
    """Where one patient is counted, by looking at the one value: as all sites do, if its own site is told of it."""
    inner = len(whole.edges) + 1 if whole.edges else len(whole.values)
    first = 1 if attribute.missing else 0
    other = first + inner if attribute.other and not attribute.edges else NOWHERE
    number = None if value is None else measure(value) if by_itself else value
    if attribute.edges:
        if number is None or np.isnan(number):
            return 0 if attribute.missing else NOWHERE
        return first + sum(edge <= number for edge in attribute.edges)
    if value is None:
        return 0 if attribute.missing else other
    name = canonical(value) if by_itself else label(value)
    told = {label(listed) for listed in attribute.values}
    named = {label(listed): first + index for index, listed in enumerate(whole.values)}
    return named.get(name, other) if name in told else other


def cells_of(attribute, source):
    codes, cells = recode(attribute, source)
    return cells[codes].tolist()


@given(columns(), attributes())
@settings(max_examples=200)
def test_every_patient_is_where_the_one_value_says(column, described):
    attribute, whole = described
    attribute.check()
    view, table = View(cc.Records({"x": column}), cc.Policy(allow=("x",))), cc.Records({"x": column})
    numbers = isinstance(column, Numbers)
    text = not numbers and any(isinstance(value, str | bool) for value in column.values)
    values = values_of(column)
    assert cells_of(attribute, view.each_by_itself) == [
        place(attribute, whole, value, by_itself=True) for value in values
    ]
    expected = (
        None if attribute.edges and text else [place(attribute, whole, v, by_itself=False) for v in values]
    )
    if expected is None or (numbers and not attribute.edges):
        with pytest.raises(RecordsError):
            recode(attribute, view)
    else:
        assert cells_of(attribute, view) == expected
    patients = NewPatients(table)
    if attribute.edges and any(v is not None and np.isnan(measure(v)) for v in values):
        with pytest.raises(RecordsError, match="as a number, but row"):
            recode(attribute, patients)
    else:
        assert cells_of(attribute, patients) == [place_new(attribute, whole, value) for value in values]


def place_new(attribute, whole, value):
    """Where a patient to predict is: by the own label of the value, or else by what its text stands for."""
    if attribute.edges or value is None:
        return place(attribute, whole, value, by_itself=True)
    return place(attribute, whole, value, by_itself=label(value) not in map(label, attribute.values))


@given(attributes())
def test_the_cells_of_an_attribute_are_all_there_once(described):
    attribute, _ = described
    named = {attribute.missing_cell} if attribute.missing else set()
    named |= set(range(attribute.first, attribute.first + attribute.inner))
    named |= {attribute.other_cell} - {NOWHERE}
    assert named == set(range(attribute.size))
    order = attribute.in_branch_order
    assert sorted(order) == list(range(attribute.size))
    assert order[: attribute.inner] == list(range(attribute.first, attribute.first + attribute.inner))
    if attribute.missing:
        assert order[attribute.inner] == attribute.missing_cell
    if attribute.other_cell != NOWHERE:
        assert order[-1] == attribute.other_cell


@given(
    attributes(), st.lists(st.sets(st.sampled_from([label(value) for value in ANY])), min_size=1, max_size=3)
)
def test_a_site_is_told_its_own_values_through_any_number_of_regions(described, tiers):
    attribute, _ = described
    known = set.intersection(*tiers)
    own = attribute
    for tier in tiers:
        own = own.narrow(tier)
        own.check()
    assert [label(value) for value in own.values] == [label(v) for v in attribute.values if label(v) in known]
    cells = dict(zip(map(label, attribute.values), attribute.cells, strict=True))
    assert [cells[label(value)] for value in own.values] == list(own.cells)
    assert (own.size, own.in_branch_order) == (attribute.size, attribute.in_branch_order)


# Hostile attributes


@pytest.mark.parametrize(
    ("attribute", "problem"),
    [
        (Attribute("x", (1.0,), ("a",)), "both a number and a category"),
        (Attribute("x", (1.0,), of=3), "both a number and a category"),
        (Attribute("x", (), ("a",), of=3), "no place among all"),
        (Attribute("x", (), ("a",), places=(3,), of=3), "no place among all"),
        (Attribute("x", (), ("a",), places=(-1,), of=3), "no place among all"),
        (Attribute("x", (), ("a", "b"), places=(1, 1), of=3), "two have one"),
        (Attribute("x", (), ("a",), places=(0,)), "no place among all"),
        (Attribute("x", of=-1), "no place among all"),
        (Attribute("x", (), (5, "5")), "different values"),
        (Attribute("x", (), (5, 5.0)), "different values"),
        (Attribute("x", (), (True, "true")), "different values"),
        (Attribute("x", of=MOST_VALUES + 1), f"at most {MOST_VALUES}"),
        (Attribute("x", of=2**62), f"at most {MOST_VALUES}"),
        (Attribute("x", (), tuple(range(MOST_VALUES + 1))), f"at most {MOST_VALUES}"),
        (Attribute("x", (2.0, 1.0)), "must rise"),
        (Attribute("x", (1.0, 1.0)), "must rise"),
        (Attribute("x", (float("nan"),)), "finite edges"),
        (Attribute("x", (1.0, float("inf"))), "finite edges"),
        (Attribute("x", tuple(map(float, range(1001)))), "1 to 1000 finite edges"),
        (Attribute("x" * 10**6, (2.0, 1.0)), "at most 1000 characters"),
    ],
)
def test_an_attribute_that_is_none_is_refused(attribute, problem):
    with pytest.raises(MessageError, match=problem) as refused:
        attribute.check()
    assert len(str(refused.value)) < 200
    with pytest.raises(MessageError, match=problem):
        check_attributes([Attribute("fine"), attribute])


def test_an_attribute_is_named_once():
    with pytest.raises(MessageError, match="named twice"):
        check_attributes([Attribute("x"), Attribute("x", (1.0,))])
    check_attributes([Attribute("x"), Attribute("y", (1.0,)), Attribute("z", (), (5, "a"))])


# The union over sites

SEEN = st.sampled_from([ANY, [*WHOLE, *REAL, True, False, None]]).flatmap(
    lambda pool: st.lists(st.one_of(st.none(), st.sampled_from(pool)), max_size=6)
)
SITES = st.lists(
    st.dictionaries(st.sampled_from(["x", "y", "z"]), st.tuples(SEEN, st.booleans())), min_size=1, max_size=6
)


def as_seen(site):
    return [AttributeSeen(name, values, numeric) for name, (values, numeric) in site.items()]


def alike(united):
    """What a union says, with 5 and '5' told apart, and 1 and true."""
    return {
        name: ([(label(v), isinstance(v, str), v is None) for v in seen.values], seen.numeric)
        for name, seen in united.items()
    }


@given(SITES, st.randoms())
@settings(max_examples=300)
def test_the_order_of_sites_does_not_matter(sites, dice):
    named = {f"s{number}": as_seen(site) for number, site in enumerate(sites)}
    united, lacking = unite(named)
    other = list(named.items())
    dice.shuffle(other)
    again, still = unite(dict(other))
    assert alike(again) == alike(united)
    assert list(again) == list(united) == sorted(united)
    assert set(still) == set(lacking)
    for found in (lacking, still):
        for name, site in found.items():
            assert name not in {attribute.name for attribute in named[site]}


@given(SITES, st.data())
@settings(max_examples=300)
def test_uniting_unions_is_the_union(sites, data):
    united, lacking = unite({f"s{number}": as_seen(site) for number, site in enumerate(sites)})
    groups = [as_seen(site) for site in sites]
    for _ in range(data.draw(st.integers(1, 2))):
        homes = data.draw(st.lists(st.integers(0, 2), min_size=len(groups), max_size=len(groups)))
        members = {home: [g for g, at in zip(groups, homes, strict=True) if at == home] for home in homes}
        groups = [
            list(unite({f"m{number}": one for number, one in enumerate(some)})[0].values())
            for some in members.values()
        ]
    again, _ = unite({f"g{number}": group for number, group in enumerate(groups)})
    assert alike(again) == alike(united)
    assert set(again).isdisjoint(lacking)


@given(SEEN, st.randoms())
def test_values_stand_once_in_an_order_of_their_own(values, dice):
    first = _in_order(values)
    names = [label(value) for value in first if value is not None]
    assert len(set(names)) == len(names)
    assert set(names) == {label(value) for value in values if value is not None}
    assert (None in first) == (None in values)
    assert None not in first[:-1]
    other = values[:]
    dice.shuffle(other)
    assert [label(value) for value in _in_order(other)] == [label(value) for value in first]


@given(SITES, st.lists(st.sampled_from(["n", "p", 0, 1, "1"]), min_size=1), st.data())
@settings(max_examples=200)
def test_the_schema_of_regions_is_that_of_their_sites(sites, classes, data):
    question = AskSchema(query="", target="t")
    asked = [
        SchemaSeen(
            as_seen(site),
            data.draw(st.lists(st.sampled_from(classes), unique_by=label)),
            data.draw(st.one_of(st.none(), st.integers(4, 9))),
            sorted({"x", "y", "u"} - set(site))[: data.draw(st.integers(0, 2))],
            data.draw(st.booleans()),
        )
        for site in sites
    ]
    homes = data.draw(st.lists(st.integers(0, 2), min_size=len(asked), max_size=len(asked)))
    regions = {home: [s for s, at in zip(asked, homes, strict=True) if at == home] for home in homes}
    above = {f"r{home}": question.unite(members) for home, members in regions.items()}
    flat = share_schema({f"s{number}": one for number, one in enumerate(asked)}, {}, "t")
    tiered = share_schema(above, {}, "t")

    def shown(attribute):
        return attribute.name, [(label(v), isinstance(v, str)) for v in attribute.values], attribute.missing

    assert [shown(a) for a in tiered.attributes] == [shown(a) for a in flat.attributes]
    assert shown(tiered.classes) == shown(flat.classes)
    assert set(tiered.left_out) <= set(flat.left_out)
    whole = question.unite(list(above.values()))
    known = [one.patients for one in asked]
    assert whole.patients == (None if None in known else sum(known))
    assert whole.floored == any(one.floored for one in asked)
