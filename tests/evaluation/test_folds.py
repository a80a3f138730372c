"""Folds learned together: each is the model of its sites alone, every number is charged once, losses are definite."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import HouseError
from concilium.evaluation.folds import _plant, learn_folds
from concilium.evaluation.leave_out import leave_bands_out, leave_sites_out
from strategies import federations

ROWS = [
    {"a": i % 3, "b": "xyz"[i % 7 % 3], "c": i % 5 % 2, "age": 20 + i * 7 % 60 + 0.5, "y": i * i % 11 % 3 % 2}
    for i in range(120)
]


def parts(count=5):
    return {f"s{i}": ROWS[i::count] for i in range(count)}


def open_sites(tables, policies=None):
    return {
        name: cc.Site(
            name,
            cc.Records.from_rows(rows),
            policy=(policies or {}).get(name),
            division_key=f"the key of {name}".encode(),
        )
        for name, rows in tables.items()
    }


def learn(folds, sites, house=None, **tree):
    """The folds learned together with these sites."""

    def open_house(fold):
        members = sites.values() if fold is None else [sites[name] for name in fold.learn]
        return cc.House(list(members), **(house or {}))

    return learn_folds(lambda: cc.DecisionTree("y", **{"growth": "id3", **tree}), folds, open_house)


def fit_alone(tables, fold, policies=None, **tree):
    sites = open_sites({name: tables[name] for name in fold.learn}, policies)
    return cc.DecisionTree("y", **{"growth": "id3", **tree}).fit(cc.House(list(sites.values())))


def sizes_of(tables):
    return {name: len(rows) for name, rows in tables.items()}


class Crashing:
    """A site that answers some questions and then is gone."""

    def __init__(self, site, answers):
        self.name, self._site, self._left = site.name, site, answers
        self.identity, self.introduce = site.identity, site.introduce

    def answer(self, message):
        if self._left <= 0:
            raise ConnectionError("the wire is cut")
        self._left -= 1
        return self._site.answer(message)


@st.composite
def limits(draw):
    chosen = {"max_depth": draw(st.one_of(st.none(), st.integers(0, 3))), "min_leaf": draw(st.integers(1, 3))}
    chosen["growth"] = draw(st.sampled_from(["readable", "id3"]))
    if draw(st.booleans()):
        chosen["criterion"] = "gain-ratio"
    if draw(st.booleans()):
        chosen["reduce"] = draw(st.sampled_from([0, 0.2]))
    return chosen


def test_folds_without_any_attribute_have_the_classes_of_their_own_sites():
    tables = {"s0": [{"y": "no"}] * 10 + [{"y": "yes"}], "s1": [{"y": "no"}] * 4}
    folds = leave_bands_out(sizes_of(tables), 2)
    learned = learn(folds, open_sites(tables), growth="readable")
    alone = [fit_alone(tables, fold, growth="readable") for fold in folds]
    assert [model.body for model in learned.models] == [model.body for model in alone]


@given(federations(most_sites=6), st.data(), limits())
@settings(max_examples=120)
def test_every_fold_is_the_model_of_its_sites_alone(tables, data, tree):
    if len(tables) < 2:
        return
    folds = leave_bands_out(sizes_of(tables), data.draw(st.integers(2, len(tables))))
    policies = {}
    if data.draw(st.integers(0, 5)) == 0:
        policies = {data.draw(st.sampled_from(sorted(tables))): cc.Policy(branch_floor=3)}
    try:
        alone = [fit_alone(tables, fold, policies, **tree) for fold in folds]
    except HouseError:
        with pytest.raises(HouseError):
            learn(folds, open_sites(tables, policies), **tree)
        return
    learned = learn(folds, open_sites(tables, policies), **tree)
    assert [model.body for model in learned.models] == [model.body for model in alone]
    for model, one in zip(learned.models, alone, strict=True):
        assert [(s.name, s.patients) for s in model.card.sites] == [
            (s.name, s.patients) for s in one.card.sites
        ]
        assert model.card.rounds == one.card.rounds


@pytest.mark.parametrize(
    "tree",
    [
        {"attributes": ["a", "b", "c"]},
        {"growth": "readable", "min_leaf": 1},
        {"bins": {"age": [30, 40, 50, 60, 70]}, "cutoffs": 2},
        {"bins": {"age": [40, 60]}},
    ],
)
def test_numbers_are_asked_for_and_charged_once(tree):
    tables = parts()
    sites = open_sites(tables)
    folds = leave_sites_out(sizes_of(tables))
    learned = learn(folds, sites, **tree)
    assert learned.together == len(folds)
    alone = [fit_alone(tables, fold, **tree) for fold in folds]
    assert [model.body for model in learned.models] == [model.body for model in alone]

    def numbers(cards):
        return sum(release.numbers for card in cards for release in card.releases)

    assert numbers([learned.card]) < numbers([model.card for model in alone])
    assert learned.card.rounds == max(model.card.rounds for model in alone)
    for site in sites.values():
        charged = [entry for entry in site.ledger.entries() if entry.question]
        assert len(charged) == learned.card.rounds
        assert sum(entry.numbers for entry in charged) == numbers([learned.card]) / len(sites)


def test_folds_that_cut_a_number_elsewhere_share_a_question():
    """Each hospital has ages of its own, so that the quantiles of each fold are others."""
    tables = {
        f"s{i}": [{"age": 20.5 + 13 * i + n * (7 + 2 * i) % 31, "y": n * (i + 3) % 7 % 2} for n in range(60)]
        for i in range(5)
    }
    folds = leave_sites_out(sizes_of(tables))
    for growth in ("readable", "id3"):
        learned = learn(folds, open_sites(tables), growth=growth, min_leaf=3)
        assert learned.together == 5
        assert len({tuple(model.body.bins["age"]) for model in learned.models}) > 1
        alone = [fit_alone(tables, fold, growth=growth, min_leaf=3) for fold in folds]
        assert [model.body for model in learned.models] == [model.body for model in alone]


def test_the_cards_say_how_it_was_done():
    learned = learn(leave_sites_out(sizes_of(parts())), open_sites(parts()))
    assert any("5 folds were learned in one conversation" in said for said in learned.card.warnings)
    assert [site.name for site in learned.card.sites] == list(parts())
    for model in learned.models:
        assert not model.card.releases
        assert any("on the card of that" in said for said in model.card.warnings)


def test_what_cannot_be_shared_is_learned_alone():
    tables = parts()
    tables["s1"] = [{k: v for k, v in row.items() if k != "a"} for row in tables["s1"]]
    folds = leave_sites_out(sizes_of(tables))
    learned = learn(folds, open_sites(tables))
    # Only where s1 is left out do all others know the attribute.
    assert learned.together == 4
    assert [model.body for model in learned.models] == [fit_alone(tables, fold).body for fold in folds]
    assert "a" in learned.models[1].attributes_


def test_a_site_that_leaves_small_counts_out_is_asked_one_tree_at_a_time():
    tables = parts()
    folds = leave_sites_out(sizes_of(tables))
    for policy in (cc.Policy(minimum_cell=3), cc.Policy(branch_floor=5)):
        learned = learn(folds, open_sites(tables, {"s2": policy}))
        assert (learned.together, learned.card) == (0, None)
        expected = [fit_alone(tables, fold, {"s2": policy}) for fold in folds]
        assert [model.body for model in learned.models] == [model.body for model in expected]


def test_masked_folds_are_learned_alone_which_the_sites_themselves_refuse():
    with pytest.raises(HouseError, match="opens none with another circle of hospitals"):
        learn(leave_sites_out(sizes_of(parts())), open_sites(parts()), release="masked")


@pytest.mark.parametrize(("name", "value"), [("folds.AT_ONCE", 2), ("folds.MOST_NUMBERS", 50)])
def test_few_at_a_time_gives_the_same(monkeypatch, name, value):
    monkeypatch.setattr(f"concilium.evaluation.{name}", value)
    tables = parts()
    folds = leave_sites_out(sizes_of(tables))
    learned = learn(folds, open_sites(tables))
    assert learned.together == 5
    assert [model.body for model in learned.models] == [fit_alone(tables, fold).body for fold in folds]


@pytest.mark.parametrize("lose_after", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("at_once", [64, 3])
def test_a_lost_site_leaves_the_folds_of_the_rest(monkeypatch, lose_after, at_once):
    monkeypatch.setattr("concilium.evaluation.folds.AT_ONCE", at_once)
    tables = parts()
    sites = open_sites(tables)
    sites["s3"] = Crashing(sites["s3"], lose_after)
    folds = leave_sites_out(sizes_of(tables))
    learned = learn(folds, sites)
    stayed = {name: rows for name, rows in tables.items() if name != "s3"}
    for fold, model in zip(folds, learned.models, strict=True):
        rest = [cc.Site(n, cc.Records.from_rows(stayed[n])) for n in fold.learn if n in stayed]
        assert model.body == cc.DecisionTree("y", growth="id3").fit(cc.House(rest)).body
    assert [loss.site for loss in learned.card.dropouts] == ["s3"]


def test_a_house_that_stops_stops_with_the_name():
    sites = open_sites(parts())
    sites["s3"] = Crashing(sites["s3"], 3)
    with pytest.raises(HouseError, match=r"stopped in round 3: s3: .*the wire is cut"):
        learn(leave_sites_out(sizes_of(parts())), sites, house={"on_loss": "stop"})


def test_a_fold_that_fails_ends_all():
    asked = []

    def make():
        asked.append(1)
        return cc.DecisionTree("y") if len(asked) < 3 else None

    sites = open_sites(parts())
    with pytest.raises(AttributeError):
        learn_folds(make, leave_sites_out(sizes_of(parts())), lambda fold: cc.House(list(sites.values())))


def test_an_interrupted_conversation_resumes(tmp_path):
    journal = {"on_loss": "stop", "journal": tmp_path / "folds.journal"}
    folds = leave_sites_out(sizes_of(parts()))
    sites = open_sites(parts())
    whole = sites["s3"]
    sites["s3"] = Crashing(whole, 3)
    with pytest.raises(HouseError, match="stopped in round 3"):
        learn(folds, sites, house=journal)
    sites["s3"] = whole
    learned = learn(folds, sites, house=journal)
    assert [model.body for model in learned.models] == [fit_alone(parts(), fold).body for fold in folds]
    for site in sites.values():
        questions = [entry.question for entry in site.ledger.entries() if entry.question]
        assert len(questions) == len(set(questions)) == learned.card.rounds


def test_when_every_other_site_refuses_the_fold_says_so():
    tables = {"s0": ROWS[:40], "s1": ROWS[40:42]}
    with pytest.raises(HouseError, match="no site answered of those that this fold learns from"):
        learn(leave_sites_out(sizes_of(tables)), open_sites(tables))


GROUPS = st.sets(st.integers(0, 2), min_size=1, max_size=2).map(lambda group: tuple(sorted(group)))


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), GROUPS), max_size=4, unique=True), max_size=8))
def test_a_planted_tree_leads_to_every_node(paths):
    paths = [tuple(path) for path in paths]
    splits, ends = _plant(paths, [3, 3, 3, 3])
    reached = {0: ()}
    for split in splits:
        for child in set(split.children) - {-1}:
            assert child not in reached
            group = tuple(value for value, end in enumerate(split.children) if end == child)
            reached[child] = (*reached[split.node], (split.attribute, group))
    assert [reached[end] for end in ends] == paths


@pytest.mark.parametrize("options", [{"group": True}, {"prune": 0.4}, {"group": True, "prune": 0.3}])
def test_folds_of_grouped_and_pruned_trees_are_learned_together_too(options):
    tables = parts()
    folds = leave_sites_out({name: len(rows) for name, rows in tables.items()})
    learned = learn(folds, open_sites(tables), bins={"age": [30, 45, 60]}, **options)
    assert learned.together == len(folds)
    for fold, model in zip(folds, learned.models, strict=True):
        alone = cc.DecisionTree("y", growth="id3", bins={"age": [30, 45, 60]}, **options)
        alone.fit(cc.House(list(open_sites({name: tables[name] for name in fold.learn}).values())))
        assert model.body == alone.body
