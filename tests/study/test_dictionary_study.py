"""Studies with a dictionary: hospitals that code in their own ways are one study; a private one needs no more."""

from __future__ import annotations

import random

import pytest

import concilium as cc
from concilium.errors import StudyError

STUDY = """
[study]
name = "heart"
method = "{method}"
target = "disease"
{more}
[privacy]
{privacy}
[dictionary.age]
unit = "years"
range = [0, 120]
[dictionary.sex]
values = {{ f = "female", m = "male" }}
[dictionary.chol]
unit = "mg/dl"
range = [80, 700]
molar_mass = 386.65
[dictionary.disease]
values = [0, 1]
[[site]]
name = "north"
records = "north.csv"
one_row_per_patient = true
map = {{ missing = ["?"], columns = {{ disease = "num > 0" }} }}
[[site]]
name = "south"
records = "south.csv"
one_row_per_patient = true
map = "south.map.toml"
[[site]]
name = "coast"
records = "coast.csv"
one_row_per_patient = true
[{method}]
{parameters}
"""
SOUTH = """
[map]
decimal = ","
[map.columns]
age = "alter"
sex = { from = "geschlecht", values = { 1 = "m", 0 = "f" } }
chol = { from = "cholesterin", unit = "mmol/l" }
disease = "num > 0"
"""


def draw_patients(draw, count=90):
    for _ in range(count):
        age, sex, chol = draw.randint(30, 85), draw.choice("fm"), draw.randint(120, 380)
        yield age, sex, chol, int(draw.random() < 0.1 + 0.5 * (chol > 240) + 0.2 * (sex == "m"))


def lay_out(folder, method="tree", privacy='release = "exact"', parameters="max_depth = 3", more=""):
    draw = random.Random(11)
    north = [f"{a}.0,{'F' if s == 'f' else 'M'},{c},{3 * d}" for a, s, c, d in draw_patients(draw)]
    north[3] = "?,M,?,1"
    south = [
        f'{a};{int(s == "m")};"{str(c / 38.665).replace(".", ",")}";{d}' for a, s, c, d in draw_patients(draw)
    ]
    coast = [f"{a},{'female' if s == 'f' else 'male'},{c},{d},x" for a, s, c, d in draw_patients(draw)]
    (folder / "north.csv").write_text("\n".join(["age,sex,chol,num", *north]))
    (folder / "south.csv").write_text("\n".join(["alter;geschlecht;cholesterin;num", *south]))
    (folder / "coast.csv").write_text("\n".join(["age,sex,chol,disease,ward", *coast]))
    (folder / "south.map.toml").write_text(SOUTH)
    path = folder / "study.toml"
    path.write_text(STUDY.format(method=method, privacy=privacy, parameters=parameters, more=more))
    return path


def test_three_codings_are_one_study(tmp_path):
    results = cc.Study.read(lay_out(tmp_path)).run()
    tree = results.model
    assert set(tree.attributes_) <= {"age", "sex", "chol"}  # never num, of which the target is made
    assert tree.body.nodes[0].attribute == "chol"
    assert not [warning for warning in results.card.warnings if "has no value of" in warning]
    assert sum(tree.body.nodes[0].counts) == 270
    branches = {b.value for node in tree.body.nodes if node.attribute == "sex" for b in node.branches}
    assert branches <= {"f", "m", None}
    assert results.card.dictionary["chol"].unit == "mg/dl"
    page = results.report()
    assert "What the names mean (4)" in page
    assert "a number in mg/dl, plausible from 80 to 700 mg/dl" in page


@pytest.mark.parametrize(
    ("method", "parameters"), [("tree", "max_depth = 2"), ("naive-bayes", ""), ("rulefit", "")]
)
def test_a_private_study_needs_nothing_but_the_dictionary(tmp_path, method, parameters):
    more = "positive = 1" if method == "rulefit" else ""
    privacy = 'release = "private"\nepsilon = 2.0\ndelta = "1e-5"'
    study = cc.Study.read(lay_out(tmp_path, method, privacy, parameters, more))
    plan = study.plan()
    assert plan.fits
    assert not plan.unstated
    results = study.run(warn=lambda text: None)
    assert results.card.refusals == []


@pytest.mark.parametrize(
    ("method", "parameters"), [("cox", ""), ("survival-curve", ""), ("tree", "at = 30"), ("tree", "")]
)
def test_the_time_of_an_event_may_be_in_the_dictionary_and_is_no_attribute(tmp_path, method, parameters):
    path = lay_out(tmp_path, method, parameters=parameters, more="positive = 1")
    path.write_text(path.read_text() + '\n[dictionary.time]\nunit = "days"\nrange = [0, 5000]\n')
    study = cc.Study.read(path)
    follows = method != "tree" or parameters
    assert {*study.attributes} == {"age", "sex", "chol"} | (set() if follows else {"time"})


def test_risks_by_a_time_stand_beside_no_others(tmp_path):
    path = lay_out(tmp_path, "cox", parameters="", more="positive = 1")
    both = path.read_text().replace('"cox"', '["cox", "tree"]') + "\n[evaluate]\nholdout = 0.3\n"
    path.write_text(both)
    with pytest.raises(StudyError, match="tree would take the outcome as it stands"):
        cc.Study.read(path)
    path.write_text(both + "[tree]\nat = 30\n")
    assert [one.method for one in cc.Study.read(path).several] == ["cox", "tree"]


def test_the_committee_reads_it(tmp_path):
    from concilium.consult.consent import find_study, list_studies, write_page
    from concilium.ledger.ledger import Ledger

    path = lay_out(tmp_path)
    path.write_text(
        path.read_text().replace('records = "coast.csv"', 'records = "coast.csv"\nledger = "coast.ledger"')
    )
    cc.Study.read(path).run(tmp_path / "out")
    with Ledger.open_readonly(tmp_path / "coast.ledger") as ledger:
        page = write_page(find_study(ledger, list_studies(ledger)[0].id), ledger)
    assert "chol: a number in mg/dl, plausible from 80 to 700 mg/dl" in page
    assert "sex: f (female), m (male)" in page
    # What hospitals agreed to holds the dictionary, for `concilium check`.
    assert cc.Dictionary.read(tmp_path / "out" / "terms.json") == cc.Study.read(path).dictionary


def test_a_dictionary_may_be_a_file_of_its_own(tmp_path):
    path = lay_out(tmp_path)
    text = path.read_text()
    start, end = text.index("[dictionary.age]"), text.index("[[site]]")
    (tmp_path / "heart.toml").write_text(text[start:end])
    path.write_text(text[:start] + '[dictionary]\nfile = "heart.toml"\n' + text[end:])
    assert set(cc.Study.read(path).dictionary) == {"age", "sex", "chol", "disease"}
    (tmp_path / "heart.toml").unlink()
    with pytest.raises(StudyError, match=r"heart\.toml: cannot be read"):
        cc.Study.read(path)
