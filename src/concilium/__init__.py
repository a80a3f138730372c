"""Hospitals that decide together, and keep their patients to themselves.

The public names, loaded when they are first used: `import concilium as cc`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concilium import errors as errors
    from concilium import policy as policy
    from concilium import privacy as privacy
    from concilium.codes.recipient import SharedCodes as SharedCodes
    from concilium.codes.sharing import CodeSharing as CodeSharing
    from concilium.codes.taxonomy import Taxonomy as Taxonomy
    from concilium.consultations.consultation import Consultation as Consultation
    from concilium.experts.experts import Experts as Experts
    from concilium.ledger.ledger import Ledger as Ledger
    from concilium.models.model_file import load as load
    from concilium.models.recalibrated import adapt as adapt
    from concilium.policy.policy import Budget as Budget
    from concilium.policy.policy import Policy as Policy
    from concilium.protocol.house import House as House
    from concilium.protocol.region import Region as Region
    from concilium.protocol.site import Site as Site
    from concilium.records.dictionary import Dictionary as Dictionary
    from concilium.records.patients import Patients as Patients
    from concilium.records.query import Query as Query
    from concilium.records.sequences import Sequences as Sequences
    from concilium.records.series import Series as Series
    from concilium.records.table import Records as Records
    from concilium.records.table_map import TableMap as TableMap
    from concilium.rulefit.rulefit import RuleFit as RuleFit
    from concilium.shapes.shape_model import ShapeModel as ShapeModel
    from concilium.statistics.cox import CoxRegression as CoxRegression
    from concilium.statistics.describe import Describe as Describe
    from concilium.statistics.regression import Regression as Regression
    from concilium.statistics.survival_curve import SurvivalCurve as SurvivalCurve
    from concilium.study.study import Study as Study
    from concilium.temporal import stl as stl
    from concilium.temporal.rule_discovery import RuleDiscovery as RuleDiscovery
    from concilium.temporal.rule_sets import RuleSets as RuleSets
    from concilium.trees.naive_bayes import NaiveBayes as NaiveBayes
    from concilium.trees.tree import DecisionTree as DecisionTree
    from concilium.trees.voting import VotingTrees as VotingTrees

__version__ = "0.1.0"

_PLACES = {
    "Budget": "concilium.policy.policy",
    "CodeSharing": "concilium.codes.sharing",
    "Consultation": "concilium.consultations.consultation",
    "CoxRegression": "concilium.statistics.cox",
    "DecisionTree": "concilium.trees.tree",
    "Describe": "concilium.statistics.describe",
    "Dictionary": "concilium.records.dictionary",
    "Experts": "concilium.experts.experts",
    "House": "concilium.protocol.house",
    "Ledger": "concilium.ledger.ledger",
    "NaiveBayes": "concilium.trees.naive_bayes",
    "Patients": "concilium.records.patients",
    "Policy": "concilium.policy.policy",
    "Query": "concilium.records.query",
    "Records": "concilium.records.table",
    "Region": "concilium.protocol.region",
    "Regression": "concilium.statistics.regression",
    "RuleDiscovery": "concilium.temporal.rule_discovery",
    "RuleFit": "concilium.rulefit.rulefit",
    "RuleSets": "concilium.temporal.rule_sets",
    "Sequences": "concilium.records.sequences",
    "Series": "concilium.records.series",
    "ShapeModel": "concilium.shapes.shape_model",
    "SharedCodes": "concilium.codes.recipient",
    "Site": "concilium.protocol.site",
    "Study": "concilium.study.study",
    "SurvivalCurve": "concilium.statistics.survival_curve",
    "TableMap": "concilium.records.table_map",
    "Taxonomy": "concilium.codes.taxonomy",
    "VotingTrees": "concilium.trees.voting",
    "adapt": "concilium.models.recalibrated",
    "load": "concilium.models.model_file",
}
_MODULES = {
    "errors": "concilium.errors",
    "policy": "concilium.policy",
    "privacy": "concilium.privacy",
    "stl": "concilium.temporal.stl",
}

__all__ = sorted([*_PLACES, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        value = getattr(importlib.import_module(_PLACES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    else:
        raise AttributeError(f"module 'concilium' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
