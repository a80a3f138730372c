"""The private gradient: what one patient can change, in steps of the grid, and what a site makes of a bad question."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import concilium as cc
from agreed import check, draft
from concilium.errors import HouseError, MessageError
from concilium.models.outcome import Outcome
from concilium.policy.policy import Policy
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.privacy.shares import widen_sensitivity
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import View
from concilium.protocol.questions import Gaussian
from concilium.rulefit.design import LAST, build_at_site
from concilium.rulefit.fitting import Coefficients
from concilium.rulefit.gradient import AskGradient
from concilium.rulefit.terms import Line, RuleTerms, Steps, write_terms
from side_door import state

ATTRIBUTES = (Attribute("age", (40.0, 60.0)), Attribute("sex", (), ("f", "m")))
RULES = (((0, 2, 3),), ((0, 0, 1), (1, 1, 1)))
PATIENTS = st.fixed_dictionaries(
    {
        "age": st.one_of(st.none(), st.floats(-1e9, 1e9)),
        "sex": st.sampled_from(["f", "m", "x", None]),
        "y": st.sampled_from(["n", "p", "q"]),
    }
)
REALS = st.floats(-1000, 1000)


def make_terms(norm, heights=(0.5, -2.0, 0.0, 3.0), scale=0.1):
    return RuleTerms(
        ATTRIBUTES, RULES, (Line(0, 20.0, 90.0, 55.0, scale),), (Steps(0, tuple(heights)),), norm=norm
    )


def make_question(terms, w, places, variance="100"):
    columns = tuple(range(len(terms)))
    return AskGradient(
        query="",
        target="y",
        outcome=Outcome(positive="p"),
        terms=write_terms(terms),
        at=Coefficients(w[0], columns, tuple(w[1:])),
        places=places,
        noise=Gaussian(variance),
    )


def answer(question, rows):
    """What a site computes for these patients, before noise, as whole numbers."""
    schema = {"age": "number", "sex": "code", "y": "code"}
    patients = cc.Records.from_rows([*rows, {"age": 1.0, "sex": "f", "y": "n"}], schema=schema)
    view = View(patients.take(np.arange(len(rows))), Policy()).each_by_itself
    return question.compute(view.select("", "y").telling_all())


def share_of(row, terms, w):
    """One patient's share by the formula: residual x row, the row scaled down to the norm."""
    age, sex = row["age"], row["sex"]
    code = 0 if age is None else 1 + (age >= 40) + (age >= 60)
    line, heights = terms.lines[0], terms.steps[0].heights
    x = [
        1.0,
        float(code >= 2),
        float(code <= 1 and sex == "f"),
        0.0 if age is None else line.scale * (min(max(age, line.low), line.high) - line.center),
        heights[code],
    ]
    length = np.linalg.norm(x)
    x = np.array(x) * min(1.0, terms.norm / length)
    return (1 / (1 + np.exp(-np.clip(x @ np.array(w), -700, 700))) - (row["y"] == "p")) * x


@settings(max_examples=60)
@given(
    rows=st.lists(PATIENTS, min_size=1, max_size=12),
    norm=st.sampled_from([0.25, 1.0, 2.75, 40.0]),
    heights=st.tuples(REALS, REALS, REALS, REALS),
    scale=st.floats(1e-6, 10),
    w=st.tuples(*[st.floats(-1e6, 1e6)] * 5),
    places=st.sampled_from([0, 3, 16, 24]),
)
def test_one_patient_changes_no_more_than_the_site_charges_for(rows, norm, heights, scale, w, places):
    terms = make_terms(norm, heights, scale)
    question = make_question(terms, w, places)
    check(question, "private")
    change = [int(step) for step in answer(question, rows) - answer(question, rows[:-1])]
    assert sum(step * step for step in change) <= question.sensitivity.squared
    assert question.sensitivity.squared == widen_sensitivity(Fraction(norm) ** 2, 5, places)


@settings(max_examples=40)
@given(
    rows=st.lists(PATIENTS, max_size=12),
    norm=st.sampled_from([1.0, 2.75]),
    w=st.tuples(*[st.floats(-5, 5)] * 5),
)
def test_the_gradient_is_the_sum_of_the_patients_shares(rows, norm, w):
    terms = make_terms(norm)
    expected = sum((share_of(row, terms, w) for row in rows), np.zeros(5)) * 2**16
    found = answer(make_question(terms, w, 16), rows)
    assert np.abs(found - expected).max() <= 0.5 * len(rows) + 1e-3


def test_a_patients_share_does_not_depend_on_who_else_is_there():
    draws = np.random.default_rng(4)
    rows = [
        {"age": float(age), "sex": "fmx"[i % 3], "y": "npq"[i % 3]}
        for i, age in enumerate(draws.normal(60, 20, 333))
    ]
    question = make_question(make_terms(2.0), (0.1, 0.7, -0.3, 1.1, 0.2), 24)
    alone = sum(answer(question, [row]) for row in rows)
    assert answer(question, rows).tolist() == alone.tolist()


def test_nothing_of_a_private_question_is_remembered():
    """What is remembered for plain questions is neither made nor used: the second answer comes of the same work."""
    view = View(state(ROWS, age="number"), Policy(allow=("age",))).each_by_itself
    cohort = view.select("", "y").telling_all()
    terms = make_terms(2.0)
    question = make_question(terms, (0.1, 0.7, -0.3, 1.1, 0.2), 24)
    once = question.compute(cohort)
    assert view not in LAST
    LAST[view] = ((question.terms, ("", "y")), {0: build_at_site(make_terms(0.25), cohort)})
    assert question.compute(cohort).tolist() == once.tolist()


def sites_of(rows, count=3):
    schema = {"age": "number", "sex": "code", "y": "code"}
    return [
        cc.Site(f"s{i}", cc.Records.from_rows(rows[i::count], schema=schema), cc.Policy())
        for i in range(count)
    ]


ROWS = [{"age": 30.0 + i, "sex": "fm"[i % 2], "y": "np"[i % 3 == 0]} for i in range(60)]


def ask(question, sites):
    with cc.House(sites).open(draft("private")) as run:
        return run.ask(question)


def test_the_noise_of_the_sum_is_gaussian_of_the_stated_variance(monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    wide = RuleTerms(ATTRIBUTES, (((1, 1, 1),),) * 3000, norm=1.0)
    question = AskGradient(
        query="",
        target="y",
        outcome=Outcome(positive="p"),
        terms=write_terms(wide),
        at=Coefficients(),
        places=8,
        noise=Gaussian("250000"),
    )
    with zero_noise():
        exact = ask(question, sites_of(ROWS))
    noise = ask(question, sites_of(ROWS)) - exact
    # Three sites add a share each, sized so that any two are enough.
    assert stats.kstest(noise / np.sqrt(1.5 * 250_000), "norm").pvalue > 1e-4


def test_the_site_charges_what_it_works_out_itself():
    question = make_question(make_terms(2.0), (0.0,) * 5, 10, variance="1000000000")
    sites = sites_of(ROWS)
    ask(question, sites)
    expected = widen_sensitivity(Fraction(4), 5, 10) / (2 * 10**9)
    for site in sites:
        assert expected <= site.ledger.spent() <= expected + Fraction(1, 10**12)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"terms": write_terms(make_terms(None))}, "needs the norm"),
        ({"terms": write_terms(make_terms(1e9))}, "out of range"),
        ({"outcome": Outcome(low=0.0, high=1.0)}, "yes or no"),
        ({"places": 25}, "0 to 24 binary places"),
        ({"places": -1}, "0 to 24 binary places"),
        ({"noise": Gaussian("0")}, "a variance above 0"),
        ({"at": Coefficients(0.0, (4,), (1.0,))}, "does not have"),
        ({"at": Coefficients(float("nan"))}, "out of range"),
    ],
)
def test_bad_questions_are_refused_by_every_site(changes, said):
    question = msgspec.structs.replace(make_question(make_terms(1.0), (0.0,) * 5, 8), **changes)
    with pytest.raises(MessageError, match=said):
        check(question, "private")
    with pytest.raises(HouseError, match=said):
        ask(question, sites_of(ROWS))


def test_a_gradient_is_never_released_without_noise():
    assert AskGradient.releases == {"private"}
    question = make_question(make_terms(1.0), (0.0,) * 5, 8)
    for release in ("masked", "exact"):
        with (
            cc.House(sites_of(ROWS)).open(draft(release)) as run,
            pytest.raises(HouseError, match=f"cannot be released as '{release}'"),
        ):
            run.gather(question, release=release)
