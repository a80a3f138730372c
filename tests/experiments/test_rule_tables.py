"""The nine rules that the paper prints: each is found by a discovery whose patients have it."""

from __future__ import annotations

import pytest

import concilium as cc
from concilium.temporal.parsing import parse
from concilium.temporal.rule_grammar import STRUCTURE, abstract
from rule_tables import TABLE_1

RICH = cc.Policy(budget=cc.Budget("unlimited"))


@pytest.mark.parametrize("text", [text for texts in TABLE_1.values() for text in texts])
def test_a_discovery_of_given_rules_finds_those_of_table_1(text):
    """A rule of four limits needs `limits = 4`."""
    rule = parse(text)
    bins = {variable: [0.5, 50.0] for variable in rule.variables}
    sites = [cc.Site(name, cc.RuleSets([[rule]] * 400), RICH) for name in ("north", "south", "west")]
    found = cc.RuleDiscovery(outcome="x", prevalence=0.5, epsilon=8.0, limits=4, most_rules=1, bins=bins)
    assert [one.structure for one in found.fit(sites).rules_] == [str(abstract(rule, STRUCTURE))]
