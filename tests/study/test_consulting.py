"""A standing consultation: asked by its study file, released once a month, and free from then on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import concilium as cc
from concilium.cli.main import app
from concilium.errors import ConciliumError, ModelError, StudyError
from concilium.privacy.identity import Identity
from concilium.protocol.terms import today
from concilium.study import consulting
from concilium.study.consulting import _find_release, ask
from contract.patients import ROWS, SITES
from contract.test_contract import write_table

STUDY = """
[study]
name = "ward"
method = "consultation"
target = "y"
positive = "yes"

[privacy]
release = "{release}"
{price}

[consultation]
grid = ["age", "sex"]
requesters = ["weiss"]
ends = "2999-01-01"

[values]
sex = ["f", "m"]
ward = ["a", "b", "c"]
y = ["no", "yes"]

[bins]
age = [30, 45, 60, 75]
pressure = [100, 120, 140]

[house]
identity = "house.identity"
"""
SITE = """
[[site]]
name = "{name}"
records = "{name}.csv"
ledger = "{name}.ledger"
policy = "policy.toml"
one_row_per_patient = true
"""
PATIENT = {"age": 63, "sex": "m"}


def write_study(folder: Path, release: str = "exact", policy: str = '[budget]\ntotal = "20"\n') -> Path:
    price = "epsilon = 4" if release == "private" else ""
    (folder / "policy.toml").write_text(policy)
    for name, rows in ROWS.items():
        write_table(folder / f"{name}.csv", rows, "records")
    path = folder / "ward.toml"
    path.write_text(STUDY.format(release=release, price=price) + "".join(SITE.format(name=n) for n in SITES))
    return path


def read_ledgers(folder: Path):
    books = [cc.Ledger.open_readonly(folder / f"{name}.ledger") for name in SITES]
    return [(book.spent(), len(list(book.entries()))) for book in books]


@pytest.mark.parametrize("release", ["exact", "private"])
def test_the_first_question_of_a_month_is_paid_and_all_others_are_free(release, tmp_path):
    path = write_study(tmp_path, release)
    first = ask(path, PATIENT, requester="weiss")
    paid = read_ledgers(tmp_path)
    assert all(bool(spent) == (release == "private") for spent, _ in paid)
    for age in range(20, 90, 5):
        answer = ask(path, {"age": age, "sex": "f"}, requester="weiss")
        assert answer.hospitals == SITES
    assert ask(path, PATIENT, requester="weiss") == first
    assert read_ledgers(tmp_path) == paid
    model = _find_release(path, today().isoformat()[:7]) / "model.json"
    assert cc.load(model).ask(PATIENT, requester="weiss") == first
    assert ask(model, PATIENT, requester="weiss") == first


def test_another_month_is_another_release_within_the_budget_of_a_month(tmp_path, monkeypatch):
    import concilium.consultations.consultation as consultation
    import concilium.protocol.run as run
    import concilium.protocol.studies as studies

    path = write_study(tmp_path, "private", '[budget]\ntotal = "1"\nper_month = "1/2"\n')
    ask(path, PATIENT, requester="weiss")
    once = read_ledgers(tmp_path)[0][0]
    following = today().replace(year=today().year + 1)
    for module in (consultation, consulting, run, studies):
        monkeypatch.setattr(module, "today", lambda: following)
    with pytest.raises(ConciliumError, match="has no room for that"):  # the ledger's clock did not move on
        ask(path, PATIENT, requester="weiss")
    assert read_ledgers(tmp_path)[0][0] == once


@pytest.mark.parametrize(
    ("patient", "requester", "said"),
    [
        ({"age": 63, "sex": "m"}, "", "nobody is named who asks"),
        ({"age": 63, "sex": "m"}, "gray", "'gray' is not on the list of this consultation: weiss"),
        ({"ward": "a"}, "weiss", "nothing says which patients are like this one: give age or sex"),
        ({"agee": 63}, "weiss", "nobody is asked about 'agee'; did you mean 'age'"),
        ({"age": 63, "y": "yes"}, "weiss", "'y' is the outcome that is asked about: leave it out"),
        (
            {"age": 63, "pressure": "16 kPa"},
            "weiss",
            "pressure has the unit 'kPa', and the dictionary says none: give the number alone",
        ),
        ({"age": 500}, "weiss", "age = 500 is impossible: 0 to 120"),
        ({"resourceType": "Patient"}, "weiss", "is no Bundle: give the patient's Bundle"),
    ],
)
def test_what_cannot_be_asked_is_said_before_any_hospital_is_asked(tmp_path, patient, requester, said):
    path = write_study(tmp_path)
    with pytest.raises(ModelError, match=said):
        ask(path, patient, requester=requester)
    assert not list(tmp_path.glob("*.ledger"))
    assert not (tmp_path / "ward.asked").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('target = "y"', 'target = "ward"'), "'target' was changed .*it was 'y'"),
        (
            ('"age", "sex"]', '"sex", "age"]'),
            "'grid' was changed .*it was .'age', 'sex'.*save it as another file",
        ),
        (('["weiss"]', '["weiss", "gray"]'), "'requesters' was changed"),
    ],
)
def test_a_month_s_counts_answer_nothing_but_what_they_were_released_for(change, said, tmp_path):
    path = write_study(tmp_path)
    ask(path, PATIENT, requester="weiss")
    paid = read_ledgers(tmp_path)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(StudyError, match=said):
        ask(path, PATIENT, requester="weiss")
    assert read_ledgers(tmp_path) == paid


def test_another_method_or_a_fixed_month_is_no_standing_consultation(tmp_path):
    path = write_study(tmp_path)
    text = path.read_text()
    path.write_text(text.replace('ends = "2999', 'month = "2026-01"\nends = "2999'))
    with pytest.raises(
        StudyError, match=r"\[consultation\] month is filled in when it is asked: take it out"
    ):
        ask(path, PATIENT, requester="weiss")
    path.write_text(
        text[: text.index("[consultation]")].replace('"consultation"', '"tree"') + SITE.format(name="north")
    )
    with pytest.raises(
        StudyError, match='questions are asked under method = "consultation"; this study is a Decision'
    ):
        ask(path, PATIENT)
    tree = cc.DecisionTree("y").fit({"north": tmp_path / "north.csv"})
    tree.save(tmp_path / "tree.json")
    with pytest.raises(StudyError, match="is a DecisionTree: ask it by `concilium consult`"):
        ask(tmp_path / "tree.json", PATIENT)


@pytest.mark.parametrize(
    ("change", "policy", "said"),
    [
        (
            ('ends = "2999-01-01"', 'ends = "2020-01-31"'),
            "",
            "this consultation ended on 2020-01-31: hospitals must agree to a new one",
        ),
        (
            ("", ""),
            "[budget]\ntotal = 20\nper_month = '0.01'\n",
            "has no room for that .*is left in this month.*nothing was",
        ),
        (
            ("", ""),
            '[budget]\ntotal = 20\n[agree]\nreleases = ["private"]\ntargets = ["death"]\n',
            r"north, south, east, west did not agree .*concilium studies agree LEDGER .*ask again when they have",
        ),
        (("", ""), '[houses]\nother = "{other}"\n', "north will refuse: .*nothing was asked"),
        (
            ('records = "north.csv"', 'records = "gone.csv"'),
            "",
            "site 'north': there is no file .*gone.csv: correct 'records', or take",
        ),
    ],
    ids=["ended", "spent", "outcome", "left", "gone"],
)
def test_an_agreement_that_does_not_hold_is_one_sentence_and_costs_nothing(change, policy, said, tmp_path):
    path = write_study(tmp_path, "private")
    path.write_text(path.read_text().replace(*change))
    own, other = Identity.at(tmp_path / "house.identity"), Identity.create()
    assert own.fingerprint != other.fingerprint
    if policy:
        (tmp_path / "policy.toml").write_text(policy.format(other=other.fingerprint))
    with pytest.raises(ConciliumError, match=said) as refused:
        ask(path, PATIENT, requester="weiss")
    assert "\n" not in str(refused.value)
    for name in SITES:
        if (tmp_path / f"{name}.ledger").exists():
            with cc.Ledger.open_readonly(tmp_path / f"{name}.ledger") as book:
                assert not book.spent()
    assert not _find_release(path, today().isoformat()[:7]).exists()


def test_a_month_that_another_consultation_spent_says_to_wait(tmp_path):
    path = write_study(tmp_path, "private", '[budget]\ntotal = 20\nper_month = "1/2"\n')
    ask(path, PATIENT, requester="weiss")
    paid = read_ledgers(tmp_path)
    other = tmp_path / "other.toml"
    other.write_text(path.read_text().replace('["age", "sex"]', '["age"]'))
    with pytest.raises(
        StudyError, match=r"is left in this month\): wait for the next month, or take a smaller"
    ):
        ask(other, PATIENT, requester="weiss")
    assert read_ledgers(tmp_path) == paid


def test_a_lost_release_is_not_made_again_with_other_noise(tmp_path):
    path = write_study(tmp_path, "private")
    ask(path, PATIENT, requester="weiss")
    paid = read_ledgers(tmp_path)
    shutil.rmtree(tmp_path / "ward.asked")
    with pytest.raises(ConciliumError, match=r"once a month: .*put its folder back"):
        ask(path, PATIENT, requester="weiss")
    assert read_ledgers(tmp_path) == paid


def test_a_form_asks_for_what_the_file_names_or_what_was_released(tmp_path):
    path, run = write_study(tmp_path), CliRunner()
    filled = run.invoke(app, ["ask", str(path), "--as", "weiss"], input="63\nm\n\n\n")
    assert filled.exit_code == 0, filled.output
    assert "Patients like this one: age 45 or above, sex m; 117 patients." in filled.output
    text = path.read_text()
    bare = text[: text.index("[values]")] + text[text.index("[house]") :]
    released = str(_find_release(path, today().isoformat()[:7]) / "model.json")
    wrong = run.invoke(app, ["ask", released, "--as", "weiss"], input="63\nmale\nM\n\n\n")
    assert "sex = male is no value of it: f, m" in wrong.output
    assert "Patients like this one: age 45 or above, sex m; 117 patients." in wrong.output
    path.write_text(bare)
    shutil.rmtree(tmp_path / "ward.asked")
    said = run.invoke(app, ["ask", str(path), "--as", "weiss"], input="63\nm\n\n\n")
    assert "names no attributes that a form could ask for before the first release" in said.output


def test_the_command_answers_in_words_and_as_data(tmp_path):
    path, run = write_study(tmp_path), CliRunner()
    said = run.invoke(app, ["ask", str(path), "age=63", "sex=m", "--as", "weiss"])
    assert said.exit_code == 0, said.output
    assert "Patients like this one: age 45 or above, sex m; 117 patients." in said.output
    assert "Hospitals that answered: north, south, east, west." in said.output
    told = run.invoke(app, ["ask", str(path), "age=63", "sex=m", "--as", "weiss", "--json"])
    data = json.loads(told.output)
    assert data["patients"] == 117
    assert data["hospitals"] == list(SITES)
    assert data["interval"][0] <= data["probability"] <= data["interval"][1]
    (tmp_path / "two.json").write_text(json.dumps([PATIENT, {"age": 20, "sex": "f"}]))
    both = run.invoke(app, ["ask", str(path), str(tmp_path / "two.json"), "--as", "weiss"])
    assert "patient 2\n" in both.output
    wrong = run.invoke(app, ["ask", str(path), "age=63", "sex=m", "--as", "gray"])
    assert (wrong.exit_code, "Traceback" in wrong.output) == (2, False)


def test_three_tables_and_an_outcome_are_asked_in_one_command(tmp_path, monkeypatch):
    """What it writes is a study file, by which it goes on; a mistake leaves nothing behind."""
    run = CliRunner()
    monkeypatch.chdir(tmp_path)
    tables = [f"{name}.csv" for name in SITES[:3]]
    for name in SITES:
        write_table(Path(f"{name}.csv"), ROWS[name], "records")
    lost = run.invoke(app, ["ask", *tables, "--outcome", "yy", "age=63", "sex=m"])
    assert (lost.exit_code, "there is no column 'yy', which is the target" in lost.output) == (2, True)
    assert not list(tmp_path.glob("*.toml"))
    said = run.invoke(app, ["ask", *tables, "--outcome", "y", "age=63", "sex=m"])
    assert said.exit_code == 0, said.output
    assert "Hospitals that answered: north, south, east." in said.output
    assert "to go on: concilium ask y.toml age=63 sex=m" in said.output
    again = run.invoke(app, ["ask", *tables, "age=63", "sex=m", "--outcome", "y"])
    onwards = run.invoke(app, ["ask", "y.toml", "age=63", "sex=m"])
    assert again.stdout == onwards.stdout == said.stdout
    with_cutoffs = cc.load(next(tmp_path.glob("y.asked/*/model.json")))
    assert max(len(one.edges) for one in (*with_cutoffs.body.by, *with_cutoffs.body.predictors)) <= 5
    fewer = run.invoke(app, ["ask", *tables[:2], "--outcome", "y", "age=63", "sex=m"])
    assert "y.toml: is there, and says something else" in fewer.output
    bare = run.invoke(app, ["ask", *tables, "age=63"])
    assert "no study file: of tables, say what is asked about, --outcome COLUMN" in bare.output
    gone = run.invoke(app, ["ask", "gone.csv", "--outcome", "y", "age=63"])
    assert "gone.csv: there is no such table" in gone.output
