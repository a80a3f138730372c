"""`VotingTrees` as a model: predicting, explaining, drawing, saving; who opts out; what is charged; bad input."""

from __future__ import annotations

import itertools
import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from agreed import deliver
from concilium.errors import ConciliumError, HouseError, ModelError, QueryError, StudyError
from concilium.models.explanation import Explanation
from concilium.models.intervals import share_interval
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.held_out import Sample
from concilium.protocol.messages import Answer, Refusal, decode, encode, open_reply
from concilium.protocol.splits import Split
from concilium.trees.ensemble import AskClassCounts, ClassCounts, Ensemble, _name_positive
from concilium.trees.explanation import explain_votes
from concilium.trees.votes import AskVotes, Voter
from concilium.trees.voting import VotingTrees
from protocol.conversation import wrap


def category(name, *values):
    return Attribute(name, (), values, missing=False, other=False)


SITES = ("east", "north", "south", "west")


def patient(i):
    """One of many: bleeding is rare, and commoner among old patients on a drug; a hash scatters the rest."""
    drug, age, ward = "yn"[i * 7919 % 10 > 3], 20 + i * 613 % 70, "abcd"[i * 104729 % 4]
    risk = 120 if drug == "y" and age >= 60 else 4
    return {"age": age, "drug": drug, "ward": ward, "bleeding": ["no", "yes"][i * 2654435761 % 1000 < risk]}


ROWS = [patient(i) for i in range(1, 2401)]


def sites_of(rows=ROWS, names=SITES, **options):
    records = cc.Records.from_rows(rows)
    return [
        cc.Site(name, records.take(np.arange(place, len(rows), len(names))), **options)
        for place, name in enumerate(names)
    ]


THESIS = {"growth": "id3", "vote": "majority", "max_depth": None, "min_leaf": 1}


def fitted(rows=ROWS, sites=None, **options):
    given = {"target": "bleeding", "positive": "yes", "bins": {"age": [40, 60]}, "imbalance": 0.06}
    return VotingTrees(**given | THESIS | options).fit(cc.House(sites or sites_of(rows)))


@pytest.fixture(scope="module")
def model():
    return fitted()


def test_an_odd_number_of_experts_votes(model):
    assert len(model.experts_) % 2 == 1
    assert len(model.experts_) > 1
    shares = model.predict_proba(ROWS)
    votes = np.mean([expert.predict(ROWS) == "yes" for expert in model.experts_], axis=0)
    np.testing.assert_allclose(shares, np.column_stack([1 - votes, votes]))
    assert model.classes_ == ["no", "yes"]
    assert list(model.predict(ROWS)) == ["yes" if share > 0.5 else "no" for share in votes]
    assert model.attributes_ == ["age", "drug", "ward"]


def test_it_finds_the_rare_ones_where_one_tree_does_not(model):
    single = fitted(imbalance=0)
    truth = np.array([row["bleeding"] == "yes" for row in ROWS])
    found = [(m.predict(ROWS) == "yes")[truth].mean() for m in (single, model)]
    assert found[0] < 0.1
    assert found[1] > 0.6


def test_a_balanced_vote_is_for_what_is_commoner_than_in_the_sample():
    model = fitted(vote="balanced")
    for row in ROWS[::97]:
        explanation = model.explain(row)
        votes = []
        for expert in model.experts_:
            negatives, positives = expert.body.nodes[0].counts
            said = expert.explain(row)
            share = said.probability if said.prediction == "yes" else 1 - said.probability
            votes.append(share > positives / (negatives + positives) + 1e-12)
        assert [vote.prediction == "yes" for vote in explanation.votes] == votes
        assert model.predict_proba([row])[0, 1] == pytest.approx(np.mean(votes))
        for vote, expert in zip(explanation.votes, model.experts_, strict=True):
            assert [reason.condition for reason in vote.reasons] == [
                reason.condition for reason in expert.explain(row).reasons
            ]
            for before, after in itertools.pairwise(vote.reasons):
                assert before.after == after.before
            assert not vote.reasons or vote.reasons[-1].after == vote.probability


def test_pictures_and_plan(model):
    pictures = model.pictures()
    assert list(pictures) == [
        f"expert {number} of {len(model.experts_)}" for number in range(1, len(model.experts_) + 1)
    ]
    assert pictures[f"expert 1 of {len(model.experts_)}"] == model.experts_[0].pictures()["tree"]
    assert list(fitted(imbalance=0).pictures()) == ["tree"]
    planned = VotingTrees("y", 1).plan().questions
    assert {question.kind for question in planned} == {release.kind for release in model.card.releases}
    assert {question.cost for question in planned} == {None}


def test_the_best_ensemble_tried_is_the_model(model):
    tried = {stage.experts: stage.balanced_accuracy for stage in model.body.stages}
    assert list(tried) == list(range(1, 2 * len(tried), 2))
    here = tried[len(model.experts_)]
    assert all(tried[later] <= here + 0.001 for later in list(tried)[-2:])
    truth = np.array([row["bleeding"] == "yes" for row in ROWS])
    right = (model.predict(ROWS) == "yes") == truth
    assert here == pytest.approx((right[truth].mean() + right[~truth].mean()) / 2)


def test_the_same_house_and_records_give_the_same_model(model):
    assert fitted().body == model.body
    one, other = fitted().card, model.card
    assert (one.rounds, one.bytes, one.releases) == (other.rounds, other.bytes, other.releases)


def test_explanations_tell_the_votes_and_the_reasons_of_one_who_prevails(model):
    for row in ROWS[::97]:
        explanation = model.explain(row)
        (share,) = model.predict_proba([row])
        assert explanation.prediction == model.predict([row])[0]
        assert max(explanation.chances) == pytest.approx(max(share))
        called = [label == explanation.prediction for label in model.predict(ROWS)]
        right = sum(row["bleeding"] == explanation.prediction for row in itertools.compress(ROWS, called))
        assert explanation.probability == pytest.approx(right / sum(called))  # votes are no risk
        assert explanation.interval == share_interval(right, sum(called))
        assert [vote.prediction for vote in explanation.votes] == [
            e.predict([row])[0] for e in model.experts_
        ]
        (line,) = [line for line in str(explanation).splitlines() if line.startswith("Expert ")]
        spoken = model.experts_[int(line.split()[1].rstrip(",")) - 1].explain(row)
        assert explanation.reasons == spoken.reasons
        assert spoken.prediction == explanation.prediction
        agree = [vote for vote in explanation.votes if vote.prediction == explanation.prediction]
        assert spoken.patients == max(vote.patients for vote in agree)
        assert f"; {len(agree)} of {len(explanation.votes)} experts)" in explanation.sentences[0]
    msgspec.to_builtins(explanation)
    partial = model.explain({"drug": "y"})
    assert "Not entered, and so not counted for or against: " in str(partial)
    assert "The model asks for nothing that was entered" in str(model.explain({"drugg": "y"}).votes[0])


def test_an_explanation_reads_as_sentences(model):
    assert str(model.explain({"age": 75, "drug": "y", "ward": "a"})).splitlines() == [
        "bleeding = yes (12% of 412 patients for whom it predicts yes; 95% interval 9% to 15%; 3 of 3 experts).",
        "Counted on the patients learned from, of whom 2% had bleeding = yes.",
        "For yes: experts 1, 2 and 3.",
        "Expert 1, which knows most patients like this one, says yes (65% of 17 in its sample):",
        "1. age >= 60: yes goes from 25% to 42% (123 patients).",
        "2. drug = y: yes goes from 42% to 67% (73 patients).",
        "3. ward = a: yes goes from 67% to 65% (17 patients).",
        "An expert votes for the class that is the commonest. Samples have many more positive patients than a hospital "
        "has.",
    ]


def test_a_patient_of_whom_nothing_is_known_gets_the_base_rate(model):
    said = model.explain({"height": 180})
    everyone = sum(map(sum, model.body.called))
    assert said.prediction == "no"
    assert said.probability == pytest.approx(sum(model.body.called[0]) / everyone)
    assert f"% of all {everyone} patients; 95% interval " in said.sentences[0]
    assert "weighed over" not in str(said)


def test_one_expert_is_not_counted_against_others():
    only = Explanation("y", "no", 0.75, (), (), patients=9)
    said = explain_votes([only], ("no", "yes"), ("no", "yes"), "An expert votes.", None, lambda place: None)
    assert str(said).splitlines() == [
        "y = no (1 of 1 expert).",
        "The expert says no (75% of 9 in its sample):",
        "It asks nothing about the patient.",
        "An expert votes.",
    ]


def test_a_explanation_names_those_outvoted_and_is_silent_where_nothing_was_asked():
    def says(prediction, patients):
        return Explanation("y", prediction, 0.75, (), (), patients=patients)

    explanation = explain_votes(
        [says("no", 9), says("yes", 4), says("yes", 7)],
        ("no", "yes"),
        ("no", "yes"),
        "An expert votes.",
        None,
        lambda place: None,
    )
    assert str(explanation).splitlines() == [
        "y = yes (2 of 3 experts).",
        "For yes: experts 2 and 3; for no: expert 1.",
        "Expert 3, which knows most patients like this one, says yes (75% of 7 in its sample):",
        "It asks nothing about the patient.",
        "An expert votes. Samples have many more positive patients than a hospital has.",
    ]
    assert (explanation.probability, explanation.patients) == (2 / 3, 7)


def test_the_text_draws_every_expert(model):
    lines = model.text().splitlines()
    assert lines[0].startswith(f"bleeding = yes: {len(model.experts_)} experts with one vote each (")
    assert f"1: {model.body.stages[0].balanced_accuracy:.4f}" in lines[1]
    assert [line for line in lines if line.startswith("expert ")] == [
        f"expert {number}" for number in range(1, len(model.experts_) + 1)
    ]
    assert model.experts_[0].text() in model.text()


def test_a_saved_model_loads_and_is_the_same(tmp_path, model):
    model.save(tmp_path / "voting.json")
    loaded = cc.load(tmp_path / "voting.json")
    assert isinstance(loaded, VotingTrees)
    assert (loaded.body, loaded.card) == (model.body, model.card)
    np.testing.assert_array_equal(loaded.predict_proba(ROWS), model.predict_proba(ROWS))
    assert str(loaded.explain(ROWS[0])) == str(model.explain(ROWS[0]))
    document = json.loads((tmp_path / "voting.json").read_text())
    assert document["method"] == model.card.method == "voting-trees"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda body: body["experts"].append(body["experts"][0]), "must be odd"),
        (lambda body: body.update(experts=[]), "must be odd"),
        (lambda body: body.update(negatives=None), "an ordinary tree is one expert"),
        (lambda body: body["experts"][2][0].update(counts=[1]), "expert 3: node 0"),
        (lambda body: body.update(classes=["no", "yes", "maybe"]), "length 2"),
        (lambda body: body.update(colour=1), "unknown field `colour`"),
    ],
)
def test_a_damaged_model_file_is_refused_in_one_sentence(tmp_path, model, damage, said):
    file = tmp_path / "voting.json"
    model.save(file)
    document = json.loads(file.read_text())
    damage(document["body"])
    file.write_text(json.dumps(document))
    with pytest.raises(ModelError, match=r"voting\.json: ") as caught:
        cc.load(file)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_ordinary_tree_predicts_and_explains_as_a_tree_does():
    model = fitted(imbalance=0.01)
    plain = cc.DecisionTree("bleeding", growth="id3", bins={"age": [40, 60]}).fit(cc.House(sites_of()))
    np.testing.assert_array_equal(model.predict_proba(ROWS), plain.predict_proba(ROWS))
    assert model.explain(ROWS[0]) == plain.explain(ROWS[0])
    assert model.text() == plain.text()
    assert "which is not below 1.00%: the model is one ordinary tree" in model.card.warnings[0]
    assert not [release for release in model.card.releases if release.kind == "tree.votes"]


def released(site):
    """What a site's ledger says it let out about patients."""
    return [entry for entry in site.ledger.entries() if entry.mode == "exact"]


def test_sites_opt_out_by_themselves_and_the_card_says_so():
    few = [row for row in ROWS if row["bleeding"] == "yes"][:1] + ROWS[:2]
    none = [row for row in ROWS if row["bleeding"] == "no"][:50]
    open_door = cc.Policy(minimum_patients=0)
    small, negative = (
        cc.Site(name, cc.Records.from_rows(rows), policy=open_door)
        for name, rows in (("small", few), ("negative", none))
    )
    shut = cc.Site("shut", cc.Records.from_rows(few))
    model = fitted(sites=[*sites_of(), small, negative, shut])
    assert model.body == fitted().body
    assert {site.name for site in model.card.sites} == set(SITES)
    assert [(refusal.site, refusal.rule) for refusal in model.card.refusals] == [("shut", "patients")]
    said = next(warning for warning in model.card.warnings if warning.startswith("opted out: "))
    assert said == "opted out: small: fewer than 4 patients to learn from; negative: no positive patient"
    for site in (small, negative):
        assert [entry.kind for entry in released(site)] == ["tree.classes"]
        assert [
            (r.kind, r.answers, r.numbers, r.cost) for r in model.card.releases if r.site == site.name
        ] == [("tree.classes", 1, sum(entry.numbers for entry in released(site)), None)]
    assert not [release for release in model.card.releases if release.site == "shut"]
    # A site that takes no part has no patients to set its numbers against.
    assert not [warning for warning in model.card.warnings if "None patients" in warning]


def test_a_site_that_opts_out_tells_no_count():
    site = cc.Site("a", cc.Records.from_rows([row for row in ROWS if row["bleeding"] == "no"]))
    question = AskClassCounts(query="", target="bleeding", sample=Sample(positive="yes", negatives=3))
    reply = open_reply(deliver(site, encode(wrap("tree.classes", question))))
    assert decode(reply.body, ClassCounts) == ClassCounts(values=("no",), opts_out="no positive patient")


def test_too_few_for_an_expert_opt_out_whatever_the_number_of_negatives():
    rows = [{"x": i % 3, "y": int(i == 0)} for i in range(40)]
    site = cc.Site("a", cc.Records.from_rows(rows))
    for negatives, out in ((1, True), (2, True), (3, False)):
        question = AskClassCounts(query="", target="y", sample=Sample(positive=1, negatives=negatives))
        reply = open_reply(
            deliver(
                site,
                encode(wrap("tree.classes", question, name=f"question-{negatives}", study=f"s{negatives}")),
            )
        )
        assert (decode(reply.body, ClassCounts).opts_out is not None) == out
    # The site holds to it even if a house goes on to ask.
    ask = AskCounts(
        query="",
        target="y",
        classes=_name_positive("y", 1),
        sample=Sample(positive=1, negatives=2),
    )
    assert not site_counts(site, ask).any()


def site_counts(site, question):
    return question.compute(site._context.view.select(question.query, question.target))


def test_every_answer_is_charged_and_the_card_adds_it_up():
    sites = sites_of()
    model = fitted(sites=sites)
    stages = len(model.body.stages)
    for site in sites:
        entries = released(site)
        site.ledger.verify()
        kinds = [entry.kind for entry in entries]
        assert len(kinds) == model.card.rounds
        assert kinds[:2] == ["tree.classes", "tree.schema"]
        assert kinds.count("tree.votes") == stages
        by_kind = {r.kind: (r.answers, r.numbers) for r in model.card.releases if r.site == site.name}
        assert by_kind == {
            kind: (kinds.count(kind), sum(e.numbers for e in entries if e.kind == kind))
            for kind in set(kinds)
        }
        assert by_kind["tree.votes"] == (stages, 4 * stages)
        assert by_kind["tree.classes"] == (1, 4)  # two counts, and that both values occur


class Mortal:
    """A site that dies after some answers."""

    def __init__(self, site, answers):
        self.name, self._site, self._left = site.name, site, answers
        self.identity, self.introduce = site.identity, site.introduce

    def answer(self, message):
        self._left -= 1
        if self._left < 0:
            raise ConnectionError("gone")
        return self._site.answer(message)


@pytest.mark.parametrize("answers", [1, 2, 5, 12])
def test_a_site_lost_on_the_way_leaves_the_model_of_the_others(answers):
    sites = sites_of()
    model = fitted(sites=[*sites[:-1], Mortal(sites[-1], 1 + answers)])  # it agreed, and answered
    assert model.body == fitted(sites=sites_of()[:-1]).body
    assert any("lost on the way: west" in warning for warning in model.card.warnings)
    assert sum(r.answers for r in model.card.releases if r.site == "west") == answers


def test_a_site_that_does_not_tell_votes_is_left_out():
    kinds = ("tree.classes", "tree.schema", "counts")
    partly = sites_of(policy=cc.Policy(kinds=kinds))[0]
    model = fitted(sites=[partly, *sites_of()[1:]])
    assert model.body == fitted(sites=sites_of()[1:]).body
    assert [(refusal.site, refusal.rule) for refusal in model.card.refusals] == [("east", "kind")]


def test_a_policy_against_small_cells_holds_for_class_counts_and_votes():
    rows = [{"x": i % 3, "y": int(i < 6)} for i in range(60)]
    policies = {5: cc.Policy(minimum_cell=5), 8: cc.Policy(minimum_cell=8)}
    for least, policy in policies.items():
        site = cc.Site("a", cc.Records.from_rows(rows), policy=policy)
        question = AskClassCounts(query="", target="y", sample=Sample(positive=1, negatives=3))
        counts = decode(open_reply(deliver(site, encode(wrap("tree.classes", question)))).body, ClassCounts)
        assert counts.opts_out == (None if least == 5 else "its policy does not let such counts out")
    # x = 0 is called positive: 2 of the 6 positives are, which is a cell of 2.
    ask = AskVotes(
        query="",
        target="y",
        positive=1,
        attributes=(category("x", 0, 1, 2),),
        experts=[Voter([Split(0, 0, [1, 2, 3])], [1])],
    )
    for policy, told in ((policies[5], [[0, 0], [0, 0]]), (cc.Policy(), [[36, 18], [4, 2]])):
        cohort = cc.Site("a", cc.Records.from_rows(rows), policy=policy)._context.view.select("", "y")
        counts = ask.compute(cohort)
        ask.suppress(counts, cohort)
        assert counts.tolist() == told


def test_several_other_values_are_one_class():
    rows = [{**row, "bleeding": row["bleeding"] if i % 3 else "unsure"} for i, row in enumerate(ROWS)]
    model = fitted(rows, positive="yes")
    assert model.classes_ == ["not yes", "yes"]
    assert set(model.predict(rows)) == {"not yes", "yes"}
    positives = sum(row["bleeding"] == "yes" for row in rows)
    assert (model.body.positives, model.body.patients) == (positives, len(rows))


def test_a_value_stored_as_number_here_and_text_there_is_one():
    numbers = [{**row, "bleeding": int(row["bleeding"] == "yes")} for row in ROWS]
    texts = [{**row, "bleeding": str(row["bleeding"])} for row in numbers]
    half = len(ROWS) // 2
    sites = [
        cc.Site("a", cc.Records.from_rows(numbers[:half])),
        cc.Site("b", cc.Records.from_rows(texts[half:])),
    ]
    assert fitted(sites=sites, positive=1).classes_ == ["0", "1"]
    assert fitted(numbers, positive="1").classes_ == [0, 1]


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (
            ROWS,
            {"positive": "yess"},
            "no site that could take part has a patient with bleeding = yess; its values ",
        ),
        (ROWS, {"positive": "yess"}, "did you mean 'yes'?"),
        (
            [row for row in ROWS if row["bleeding"] == "yes"],
            {},
            "every patient has bleeding = yes: there is nothing",
        ),
        (
            [row for row in ROWS if row["bleeding"] == "no"],
            {},
            "has a patient with bleeding = yes; its values there",
        ),
        (ROWS[:12], {}, "too few patients match this study"),
        (ROWS, {"target": "bleding"}, "did you mean 'bleeding'"),
        ([{**row, "bleeding": i + 0.5} for i, row in enumerate(ROWS)], {}, "a tree predicts categories"),
    ],
)
def test_data_that_cannot_be_learned_from_is_said_in_one_sentence(rows, options, said):
    with pytest.raises(HouseError) as caught:
        fitted(rows, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_site_opting_out_is_said_in_one_sentence():
    rows = [{"x": i, "y": int(i == 0)} for i in range(9)]
    sites = [cc.Site(name, cc.Records.from_rows(rows)) for name in "ab"]
    with pytest.raises(HouseError) as caught:
        VotingTrees("y", 1, negatives=1).fit(cc.House(sites))
    assert str(caught.value) == "every site opted out: a, b: fewer than 4 patients to learn from"


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"target": ""}, StudyError, "'target'"),
        ({"positive": ""}, StudyError, "'positive'"),
        ({"positive": None}, StudyError, "'positive'"),
        ({"positive": float("nan")}, StudyError, "'positive'"),
        ({"positive": ["yes"]}, StudyError, "'positive'"),
        ({"release": "private"}, StudyError, "'release' of VotingTrees must be 'exact' or 'masked'"),
        ({"imbalance": 2}, StudyError, "'imbalance' of VotingTrees must be a number from 0 to 1; got 2"),
        ({"imbalance": "a lot"}, StudyError, "'imbalance'"),
        ({"imbalance": float("nan")}, StudyError, "'imbalance'"),
        ({"negatives": 0}, StudyError, "'negatives'"),
        ({"negatives": 1.5}, StudyError, "'negatives'"),
        ({"vote": "even"}, StudyError, "'vote' of VotingTrees must be 'balanced' or 'majority'; got 'even'"),
        ({"delta": -0.1}, StudyError, "'delta'"),
        ({"max_depth": -1}, StudyError, "'max_depth'"),
        ({"min_leaf": 0}, StudyError, "'min_leaf'"),
        ({"bins": {"age": [60, 40]}}, StudyError, "must rise"),
        ({"query": "age >"}, QueryError, "column"),
    ],
)
def test_bad_parameters_are_said(options, error, said):
    with pytest.raises(error) as caught:
        VotingTrees(**{"target": "bleeding", "positive": "yes", **options})
    assert said in str(caught.value)
    assert isinstance(caught.value, ConciliumError)


def test_the_threshold_is_exact_and_strict():
    rows = [{"x": i % 7, "y": int(i < 25)} for i in range(1000)]
    house = cc.House([cc.Site("a", cc.Records.from_rows(rows))])
    assert VotingTrees("y", 1).fit(house).body.negatives is None  # 2.5 % is not below 2.5 %
    assert VotingTrees("y", 1, query="x is not missing", imbalance="0.0250001").fit(house).body.negatives == 3


def test_unfitted_voting_trees_say_so():
    unfitted = VotingTrees("y", 1)
    for look in (lambda: unfitted.predict(ROWS), lambda: unfitted.card, lambda: unfitted.text()):
        with pytest.raises(ModelError, match="not fitted yet"):
            look()
    assert repr(unfitted) == "VotingTrees(target='y', positive=1)"


def test_the_number_of_experts_shows(model):
    assert repr(model).endswith(f" [{len(model.experts_)} experts]")


def test_experts_are_not_grown_beyond_what_the_rule_needs(monkeypatch):
    grown = []
    true_grow = Ensemble.grow_expert
    monkeypatch.setattr(
        Ensemble, "grow_expert", lambda self, expert: grown.append(expert) or true_grow(self, expert)
    )
    model = fitted()
    assert grown == list(range(model.body.stages[-1].experts))


SITE = cc.Site("a", cc.Records.from_rows(ROWS[:200]))
ASKED = (category("drug", "n", "y"), category("ward", *"abcd"))
ALL = {"query": "", "target": "bleeding"}
QUESTIONS = {
    "tree.classes": AskClassCounts(**ALL, sample=Sample(positive="yes", negatives=3)),
    "tree.votes": AskVotes(
        **ALL,
        positive="yes",
        attributes=ASKED,
        experts=[Voter([Split(0, 0, [1, 2])], [2]), *[Voter([], [])] * 2],
    ),
    "counts": AskCounts(
        **ALL,
        attributes=ASKED,
        classes=_name_positive("bleeding", "yes"),
        sample=Sample(positive="yes", negatives=3),
    ),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=5),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=5), below, max_size=4),
    max_leaves=8,
)


def test_the_questions_are_answered_as_they_stand():
    for kind, question in QUESTIONS.items():
        message = encode(wrap(kind, question, name=f"plain-{kind}"))
        assert isinstance(open_reply(deliver(SITE, message)), Answer), kind


@given(
    kind=st.sampled_from(sorted(QUESTIONS)),
    field=st.sampled_from(
        [
            "query",
            "target",
            "positive",
            "attributes",
            "experts",
            "sample",
            "sample.positive",
            "sample.negatives",
        ]
    ),
    value=JSON,
)
@settings(max_examples=400)
def test_any_value_in_any_field_is_answered_or_refused(kind, field, value):
    body = msgspec.msgpack.decode(encode(QUESTIONS[kind]))
    *inside, last = field.split(".")
    place = body[inside[0]] if inside and body.get(inside[0]) is not None else body
    place[last] = value
    message = encode(wrap(kind, msgspec.msgpack.encode(body)))
    reply = open_reply(deliver(SITE, message))
    assert not (isinstance(reply, Refusal) and reply.rule == "internal"), reply


@pytest.mark.parametrize("release", ["masked", "private"])
def test_questions_that_narrow_values_are_exact_only(release):
    narrow = tuple(attribute.narrow(()) for attribute in ASKED)
    for kind, question in QUESTIONS.items():
        if kind != "tree.classes":
            question = msgspec.structs.replace(question, attributes=narrow)
        message = encode(wrap(kind, question, release=release, name=f"{release}-{kind}"))
        reply = open_reply(deliver(SITE, message))
        assert isinstance(reply, Refusal)
        assert reply.rule == "message"


@pytest.mark.parametrize(
    ("experts", "said"),
    [
        ([], "must be odd"),
        ([Voter([], []), Voter([], [])], "must be odd"),
        ([Voter([], [1])], "a node that its tree does not have"),
        ([Voter([Split(0, 0, [1, 2]), Split(0, 0, [3, 4])], [])], "split twice"),
        ([Voter([Split(0, 5, [1, 2])], [])], "not connected"),
    ],
)
def test_votes_of_no_sense_are_refused(experts, said):
    question = msgspec.structs.replace(QUESTIONS["tree.votes"], experts=experts)
    reply = open_reply(deliver(SITE, encode(wrap("tree.votes", question))))
    assert isinstance(reply, Refusal)
    assert said in reply.reason
