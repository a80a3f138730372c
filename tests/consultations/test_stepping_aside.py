"""A hospital that does not fit steps aside, or takes its attribute with it, as the study says; and the plan says so."""

from __future__ import annotations

import pytest

import concilium as cc
from concilium.errors import HouseError
from concilium.study.consulting import ask
from contract.patients import BINS, BUDGET, ROWS, SCHEMA, VALUES
from study.test_consulting import PATIENT, write_study


def open_sites(lacking="north", column="ward", policy=None):
    sites = []
    for name, rows in ROWS.items():
        out = {column} if name == lacking and policy is None else set()
        schema = {one: kind for one, kind in SCHEMA.items() if one not in out}
        records = cc.Records.from_rows([{k: row[k] for k in schema} for row in rows], schema=schema)
        sites.append(cc.Site(name, records, policy=policy if policy and name == lacking else BUDGET))
    return sites


def make(release="exact", **more):
    stated = {"bins": BINS, "attributes": ["age", "pressure", "sex", "ward"], "grid": ["age", "sex"]}
    if release == "private":
        stated |= {"values": VALUES, "epsilon": 4}
    return cc.Consultation("y", release=release, **{**stated, **more})


@pytest.mark.parametrize("release", ["exact", "masked", "private"])
@pytest.mark.parametrize("column", ["ward", "sex", "y"])
def test_a_hospital_without_a_column_steps_aside_and_is_named(release, column):
    model = make(release, on_misfit="hospital").fit(cc.House(open_sites(column=column)))
    assert [site.name for site in model.card.sites] == ["south", "east", "west"]
    answer = model.ask({"age": 63, "sex": "m"})
    assert answer.hospitals == ("south", "east", "west")
    assert f"there is no column {column!r} at this hospital" in answer.missing["north"]
    assert "Hospitals that are not in the model: north (refused: attribute" in str(answer)
    if release != "private":
        rest = [site for site in open_sites(lacking="") if site.name != "north"]
        assert model.body.counts == make(release).fit(cc.House(rest)).body.counts


def test_a_hospital_that_withholds_a_column_steps_aside():
    policy = cc.Policy(withhold=("ward",), budget=cc.Budget("20"))
    model = make(on_misfit="hospital").fit(cc.House(open_sites(policy=policy)))
    assert [site.name for site in model.card.sites] == ["south", "east", "west"]


def test_a_hospital_whose_numbers_are_words_steps_aside():
    sites = open_sites(lacking="")
    rows = [{**row, "pressure": "high" if row["pressure"] > 120 else "low"} for row in ROWS["north"]]
    sites[0] = cc.Site("north", cc.Records.from_rows(rows, schema={**SCHEMA, "pressure": "code"}))
    model = make(on_misfit="hospital").fit(cc.House(sites))
    assert [site.name for site in model.card.sites] == ["south", "east", "west"]
    assert "pressure" in model.ask({"age": 63}).missing["north"]
    with pytest.raises(HouseError, match="does not fit every site: north"):
        make().fit(cc.House(sites))


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_behind_a_region_it_steps_aside_alone(release):
    sites = open_sites()
    region = cc.Region("region", cc.House(sites[:2]))
    tiered = make(release, on_misfit="hospital").fit(cc.House([region, *sites[2:]]))
    assert tiered.body.counts == make(release, on_misfit="hospital").fit(cc.House(sites)).body.counts
    asked = tiered.ask({"age": 63, "sex": "m"})
    assert asked.hospitals == (
        ("region", "east", "west") if release == "exact" else ("south", "east", "west")
    )


def test_otherwise_the_attribute_is_left_out_for_all():
    model = make().fit(cc.House(open_sites()))
    assert [site.name for site in model.card.sites] == list(ROWS)
    assert model.attributes_ == ["age", "pressure", "sex"]
    assert any("ward (not known at north" in warning for warning in model.card.warnings)


def test_an_attribute_of_the_grid_cannot_be_left_out():
    with pytest.raises(
        HouseError, match="'sex' is in the grid and cannot be asked about: not known at north"
    ):
        make().fit(cc.House(open_sites(column="sex")))


def test_nobody_left_is_a_sentence():
    sites = [cc.Site(name, cc.Records.from_rows([{"y": "no"}] * 9)) for name in ("north", "south")]
    with pytest.raises(
        HouseError, match="the study does not fit every site: north, south: there is no column 'age'"
    ):
        make(on_misfit="hospital").fit(cc.House(sites))


def test_the_plan_names_who_will_not_take_part(tmp_path):
    path = write_study(tmp_path)
    path.write_text(path.read_text().replace("[study]", '[study]\non_misfit = "hospital"'))
    table = tmp_path / "east.csv"
    lines = [line.split(",") for line in table.read_text().splitlines()]
    table.write_text("".join(",".join([*line[:3], *line[4:]]) + "\n" for line in lines))  # without its ward
    for name, rule in (("south", "substitute p.age =~ /decade()/"), ("west", "eliminate p.sex")):
        rules = f'[constraints]\ntext = "graph g {{ node p + {rule}; }}"\n'
        (tmp_path / f"{name}.policy.toml").write_text((tmp_path / "policy.toml").read_text() + rules)
        own = f'ledger = "{name}.ledger"\npolicy = "'
        path.write_text(path.read_text().replace(own + "policy", f"{own}{name}.policy"))
    study = cc.Study.read(path)
    predicted = study.plan().steps_aside
    assert "'age' holds text, so bins do not apply" in predicted.pop("south")
    assert predicted == {
        "east": "it has no column 'ward', which the study needs",
        "west": "it has no column 'sex', which the study needs (eliminated by graph g)",
    }
    assert study.plan().left_out == {}
    answer = ask(path, PATIENT, requester="weiss")
    assert (answer.hospitals, {*answer.missing}) == (("north",), {"east", "south", "west"})
