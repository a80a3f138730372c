"""Folds learned together: each is the model of its sites alone, every number is charged once, losses are definite."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import HouseError
from concilium.evaluation import shared_folds
from concilium.evaluation.leave_out import Fold, leave_bands_out, leave_sites_out
from concilium.evaluation.shared_folds import learn_folds
from strategies import federations


def open_sites(tables, policies=None):
    return {
        name: cc.Site(name, cc.Records.from_rows(rows), policy=(policies or {}).get(name))
        for name, rows in tables.items()
    }


def learn(folds, sites, options=None, house=None, **tree):
    """The folds learned together with these sites, and how many questions each house asked."""

    def open_house(fold):
        members = sites.values() if fold is None else [sites[name] for name in fold.learn]
        return cc.House(list(members), **(house or {}))

    return learn_folds(lambda: cc.DecisionTree("y", **tree), folds, open_house)


def fit_alone(tables, fold, policies=None, **tree):
    sites = open_sites({name: tables[name] for name in fold.learn}, policies)
    return cc.DecisionTree("y", **tree).fit(cc.House(list(sites.values())))


@st.composite
def settings_of_a_tree(draw):
    chosen = {"max_depth": draw(st.one_of(st.none(), st.integers(0, 3))), "min_leaf": draw(st.integers(1, 3))}
    if draw(st.booleans()):
        chosen["criterion"] = "gain-ratio"
    if draw(st.booleans()):
        chosen["reduce"] = draw(st.sampled_from([0, 0.2]))
    return chosen


@given(federations(most_sites=6), st.data(), settings_of_a_tree())
@settings(max_examples=120)
def test_every_fold_is_the_model_of_its_sites_alone(tables, data, tree):
    if len(tables) < 2:
        return
    sizes = {name: len(rows) for name, rows in tables.items()}
    bands = data.draw(st.integers(2, len(tables)))
    folds = leave_bands_out(sizes, bands)
    try:
        alone = [fit_alone(tables, fold, **tree) for fold in folds]
    except HouseError:
        with pytest.raises(HouseError):
            learn(folds, open_sites(tables), **tree)
        return
    learned = learn(folds, open_sites(tables), **tree)
    assert [model.body for model in learned.models] == [model.body for model in alone]
    for model, one in zip(learned.models, alone, strict=True):
        assert [(s.name, s.patients) for s in model.card.sites] == [(s.name, s.patients) for s in one.card.sites]
