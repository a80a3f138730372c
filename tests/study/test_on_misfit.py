"""A hospital that does not fit an ordinary study steps aside, or stops it, as the study says; and the plan says so."""

from __future__ import annotations

import numpy as np
import pytest

import concilium as cc
from concilium.errors import HouseError
from contract.patients import BINS, BUDGET, ROWS, SCHEMA, VALUES

QUERY = "ward = 'a' or ward = 'b'"
METHODS = {
    cc.DecisionTree: {},
    cc.NaiveBayes: {},
    cc.VotingTrees: {"positive": "yes"},
    cc.RuleFit: {"positive": "yes", "trees": 5},
    cc.ShapeModel: {"positive": "yes"},
    cc.Regression: {"positive": "yes"},
}


def open_sites(column, *, withheld=False):
    """Four hospitals, of which north lacks or withholds a column."""
    sites = []
    for name, rows in ROWS.items():
        lacks = name == "north" and not withheld
        schema = {one: kind for one, kind in SCHEMA.items() if not (lacks and one == column)}
        records = cc.Records.from_rows([{key: row[key] for key in schema} for row in rows], schema=schema)
        hides = name == "north" and withheld
        policy = cc.Policy(withhold=(column,), budget=cc.Budget("20")) if hides else BUDGET
        sites.append(cc.Site(name, records, policy=policy))
    return cc.House(sites)


def describe(method, release="exact", **more):
    stated = {"attributes": ["age", "pressure", "sex", "ward"], "bins": BINS, **METHODS[method], **more}
    if release == "private":
        stated |= {"values": VALUES, "epsilon": 4}
    return method("y", release=release, **stated)


def fit_others(method, **more):
    sites = [
        cc.Site(name, make_records(rows), policy=BUDGET) for name, rows in ROWS.items() if name != "north"
    ]
    return describe(method, **more).fit(cc.House(sites))


def make_records(rows):
    return cc.Records.from_rows(rows, schema=SCHEMA)


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.method)
def test_a_hospital_without_a_stated_attribute_steps_aside(method):
    model = describe(method, on_misfit="hospital").fit(open_sites("ward"))
    assert [site.name for site in model.card.sites] == ["south", "east", "west"]
    assert [one.site for one in model.card.refusals] == ["north"]
    assert "no column 'ward'" in model.card.refusals[0].reason
    if method is not cc.RuleFit:  # whose folds each hospital deals by a key of its own
        alone = fit_others(method)
        patients = make_records(ROWS["east"])
        np.testing.assert_allclose(model.predict_proba(patients), alone.predict_proba(patients))


@pytest.mark.parametrize("release", ["masked", "private"])
@pytest.mark.parametrize("withheld", [False, True])
def test_it_steps_aside_before_anybody_is_charged_for_a_sum(release, withheld):
    model = describe(cc.DecisionTree, release, on_misfit="hospital").fit(
        open_sites("ward", withheld=withheld)
    )
    assert [site.name for site in model.card.sites] == ["south", "east", "west"]


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_a_hospital_without_a_column_of_the_query_steps_aside_or_stops_the_study(release):
    attributes = ["age", "pressure", "sex"]
    said = {"query": QUERY, "attributes": attributes}
    model = describe(cc.DecisionTree, release, on_misfit="hospital", **said).fit(open_sites("ward"))
    assert [site.name for site in model.card.sites] == ["south", "east", "west"]
    with pytest.raises(HouseError, match="does not fit every site: north"):
        describe(cc.DecisionTree, release, **said).fit(open_sites("ward"))


def test_otherwise_the_attribute_is_left_out_for_all():
    model = describe(cc.DecisionTree).fit(open_sites("ward"))
    assert len(model.card.sites) == len(ROWS)
    assert any("ward (not known at north" in warning for warning in model.card.warnings)


STUDY = """
[study]
name = "ward"
method = "tree"
target = "y"
query = "ward = 'a' or ward = 'b'"
on_misfit = "hospital"
"""


def test_the_plan_names_who_will_step_aside(tmp_path):
    for name, rows in ROWS.items():
        names = [one for one in SCHEMA if (name, one) != ("north", "ward")]
        lines = [",".join("" if row[one] is None else str(row[one]) for one in names) for row in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    path = tmp_path / "study.toml"
    path.write_text(STUDY + "".join(f'[[site]]\nname = "{one}"\nrecords = "{one}.csv"\n' for one in ROWS))
    study = cc.Study.read(path)
    assert study.plan().steps_aside == {"north": "it has no column 'ward', which the study needs"}
    results = study.run()
    assert [site.name for site in results.model.card.sites] == ["south", "east", "west"]
    assert [one.site for one in results.card.refusals] == ["north"]
