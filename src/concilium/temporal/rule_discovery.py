"""`RuleDiscovery`: what many patients have in common, and who may know (docs/methods.md, sections 6.7 to 6.12).

Each patient has a list of rules, given or learned at the hospital from that patient's own series. Which rules do many
patients share? Three answers, by whom the patients have to trust:

secure-sum   sums over all hospitals under masks, with noise; each patient is protected with all its rules
             (`converse_by_sums`, `AskRuleCounts`)
local        one randomised report of each patient: nobody need be trusted, and few rules are seen
             (`converse_by_reports`, `AskRuleReports`)
rule         the search of the paper, corrected: protects one rule, not one patient, and says so
             (`converse_along_paths`, `AskRuleBits`)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError, StudyError
from concilium.models.explanation import Explanation
from concilium.models.method import Delta, Epsilon, PrivateMethod, QueryText, as_written, documented
from concilium.models.prediction import KnownOutcomes
from concilium.models.series_reading import AnySeries
from concilium.models.threshold import TALLIED, CallingRule, Decided, DecisionRule, decide
from concilium.parameters import share
from concilium.privacy.accounting import Plan, exact_delta, exact_positive
from concilium.protocol.conversation import Conversation, Learned, Partners
from concilium.records.clinical_ranges import CLINICAL_RANGES, place_limits
from concilium.records.patients import Patients
from concilium.records.query import Query
from concilium.records.series import Series
from concilium.records.series_outcomes import find_windows
from concilium.records.time_grid import count_steps
from concilium.temporal.discovery_body import (
    DiscoveryBody,
    FoundRule,
    draw_prevalences,
    explain_courses,
    is_complete,
    score_courses,
    write_table,
)
from concilium.temporal.discovery_conversations import (
    converse_along_paths,
    converse_by_reports,
    converse_by_sums,
)
from concilium.temporal.discovery_parameters import (
    TRUST,
    Allocation,
    Carry,
    Clients,
    Horizon,
    Limits,
    MostLimits,
    MostQuestions,
    MostRules,
    Outcome,
    Step,
    Theta,
    Threshold,
    Trust,
    WindowLength,
    plan_questions,
    say_protection,
)
from concilium.temporal.discovery_search import MOST_TEMPLATES, LevelSearch
from concilium.temporal.local_search import LocalSearch
from concilium.temporal.path_search import PathSearch
from concilium.temporal.rule_grammar import VARIABLES
from concilium.temporal.rule_questions import PARAMETER_SHARE
from concilium.temporal.rule_task import LearningTask, PublicLimits, RuleTask, open_grammar
from concilium.temporal.site_rules import prepare, read_courses

SIZE_SHARE, NAME_SHARE, OUTCOME_SHARE = Fraction(1, 1000), Fraction(1, 20), Fraction(1, 4)
"""Of the budget: for how many patients there are, for which variables occur, for what rules say of the outcome."""


@documented
@dataclass(eq=False, repr=False)
class RuleDiscovery(PrivateMethod[DiscoveryBody]):
    """`RuleDiscovery(outcome="sepsis", threshold=0.01, epsilon=1.0).fit(house).rules_`."""

    method: ClassVar[str] = "discovery"
    called: ClassVar[str] = "a RuleDiscovery"
    description: ClassVar[str] = "the temporal rules that many patients have in common"
    body_type: ClassVar[type[DiscoveryBody]] = DiscoveryBody
    releases: ClassVar[tuple[str, ...]] = tuple(TRUST.values())
    compares: ClassVar[bool] = False
    reads_courses: ClassVar[bool] = True
    pure_releases: ClassVar[tuple[str, ...]] = ("local",)
    answers_at_random: ClassVar[bool] = True
    differs_from_pooled: ClassVar[str] = "has answers that are drawn at random"
    decides: ClassVar[str] = "the outcome is called where its rules speak for it, were it as frequent as not"

    outcome: Outcome
    query: QueryText = ""
    threshold: Threshold = 0.01
    epsilon: Epsilon = 1.0
    delta: Delta = "1e-6"
    trust: Trust = "secure-sum"
    bins: Limits = field(default_factory=dict)
    window: WindowLength = None
    step: Step = "1h"
    carry: Carry = "24h"
    limits: MostLimits = 3
    most_rules: MostRules = 100
    horizon: Horizon = 12
    clients: Clients = None
    allocation: Allocation = "adaptive"
    theta: Theta = 0.05
    questions: MostQuestions = 2000
    decision: DecisionRule = "majority"

    @property
    def release(self) -> str:  # type: ignore[override]
        return TRUST[self.trust]

    @property
    def target(self) -> str:  # type: ignore[override]
        return self.outcome

    @property
    def must_know(self) -> str:
        return ""

    def find_decision_fault(self, rule: CallingRule) -> str | None:
        if rule.kind in ("prevalence", *TALLIED):
            return (
                "its rules speak for the outcome were it as frequent as not, so that a half is prevalence already, and "
                "nobody counted patients by what they say; take a cost"
            )
        if rule.kind == "cost" and self.window is None:
            return "without a window its rules say nothing of an outcome"
        return None

    def check(self) -> None:
        if self.trust == "local" and self.query:
            raise StudyError(
                "under trust = 'local' everybody is asked, so that there is no query: how many patients match it would "
                "be told exactly"
            )
        if self.window is not None and count_steps(self.window, self.step, "window") < 1:
            raise self.wrong("window", f"at least one step of {self.step} long", self.window)
        if self.outcome in self.task.names:
            raise StudyError(f"rules are not about the outcome {self.outcome!r} itself: take it out of bins")

    def check_before_proposing(self) -> None:
        if self.clients is not None:
            self.check_feasible(self.clients)

    @property
    def exact_epsilon(self) -> Fraction:
        return exact_positive(as_written(self.epsilon), "epsilon")

    @property
    def pure_price(self) -> Fraction | None:
        return self.exact_epsilon if self.trust == "local" else None

    @property
    def exact_threshold(self) -> Fraction:
        return share(self.threshold)

    @cached_property
    def task(self) -> RuleTask:
        """What every question repeats of the study."""
        known = {
            name: place_limits(CLINICAL_RANGES[name]) for name in CLINICAL_RANGES if name != self.outcome
        }
        edges = self.bins or known
        learning = None
        if self.window is not None:
            learning = LearningTask(self.outcome, self.step, self.window, self.carry, self.most_rules)
        listed = [PublicLimits(name, tuple(map(float, own))) for name, own in sorted(edges.items())]
        return RuleTask(tuple(listed), self.horizon, self.limits, learning)

    def split_budget(self) -> dict[str, Fraction]:
        """rho for each part of a search by sums; together all of it, exactly."""
        grammar = open_grammar(self.task)
        many = any(grammar.count_children(form, VARIABLES) > MOST_TEMPLATES for form in grammar.skeletons)
        parts = {
            "clients": SIZE_SHARE if self.clients is None else Fraction(0),
            "names": NAME_SHARE if many else Fraction(0),
            "outcomes": OUTCOME_SHARE if self.window is not None else Fraction(0),
        }
        parts["levels"] = 1 - sum(parts.values(), Fraction(0))
        return {part: self.rho * own for part, own in parts.items()}

    def open_search(self, names: tuple[str, ...] = (), noise_factor: Fraction = Fraction(1)) -> LevelSearch:
        """The search by sums, over all variables or over these, of answers with so much more noise than asked for."""
        return LevelSearch(
            open_grammar(self.task, names),
            self.exact_threshold,
            self.split_budget()["levels"],
            self.most_rules,
            noise_factor=noise_factor,
        )

    def open_local_search(self) -> LocalSearch:
        return LocalSearch(open_grammar(self.task), self.exact_threshold, self.exact_epsilon)

    def open_path_search(self, patients: int) -> PathSearch:
        threshold = float(self.exact_threshold)
        return PathSearch(
            open_grammar(self.task),
            threshold,
            self.exact_epsilon,
            patients,
            "adaptive" if self.allocation == "adaptive" else "uniform",
            theta=self.theta,
            margin=threshold / 2,
            questions=self.questions,
            reserved=PARAMETER_SHARE,
        )

    def check_feasible(self, patients: int) -> None:
        """StudyError where so many patients cannot show a rule at this budget, with what would do."""
        if patients < 1:
            raise StudyError("this study cannot work: there is no patient")
        if self.trust == "local":
            self.open_local_search().check_feasible(patients)
        elif self.trust == "rule":
            self.open_path_search(patients).check_feasible()
        else:
            self.open_search().check_feasible(patients, exact_delta(as_written(self.delta)))

    def plan(self) -> Plan:
        return Plan("rho", tuple(plan_questions(self)))

    def converse(self, partners: Partners) -> Conversation[Learned[DiscoveryBody]]:
        if self.trust == "local":
            return converse_by_reports(self)
        if self.trust == "rule":
            return converse_along_paths(self)
        return converse_by_sums(self, partners)

    def conclude(
        self, patients: float, rules: list[FoundRule], warnings: Sequence[str]
    ) -> Learned[DiscoveryBody]:
        """What a conversation ends with."""
        decided, said = decide(self.decision, 1, 0.5)
        body = DiscoveryBody(
            outcome=self.outcome,
            query=self.query,
            trust=self.trust,
            threshold=str(self.threshold),
            epsilon=str(self.epsilon),
            delta=str(self.delta),
            protects=say_protection(self),
            patients=max(patients, 0.0),
            asked=[f"{kind}: {note} ({cost})" for kind, cost, note in self.plan().rows()[:-1]],
            step=self.step,
            window=self.window,
            carry=self.carry,
            rules=rules,
            decided=decided,
        )
        return Learned(body, {}, [body.protects, *warnings], said)

    @property
    def rules_(self) -> list[FoundRule]:
        """The rules that were found, the most frequent first: text, prevalence, interval, parameters."""
        return list(self.body.rules)

    @property
    def attributes_(self) -> list[str]:
        return sorted({name for rule in self.body.rules for name in rule.formula.variables})

    def predict_proba(self, patients: AnySeries) -> NDArray[np.float64]:
        """For each patient how the rules speak for the outcome; columns as in classes_.

        Where the study asked what rules say of the outcome: how likely it is, were it as frequent as not. Where it did
        not: the share of the rules that hold, each counting by how many patients have it.
        """
        likely = score_courses(self.body, self._read(patients))
        return np.column_stack([1 - likely, likely])

    @property
    def placed(self) -> Decided:
        # By what was released the outcome is as frequent as not, so that a half is what is common.
        return self.decided or Decided("prevalence", 1, math.nextafter(0.5, 1))

    def find_unadaptable(self) -> str | None:
        if self.window is None:
            return (
                "this discovery was made without a window, so that its rules say what patients have in common and "
                "nothing of an outcome: there is nothing to adapt"
            )
        if not any(rule.if_true or rule.if_false for rule in self.body.rules):
            return "no rule of this model says anything of the outcome: there is nothing to adapt"
        return None

    def find_outcomes(self, patients: Patients) -> KnownOutcomes:
        """One window of each patient whom the query selects, and whether it has the outcome (`AskRuleOutcomes`)."""
        learning = self.task.learning
        if learning is None:
            raise ModelError(
                "this discovery was made without a window, so that its rules say nothing of an outcome"
            )
        if patients.series is None:
            raise ModelError("this model is about series of patients, and there are none")
        # What the rules are about: a model file does not tell the limits of the study, which are not needed here.
        variables = tuple(PublicLimits(name, ()) for name in self.attributes_) or self.task.variables
        task = RuleTask(variables, self.task.horizon, self.task.limits, learning)
        series = prepare(patients.series, task)
        ends, positive = find_windows(series, learning.outcome, learning.steps)
        about = Query.parse(self.query).mask(patients.selectable)
        rows = np.flatnonzero((ends > 0) & about)
        asked = series.choose(task.names).cut(ends[rows], learning.steps, rows) if len(rows) else series
        return KnownOutcomes(asked, positive[rows].astype(int).tolist(), rows)

    def explain(self, patient: Mapping[str, Any]) -> Explanation:
        """Why the rules speak for or against the outcome of this patient, {"HR": [88, 95, ...], ...}."""
        return self._say_decided(self._explain(patient))

    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        return explain_courses(self.body, self._read([patient]))

    def _read(self, patients: AnySeries) -> Series:
        body = self.body
        names = self.attributes_ or list(self.task.names)
        rules = [rule.formula for rule in body.rules if is_complete(rule)]
        return read_courses(patients, rules, names, body.step, body.window, body.carry)

    def text(self) -> str:
        return write_table(self.body)

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """How many patients have each rule, as SVG; none where no rule was found."""
        rules = self.body.rules
        return {"prevalence": draw_prevalences(rules, self.body.outcome, whole=whole)} if rules else {}

    def _summary(self) -> str:
        return f"{len(self.body.rules)} rules"
