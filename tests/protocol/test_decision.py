"""Decisions: the threshold of scikit-learn, the same ledger as without, and one answer wherever it is asked."""

from __future__ import annotations

import functools
import random
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, roc_curve

import concilium as cc
from agreed import Asker
from concilium.errors import MessageError, StudyError
from concilium.models.outcome import Outcome
from concilium.models.threshold import (
    EDGES,
    FURTHEST,
    CallingRule,
    Decided,
    Tally,
    _find_threshold,
    _match_share,
    _read_decision,
    choose,
    choose_one,
    count_chances,
    decide,
    find_edges,
    parse,
    probability,
    read_chances,
    say_decided,
    weigh_errors,
)
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.protocol.attributes import Attribute
from concilium.protocol.held_out import Part, Sample
from concilium.protocol.messages import Refusal
from concilium.protocol.releases import find_release
from concilium.protocol.splits import Split
from concilium.protocol.sums import read_sum
from concilium.rulefit.fit_questions import FitQuestions
from concilium.rulefit.fitting import AskRates, Coefficients
from concilium.rulefit.terms import RuleTerms
from concilium.trees.votes import AskVotes, Voter
from concilium.trees.voting import _count_as_votes
from contract.patients import EVERYONE as CONTRACT_ROWS
from contract.patients import SCHEMA as CONTRACT_SCHEMA
from contract.patients import make, method_types
from contract.patients import open_sites as contract_sites

BINS = {"age": [40.0, 60.0, 75.0], "pressure": [100.0, 140.0]}
VALUES = {"sex": ["f", "m"], "ward": ["a", "b", "c"], "y": ["no", "yes"]}
SCHEMA = {"age": "number", "pressure": "number", "sex": "code", "ward": "code", "y": "code"}


def make_rows(count, seed, base=0.02):
    """Patients with a rare outcome that follows from age and ward."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        age, ward = draw.uniform(20, 90), draw.choice("abc")
        rows.append(
            {
                "age": round(age, 1),
                "pressure": round(draw.gauss(120, 20), 1),
                "sex": draw.choice("fm"),
                "ward": ward,
                "y": "yes" if draw.random() < base + 0.2 * (age > 75) * (ward == "c") else "no",
            }
        )
    return rows


ROWS = [make_rows(300, seed) for seed in range(4)]
EVERYONE = [row for rows in ROWS for row in rows]
TRUTH = np.array([row["y"] == "yes" for row in EVERYONE])
TABLE = cc.Records.from_rows(EVERYONE, schema=SCHEMA)
BUDGET = cc.Policy(budget=cc.Budget("20"))


def open_sites(policy=None):
    return [
        cc.Site(f"s{n}", cc.Records.from_rows(rows, schema=SCHEMA), policy, division_key=f"key {n}".encode())
        for n, rows in enumerate(ROWS)
    ]


def tree(**options):
    return cc.DecisionTree("y", bins=BINS, max_depth=3, **options).fit(open_sites())


def rates(called):
    """Sensitivity and specificity, as scikit-learn counts."""
    (tn, fp), (fn, tp) = confusion_matrix(TRUTH, called)
    return tp / (tp + fn), tn / (tn + fp)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("majority", CallingRule("majority")),
        ("prevalence", CallingRule("prevalence")),
        (" cost  5:1 ", CallingRule("cost", Fraction(1, 6))),
        ("cost 0.5:2", CallingRule("cost", Fraction(4, 5))),
        ("sensitivity 0.9", CallingRule("sensitivity", Fraction(9, 10))),
        ("youden", CallingRule("youden")),
    ],
)
def test_a_decision_is_read_as_it_is_written(text, rule):
    assert parse(_read_decision(text)) == rule


@pytest.mark.parametrize(
    "text",
    ["", "half", "cost", "cost 5", "cost 0:1", "cost 1:0", "cost -1:2", "sensitivity 0", "sensitivity 1.5",
     "sensitivity 90 %", "Youden", "cost 1e9:1", "cost " + "9" * 50 + ":1", 0.5, None],
)  # fmt: skip
def test_what_is_no_decision_is_refused(text):
    with pytest.raises(StudyError, match="the 'threshold' of a DecisionTree must be"):
        cc.DecisionTree("y", threshold=text)


counts = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12
).filter(lambda rows: sum(row[1] for row in rows) and sum(row[2] for row in rows))


@given(
    counts, st.sampled_from(["youden", *(f"sensitivity {share}" for share in ("0.1", "0.5", "0.75", "1"))])
)
@example([(0, 1, 1), (1, 0, 0)], "youden")
@settings(max_examples=300)
def test_the_threshold_is_the_one_of_scikit_learn(rows, text):
    chances, negatives, positives = ([row[at] for row in rows] for at in range(3))
    tally = Tally([chance / 12 for chance in chances], negatives, positives, "")
    truth = np.concatenate([[0] * n + [1] * p for n, p in zip(negatives, positives, strict=True)])
    scores = np.concatenate(
        [[chance / 12] * (n + p) for chance, n, p in zip(chances, negatives, positives, strict=True)]
    )
    false, true, thresholds = (one[1:] for one in roc_curve(truth, scores, drop_intermediate=False))
    people, rule = [int((truth == 0).sum()), int(truth.sum())], parse(text)
    exact = [
        (Fraction(round(t * people[1]), people[1]), Fraction(round(f * people[0]), people[0]))
        for t, f in zip(true, false, strict=True)
    ]
    if rule.kind == "youden":
        gains = [sensitivity - alarms for sensitivity, alarms in exact]
        best = gains.index(max(gains))
    else:
        best = next(index for index, (sensitivity, _) in enumerate(exact) if sensitivity >= rule.amount)
    assert _find_threshold(rule, tally) == (
        thresholds[best], pytest.approx(true[best]), pytest.approx(1 - false[best])
    )  # fmt: skip


def test_counts_below_zero_count_for_nobody_and_one_class_alone_decides_nothing():
    noisy = Tally([0.1, 0.2, 0.9], [50, -3, 1], [-2, 4, 6], "")
    assert _find_threshold(parse("youden"), noisy) == _find_threshold(
        parse("youden"), Tally([0.1, 0.2, 0.9], [50, 0, 1], [0, 4, 6], "")
    )
    decided, said = decide("youden", "yes", 0.25, Tally([0.1], [5], [-1], ""))
    assert 0.25 < decided.threshold == pytest.approx(0.25, rel=1e-8)
    assert decided.sensitivity is None
    assert "all of one class" in said


@pytest.mark.parametrize("release", ["exact", "masked"])
def test_prevalence_is_the_share_of_the_patients_learned_from(release):
    own = tree(threshold="prevalence", release=release)
    assert TRUTH.mean() < own.decided.threshold == pytest.approx(TRUTH.mean(), rel=1e-8)
    shares = own.predict_proba(TABLE)
    assert (own.predict(TABLE) == "yes").tolist() == (shares[:, 1] > TRUTH.mean()).tolist()
    np.testing.assert_array_equal(shares, tree(release=release).predict_proba(TABLE))
    sensitivity, specificity = rates(own.predict(TABLE) == "yes")
    assert sensitivity > rates(tree().predict(TABLE) == "yes")[0]
    assert (sensitivity + specificity) / 2 > 0.6
    assert own.card.decision == say_decided(own.decided)
    assert own.text().endswith(say_decided(own.decided))


def test_a_patient_of_whom_nothing_is_known_is_not_called():
    assert set(cc.DecisionTree("y", bins=BINS, max_depth=0, threshold="prevalence").fit(open_sites())
               .predict(TABLE)) == {"no"}  # fmt: skip


def test_costs_call_where_calling_costs_less():
    own = tree(threshold="cost 9:1")
    chance = own.predict_proba(TABLE)[:, 1]
    assert (own.predict(TABLE) == "yes").tolist() == (9 * chance >= 1 - chance).tolist()


def divide(tables, sites):
    """The patients of all sites from whom a first fit learns, by site, and those whom it leaves out."""
    learning, left_out = [], []
    for rows, site in zip(tables, sites, strict=True):
        cohort = site._context.view.select("", "y")
        held = set(Part(percent=30, held=True).choose(cohort, site.policy.minimum_patients).rows.tolist())
        assert 0.2 < len(held) / len(rows) < 0.4
        learning.append([row for at, row in enumerate(rows) if at not in held])
        left_out += [row for at, row in enumerate(rows) if at in held]
    return learning, left_out


def open_at(tables, schema=SCHEMA):
    return [cc.Site(f"s{n}", cc.Records.from_rows(rows, schema=schema)) for n, rows in enumerate(tables)]


def find_best(rule, truth, chance):
    """What scikit-learn finds among these patients: threshold, sensitivity, specificity."""
    false, true, thresholds = (one[1:] for one in roc_curve(truth, chance, drop_intermediate=False))
    best = np.argmax(true - false) if rule.kind == "youden" else np.argmax(true >= float(rule.amount))
    return thresholds[best], true[best], 1 - false[best]


@pytest.mark.parametrize("release", ["exact", "masked"])
@pytest.mark.parametrize("text", ["sensitivity 0.6", "sensitivity 1", "youden"])
def test_a_tree_chooses_by_those_whom_a_first_one_left_out(text, release):
    own = tree(threshold=text, release=release)
    np.testing.assert_array_equal(own.predict_proba(TABLE), tree(release=release).predict_proba(TABLE))
    learning, left_out = divide(ROWS, open_sites())
    first = cc.DecisionTree("y", bins=BINS, max_depth=3).fit(open_at(learning))
    chance = first.predict_proba(cc.Records.from_rows(left_out, schema=SCHEMA))[:, 1]
    truth = np.array([row["y"] == "yes" for row in left_out])
    threshold, *reached = find_best(parse(text), truth, chance)
    assert [own.decided.sensitivity, own.decided.specificity] == pytest.approx(reached)
    assert own.decided.told_by == "patients left out of a first fit"
    mine = own.predict_proba(TABLE)[:, 1]
    assert (own.predict(TABLE) == "yes").tolist() == (mine >= own.decided.threshold).tolist()
    share = (chance >= threshold).mean()
    nearest = min(abs((mine >= one).mean() - share) for one in np.unique(mine))
    assert abs((mine >= own.decided.threshold).mean() - share) == pytest.approx(nearest)


def test_where_nobody_can_be_left_out_those_learned_from_choose():
    few = [rows[:14] for rows in ROWS]
    few[0] = [{**row, "y": "yes" if at % 3 else "no"} for at, row in enumerate(few[0])]
    policy = cc.Policy(minimum_patients=10)  # fourteen make no two parts of ten
    sites = [
        cc.Site(f"s{n}", cc.Records.from_rows(rows, schema=SCHEMA), policy) for n, rows in enumerate(few)
    ]
    own = cc.DecisionTree("y", bins=BINS, max_depth=2, threshold="youden").fit(sites)
    assert own.decided.told_by == "the patients learned from"
    everyone = [row for rows in few for row in rows]
    chance = own.predict_proba(cc.Records.from_rows(everyone, schema=SCHEMA))[:, 1]
    truth = np.array([row["y"] == "yes" for row in everyone])
    assert (own.decided.threshold, own.decided.sensitivity, own.decided.specificity) == pytest.approx(
        find_best(parse("youden"), truth, chance)
    )
    floored = cc.Policy(minimum_cell=3)
    sites = [*open_sites()[:3], cc.Site("s3", cc.Records.from_rows(ROWS[3], schema=SCHEMA), floored)]
    for model in (cc.DecisionTree, cc.NaiveBayes):
        beside = model("y", bins=BINS, threshold="sensitivity 0.7").fit(sites)
        assert beside.decided.told_by == "the patients learned from"


def test_the_positive_class_may_be_the_first():
    own = tree(threshold="sensitivity 0.95", positive="no")
    learning, left_out = divide(ROWS, open_sites())
    first = cc.DecisionTree("y", bins=BINS, max_depth=3).fit(open_at(learning))
    chance = first.predict_proba(cc.Records.from_rows(left_out, schema=SCHEMA))[:, 0]
    truth = np.array([row["y"] == "no" for row in left_out])
    _, *reached = find_best(parse("sensitivity 0.95"), truth, chance)
    assert [own.decided.sensitivity, own.decided.specificity] == pytest.approx(reached)
    assert own.decided.sensitivity >= 0.95
    assert (own.predict(TABLE) == "no")[~TRUTH].mean() > 0.8


@given(counts, counts)
@settings(max_examples=200)
def test_as_large_a_share_is_called_as_of_those_left_out(rows, own_rows):
    first, own = (
        Tally([row[0] / 12 for row in some], *([row[at] for row in some] for at in (1, 2)), "")
        for some in (rows, own_rows)
    )
    everyone, mine = (
        np.array([one for one, n, p in zip(tally.chances, tally.negatives, tally.positives, strict=True)
                  for _ in range(n + p)])
        for tally in (first, own)
    )  # fmt: skip
    threshold = _find_threshold(parse("youden"), first)[0]
    share = (everyone >= threshold).mean()
    found = _match_share(first, threshold, own)
    nearest = min(abs((mine >= one).mean() - share) for one in mine)
    assert abs((mine >= found).mean() - share) == pytest.approx(nearest)
    assert (mine >= found).any()


def test_where_patients_are_held_out_for_pruning_they_choose():
    own = tree(threshold="youden", prune=0.3)
    assert own.decided.told_by == "patients held out"
    assert (
        len(own.body.nodes) > 1
    )  # errors weigh as the decision has it, so that a rare class keeps its splits
    assert len(tree(prune=0.3).body.nodes) == 1
    held = sum(own.body.nodes[0].counts)
    assert held < len(EVERYONE)
    assert 0 <= own.decided.sensitivity <= 1


def test_errors_weigh_by_the_decision():
    assert weigh_errors("majority", [90, 10], None).weights == (1, 1)
    prevalence = weigh_errors("prevalence", [90, 10], 1)
    assert (prevalence.call([9, 1]), prevalence.call([8, 1])) == (0, 1)
    cost = weigh_errors("cost 9:1", [50, 50], 1)
    assert (cost.call([9, 1]), cost.call([10, 1])) == (1, 0)
    assert weigh_errors("cost 9:1", [50, 50], 0).call([1, 9]) == 0


@pytest.mark.parametrize("text", ["prevalence", "cost 20:1"])
@pytest.mark.parametrize("release", ["exact", "private"])
def test_the_one_level_model_decides(text, release):
    options = {"values": VALUES, "epsilon": 20} if release == "private" else {}
    sites = open_sites(BUDGET)
    own = cc.NaiveBayes("y", bins=BINS, release=release, threshold=text, **options).fit(sites)
    called = own.predict(TABLE) == "yes"
    assert called.tolist() == (own.predict_proba(TABLE)[:, 1] >= own.decided.threshold).tolist()
    assert called.any()
    if text == "prevalence" and release == "exact":
        assert own.decided.threshold == pytest.approx(TRUTH.mean())


@pytest.mark.parametrize("release", ["exact", "masked"])
@pytest.mark.parametrize("text", ["sensitivity 0.7", "youden"])
def test_a_rule_model_decides_by_those_whom_a_first_fit_left_out(release, text, monkeypatch):
    """That fit is the optimum of the others, by the conditions of optimality; its terms are those of the model."""
    fits = []
    ask = FitQuestions.ask_chances
    monkeypatch.setattr(FitQuestions, "ask_chances", lambda self, w: fits.append(w) or ask(self, w))
    options = {"bins": BINS, "trees": 20, "penalty": 0.002, "release": release, "epsilon": None}
    own = cc.RuleFit("y", "yes", threshold=text, **options).fit(open_sites())
    plain = cc.RuleFit("y", "yes", **options).fit(open_sites())
    np.testing.assert_allclose(own.predict_proba(TABLE), plain.predict_proba(TABLE), atol=1e-4)
    learning, left_out = divide(ROWS, open_sites())

    def look(rows):
        matrix = own.design(cc.Records.from_rows(rows, schema=SCHEMA))
        chance = probability(matrix @ fits[0][1:] + fits[0][0])
        return matrix, chance, np.array([row["y"] == "yes" for row in rows])

    matrix, chance, truth = look([row for rows in learning for row in rows])
    slope, coefficients = matrix.T @ (chance - truth) / len(truth), fits[0][1:]
    assert chance.mean() == pytest.approx(truth.mean(), abs=1e-5)
    assert np.abs(slope).max() <= 0.002 + 2e-5
    moved = coefficients != 0
    assert moved.any()
    np.testing.assert_allclose(slope[moved], -0.002 * np.sign(coefficients[moved]), atol=2e-5)
    _, chance, truth = look(left_out)
    taken = Coefficients.of(np.array([own.intercept_, *own.coef_]))
    edges, own_edges = (
        find_edges(*one.find_reach(own.body.terms)) for one in (Coefficients.of(fits[0]), taken)
    )
    check_chosen(parse(text), own, chance, truth, edges, own_edges)


def check_chosen(rule, own, chance, truth, edges, own_edges):
    """The card says what holds among those left out, from the edge on that serves best; the model calls most nearly as
    large a share of everybody."""
    highest_first = [
        (*rates_from(chance, one, truth), (chance >= one).mean()) for one in probability(edges)[::-1]
    ]
    if rule.kind == "youden":
        false, true, share = max(highest_first, key=lambda one: round(one[1] - one[0], 12))
    else:
        false, true, share = next(one for one in highest_first if one[1] >= rule.amount)
    assert (own.decided.sensitivity, own.decided.specificity) == pytest.approx((true, 1 - false))
    assert own.decided.told_by == "patients left out of a first fit"
    mine = own.predict_proba(TABLE)[:, 1]
    assert (own.predict(TABLE) == "yes").tolist() == (mine >= own.decided.threshold).tolist()
    near = [abs((mine >= one).mean() - share) for one in probability(own_edges) if (mine >= one).any()]
    assert abs((mine >= own.decided.threshold).mean() - share) == pytest.approx(min(near))


@given(st.floats(-30, 30), st.floats(0, 60), st.lists(st.floats(0, 1), min_size=1, max_size=20), st.data())
def test_chances_are_counted_on_the_side_that_the_model_has_them_on(low, width, places, data):
    """Between the least and the greatest, both included, and to a 255th of what lies between them."""
    odds = np.array([low, low + width, *(low + width * place for place in places)])
    truth = np.array(data.draw(st.lists(st.booleans(), min_size=len(odds), max_size=len(odds))))
    edges = find_edges(low, low + width)
    assert len(edges) == EDGES
    assert (np.diff(edges) > 0).all()
    assert np.diff(edges).max() <= max(min(width, 2 * FURTHEST), 1e-6) / (EDGES - 2) * (1 + 1e-6)
    tally = read_chances(count_chances(odds, truth, edges), edges)
    for threshold, negatives, positives in zip(tally.chances, tally.negatives, tally.positives, strict=True):
        at = np.searchsorted(edges, odds, side="right") == tally.chances.index(threshold)
        assert (negatives, positives) == ((at & ~truth).sum(), (at & truth).sum())
        assert (probability(odds[at]) >= threshold - 1e-15).all()
    if low > -FURTHEST and low + width < FURTHEST:
        assert not tally.negatives[0] + tally.positives[0] + tally.negatives[-1] + tally.positives[-1]


def make_faint(count, seed):
    """Patients of whom a rule model can say little: all chances are within a small part of log odds."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        age, ward = draw.uniform(20, 90), draw.choice("abc")
        rows.append(
            {"age": age, "ward": ward, "y": draw.random() < 0.03 + 0.02 * (age > 60) + 0.02 * (ward == "c")}
        )
    return rows


def test_where_all_chances_are_close_youden_is_still_the_best_of_them():
    tables = [make_faint(2000, seed) for seed in range(3)]
    sites = [cc.Site(f"h{n}", cc.Records.from_rows(rows)) for n, rows in enumerate(tables)]
    bins = {"age": [30, 40, 50, 60, 70, 80]}
    own = cc.RuleFit("y", True, bins=bins, trees=40, penalty=0.0035, threshold="youden", release="exact").fit(
        sites
    )
    everyone = [row for rows in tables for row in rows]
    chance = own.predict_proba(cc.Records.from_rows(everyone))[:, list(own.classes_).index(True)]
    spread = np.log(chance / (1 - chance))
    assert len(np.unique(spread.round(9))) > 3
    assert np.ptp(spread) < 1.5
    truth = np.array([row["y"] for row in everyone])
    gains = [(chance >= one)[truth].mean() - (chance >= one)[~truth].mean() for one in np.unique(chance)]
    called = chance >= own.decided.threshold
    assert called[truth].mean() - called[~truth].mean() > max(gains) - 0.03


def draw_noise(seed):
    """Patients of three hospitals whose outcome nothing foretells, all of one ward."""
    draw = random.Random(seed)
    return [
        [
            {"age": draw.uniform(20, 90), "sex": draw.choice("fm"), "ward": "a", "y": draw.random() < 0.05}
            for _ in range(400)
        ]
        for _ in range(3)
    ]


@pytest.mark.parametrize("release", ["exact", "masked"])
@pytest.mark.parametrize("seed", range(4))
def test_a_model_that_knows_nothing_calls_nobody(release, seed):
    tables = draw_noise(seed)
    everyone = cc.Records.from_rows([row for rows in tables for row in rows])
    rule_model = cc.RuleFit(
        "y", True, bins={"age": [50]}, trees=20, penalty=0.05, threshold="prevalence", release=release
    )
    one_level = cc.NaiveBayes("y", attributes=["ward"], threshold="prevalence", release=release)
    for model in (rule_model, one_level):
        model.fit([cc.Site(f"h{n}", cc.Records.from_rows(rows)) for n, rows in enumerate(tables)])
        assert not any(called is True for called in model.predict(everyone).tolist())
    assert not rule_model.body.taken
    same = f"every patient gets the same answer, {rule_model.body.mean:.1%}"
    assert f"no term is worth its penalty: {same}" in rule_model.card.warnings


def test_a_hospital_tells_no_chances_to_a_study_that_decides_without():
    terms = RuleTerms((), (), ())
    question = AskRates(
        query="", target="y", outcome=Outcome(positive="yes"), terms=terms, scored=Coefficients(0.0)
    )
    for decision, refused in (("youden", False), ("prevalence", True)):
        site = open_sites()[0]
        asker = Asker([site], method="rulefit", parameters={"positive": "yes", "threshold": decision})
        assert isinstance(asker.put(site, question), Refusal) == refused


@pytest.mark.parametrize("release", ["exact", "masked"])
@pytest.mark.parametrize("text", ["sensitivity 0.7", "sensitivity 1", "youden"])
def test_the_one_level_model_decides_by_what_sites_count(release, text):
    own = cc.NaiveBayes("y", bins=BINS, release=release, threshold=text).fit(open_sites())
    plain = cc.NaiveBayes("y", bins=BINS, release=release).fit(open_sites())
    np.testing.assert_array_equal(own.predict_proba(TABLE), plain.predict_proba(TABLE))
    learning, left_out = divide(ROWS, open_sites())
    first = cc.NaiveBayes("y", bins=BINS).fit(open_at(learning))
    chance = first.predict_proba(cc.Records.from_rows(left_out, schema=SCHEMA))[:, 1]
    truth = np.array([row["y"] == "yes" for row in left_out])
    check_chosen(parse(text), own, chance, truth, find_reach(first), find_reach(own))
    called = own.predict(TABLE) == "yes"
    assert own.card.decision == say_decided(own.decided)
    assert {kind.kind for kind in own.plan().questions} == {"tree.schema", "counts", "tree.votes"}
    said = own.explain(EVERYONE[0])
    assert said.prediction == ("yes" if called[0] else "no")
    assert "Predicts yes at a risk of" in str(said)


def find_reach(model):
    """The edges that follow from what a one-level model can say."""
    moved = [model.body.evidence(n) @ np.array([-1.0, 1.0]) for n in range(len(model.body.attributes))]
    start = np.log(model.body.class_shares[1] / model.body.class_shares[0])
    return find_edges(start + sum(min(0, *one) for one in moved), start + sum(max(0, *one) for one in moved))


def rates_from(chance, threshold, truth=TRUTH):
    """Alarms and sensitivity of those called from there on."""
    called = chance >= threshold
    return called[~truth].mean(), called[truth].mean()


def test_chances_are_counted_as_hospitals_write_their_values():
    """One hospital has numbers where another has text, values that no other has, and missing ones."""
    draw = random.Random(5)
    tables = []
    for codes in ([1, 2, 3], ["1", "2", "x"], [2, None, 7]):
        rows = [{"c": draw.choice(codes), "age": draw.choice([None, 30.0, 50.0, 70.0])} for _ in range(120)]
        tables.append([{**row, "y": draw.random() < (0.5 if str(row["c"]) == "2" else 0.1)} for row in rows])
    sites = [cc.Site(f"h{n}", cc.Records.from_rows(rows), division_key=b"k") for n, rows in enumerate(tables)]
    learning, left_out = divide(tables, sites)
    for release in ("exact", "masked"):
        sites = [
            cc.Site(f"h{n}", cc.Records.from_rows(rows), division_key=b"k") for n, rows in enumerate(tables)
        ]
        own = cc.NaiveBayes("y", bins={"age": [40, 60]}, release=release, threshold="youden").fit(sites)
        first = cc.NaiveBayes("y", bins={"age": [40, 60]}).fit(open_at(learning, None))
        plain = [{**row, "c": None if row["c"] is None else str(row["c"])} for row in left_out]
        chance = first.predict_proba(plain)[:, list(first.classes_).index(True)]
        truth = np.array([row["y"] for row in left_out])
        by_edge = [rates_from(chance, one, truth) for one in probability(find_reach(first))[::-1]]
        false, true = max(by_edge, key=lambda one: round(one[1] - one[0], 12))
        assert (own.decided.sensitivity, own.decided.specificity) == pytest.approx((true, 1 - false))


VOTES = {"bins": BINS, "imbalance": 1, "min_leaf": 1, "growth": "id3"}


@functools.cache
def learn_plain_votes(release):
    return cc.VotingTrees("y", "yes", release=release, **VOTES).fit(open_sites())


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("sensitivity 0.5", "masked"),
        ("sensitivity 1", "exact"),
        ("youden", "masked"),
    ],
)
def test_an_ensemble_calls_from_so_many_votes_on(release, text):
    plain = learn_plain_votes(release)
    own = cc.VotingTrees("y", "yes", threshold=text, release=release, **VOTES).fit(open_sites())
    assert own.body.experts == plain.body.experts
    np.testing.assert_array_equal(own.predict_proba(TABLE), plain.predict_proba(TABLE))
    share, experts = own.predict_proba(TABLE)[:, 1], len(own.body.experts)
    called = own.predict(TABLE) == "yes"
    sensitivity, specificity = rates(called)
    assert own.decided.votes == experts > 1
    assert own.decided.sensitivity == pytest.approx(sensitivity)
    assert own.decided.specificity == pytest.approx(specificity)
    by_votes = [rates_from(share, votes / experts - 1e-9) for votes in range(experts + 1)]
    if text == "youden":
        assert sensitivity + specificity - 1 == pytest.approx(max(true - false for false, true in by_votes))
    else:
        least = max(votes for votes in range(experts + 1) if by_votes[votes][1] >= parse(text).amount)
        assert f"predicts yes at {least} of {experts} votes or more" in own.card.decision
        assert called.tolist() == (share >= least / experts - 1e-9).tolist()
    assert say_decided(own.decided) in own.text()
    for row, yes in zip(EVERYONE[:80], called, strict=False):
        said = own.explain(row)
        assert said.prediction == ("yes" if yes else "no")
        assert f"of {experts} votes or more" in str(said)
    soft = own.soft_proba(TABLE)[:, 1] >= own.decided.threshold
    assert soft.tolist() == called.tolist()


def test_an_ensemble_on_bands_chooses_by_those_left_out(tmp_path):
    own = cc.VotingTrees("y", "yes", bins=BINS, imbalance=1, bands=2, threshold="sensitivity 0.6").fit(
        open_sites()
    )
    assert own.decided.told_by == "patients held out"
    assert own.decided.sensitivity >= 0.6
    own.save(tmp_path / "model.json")
    again = cc.load(tmp_path / "model.json")
    assert again.body == own.body
    assert again.predict(TABLE).tolist() == own.predict(TABLE).tolist()
    assert again.explain(EVERYONE[3]) == own.explain(EVERYONE[3])


def test_an_ordinary_tree_of_voting_trees_chooses_by_its_leaves():
    one = cc.VotingTrees("y", "yes", bins=BINS, imbalance=0, max_depth=3, min_leaf=1, threshold="youden")
    one.fit(open_sites())
    np.testing.assert_array_equal(one.predict_proba(TABLE), tree().predict_proba(TABLE))
    found = one.decided.threshold, one.decided.sensitivity, one.decided.specificity
    assert found == pytest.approx(find_best(parse("youden"), TRUTH, one.predict_proba(TABLE)[:, 1]))
    assert one.decided.told_by == "the patients learned from"


def test_experts_who_decide_by_prevalence_say_so():
    own = cc.VotingTrees("y", "yes", bins=BINS, imbalance=1, min_leaf=1, threshold="prevalence").fit(
        open_sites()
    )
    assert own.body.negatives is not None
    least = f"{100 * TRUTH.mean():.3g} %"
    said = f"predicts yes at a risk of {least} or more: the prevalence among the patients learned from"
    assert said in own.card.decision
    assert f"An expert decides, by the odds of a hospital: {said}." in str(own.explain(EVERYONE[0]))


def test_that_everybody_is_called_is_said():
    for votes in (None, 3):
        all_called = Decided(
            "sensitivity 0.9", "yes", 0.0, sensitivity=1.0, specificity=0.0, told_by="patients", votes=votes
        )
        assert say_decided(all_called).endswith("specificity 0.000; that is everybody: no higher one does")
    some = Decided("youden", "yes", 0.2, sensitivity=0.5, specificity=0.7, told_by="patients")
    assert "everybody" not in say_decided(some)


@pytest.mark.parametrize("method", [cc.DecisionTree, cc.NaiveBayes, cc.VotingTrees])
def test_a_card_warns_of_a_threshold_that_flags_everybody(method):
    rows = [{"site": "x", "y": "yes" if place % 3 else "no"} for place in range(120)]
    sites = [cc.Site(name, cc.Records.from_rows(rows)) for name in ("n", "s")]
    options = {} if method is cc.VotingTrees else {"release": "exact"}
    model = method("y", positive="yes", threshold="sensitivity 0.9", **options).fit(cc.House(sites))
    assert set(model.predict(cc.Records.from_rows(rows))) == {"yes"}
    assert any("(sensitivity 0.9) flags all of" in warning for warning in model.card.warnings)


def test_where_nothing_is_told_of_votes_most_of_them_decide():
    decided, said = _count_as_votes(Decided("youden", "yes", 0.2), 7)
    assert decided is None
    assert said.startswith("by most votes")


def test_a_hospital_counts_no_finer_than_the_study_s_decision_needs():
    about = {"query": "", "target": "y", "positive": "yes", "attributes": (), "experts": [Voter([], [])]}
    for method, parameters, by, refused in (
        ("voting-trees", {"positive": "yes"}, "majority", False),
        ("voting-trees", {"positive": "yes"}, "votes", True),
        ("voting-trees", {"positive": "yes", "threshold": "youden"}, "votes", False),
        ("voting-trees", {"positive": "yes", "threshold": "youden"}, "odds", True),
        ("naive-bayes", {"threshold": "youden"}, "odds", False),
        ("naive-bayes", {"threshold": "youden"}, "votes", True),
        ("naive-bayes", {"threshold": "prevalence"}, "odds", True),
        ("tree", {"threshold": "youden"}, "odds", True),
    ):
        site = open_sites()[0]
        experts = [] if by == "odds" else about["experts"]
        asker = Asker([site], method=method, parameters=parameters)
        reply = asker.put(site, AskVotes(**{**about, "experts": experts}, by=by))
        assert isinstance(reply, Refusal) == refused, (method, parameters, by)


@pytest.mark.parametrize("floor", [0, 12])
def test_counts_of_fewer_than_the_least_branch_of_a_policy_are_left_out(floor):
    site = open_sites(cc.Policy(branch_floor=floor))[0]
    age = Attribute("age", (40.0, 60.0, 75.0))
    children = [-1] * age.size
    children[age.first : age.first + 4] = [1, 2, 3, 4]
    question = AskVotes(
        query="",
        target="y",
        positive="yes",
        attributes=(age,),
        experts=[Voter([Split(0, 0, children)], [1, 2, 3, 4], [-1.0, 0.0, 1.0, 2.0])],
        by="odds",
    )
    asker = Asker([site], method="naive-bayes", parameters={"threshold": "youden", "bins": BINS})
    counts = read_sum(asker.put(site, question).body, question, question.shape)
    ages = np.searchsorted([40, 60, 75], [row["age"] for row in ROWS[0]], side="right")
    yes = np.array([row["y"] == "yes" for row in ROWS[0]])
    hoped = np.zeros((2, EDGES + 1), dtype=int)
    np.add.at(hoped, (yes.astype(int), np.searchsorted(find_edges(-1, 2), ages - 1.0, side="right")), 1)
    assert ((hoped > 0) & (hoped < 12)).any()
    assert counts.tolist() == np.where(hoped < floor, 0, hoped).tolist()


def test_experts_vote_by_the_costs_of_a_hospital():
    sites = open_sites()
    plain = cc.VotingTrees("y", "yes", bins=BINS, imbalance=1).fit(sites)
    same = cc.VotingTrees("y", "yes", bins=BINS, imbalance=1, threshold="prevalence").fit(sites)
    assert same.predict(TABLE).tolist() == plain.predict(TABLE).tolist()
    some = cc.VotingTrees("y", "yes", bins=BINS, imbalance=1, threshold="cost 5:1").fit(sites)
    for expert, votes in ((one, some._votes(one)) for one in some.body.trees):
        sample, others = expert.nodes[0].counts[1], expert.nodes[0].counts[0]
        for node, vote in zip(expert.nodes, votes, strict=True):
            # The share that a node would have among the patients of the hospitals.
            positive = node.counts[1] * some.body.positives / sample
            negative = node.counts[0] * (some.body.patients - some.body.positives) / others
            near = abs(5 * positive - negative) < 1e-9 * (positive + negative)
            assert vote == (positive > 0 and 5 * positive >= negative) or near
    one = cc.VotingTrees(
        "y", "yes", bins=BINS, imbalance=0, max_depth=3, min_leaf=1, threshold="prevalence"
    ).fit(sites)
    assert one.predict(TABLE).tolist() == tree(threshold="prevalence").predict(TABLE).tolist()
    assert "Predicts yes at a risk of" in str(one.explain(EVERYONE[0]))
    assert "An expert decides" in str(some.explain(EVERYONE[0]))


PRIVATE = {"bins": BINS, "values": VALUES, "release": "private", "epsilon": 4}
MODELS = {
    "tree": lambda **options: cc.DecisionTree("y", **PRIVATE, **options),
    "pruned": lambda **options: cc.DecisionTree("y", prune=0.3, **PRIVATE, **options),
    "naive-bayes": lambda **options: cc.NaiveBayes("y", **PRIVATE, **options),
    "rulefit": lambda **options: cc.RuleFit("y", "yes", **PRIVATE, **options),
}


@pytest.mark.parametrize(
    ("name", "text"),
    [("tree", "youden"), ("tree", "sensitivity 0.9"), ("pruned", "youden"), ("naive-bayes", "prevalence"),
     ("rulefit", "cost 5:1")],
)  # fmt: skip
def test_under_private_the_ledger_is_the_same_with_and_without(name, text, monkeypatch):
    monkeypatch.setenv(SWITCH, SWITCHED_ON)  # what private models ask depends on the noise
    charged = []
    for options in ({}, {"threshold": text}):
        sites = open_sites(BUDGET)
        with zero_noise():
            model = MODELS[name](**options).fit(sites)
        entries = [[(entry.kind, entry.cost) for entry in site.ledger.entries()] for site in sites]
        charged.append((entries, [site.ledger.spent() for site in sites], model.plan()))
        assert (model.decided is None) == (not options)
    assert charged[0] == charged[1]
    assert any(cost for _, cost in charged[0][0][0])


@pytest.mark.parametrize("text", ["prevalence", "cost 5:1", "sensitivity 0.8", "youden"])
def test_every_way_to_have_an_answer_gives_the_same(text, tmp_path):
    own = tree(threshold=text)
    own.save(tmp_path / "model.json")
    again = cc.load(tmp_path / "model.json")
    assert again.body == own.body
    assert again.threshold == text
    called = own.predict(TABLE).tolist()
    assert again.predict(TABLE).tolist() == called
    said = [own.explain(row) for row in EVERYONE[:60]]
    assert [one.prediction for one in said] == called[:60]
    assert all(one.called_from == own.decided.threshold for one in said)
    assert f"Predicts yes at a risk of {100 * own.decided.threshold:.3g} % or more" in str(said[0])
    partly = {"ward": "c"}
    assert own.explain(partly).prediction in ("yes", "no")


def test_what_cannot_be_decided_is_said_in_one_sentence():
    three = [{"y": "abc"[i % 3], "x": i % 2} for i in range(60)]
    site = cc.Site("s", cc.Records.from_rows(three))
    for model in (cc.DecisionTree("y", threshold="youden"), cc.NaiveBayes("y", threshold="prevalence")):
        with pytest.raises(StudyError, match="is between two classes, and 'y' has 3"):
            model.fit([site])
    with pytest.raises(StudyError, match="is between two classes, and 'y' has 3"):
        cc.DecisionTree("y", release="private", epsilon=1, values={"y": ["a", "b", "c"], "x": [0, 1]},
                        threshold="prevalence")  # fmt: skip
    with pytest.raises(StudyError, match="the positive class 'maybe' is none of the classes of 'y': no, yes"):
        tree(threshold="prevalence", positive="maybe")
    with pytest.raises(
        StudyError, match="a NaiveBayes cannot decide by 'youden': what a private one is told"
    ):
        cc.NaiveBayes("y", **PRIVATE, threshold="youden")
    with pytest.raises(StudyError, match="says how experts vote already"):
        cc.VotingTrees("y", "yes", vote="majority", threshold="prevalence")
    with pytest.raises(StudyError, match="'y' is a number"):
        cc.RuleFit("y", bins={"y": [0, 1]}, threshold="prevalence")
    with pytest.raises(StudyError, match="would cost more"):
        cc.RuleFit("y", "yes", bins=BINS, values=VALUES, release="private", threshold="youden")
    alone = cc.DecisionTree("y", threshold="prevalence").fit([cc.Site("s", cc.Records.from_rows(
        [{"y": "no", "x": i % 2} for i in range(9)]))])  # fmt: skip
    assert alone.decided is None


def test_a_model_file_with_another_decision_than_its_classes_is_refused():
    body = tree(threshold="prevalence").body
    for wrong in ({"positive": "maybe"}, {"threshold": 1.5}, {"rule": "half"}):
        plain = msgspec.to_builtins(body)
        plain["decided"] |= wrong
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(plain, type(body))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 1), st.sampled_from(["a", "b"]))
def test_one_patient_and_many_are_called_alike(chances, threshold, positive):
    decided = Decided("prevalence", positive, threshold)
    shares = np.array([[1 - chance, chance] for chance in chances])
    called = choose(shares, ["a", "b"], decided)
    assert called.tolist() == [choose_one(row, ["a", "b"], decided) for row in shares.tolist()]
    place = ["a", "b"].index(positive)
    assert called.tolist() == [place if row[place] >= threshold else 1 - place for row in shares]


CLEAR = {"epsilon": 200}  # so little noise that it hides no rule


def rich_house():
    return cc.House(contract_sites(policy=cc.Policy(budget=cc.Budget("unlimited"))))


def test_rules_that_speak_for_an_outcome_call_it_by_costs():
    discovery = method_types()["discovery"]
    options = {"window": "3h", "limits": 2}
    model = make(discovery, "private", threshold="cost 5:1", **options, **CLEAR).fit(rich_house())
    patients = cc.Records.from_rows(CONTRACT_ROWS, schema=CONTRACT_SCHEMA)
    shares = model.predict_proba(patients)
    assert model.decided.threshold == 1 / 6
    assert model.predict(patients).tolist() == (shares[:, 1] >= 1 / 6).astype(int).tolist()
    said = model.explain({"age": 71.5, "pressure": 130.0, "sex": "f", "ward": "c"})
    assert "Predicts 1 at a risk of 16.7 % or more: a missed patient costs 5, a false alarm 1." in str(said)
    for wrong in ("youden", "sensitivity 0.5"):
        with pytest.raises(StudyError, match="nobody counts patients by their predicted risk"):
            make(discovery, "private", threshold=wrong, **options)
    for wrong in ("prevalence", "cost 5:1"):
        with pytest.raises(StudyError, match="without a window"):
            make(discovery, "private", threshold=wrong)


def test_rules_that_speak_for_an_outcome_call_it_by_prevalence():
    options = {"window": "3h", "limits": 2, "threshold": "prevalence"}
    model = make(method_types()["discovery"], "private", **options, **CLEAR).fit(rich_house())
    assert model.decided.threshold == pytest.approx(model.body.base, abs=1e-6)
    patients = cc.Records.from_rows(CONTRACT_ROWS, schema=CONTRACT_SCHEMA)
    called = model.predict_proba(patients)[:, 1] >= model.decided.threshold
    assert model.predict(patients).tolist() == called.astype(int).tolist()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"experts": [Voter([], [0], [])]}, "log odds are told for every node"),
        ({"experts": [Voter([], [0], [1.0])], "by": "votes"}, "log odds are told for every node"),
        ({"experts": [Voter([], [])], "by": "majority", "start": 1.0}, "log odds are told for every node"),
        ({"experts": [Voter([], [0], [float("nan")])]}, "out of range"),
        ({"experts": [Voter([], [0], [1e9])]}, "out of range"),
        ({"experts": [Voter([], [0], [1.0])] * 2}, "at most 1 experts"),
        ({"experts": [], "sample": Sample(positive="yes", negatives=3)}, "under masks, and only there"),
    ],
)
def test_questions_about_chances_that_cannot_be_meant_are_refused(wrong, words):
    about = {
        "query": "",
        "target": "y",
        "positive": "yes",
        "attributes": (Attribute("age", (40.0,)),),
        "by": "odds",
    }
    with pytest.raises(MessageError, match=words):
        AskVotes(**{**about, **wrong}).check(find_release("exact"))
