"""Patients like mine: the cube against brute force, what one patient changes, widening, and what asking costs."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest

import concilium as cc
from concilium.consultations.cube import CubeBody, CubeColumn, make_tree
from concilium.consultations.intervals import draw_counts
from concilium.consultations.populations import find_population, say_cells, widen
from concilium.errors import HouseError, ModelError, StudyError
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.schema import name_classes
from concilium.protocol.splits import Split
from concilium.protocol.terms import today
from contract.patients import BINS, EVERYONE, ROWS, look_at, make, open_site, open_sites

MONTH = today().isoformat()[:7]
GRID = ["age", "sex"]


def fit(release="exact", sites=None, **more):
    model = make(cc.Consultation, release, **more)
    return model.set_params(grid=GRID, **{k: v for k, v in more.items() if k not in ("bins",)}).fit(
        cc.House(sites or open_sites())
    )


def band(age):
    return None if age is None else sum(edge <= age for edge in BINS["age"])


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_every_population_is_that_of_the_pooled_patients(release):
    body = fit(release, enough=60).body
    draw = np.random.default_rng(1)
    for _ in range(60):
        row = EVERYONE[draw.integers(len(EVERYONE))]
        own = None if row["age"] is None else (1 + band(row["age"]),)
        sex = (("f", "m").index(row["sex"]),)
        for chosen in widen(body, (own, sex)):
            bands, sexes = chosen
            alike = [
                one
                for one in EVERYONE
                if (bands is None or (one["age"] is not None and 1 + band(one["age"]) in bands))
                and (sexes is None or ("f", "m").index(one["sex"]) in sexes)
            ]
            assert body.count(chosen) == (len(alike), 0)
            table = body.tabulate(chosen, body.measured)
            drawn = body.tabulate(chosen, body.estimated)
            np.testing.assert_allclose(drawn.sum(axis=1), table.sum(axis=1))  # of each value
            np.testing.assert_allclose(drawn[0], table[0])
            by_class = [sum(one["y"] == y for one in alike) for y in body.classes]
            assert table[0].tolist() == by_class
            wards = table[-4:]  # missing, a, b, c: the last predictor
            told = [
                [sum((o["ward"], o["y"]) == (w, y) for o in alike) for y in body.classes]
                for w in (None, *"abc")
            ]
            assert wards.tolist() == told
            assert all(table[block].sum() in (0, len(alike)) for block in find_blocks(body, chosen))


def find_blocks(body, chosen):
    """The rows of each attribute in a population's table."""
    widths = [body.sizes[place] for place in body.find_spanned(chosen)] + body.widths
    ends = np.cumsum([1, *widths])
    return [slice(start, end) for start, end in pairwise(ends)]


def ask_cube(grid=GRID, attributes=None):
    """The question of a cube."""
    attributes = attributes or (
        Attribute("age", tuple(BINS["age"])),
        Attribute("pressure", tuple(BINS["pressure"])),
        Attribute("sex", (), ("f", "m"), missing=False),
        Attribute("ward", (), ("a", "b", "c"), missing=False),
    )
    places = [[one.name for one in attributes].index(name) for name in grid]
    tree, leaves = make_tree([attributes[place].size for place in places], places)
    others = [place for place in range(len(attributes)) if place not in places]
    return AskCounts(
        query="",
        target="y",
        classes=name_classes("y", ["no", "yes"]),
        attributes=attributes,
        tree=tree,
        nodes=leaves,
        counted=others,
    )


def test_one_patient_changes_one_count_of_each_predictor_and_one_total():
    """Brute force: without any one patient the cube differs by predictors + 1 ones, which is its sensitivity."""
    question, rows = ask_cube(), EVERYONE[:40]
    whole = count(question, rows)
    for left_out in range(len(rows)):
        apart = whole - count(question, [*rows[:left_out], *rows[left_out + 1 :]])
        assert np.abs(apart).sum() == (apart**2).sum() == 3
    assert question.sensitivity.squared == 3


def count(question, rows):
    view = look_at(rows)
    return question.compute(view.select("", "y")).astype(np.int64)


def test_hospitals_answer_no_other_question_than_the_cube():
    consultation = make(cc.Consultation, "exact").set_params(grid=GRID)
    whole = ask_cube()
    assert consultation.find_objection(whole) is None
    everybody = replace(whole, tree=[], nodes=[0])
    assert consultation.find_objection(everybody) is not None  # exact: it is the sum of the cells
    stated = {"sex": ["f", "m"], "ward": ["a", "b", "c"], "y": ["no", "yes"]}
    private = make(cc.Consultation, "private", values=stated).set_params(grid=GRID)
    assert private.find_objection(everybody) is None
    deeper = [*whole.tree, Split(whole.nodes[0], 1, [100, 101, 102, 103, 104])]
    for other in (
        ask_cube(["age"]),
        ask_cube(["sex", "age"]),
        ask_cube(["age", "sex", "ward"]),
        replace(whole, nodes=whole.nodes[:1]),
        replace(whole, counted=[1]),
        replace(whole, tree=deeper, nodes=[100, *whole.nodes[1:]]),
        replace(whole, query="ward = 'a'"),
        replace(whole, attributes=(Attribute("age", (31.0,)), *whole.attributes[1:])),
    ):
        assert consultation.find_objection(other) is not None


def replace(question, **changed):
    return msgspec.structs.replace(question, **changed)


def small_body(**changed):
    """Three bands of age by two sexes, one predictor; 10 patients a cell."""
    said = {
        "target": "y",
        "classes": ["no", "yes"],
        "query": "",
        "by": [
            CubeColumn("age", [40.0, 60.0], missing=False),
            CubeColumn("sex", [], ["f", "m"], missing=False),
        ],
        "predictors": [CubeColumn("x", [], ["a", "b"], missing=False)],
        "counts": [[[6, 4], [3, 2], [3, 2]]] * 6,
        "enough": 1,
    }
    return CubeBody(**{**said, **changed})


def test_populations_are_widened_in_the_stated_order():
    body = small_body()
    cells = ((1,), (0,))
    assert list(widen(body, cells)) == [cells, ((0, 1, 2), (0,)), ((0, 1, 2), None), (None, None)]
    assert list(widen(body, ((0,), (1,))))[1] == ((0, 1), (1,))
    assert list(widen(body, (None, (1,)))) == [(None, (1,)), (None, None)]
    said = [say_cells(body, chosen, {}) for chosen in widen(body, ((0,), (1,)))]
    assert said == ["age below 40, sex m", "age below 60, sex m", "age below 60", "all patients"]
    for enough, patients in ((1, 10), (10, 10), (11, 20), (21, 40), (41, 60), (1000, 60)):
        assert find_population(small_body(enough=enough), ((0,), (1,))).patients == patients


@pytest.mark.parametrize(
    "wrong",
    [
        {"counts": [[[6, 4], [3, 2], [3, 2]]] * 5},
        {"counts": [[[6, 4], [3, 2]]] * 6},
        {"counts": [[[6], [3], [3]]] * 6},
        {"classes": []},
        {"variance": float("inf")},
        {"enough": 0},
        {"everybody": [[60, 40], [30, 20]]},
        {"by": [CubeColumn("age", [40.0]), CubeColumn("age", [50.0])]},
        {
            "by": [
                CubeColumn("age", [float(n) for n in range(900)]),
                CubeColumn("b", [float(n) for n in range(900)]),
            ]
        },
    ],
)
def test_a_file_that_is_no_cube_is_refused(wrong):
    with pytest.raises((ValueError, cc.errors.MessageError)):
        small_body(**wrong)


def test_the_number_of_patients_is_within_its_stated_noise():
    inside = drawn = 0
    draw = np.random.default_rng(7)
    for _ in range(300):
        noisy = np.array(small_body().counts) + np.rint(draw.normal(0, 5, (6, 3, 2))).astype(int)
        body = small_body(counts=noisy.tolist(), variance=25.0, enough=30)
        found = find_population(body, ((1,), (0,)))
        true = 10 * len(body.find_cells(found.chosen))
        low, high = found.interval
        inside += low <= true <= high
        drawn += 1
    assert inside >= 0.9 * drawn  # a population is taken where noise made it large enough, which costs some


def test_what_is_made_of_noisy_counts_is_nearer_to_the_truth():
    """Cells that are all alike, and cells that differ: either way estimates are not worse than what was released."""
    draw = np.random.default_rng(3)
    for apart in (0.0, 0.4):
        shares = np.clip(0.4 + apart * np.linspace(-1, 1, 6), 0.05, 0.95)
        true = np.stack(
            [[[200 * (1 - p), 200 * p], [120 * (1 - p), 60 * p], [80 * (1 - p), 140 * p]] for p in shares]
        )
        errors = np.zeros(2)
        for _ in range(20):
            noisy = np.rint(true + draw.normal(0, 15, true.shape))
            body = small_body(counts=noisy.astype(int).tolist(), variance=225.0)
            errors += [((one - true) ** 2).mean() for one in (body.released, body.estimated)]
        assert errors[1] < 0.9 * errors[0], apart
    exact = small_body()
    assert exact.measured is exact.released
    np.testing.assert_allclose(exact.estimated, exact.released)


def test_a_hundred_questions_cost_one_release(tmp_path):
    sites = [open_site(name, rows, ledger=tmp_path / f"{name}.ledger") for name, rows in ROWS.items()]
    model = fit("private", sites, month=MONTH)
    spent = [site.ledger.spent() for site in sites]
    entries = [len(list(site.ledger.entries())) for site in sites]
    assert all(spent)
    draw = np.random.default_rng(0)
    for _ in range(100):
        answer = model.ask({"age": float(draw.integers(20, 90)), "sex": str(draw.choice(["f", "m"]))})
        assert answer.interval[0] <= answer.probability <= answer.interval[1]
    assert [site.ledger.spent() for site in sites] == spent
    assert [len(list(site.ledger.entries())) for site in sites] == entries


@pytest.mark.parametrize("release", ["exact", "private"])
def test_hospitals_release_a_month_once_to_one_house(release, tmp_path):
    sites = [open_site(name, rows, ledger=tmp_path / f"{name}.ledger") for name, rows in ROWS.items()]
    identity = cc.House(sites).identity

    def release_month():
        method = make(cc.Consultation, release).set_params(grid=GRID, month=MONTH)
        return method.fit(cc.House(sites, identity=identity))

    first = release_month()
    spent = [(site.ledger.spent(), len(list(site.ledger.entries()))) for site in sites]
    if release == "exact":
        assert release_month().body == first.body
    else:  # no second sum with other noise, and no second price
        with pytest.raises(HouseError, match="has ended"):
            release_month()
    assert [(site.ledger.spent(), len(list(site.ledger.entries()))) for site in sites] == spent
    assert first.card.study == first.card.study
    terms = sites[0].ledger.studies.get(first.card.study).terms
    assert f'"nonce":"consultation {MONTH}"'.encode() in terms


DICTIONARY = cc.Dictionary.parse(
    {
        "age": {"type": "number", "unit": "years", "range": [0, 120], "label": "age at admission"},
        "sex": {"type": "code", "values": {"f": "female", "m": "male"}},
        "pressure": {"type": "number", "unit": "mmHg", "range": [40, 300]},
        "ward": {"type": "code", "values": {"a": "medicine", "b": "surgery", "c": "icu"}},
        "y": {"type": "code", "values": {"no": "survived", "yes": "died"}},
    },
    "test",
)


@pytest.fixture(scope="module")
def consultation():
    method = make(cc.Consultation, "exact").set_params(
        grid=GRID, requesters=["weiss"], month=MONTH, ends="2999-01-01"
    )
    return method.fit(cc.House(open_sites(), dictionary=DICTIONARY))


def test_an_answer_says_of_whom_it_is_and_what_to_measure_next(consultation):
    answer = consultation.ask({"age at admission": "63 years", "sex": "Male", "shoe": 43}, requester="weiss")
    alike = [row for row in EVERYONE if row["age"] is not None and row["age"] >= 45 and row["sex"] == "m"]
    assert answer.population == "age 45 or above, sex male"
    narrow = [row for row in alike if row["age"] < 75 and row["age"] >= 60]
    assert answer.narrower == {"age 60 to below 75, sex male": len(narrow)}
    assert (
        f"Fewer than 50 match more closely, so it was widened: age 60 to below 75, sex male ({len(narrow)})."
        in str(answer)
    )
    assert answer.patients == len(alike)
    assert answer.matching == (len(alike), len(alike))
    assert answer.hospitals == ("north", "south", "east", "west")
    assert answer.measure_next == "ward"
    said = str(answer)
    assert f"Patients like this one: age 45 or above, sex male; {len(alike)} patients." in said
    assert "Hospitals that answered: north, south, east, west." in said
    assert "Not part of this consultation, and so not used: shoe." in said
    assert consultation.ask({"age": 63, "sex": "m"}, requester="weiss").probability == answer.probability
    unknown = consultation.ask({"sex": "m"}, requester="weiss")
    assert "Not known, and so patients of any: age." in str(unknown)


def test_without_predictors_the_answer_is_the_share_of_those_who_match():
    model = fit(attributes=GRID, enough=40)
    for row in EVERYONE[:30]:
        entered = {name: row[name] for name in GRID if row[name] is not None}
        answer = model.ask(entered)
        assert answer.base == pytest.approx(answer.probability, abs=0.35)
        if not answer.narrower:
            alike = [o for o in EVERYONE if band(o["age"]) == band(row["age"]) and o["sex"] == row["sex"]]
            share = np.mean([one["y"] == answer.prediction for one in alike])
            if "age" in entered:
                assert answer.probability == pytest.approx(share)


@pytest.mark.parametrize(
    ("patient", "requester", "said"),
    [
        (
            {"age": 500, "sex": "m"},
            "weiss",
            "age = 500 is impossible: 0 to 120 years. Check the value",
        ),
        (
            {"age": 63, "pressure": 16},
            "weiss",
            r'Check the value, or write "pressure=16 kPa" if it is in kPa',
        ),
        ({"age": 63, "sex": "divers"}, "weiss", r"sex = divers is no value of it: f \(female\), m \(male\)"),
        ({"age": "63 kg", "sex": "m"}, "weiss", "age.*cannot be converted"),
        ({"age": "old", "sex": "m"}, "weiss", "age must be a number in years; got 'old'"),
        ({"age": [63], "sex": "m"}, "weiss", r"age must be one value; got \[63\]"),
        (
            {"pressure": 120},
            "weiss",
            r"nothing says which patients are like this one: give age or sex, such as age=",
        ),
        ({"agee": 63, "sex": "m"}, "weiss", "nobody is asked about 'agee'; did you mean 'age'"),
        ({"age": 63, "age at admission": 64, "sex": "m"}, "weiss", "'age' is given twice"),
        ({"age": 63}, "house", "'house' is not on the list of this consultation: weiss"),
        (
            {"age": 63},
            "",
            r"nobody is named who asks \(--as NAME\), and only some are on the list of this consultation: weiss",
        ),
    ],
)
def test_what_cannot_be_asked_is_one_sentence_and_costs_nothing(consultation, patient, requester, said):
    with pytest.raises(cc.errors.ConciliumError, match=said):
        consultation.ask(patient, requester=requester)


def test_an_agreement_that_ended_or_another_month_answers_nothing(consultation):
    ended = consultation.stating(ends="2020-01-31", month="")
    with pytest.raises(
        ModelError, match="this consultation ended on 2020-01-31: hospitals must agree to a new one"
    ):
        ended.ask({"age": 63}, requester="weiss")
    with pytest.raises(
        ModelError, match=r"this is the release of 2020-01: ask by the consultation's study file"
    ):
        consultation.stating(month="2020-01").ask({"age": 63}, requester="weiss")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"grid": ["y"]}, "'y' is the target, and cannot be in the 'grid'"),
        ({"grid": ["sex"], "attributes": ["age"]}, "'sex' is in the 'grid', and not among the 'attributes'"),
        ({"month": "2026-13"}, "the 'month' of a Consultation must be a month such as"),
        ({"ends": "31.3.2027"}, "the 'ends' of a Consultation must be a day such as"),
        (
            {"month": "2027-04", "ends": "2027-03-31"},
            "the agreement ended on 2027-03-31, before the month 2027-04",
        ),
        ({"threshold": "youden"}, "a consultation counts patients by cell, and not by risk"),
        (
            {"release": "private", "epsilon": 1, "grid": ["age"], "values": {"y": ["no", "yes"]}},
            "a private Consultation states its grid: give bins or values of 'age'",
        ),
    ],
)
def test_a_consultation_that_cannot_be_agreed_is_refused_when_it_is_written(wrong, said):
    with pytest.raises(StudyError, match=said):
        cc.Consultation("y", **wrong)


def test_a_grid_attribute_that_nobody_has_is_a_sentence():
    with pytest.raises(
        HouseError, match="'hight' is in the grid and cannot be asked about: no hospital has it"
    ):
        cc.Consultation("y", grid=["hight"]).fit(open_sites())


def test_draws_of_counts_have_the_law_of_a_normal_that_is_cut_at_zero():
    from scipy.stats import truncnorm

    counts, deviations = np.array([[0.0, 3.0], [40.0, 8.0]]), np.array([[5.0, 4.0], [6.0, 0.0]])
    drawn = draw_counts(counts, deviations)
    assert drawn.min() >= 0
    assert (drawn[:, 1, 1] == 8.0).all()
    for place in ((0, 0), (0, 1), (1, 0)):
        mean, deviation = counts[place], deviations[place]
        law = truncnorm(-mean / deviation, np.inf, mean, deviation)
        levels = [0.025, 0.25, 0.5, 0.75, 0.975]
        np.testing.assert_allclose(
            np.quantile(drawn[:, *place], levels), law.ppf(levels), atol=0.02 * deviation
        )
