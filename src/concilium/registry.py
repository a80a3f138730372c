"""The closed lists: what a house may ask, how an answer may leave a hospital, what can be learned or handed on.

Whoever adds a kind of question, a release or a method writes one file (a method: a package) and one line here. A name
that is not listed is refused, wherever it comes from: a message, a policy, a study file, a model file. Places are
`module:name` and are loaded when they are first needed.
"""

from __future__ import annotations

import importlib
from collections import ChainMap
from typing import Any, NamedTuple


class ListedRelease(NamedTuple):
    """Where a release is; whether what it lets out has a price; whether that bounds all of it (differential privacy:
    of patients' own entries some are unprotected, whatever is paid for the others); whether models are learned by
    it; and whether its price is always pure epsilon."""

    place: str
    priced: bool
    bounded: bool
    of_models: bool = True
    pure: bool = False


KINDS = {
    "codes.counts": "concilium.codes.code_counts:AskCodeCounts",
    "codes.shared": "concilium.codes.shared_codes:AskSharedCodes",
    "columns": "concilium.protocol.schema:AskColumns",
    "counts": "concilium.protocol.counts:AskCounts",
    "experts.counts": "concilium.experts.expert_answers:AskExpertCounts",
    "experts.grown": "concilium.experts.expert_answers:AskGrownExperts",
    "experts.labels": "concilium.experts.expert_answers:AskExpertLabels",
    "mask.hello": "concilium.protocol.masking:Hello",
    "mask.join": "concilium.protocol.masking:Join",
    "mask.meet": "concilium.protocol.masking:Meet",
    "mask.open": "concilium.protocol.masking:Open",
    "mask.end": "concilium.protocol.masking:End",
    "model.own": "concilium.evaluation.donors:AskOwnModel",
    "model.risks": "concilium.models.risk_counts:AskRiskCounts",
    "region.relay": "concilium.protocol.relay:Relay",
    "rulefit.schema": "concilium.rulefit.cutoffs:AskRuleSchema",
    "rulefit.rules": "concilium.rulefit.generation:AskRules",
    "rulefit.fit": "concilium.rulefit.fitting:AskFit",
    "rulefit.folds": "concilium.rulefit.fitting:AskFolds",
    "rulefit.gradient": "concilium.rulefit.gradient:AskGradient",
    "rulefit.dual": "concilium.rulefit.fedda:AskDual",
    "rulefit.rates": "concilium.rulefit.fitting:AskRates",
    "rules.bits": "concilium.temporal.rule_questions:AskRuleBits",
    "rules.codes": "concilium.temporal.rule_questions:AskRuleCodes",
    "rules.counts": "concilium.temporal.rule_questions:AskRuleCounts",
    "rules.gradient": "concilium.temporal.outcome_questions:AskRuleGradient",
    "rules.hours": "concilium.temporal.outcome_questions:AskOutcomeHours",
    "rules.outcome-reports": "concilium.temporal.outcome_questions:AskOutcomeReports",
    "rules.outcomes": "concilium.temporal.outcome_questions:AskRuleOutcomes",
    "rules.reports": "concilium.temporal.rule_questions:AskRuleReports",
    "shapes.directions": "concilium.shapes.private_sums:AskDirections",
    "shapes.sums": "concilium.shapes.shape_sums:AskShapes",
    "statistics.cox": "concilium.statistics.cox_sums:AskCox",
    "statistics.cox-cells": "concilium.statistics.cox_sums:AskCoxCells",
    "statistics.moments": "concilium.statistics.moments:AskMoments",
    "statistics.hazards": "concilium.statistics.private_hazards:AskHazards",
    "statistics.own-fits": "concilium.statistics.own_fits:AskOwnFits",
    "statistics.regression": "concilium.statistics.regression_sums:AskRegression",
    "study.propose": "concilium.protocol.terms:Propose",
    "tree.schema": "concilium.protocol.schema:AskSchema",
    "tree.classes": "concilium.trees.ensemble:AskClassCounts",
    "tree.votes": "concilium.trees.votes:AskVotes",
}

RELEASES = {
    "exact": ListedRelease("concilium.protocol.releases.exact:Exact", priced=False, bounded=False),
    "masked": ListedRelease("concilium.protocol.releases.masked:Masked", priced=False, bounded=False),
    "private": ListedRelease("concilium.protocol.releases.private:Private", priced=True, bounded=True),
    "local": ListedRelease("concilium.protocol.releases.local:Local", True, True, pure=True),
    "noised": ListedRelease("concilium.protocol.releases.noised:Noised", True, True, False, pure=True),
    "shared": ListedRelease("concilium.protocol.releases.shared:Shared", True, False, False, pure=True),
}

METHODS = {
    "tree": "concilium.trees.tree:DecisionTree",
    "voting-trees": "concilium.trees.voting:VotingTrees",
    "rulefit": "concilium.rulefit.rulefit:RuleFit",
    "shapes": "concilium.shapes.shape_model:ShapeModel",
    "naive-bayes": "concilium.trees.naive_bayes:NaiveBayes",
    "discovery": "concilium.temporal.rule_discovery:RuleDiscovery",
    "experts": "concilium.experts.experts:Experts",
    "consultation": "concilium.consultations.consultation:Consultation",
    "cox": "concilium.statistics.cox:CoxRegression",
    "describe": "concilium.statistics.describe:Describe",
    "regression": "concilium.statistics.regression:Regression",
    "survival-curve": "concilium.statistics.survival_curve:SurvivalCurve",
}

SHARINGS = {
    "code-counts": "concilium.codes.code_counts:CodeCounts",
    "code-sharing": "concilium.codes.agreed_sharing:AgreedSharing",
}
"""What hands on patients' own entries, randomised, or counts of them, and learns nothing: a policy must name it."""

VALIDATIONS = {
    "own-models": "concilium.evaluation.donors:OwnModels",
    "validation": "concilium.models.validation:Validation",
}
"""What measures models, and learns none for the house."""

PROPOSED = ChainMap(METHODS, SHARINGS, VALIDATIONS)
"""All that can stand in the terms of a study."""


def load(place: str) -> Any:
    """What stands at a place."""
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)
