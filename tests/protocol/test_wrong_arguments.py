"""Arguments of the wrong kind are one sentence, before anything is asked."""

from __future__ import annotations

import pytest

import concilium as cc
from concilium.errors import HouseError, PolicyError, StudyError

SITE = cc.Site("north", cc.Records.from_rows([{"a": i % 2, "y": i % 3 == 0} for i in range(20)]))


def test_fit_takes_a_house_or_a_list_of_sites():
    assert cc.DecisionTree("y").fit([SITE]).body == cc.DecisionTree("y").fit(cc.House([SITE])).body
    with pytest.raises(
        HouseError,
        match=r"fit takes a House, a list of sites or of tables, or tables by the names .*; got Site",
    ):
        cc.DecisionTree("y").fit(SITE)


@pytest.mark.parametrize("method", [cc.DecisionTree, cc.NaiveBayes, cc.RuleFit])
def test_the_target_is_no_attribute(method):
    with pytest.raises(
        StudyError, match=r"'y' is the target of .*, and cannot be among its 'attributes': take it out"
    ):
        method("y", attributes=["a", "y"])


@pytest.mark.parametrize(
    ("setting", "value"),
    [("withhold", "religion"), ("minimum_patients", "10"), ("differencing", "no"), ("peers", ["mercy"])],
)
def test_a_policy_says_which_setting_is_of_the_wrong_kind(setting, value):
    with pytest.raises(PolicyError, match=f"the policy's {setting} is not what it takes: expected"):
        cc.Policy(**{setting: value})


def test_a_policy_takes_lists_and_whole_numbers():
    policy = cc.Policy(withhold=["a"], numbers_per_patient=2, budget=cc.Budget(total="1/2"))
    assert cc.Site("north", cc.Records.from_rows([{"a": 1, "b": 2}]), policy).policy is policy
