"""Histograms at pure epsilon, the paper's: what they cost in either currency, how their noise is distributed, and that
no house sees one site's numbers where sums were agreed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_patients import BINS, COLUMNS, draw, records_of, small_rulefit
from scipy import stats

import concilium as cc
from agreed import Asker
from concilium.errors import StudyError
from concilium.privacy.accounting import rho_from_pure
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import View
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import Answer, Refusal, encode, open_reply
from concilium.protocol.questions import Gaussian, Laplace
from concilium.protocol.sums import read_sum
from concilium.records.columns import Numbers
from concilium.records.table import Records

NUMBERS = tuple(Attribute(name, tuple(BINS[name])) for name in COLUMNS)
SITES = 4


def open_sites(**policy):
    table, outcome = draw(400, 3)
    policy = {"budget": cc.Budget("20"), **policy}
    parts = [records_of(table[part::SITES], outcome[part::SITES]) for part in range(SITES)]
    return [
        cc.Site(f"site {n}", part, cc.Policy(**policy), division_key=f"the key of site {n}".encode())
        for n, part in enumerate(parts)
    ]


def ask(epsilon="1/2", attributes=NUMBERS, query=""):
    return AskCounts(totals=False, query=query, target="y", attributes=attributes, noise=Laplace(epsilon))


def asker_of(sites, release="exact"):
    parameters = {"positive": 1, "bins": BINS, "noise": "laplace", "epsilon": "4", "release": release}
    price = str(rho_from_pure("4"))
    return Asker(sites, method="rulefit", release=release, parameters=parameters, price=price)


@pytest.mark.parametrize("release", ["exact", "masked"])
@pytest.mark.parametrize("currency", ["rho", "epsilon"])
def test_the_cutoffs_of_a_study_cost_pure_epsilon_in_either_currency(release, currency):
    budget = cc.Budget("2", currency="epsilon") if currency == "epsilon" else cc.Budget("20")
    sites = open_sites(budget=budget)
    model = small_rulefit(release=release, noise="laplace", epsilon="0.75").fit(cc.House(sites))
    paid = [[entry for entry in site.ledger.entries() if entry.cost] for site in sites]
    for (entry,) in paid:
        assert entry.mode == ("noised" if release == "exact" else "private")
        cost = rho_from_pure("0.75") if currency == "rho" else Fraction(3, 4)
        assert entry.cost == cost
    priced = [one for one in model.card.releases if one.cost is not None]
    assert len(priced) == SITES
    assert {Fraction(one.cost) for one in priced} == {rho_from_pure("0.75")}
    assert model.plan().total == rho_from_pure("0.75")
    assert model.rules_


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_without_noise_it_is_the_model_of_exact_histograms(release, monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    plain = small_rulefit(release=release, epsilon=None).fit(cc.House(open_sites()))
    with zero_noise():
        noised = small_rulefit(release=release, noise="laplace", epsilon=1).fit(cc.House(open_sites()))
    assert noised.body.terms.attributes == plain.body.terms.attributes
    # Only exact histograms tell that no value is missing, so that a rule and its complement are one.
    assert set(plain.rules_) <= set(noised.rules_)
    patients = records_of(*draw(400, 3))
    np.testing.assert_allclose(noised.decide(patients), plain.decide(patients), atol=1e-5)


@pytest.mark.parametrize("currency", ["rho", "epsilon"])
def test_a_region_adds_up_what_its_hospitals_added_noise_to(currency, monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    budget = cc.Budget("2", currency="epsilon") if currency == "epsilon" else cc.Budget("20")

    def through_tiers(sites):
        inner = cc.Region("inner", cc.House(sites[1:3]))
        return cc.House([cc.Region("upper", cc.House([sites[0], inner])), sites[3]])

    with zero_noise():
        flat = small_rulefit(release="exact", noise="laplace", epsilon="0.75").fit(cc.House(open_sites()))
        sites = open_sites(budget=budget)
        model = small_rulefit(release="exact", noise="laplace", epsilon="0.75").fit(through_tiers(sites))
    assert model.body == flat.body
    # Every hospital has paid, once, and the card says for each who answers what its patients paid.
    for site in sites:
        (entry,) = [entry for entry in site.ledger.entries() if entry.cost]
        assert entry.mode == "noised"
        assert entry.cost == (rho_from_pure("0.75") if currency == "rho" else Fraction(3, 4))
    priced = {one.site: one for one in model.card.releases if one.cost is not None}
    assert set(priced) == {"upper", "site 3"}
    assert {Fraction(one.cost) for one in priced.values()} == {rho_from_pure("0.75")}
    assert priced["upper"].numbers == 3 * priced["site 3"].numbers
    assert not model.card.refusals


def test_what_a_region_sees_and_tells_is_noised_already():
    """The sum that moves up has the noise of each of its hospitals: as many times the variance of one."""
    count, scale = 900, 2 * 2
    far = tuple(float(edge) for edge in range(100, 100 + count))
    attributes = (Attribute(NUMBERS[0].name, far), NUMBERS[1])
    sites = open_sites(budget=cc.Budget("20"))
    region = cc.Region("upper", cc.House(sites))
    bins = {a.name: list(a.edges) for a in attributes}
    parameters = {"positive": 1, "bins": bins, "noise": "laplace", "epsilon": "4", "release": "exact"}
    asker = Asker([region], method="rulefit", parameters=parameters, price=str(rho_from_pure("4")))
    asker.release = "noised"
    question = ask("1/2", attributes)
    reply = asker.put(region, question)
    assert isinstance(reply, Answer)
    # Beyond the first edge there is nobody: these bins hold noise alone.
    noise = read_sum(reply.body, question, question.shape).reshape(-1)[3 : 3 + count - 2]
    a = np.exp(-1 / scale)
    variance = SITES * 2 * a / (1 - a) ** 2
    assert 0.8 < noise.var() / variance < 1.2
    assert abs(noise.mean()) < 6 * np.sqrt(variance / count)
    assert Fraction(reply.charge.cost) == rho_from_pure("1/2")
    assert reply.charge.release == "noised"
    assert reply.charge.numbers == SITES * question.numbers


def test_the_noise_is_discrete_laplace_of_scale_attributes_over_epsilon():
    edges = tuple(float(edge) for edge in range(600))
    attributes = tuple(Attribute(name, edges) for name in ("a", "b"))
    nothing = {name: Numbers(np.full(50, np.nan), by_itself=True) for name in ("a", "b")}
    site = cc.Site(
        "s", Records({**nothing, "y": records_of(*draw(50, 1))["y"]}), cc.Policy(budget=cc.Budget("50"))
    )
    asker = Asker([site], method="rulefit", parameters={
        "positive": 1, "bins": {name: list(edges) for name in ("a", "b")}, "noise": "laplace", "epsilon": "1",
    })  # fmt: skip
    asker.release = "noised"
    question = ask("1", attributes)
    replies = [asker.put(site, question) for _ in range(4)]
    assert all(isinstance(reply, Answer) for reply in replies)
    whole = np.array([read_sum(reply.body, question) for reply in replies]).reshape(8, -1)
    noise = whole[:, 1:].ravel()  # the first cell of each has all patients, for whom it is missing
    scale = 2.0
    decay = np.exp(-1 / scale)
    places = np.arange(-6, 7)
    expected = np.array([(1 - decay) / (1 + decay) * decay ** abs(k) for k in places])
    tail = (1 - expected.sum()) / 2
    seen = [(noise < -6).sum(), *((noise == k).sum() for k in places), (noise > 6).sum()]
    test = stats.chisquare(seen, len(noise) * np.array([tail, *expected, tail]))
    assert test.pvalue > 1e-6
    assert abs(whole[:, 0] - 50).max() < 60


def test_a_repeated_question_gets_the_stored_answer_and_is_paid_once():
    sites = open_sites()
    asker = asker_of(sites)
    asker.release = "noised"
    envelope = asker.wrap(ask(), name="the same")
    first, second = (asker.ask(sites[0], envelope) for _ in range(2))
    assert first == second
    assert len([entry for entry in sites[0].ledger.entries() if entry.cost]) == 1


def test_a_masked_study_never_shows_the_numbers_of_one_site():
    sites = open_sites()
    asker = asker_of(sites, "masked")
    asker.release = "noised"
    reply = asker.put(sites[0], ask())
    assert isinstance(reply, Refusal)
    assert reply.reason.endswith("its answers leave as 'masked', not as 'noised'")
    assert not [entry for entry in sites[0].ledger.entries() if entry.cost]


def test_only_pure_questions_are_noised_and_only_where_they_were_agreed():
    sites = open_sites(budget=cc.Budget("50"))
    asker = asker_of(sites)
    asker.release = "noised"
    gaussian = AskCounts(totals=False, query="", target="y", attributes=NUMBERS, noise=Gaussian("100"))
    plain = AskCounts(totals=False, query="", target="y", attributes=NUMBERS)
    for question in (gaussian, plain):
        assert isinstance(asker.put(sites[0], question), Refusal)
    other = Asker(sites, method="rulefit", parameters={"positive": 1, "bins": BINS, "epsilon": "4"})
    other.release = "noised"
    assert isinstance(other.put(sites[0], ask()), Refusal)
    too_much = asker.put(sites[0], ask(epsilon="5"))
    assert isinstance(too_much, Refusal)
    assert too_much.rule == "agreed"


@pytest.mark.parametrize("epsilon", ["0", "-1", "x", "1e9", "nan", "200"])
def test_an_epsilon_that_is_none_is_refused(epsilon):
    sites = open_sites()
    asker = asker_of(sites)
    asker.release = "noised"
    reply = open_reply(asker.ask(sites[0], asker.wrap(ask(epsilon=epsilon))))
    assert isinstance(reply, Refusal)
    assert encode(reply)


@given(st.integers(1, 4), st.integers(0, 29), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_one_patient_moves_the_counts_by_the_sensitivity_at_most(attributes, leaver, seed):
    table, outcome = draw(30, seed)
    table[seed % 30, seed % 4] = np.nan
    question = ask(attributes=NUMBERS[:attributes])
    rest = np.arange(30) != leaver
    counts = []
    for rows in (np.ones(30, dtype=bool), rest):
        view = View(records_of(table[rows], outcome[rows]), cc.Policy(), b"", division_key=b"key")
        cohort = view.each_by_itself.select("", "y").telling_all()
        counts.append(question.compute(cohort))
    moved = np.abs(counts[0] - counts[1]).sum()
    assert moved == question.l1 == attributes


def test_what_it_needs_is_said_in_one_sentence():
    with pytest.raises(StudyError, match="needs an 'epsilon'"):
        small_rulefit(noise="laplace", epsilon=None)
    with pytest.raises(StudyError, match="the 'noise' of a RuleFit must be 'gaussian' or 'laplace'"):
        small_rulefit(noise="uniform")
    with pytest.raises(StudyError, match="a private RuleFit has no 'noise'"):
        cc.RuleFit("y", 1, bins=BINS, release="private", epsilon=1, noise="laplace")


def test_a_plan_fits_a_budget_in_pure_epsilon(tmp_path):
    table, outcome = draw(60, 2)
    rows = [
        dict(zip(COLUMNS, row, strict=True)) | {"y": int(y)} for row, y in zip(table, outcome, strict=True)
    ]
    lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
    (tmp_path / "north.csv").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "policy.toml").write_text('[budget]\ntotal = "2"\ncurrency = "epsilon"\n', encoding="utf-8")
    text = """
[study]
name = "pure"
method = "rulefit"
target = "y"
positive = 1
[privacy]
release = "exact"
epsilon = 0.75
[rulefit]
noise = "laplace"
[schema]
y = "code"
[bins]
a = [{edges}]
[[site]]
name = "north"
records = "north.csv"
one_row_per_patient = true
policy = "policy.toml"
"""
    file = tmp_path / "study.toml"
    file.write_text(text.format(edges=", ".join(map(str, BINS["a"]))), encoding="utf-8")
    plan = cc.Study.read(file).plan()
    assert plan.fits
    (site,) = plan.sites
    assert (site.cost, site.left) == (Fraction(3, 4), 2)
    assert plan.total == rho_from_pure("0.75")
    file.write_text(file.read_text().replace("0.75", "2.5"), encoding="utf-8")
    assert not cc.Study.read(file).plan().fits
    file.write_text(
        file.read_text().replace('release = "exact"', 'release = "masked"').replace('"laplace"', '"gaussian"')
    )
    (site,) = cc.Study.read(file).plan().sites
    assert not site.payable


@given(st.integers(0, 29), st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_neighbours_get_an_answer_at_one_price_and_differ_by_what_is_charged(leaver, seed):
    table, outcome = draw(30, seed)
    table[seed % 30] = [np.nan, 1e300, -1e300, 0.0]
    told = []
    for rows in (np.ones(30, dtype=bool), np.arange(30) != leaver):
        site = cc.Site(
            "s", records_of(table[rows], outcome[rows]), cc.Policy(minimum_cell=5, budget=cc.Budget("20"))
        )
        asker = asker_of([site])
        asker.release = "noised"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SWITCH, SWITCHED_ON)
            with zero_noise():
                reply = asker.put(site, ask())
        told.append((reply.charge, read_sum(reply.body, ask())))
    assert told[0][0] == told[1][0]
    assert np.abs(told[0][1].astype(int) - told[1][1].astype(int)).sum() == len(NUMBERS)
