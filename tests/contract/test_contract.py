"""What every method of the closed list must do; one that is added to the list is tested here without a line."""

from __future__ import annotations

import html
import inspect
import json
import math
import multiprocessing
import re
import signal
from pathlib import Path

import msgspec
import numpy as np
import pytest
import sklearn.base

import concilium as cc
from concilium.errors import HouseError, ModelError, RecordsError, StudyError
from concilium.models.explanation import Explanation, Reason
from concilium.models.method import Method
from concilium.models.threshold import choose
from concilium.protocol.held_out import SIMULATION_KEY
from concilium.registry import RELEASES
from contract.fit_and_die import fit
from contract.patients import (
    BINS,
    EVERYONE,
    ROWS,
    SCHEMA,
    SITES,
    STUDY,
    VALUES,
    cases,
    list_rules,
    make,
    make_rows,
    method_types,
    open_site,
    open_sites,
)

TESTS = Path(__file__).parents[1]
NAMES = sorted(method_types())
PATIENT = {"age": 71.5, "pressure": 130.0, "sex": "f", "ward": "c"}

every_method = pytest.mark.parametrize("name", NAMES)
every_case = pytest.mark.parametrize(("name", "release"), cases())
_fitted = {}


def fitted(name, release):
    """A model of each case, fitted once; with the kinds of its questions in order, and its sites."""
    if (name, release) not in _fitted:
        asked = []
        sites = open_sites()
        house = cc.House(sites, on_round=asked.append)
        model = make(method_types()[name], release).fit(house)
        kinds = [re.match(r"round \d+: (\S+) to", text)[1] for text in asked]
        _fitted[name, release] = model, kinds, sites
    return _fitted[name, release]


def same(one, other):
    """Whether two models are the same; those that answers at random teach have the commonest rule in common."""
    if one.answers_at_random:
        return one.rules_[0].structure == other.rules_[0].structure
    return one.body == other.body


@every_method
def test_it_is_a_method_with_all_its_parts(name):
    method = method_types()[name]
    assert issubclass(method, Method)
    assert method.method == name
    assert method.description
    assert set(method.releases) <= set(RELEASES)
    assert issubclass(method.body_type, msgspec.Struct)


@every_method
def test_parameters_are_declared_once_and_tell_themselves(name):
    method = method_types()[name]
    declared = method.parameters()
    assert list(inspect.signature(method).parameters) == list(declared)
    for one in declared.values():
        assert one.parameter.takes
        assert one.parameter.about
        assert one.name in method.__doc__
        assert one.parameter.about.split()[0] in method.__doc__
    model = make(method)
    assert method(**model.get_params()).get_params() == model.get_params()
    first = next(iter(declared))
    assert f"{method.__name__}({first}='y'" in repr(model)
    with pytest.raises(AttributeError, match="is settled"):
        setattr(model, first, "other")
    with pytest.raises(TypeError, match="no_such"):
        method(**required(method), no_such=1)


@every_method
def test_a_parameter_out_of_range_is_named_in_one_sentence(name):
    method = method_types()[name]
    for one in method.parameters().values():
        price = one.parameter.section == "privacy" and one.name != "release"
        for value in [object(), *([0, -1, float("nan")] if price else [])]:
            with pytest.raises(StudyError, match=re.escape(f"the {one.name!r} of {method.called} must be ")):
                method(**{**required(method), one.name: value})


def required(method):
    asked = {"target": "y", "outcome": "y", "positive": "yes"}
    return {name: value for name, value in asked.items() if name in method.parameters()}


@every_method
def test_it_has_the_habits_of_an_estimator(name):
    model = make(method_types()[name])
    copy = sklearn.base.clone(model)
    assert copy is not model
    assert copy.get_params(deep=False) == model.get_params()
    assert model.set_params(query="") is model
    assert model.get_params() == copy.get_params()
    with pytest.raises(StudyError, match="has no parameter 'no_such'"):
        model.set_params(no_such=1)
    with pytest.raises(StudyError, match="the 'query' of"):
        model.set_params(query=object())
    assert model.get_params() == copy.get_params()  # what was refused changed nothing


@every_case
def test_a_model_shows_itself_and_is_cloned_without_what_it_learned(name, release):
    model, _, _ = fitted(name, release)
    page = model._repr_html_()
    assert model.text().splitlines()[-1].split()[-1] in html.unescape(page)
    assert "<script" not in page
    with pytest.raises(ModelError, match="is not fitted yet"):
        _ = sklearn.base.clone(model).body
    if not model.reads_courses:
        patients = cc.Records.from_rows(EVERYONE, schema=SCHEMA)
        asked, known = patients, patients.values("y")
        if model.followed is not None:  # whose outcome by the horizon counts: tests/evaluation says who
            found = model.find_outcomes(cc.Patients(table=patients))
            asked, known = found.asked, found.truth
        right = np.mean([str(a) == str(b) for a, b in zip(model.predict(asked), known, strict=True)])
        assert model.score(patients) == pytest.approx(right)
        told = list(model.importances().values())
        assert told == sorted(told, reverse=True)
        shares = model.feature_importances_
        assert len(shares) == len(model.attributes_)
        assert shares.sum() == pytest.approx(1) or not shares.any()


@every_method
def test_sites_may_be_given_as_a_list(name):
    model = make(method_types()[name])
    with pytest.raises(
        HouseError, match=r"fit takes a House, a list of sites or of tables, or tables by .*; got int"
    ):
        model.fit(3)
    for among in ([3], {"north": 3}):
        with pytest.raises(HouseError, match="a house takes a list of sites; got int among them"):
            model.fit(among)
    for nobody in ([], {}):
        with pytest.raises(HouseError, match="a house needs at least one site"):
            model.fit(nobody)
    with pytest.raises(RecordsError, match="north: cannot tell what kind of file this is"):
        model.fit(["north"])


@every_method
def test_before_it_is_fitted_it_has_no_model(name):
    model = make(method_types()[name])
    for look in ("body", "card", "classes_"):
        with pytest.raises(ModelError, match="is not fitted yet"):
            getattr(model, look)


@every_case
def test_a_fitted_model_predicts_and_explains(name, release):
    model, _, _ = fitted(name, release)
    patients = cc.Records.from_rows(EVERYONE, schema=SCHEMA)
    if model.find_why_silent():  # it knows nothing of an outcome, and says so
        for ask in (model.predict_proba, model.predict, lambda _: model.explain(PATIENT)):
            with pytest.raises(ModelError, match=r"this model predicts nothing: .*rules_"):
                ask(patients)
        assert model.text()
        return
    shares = model.predict_proba(patients)
    labels = model.predict(patients)
    assert sorted(map(str, model.classes_)) == (["0", "1"] if model.reads_courses else ["no", "yes"])
    assert shares.shape == (len(EVERYONE), 2)
    assert np.all(shares >= 0)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    # The likeliest class, or the one that the model's threshold says.
    assert labels.tolist() == [model.classes_[best] for best in choose(shares, model.classes_, model.decided)]
    assert model.reads_courses or model.decided is None
    assert set(model.attributes_) <= {"age", "pressure", "sex", "ward"}
    assert model.predict(EVERYONE[:5]).tolist() == labels[:5].tolist()
    explanation = model.explain(PATIENT)
    assert type(explanation) is Explanation
    assert all(type(reason) is Reason for reason in explanation.reasons)
    assert explanation.target == "y"
    assert explanation.prediction == model.predict([PATIENT])[0]
    assert str(explanation).startswith(f"y = {explanation.prediction}")
    assert model.text()
    assert all(picture.startswith("<svg") for picture in model.pictures().values())
    if model.attributes_:  # of a patient of whom nothing is known nothing is a reason
        assert model.explain({"height": 180}).reasons == ()


@every_case
def test_a_model_file_is_the_model(name, release, tmp_path):
    model, _, _ = fitted(name, release)
    model.save(tmp_path / "model.json")
    again = cc.load(tmp_path / "model.json")
    assert type(again) is type(model)
    assert again.body == model.body
    assert again.card == model.card
    assert again.release == release
    assert (again.target, again.query) == ("y", "")
    if model.find_why_silent() is None:
        assert np.array_equal(again.predict_proba(EVERYONE), model.predict_proba(EVERYONE))
        assert str(again.explain(PATIENT)) == str(model.explain(PATIENT))
    assert again.text() == model.text()


@every_case
def test_the_card_tells_who_took_part_and_at_what_price(name, release):
    model, _, sites = fitted(name, release)
    card = model.card
    assert card.method == name
    assert card.release == release
    assert card.meaning.startswith(f"{release}: ")
    assert [site.name for site in card.sites] == list(SITES)
    assert card.rounds > 0
    assert card.bytes > 0
    by_site = {site.name: site.ledger.entries() for site in sites}
    for site in SITES:
        entered = [entry for entry in by_site[site] if entry.mode != "settings"]
        told = [one for one in card.releases if one.site == site]
        assert sum(one.numbers for one in told) == sum(entry.numbers for entry in entered)
        assert sum(one.answers for one in told) == len(entered)


@every_case
def test_what_is_asked_and_charged_is_what_was_planned(name, release):
    model, kinds, sites = fitted(name, release)
    plan = make(method_types()[name], release).plan()
    assert {kind for kind in kinds if not kind.startswith("mask.")} <= {q.kind for q in plan.questions}
    for site in sites:
        assert site.ledger.spent() <= plan.total
        if model.way_out.bounded:
            # What a plan reserves and a fit does not spend is told by the method: never more than was planned.
            assert site.ledger.spent() > 0
            assert math.isfinite(site.ledger.epsilon())
        elif set(kinds) & {q.kind for q in plan.questions if q.cost is None}:
            assert site.ledger.epsilon() == math.inf


@every_method
@pytest.mark.parametrize("release", ["exact", "masked"])
def test_it_equals_the_pooled_model_or_says_why_not(name, release):
    method = method_types()[name]
    if release not in method.releases:
        assert "exact" in method.releases
        return
    if method.differs_from_pooled:
        assert method.differs_from_pooled in method.__doc__
        return
    pooled = make(method, "exact").fit(cc.House([open_site("all", EVERYONE)]))
    assert fitted(name, release)[0].body == pooled.body


@every_method
def test_through_regions_it_is_the_same_model(name):
    method = method_types()[name]
    sites = open_sites()
    tiers = cc.House(
        [
            cc.Region("upper", cc.House([cc.Region("inner", cc.House(sites[:2])), sites[2]])),
            sites[3],
        ]
    )
    model = make(method, "exact").fit(tiers)
    assert same(model, fitted(name, "exact")[0])
    assert any("upper (3 hospitals)" in warning for warning in model.card.warnings)


@every_case
def test_hospitals_of_a_region_take_part_under_masks_by_name_and_reports_are_a_clear_no(name, release):
    if release == "exact":
        return
    sites = open_sites()
    house = cc.House([cc.Region("upper", cc.House(sites[:1])), *sites[1:]])
    model = make(method_types()[name], release).fit(house)
    if release != "local":
        assert [site.name for site in model.card.sites] == list(SITES)
        assert any("reached through upper" in warning for warning in model.card.warnings)
        assert not model.card.refusals
        return
    reason = (
        "a region adds up exact numbers, and those that hospitals add all noise to themselves: 'local' hides"
    )
    assert [site.name for site in model.card.sites] == list(SITES[1:])
    assert [(one.site, one.rule) for one in model.card.refusals] == [("upper", "mode")]
    assert model.card.refusals[0].reason.startswith(reason)


@every_case
def test_a_site_that_refuses_is_left_out_or_stops_it(name, release):
    method = method_types()[name]
    sites = open_sites()
    sites[0] = open_site(
        SITES[0], ROWS[SITES[0]], policy=cc.Policy(modes=("masked",) if release != "masked" else ("exact",))
    )
    house = cc.House(sites)
    if release == "exact":
        model = make(method, release).fit(house)
        assert [site.name for site in model.card.sites] == list(SITES[1:])
        assert [(one.site, one.rule) for one in model.card.refusals] == [(SITES[0], "mode")]
        rest = cc.House(open_sites({name: ROWS[name] for name in SITES[1:]}))
        assert same(model, make(method, release).fit(rest))
        return
    model = make(method, release).fit(house)
    assert [site.name for site in model.card.sites] == list(SITES[1:])
    with pytest.raises(
        HouseError, match=f"stopped when the study was proposed: {SITES[0]}: nothing is released"
    ):
        make(method, release).fit(cc.House([sites[0], *open_sites()[1:]], on_loss="stop"))


@every_method
def test_nobody_to_answer_is_a_sentence(name):
    refusing = open_sites(policy=cc.Policy(modes=("masked",)))
    with pytest.raises(
        HouseError, match="no site answered: north, south, east and 1 more: nothing is released"
    ):
        make(method_types()[name], "exact").fit(cc.House(refusing))


class Breaking:
    """A site that is lost after so many questions."""

    def __init__(self, site, answers):
        self.name, self.site, self.left = site.name, site, answers
        self.identity, self.introduce = site.identity, site.introduce

    def answer(self, message):
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("gone")
        return self.site.answer(message)


@every_method
def test_a_site_lost_on_the_way_leaves_the_model_of_the_rest_or_stops(name):
    method = method_types()[name]
    sites = open_sites()
    model = make(method, "exact").fit(cc.House([Breaking(sites[0], 1), *sites[1:]]))
    rest = cc.House(open_sites({name: ROWS[name] for name in SITES[1:]}))
    assert same(model, make(method, "exact").fit(rest))
    assert [loss.site for loss in model.card.dropouts] == [SITES[0]]
    sites = open_sites()
    with pytest.raises(HouseError, match="north: ConnectionError: gone"):
        make(method, "exact").fit(cc.House([Breaking(sites[0], 1), *sites[1:]], on_loss="stop"))


@every_method
def test_a_killed_fit_goes_on_from_its_journal_and_charges_nothing_twice(name, tmp_path):
    for place in ("whole", "killed"):
        (tmp_path / place).mkdir()
    fit(tmp_path / "whole", name)
    last = min(2, cc.load(tmp_path / "whole" / "model.json").card.rounds)
    # Processes that are there to be killed come of one that has loaded the package, and nothing else.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["contract.fit_and_die", "numba"])
    killed = processes.Process(target=fit, args=(tmp_path / "killed", name, last))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "model.json").exists()
    fit(tmp_path / "killed", name)
    one, other = (cc.load(tmp_path / place / "model.json") for place in ("whole", "killed"))
    assert same(one, other)
    for site in SITES:
        books = [
            cc.Ledger.open_readonly(tmp_path / place / f"{site}.ledger") for place in ("whole", "killed")
        ]
        if not method_types()[name].answers_at_random:
            assert books[0].numbers() == books[1].numbers()
        assert len({entry.question for entry in books[1].entries()}) == len(books[1].entries())


def write_table(path, rows, part):
    """The patients of a hospital as a table; or their rules or courses, one rule or step in each row."""
    columns = {
        "records": list(SCHEMA),
        "rules": ["patient", "rule"],
        "series": ["patient", "hour", *BINS, "y"],
    }[part]
    if part == "rules":
        rows = [{"patient": n, "rule": rule} for n, row in enumerate(rows) for rule in list_rules(row)]
    elif part == "series":
        rows = [
            {**row, "patient": n, "hour": hour, "y": int(hour == 2 and row["y"] == "yes")}
            for n, row in enumerate(rows)
            for hour in range(3)
        ]
    cells = [",".join("" if row[c] is None else str(row[c]) for c in columns) for row in rows]
    path.write_text("\n".join([",".join(columns), *cells]) + "\n")


@every_case
def test_a_study_file_runs_it_and_its_report_describes_it(name, release, tmp_path):
    method = method_types()[name]
    declared = method.parameters()
    lines = ["[study]", 'name = "contract"', f'method = "{name}"', f'{next(iter(declared))} = "y"']
    lines += ['positive = "yes"'] if "positive" in declared else []
    lines += ['time = "pressure"'] if "time" in declared else []
    given = make(method, release).get_params()
    lines += ["[privacy]", *([f"epsilon = {given['epsilon']}"] if "epsilon" in declared else [])]
    lines += [f'release = "{release}"'] if "release" in declared else []
    lines += ["[bins]", *(f"{column} = {edges}" for column, edges in BINS.items())]
    source = "records" if not method.reads_courses else "series" if "public" in declared else "rules"
    if method.reads_courses:
        given |= {"public": "public.csv"} if source == "series" else {}
        stated = {key: given[key] for key in (*STUDY, "trust", "public") if key in given}
        own = {key: value for key, value in stated.items() if not declared[key].parameter.section}
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in own.items())]
        write_table(tmp_path / "public.csv", make_rows(60, 99), source)
    else:
        lines += ["[schema]", *(f'{column} = "{kind}"' for column, kind in SCHEMA.items())]
    if release == "private" and not method.reads_courses:
        lines += ["[values]", *(f"{column} = {values}" for column, values in VALUES.items())]
    (tmp_path / "policy.toml").write_text('[budget]\ntotal = "20"\n')
    for site, rows in ROWS.items():
        write_table(tmp_path / f"{site}.csv", rows, source)
        lines += [
            "[[site]]",
            f'name = "{site}"',
            f'{source} = "{site}.csv"',
            'policy = "policy.toml"',
            "one_row_per_patient = true",
        ]
    (tmp_path / "study.toml").write_text("\n".join(lines) + "\n")
    study = cc.Study.read(tmp_path / "study.toml")
    assert study.plan().questions == make(method, release).plan()
    results = study.run(tmp_path / "results")
    assert results.card.release == release
    if not RELEASES[release].bounded:
        # Sites of a simulation hold patients out, and deal them to folds, by one key.
        sites = open_sites(division_key=SIMULATION_KEY)
        assert same(results.model, make(method, release).fit(cc.House(sites)))
    report = results.files["report.html"].read_text()
    assert method.description in report
    assert set(results.files) >= {"model.json", "metrics.json", "card.json", "terms.json", "report.html"}


@every_method
def test_the_section_of_a_study_file_is_documented_as_declared(name):
    from parameter_tables import tabulate_parameters

    docs = (TESTS.parent / "docs" / "studies.md").read_text()
    assert tabulate_parameters(method_types()[name]) in docs


@pytest.mark.parametrize(
    ("name", "release"),
    [(name, release) for name, method in method_types().items() for release in method.predicts_numbers],
)
def test_a_method_of_numbers_predicts_them_in_their_unit(name, release, tmp_path):
    method = method_types()[name]
    rows = {
        site: [
            {**row, "cost": round(2000 + 50 * (row["age"] or 50) + 900 * (row["ward"] == "c"), 1)}
            for row in own
        ]
        for site, own in ROWS.items()
    }
    schema = {**{one: kind for one, kind in SCHEMA.items() if one != "y"}, "cost": "number"}
    more = {
        "target": "cost",
        "positive": None,
        "bins": {**BINS, "cost": [1000.0, 9000.0]},
        "values": {one: listed for one, listed in VALUES.items() if one != "y"},
        "attributes": ["age", "sex", "ward"],
    }
    more |= {"family": "gaussian"} if "family" in method.parameters() else {}
    sites = [
        cc.Site(
            site,
            cc.Records.from_rows([{one: row[one] for one in schema} for row in own], schema=schema),
            cc.Policy(budget=cc.Budget("20")),
        )
        for site, own in rows.items()
    ]
    model = make(method, release, **more).fit(cc.House(sites))
    assert not model.classes_
    everyone = cc.Records.from_rows(
        [{one: row[one] for one in schema} for own in rows.values() for row in own], schema=schema
    )
    assert model.score(everyone) > (0.3 if release == "private" else 0.8)
    patient = {"age": 80.0, "sex": "f", "ward": "c"}
    (predicted,) = model.predict([{**patient, "pressure": 120.0}])
    said = model.explain(patient)
    assert said.prediction == pytest.approx(predicted)
    assert said.probability is None
    assert 2000 < predicted < 9000
    assert said.interval is None or said.interval[0] <= predicted <= said.interval[1]
    assert str(said).startswith(f"cost = {predicted:,.0f}")
    model.save(tmp_path / "model.json")
    (again,) = cc.load(tmp_path / "model.json").predict([{**patient, "pressure": 120.0}])
    assert again == predicted
    if release == "private":
        spent = sites[0].ledger.spent()
        assert 0 < spent <= model.plan().total
    else:
        assert model.get_params()["positive"] is None
