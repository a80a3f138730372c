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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concilium.errors import ModelError, StudyError
from concilium.models.explanation import Explanation
from concilium.models.method import (
    Carry,
    Delta,
    Epsilon,
    PrivateMethod,
    QueryText,
    Step,
    as_written,
    documented,
    read_edges,
    time_span,
)
from concilium.models.prediction import AnySeries, KnownOutcomes, lay_out_courses
from concilium.models.threshold import TALLIED, CallingRule, DecisionRule, decide
from concilium.parameters import (
    MOST_COUNTED,
    Parameter,
    lists_by_column,
    name,
    names,
    number_between,
    one_of,
    share,
    whole_number,
)
from concilium.privacy.accounting import (
    Plan,
    PlannedQuestion,
    exact_delta,
    exact_positive,
    rho_from_pure,
    sigma_squared_for,
)
from concilium.protocol.questions import Conversation, Learned, Partners
from concilium.protocol.schema import LEFT_OUT
from concilium.records.clinical_ranges import CLINICAL_RANGES, place_limits
from concilium.records.columns import Value
from concilium.records.patients import PatientPart, Patients
from concilium.records.query import Query
from concilium.records.series import Series
from concilium.records.series_description import find_static
from concilium.records.series_times import count_steps
from concilium.temporal.discovery_body import (
    DiscoveryBody,
    FoundRule,
    OutcomeModel,
    draw_prevalences,
    explain_courses,
    find_similarity,
    find_weightiest,
    is_complete,
    read_courses,
    say_carried,
    score_courses,
    write_table,
)
from concilium.temporal.discovery_conversations import (
    GRADIENTS,
    converse_along_paths,
    converse_by_reports,
    converse_by_sums,
)
from concilium.temporal.discovery_search import MOST_TEMPLATES, LevelSearch
from concilium.temporal.local_search import LocalSearch, find_groups
from concilium.temporal.outcome_questions import find_judged_windows
from concilium.temporal.parsing import say_formula
from concilium.temporal.path_search import UNIT, PathSearch
from concilium.temporal.rule_grammar import VARIABLES
from concilium.temporal.rule_questions import PARAMETER_SHARE, carry_values, check_series, prepare
from concilium.temporal.rule_task import (
    MOST_HORIZON,
    MOST_LIMITS,
    LearningTask,
    PublicLimits,
    RuleTask,
    StaticColumn,
    open_grammar,
)
from concilium.temporal.trajectories import draw_patient

MOST_TEMPLATES_ASKED = 1_000_000
TRUST = {"secure-sum": "private", "local": "local", "rule": "exact"}
"""How answers leave the hospitals, by whom the patients trust."""


def _read_prevalence(value: Any) -> str | float | Fraction:
    if not 0 < share(value) < 1:
        raise ValueError
    kept: str | float | Fraction = value
    return kept


Outcome = Annotated[
    str,
    Parameter(
        "a name",
        name,
        "what the rules are about: of series the variable of 0 and 1 that says when it is there",
        "study",
    ),
]
Prevalence = Annotated[
    float | str | Fraction,
    Parameter(
        "a number between 0 and 1",
        _read_prevalence,
        "the share of the patients who must have a rule for it to be looked for",
    ),
]
Trust = Annotated[
    str,
    one_of(
        *TRUST,
        about='"secure-sum": patients trust that hospitals do not collude; "local": nobody; "rule": one rule is '
        "protected, not one patient",
    ),
]
Limits = Annotated[
    Mapping[str, Sequence[float]],
    Parameter(
        "lists of numbers",
        read_edges,
        "the variables that rules may be about, each with its public limits; without it: clinical ranges of fifty",
        "bins",
    ),
]
Variables = Annotated[
    Sequence[str] | None,
    Parameter(
        "a list of variables",
        names,
        "the variables that rules may be about, each cut by its bins or its clinical range; None: those of bins, or "
        "else fifty with clinical ranges",
    ),
]
StaticValues = Annotated[
    Mapping[str, Sequence[Value]],
    Parameter(
        "lists of values by column",
        lists_by_column,
        "of static columns that are codes: each value but the first is a condition beside the rules",
        "values",
    ),
]
Static = Annotated[
    Sequence[str] | None,
    Parameter(
        "a list of columns",
        names,
        "columns that do not change within a stay: conditions beside the rules, never variables of them; None: those "
        "of a public list of names, such as Age and Gender",
    ),
]
Clients = Annotated[
    int | None,
    whole_number(
        1,
        MOST_COUNTED,
        "how many patients take part, if that is public: then a study that cannot work is refused before anything is "
        "spent; None: under secure-sum a thousandth of the budget goes to find out",
    ),
]
MostRules = Annotated[int, whole_number(1, 1000, "the rules of one patient that count, at most")]
MostLimits = Annotated[int, whole_number(1, MOST_LIMITS, "the comparisons of a rule with a number, at most")]
Horizon = Annotated[
    int,
    whole_number(0, MOST_HORIZON, "the last step of intervals that are told apart, of rules that were given"),
]
WindowLength = Annotated[
    str | None,
    time_span(
        "6h",
        "hospitals hold series and learn each patient's rules from windows of this length; None: they hold rules",
    ),
]
Allocation = Annotated[
    str,
    one_of(
        "adaptive",
        "uniform",
        about="of trust = rule: what a question costs, as much as it takes or a share of all",
    ),
]
Percentile = Annotated[
    float,
    number_between(
        0,
        1,
        "the number that stands for those that patients have: so many of theirs are as small, or smaller",
    ),
]
Search = Annotated[
    str,
    one_of(
        "prevalence",
        "discrimination",
        about="what the search looks for: rules that many have, or also those that many with the outcome have, counted "
        "by outcome at the same price (with a window, under secure-sum)",
    ),
]
Theta = Annotated[
    float,
    number_between(0, 0.5, "of trust = rule: how often a rule at the threshold may be lost to a question"),
]
MostQuestions = Annotated[
    int, whole_number(1, MOST_TEMPLATES_ASKED, "of trust = rule: the questions, at most")
]


LEVEL_NOTES = (
    "patients who have each skeleton of a rule",
    "the same with variables",
    "the same with relations",
    "numbers and intervals of the rules that many have",
)


def _plan_questions(study: RuleDiscovery) -> Iterator[PlannedQuestion]:
    """The questions of a study, in order."""
    if study.trust == "local":
        yield PlannedQuestion("counts", None, "how many patients there are")
        groups = len(find_groups(study.window is not None))
        report = f"one randomised report of each patient, in {groups} groups"
        yield PlannedQuestion("rules.reports", rho_from_pure(study.exact_epsilon), report)
        if study.window is not None:
            yield PlannedQuestion(
                "rules.outcome-reports",
                None,
                f"how rules stand to the outcome{_say_beside(study)}, by the last group",
            )
    elif study.trust == "rule":
        yield PlannedQuestion("counts", None, "how many patients there are")
        bits = f"yes or no of each patient, flipped by a coin, for at most {study.questions} templates"
        yield PlannedQuestion("rules.bits", None, bits)
        yield PlannedQuestion(
            "rules.codes", None, "numbers and intervals of rules, randomised by each patient"
        )
    else:
        yield from _plan_sums(study)


def _say_beside(study: RuleDiscovery) -> str:
    static = study.task.static_names
    return f", and conditions on {', '.join(static)}" if static else ""


def _plan_sums(study: RuleDiscovery) -> Iterator[PlannedQuestion]:
    budget = study.split_budget()
    if budget["clients"]:
        yield PlannedQuestion("rules.counts", budget["clients"], "how many patients there are")
    if budget["names"]:
        names = f"which of {len(study.task.names)} variables their rules are about"
        yield PlannedQuestion("rules.counts", budget["names"], names)
    for note, rho in zip(LEVEL_NOTES, study.open_search().shares, strict=True):
        by = ", by outcome" if study.task.by_outcome and note != LEVEL_NOTES[-1] else ""
        yield PlannedQuestion("rules.counts", rho, f"{note}{by}")
    if study.window is None:
        yield PlannedQuestion("rules.counts", budget["rules"], "how many have these rules with these numbers")
        return
    yield PlannedQuestion("rules.hours", budget["hours"], "hours since admission at which the outcome begins")
    yield PlannedQuestion(
        "rules.outcomes", budget["outcomes"], f"how many fulfil each rule{_say_beside(study)}, by outcome"
    )
    fit = PlannedQuestion("rules.gradient", budget["fit"] / GRADIENTS, "weights of the rules together")
    yield from [fit] * GRADIENTS


def _say_protection(study: RuleDiscovery) -> str:
    """Who is protected from whom, and at what price."""
    epsilon = f"{float(study.exact_epsilon):g}"
    if study.trust == "local":
        return (
            "protected is each patient, with all its rules, from everybody: one report, randomised by itself, at "
            f"epsilon = {epsilon} (pure); that the patient is there is not hidden"
        )
    if study.trust == "rule":
        return (
            f"protected is {UNIT}: epsilon = {epsilon} on a path of the search, if a patient's rules were independent "
            "of each other; what all answers tell of one patient has no such bound"
        )
    return (
        "protected is each patient, with all its rules, from the house and as many colluding hospitals as the study "
        f"tolerates: {study.say_price()}"
    )


def _say_windows(study: RuleDiscovery) -> str:
    """For the card: in which window a patient was judged."""
    when = "at a time since admission that was drawn as the outcome begins in others"
    if study.trust == "local":
        when = "at a random time of the stay"
    return (
        f"what rules say of {study.outcome} is judged in one window of {study.window} for each patient: "
        f"with the outcome, where it begins; without it, {when}"
    )


def _say_static(study: RuleDiscovery, unknown: Sequence[str]) -> list[str]:
    """For the card: which columns are static, by whom, and of which nobody has a value."""
    static = study.task.static_names
    if not static:
        return []
    by = (
        "the study states so"
        if study.static is not None
        else "their names are in a public list; state static = [...] to change that"
    )
    where = "in no rule" if study.trust == "rule" else "in conditions beside the rules, and in no rule"
    said = [f"columns that do not change within a stay, {where}: {', '.join(static)} ({by})"]
    if unknown:
        said.append(f"hardly any patient has a value, as far as noise lets tell: {', '.join(unknown)}")
    return said


def find_why_silent(body: DiscoveryBody) -> str | None:
    """Why the model does not predict the outcome; None where it does."""
    if body.intercept is not None:
        return None
    if body.window is None:
        return "it was made from rules without an outcome (no window)"
    if body.trust == "rule":
        return "under trust = 'rule' nobody is asked about the outcome"
    return "no rule says more of the outcome than noise and sampling leave open"


SIZE_SHARE, NAME_SHARE = Fraction(1, 1000), Fraction(1, 20)
"""Of the budget: for how many patients there are, and for which variables occur."""
HOURS_SHARE, OUTCOME_SHARE, FIT_SHARE = Fraction(1, 100), Fraction(1, 5), Fraction(1, 5)
"""For when the outcome begins, for how many fulfil each rule with and without it, and for weights."""
RULES_SHARE = Fraction(1, 10)
"""Without an outcome: for how many have the rules with their very numbers."""


# The house does not know which variables hospitals have: it names none.
NO_CLINICAL_RANGE = (
    f"{LEFT_OUT}variables without a known clinical range, if there are any (give bins for them)"
)


@documented
@dataclass(eq=False, repr=False)
class RuleDiscovery(PrivateMethod[DiscoveryBody]):
    """`RuleDiscovery(outcome="sepsis", prevalence=0.01, epsilon=1.0).fit(house).rules_`; a number given as `threshold`
    is the prevalence."""

    method: ClassVar[str] = "discovery"
    called: ClassVar[str] = "a RuleDiscovery"
    description: ClassVar[str] = "the temporal rules that many patients have in common"
    body_type: ClassVar[type[DiscoveryBody]] = DiscoveryBody
    releases: ClassVar[tuple[str, ...]] = tuple(TRUST.values())
    compares: ClassVar[bool] = False
    reads_courses: ClassVar[bool] = True
    pure_releases: ClassVar[tuple[str, ...]] = ("local",)
    answers_at_random: ClassVar[bool] = True
    aliases: ClassVar[Mapping[str, str]] = {"threshold": "prevalence"}
    differs_from_pooled: ClassVar[str] = "has answers that are drawn at random"

    outcome: Outcome
    query: QueryText = ""
    prevalence: Prevalence = 0.01
    epsilon: Epsilon = 1.0
    delta: Delta = "1e-6"
    trust: Trust = "secure-sum"
    variables: Variables = None
    bins: Limits = field(default_factory=dict)
    values: StaticValues = field(default_factory=dict)
    window: WindowLength = None
    step: Step = "1h"
    carry: Carry = "24h"
    static: Static = None
    tau: Percentile = 0.5
    search: Search = "prevalence"
    limits: MostLimits = 3
    most_rules: MostRules = 100
    horizon: Horizon = 12
    clients: Clients = None
    allocation: Allocation = "adaptive"
    theta: Theta = 0.05
    questions: MostQuestions = 2000
    threshold: DecisionRule = "majority"

    def __post_init__(self) -> None:
        if isinstance(self.threshold, int | float | Fraction):
            self.prevalence, self.threshold = self.threshold, "majority"
        super().__post_init__()

    @property
    def release(self) -> str:  # type: ignore[override]
        return TRUST[self.trust]

    @property
    def target(self) -> str:  # type: ignore[override]
        return self.outcome

    @property
    def must_know(self) -> str:
        return ""

    @property
    def reads_beside(self) -> str:
        return "rules" if self.window is None else "series"

    def check_part(self, part: PatientPart) -> None:
        if self.window is not None:
            check_series(part, self.task)

    @property
    def tells_risks(self) -> bool:
        return True

    def find_decision_fault(self, rule: CallingRule) -> str | None:
        if rule.kind in TALLIED:
            return "nobody counts patients by their predicted risk; take a cost, or prevalence"
        if rule.kind in ("cost", "prevalence") and (self.window is None or self.trust == "rule"):
            return "without a window, and under trust = 'rule', its rules say nothing of an outcome"
        return None

    def check(self) -> None:
        if self.trust == "local" and self.query:
            raise StudyError(
                "under trust = 'local' everybody is asked, so that there is no query: how many patients match it would "
                "be told exactly"
            )
        if self.window is not None and count_steps(self.window, self.step, "window") < 1:
            raise self.wrong("window", f"at least one step of {self.step} long", self.window)
        if self.search == "discrimination" and (self.window is None or self.trust != "secure-sum"):
            raise StudyError("search = 'discrimination' needs a window, and trust = 'secure-sum'")
        self._check_static()
        if self.outcome in self.task.names:
            raise StudyError(f"rules are not about the outcome {self.outcome!r} itself: take it out of bins")

    def _check_static(self) -> None:
        if self.static and self.window is None:
            raise StudyError("static columns are those of series: give a window, or leave static out")
        if self.outcome in self.task.static_names:
            raise StudyError(f"the outcome {self.outcome!r} is no static column: take it out of static")
        if not self.task.names:
            if not self.task.static_names:
                raise StudyError(
                    f"no clinical range is known of {', '.join(self.variables or ())}: give bins, the numbers that "
                    "rules may compare with"
                )
            raise StudyError(
                f"there is no variable that changes over time: {', '.join(self.task.static_names)} do not. Give bins "
                "of other variables, or say with static = [...] which columns do not change"
            )

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
    def exact_prevalence(self) -> Fraction:
        return share(self.prevalence)

    @cached_property
    def task(self) -> RuleTask:
        """What every question repeats of the study."""
        static = self._find_static()
        known = {
            name: place_limits(CLINICAL_RANGES[name])
            for name in CLINICAL_RANGES
            if name != self.outcome and (self.window is None or find_static(name) is None)
        }
        apart = {column.name for column in static}
        limits = self.bins or known
        if self.variables is not None:
            stated = {*self.variables} - {self.outcome}
            limits = {name: own for name, own in {**known, **self.bins}.items() if name in stated}
        edges = {name: own for name, own in limits.items() if name not in apart}
        learning = None
        if self.window is not None:
            learning = LearningTask(self.outcome, self.step, self.window, self.carry, self.most_rules)
        listed = [PublicLimits(name, tuple(map(float, own))) for name, own in sorted(edges.items())]
        by_outcome = self.search == "discrimination"
        return RuleTask(tuple(listed), self.horizon, self.limits, learning, by_outcome, static)

    def _find_static(self) -> tuple[StaticColumn, ...]:
        """The static columns: those that are stated, or those of the study that a public list names."""
        if self.window is None:
            return ()
        stated = self.static
        if stated is None:
            # A column of text is no number of a series, whatever its name.
            text = {name for name, own in self.values.items() if any(isinstance(one, str) for one in own)}
            looked_at = self.bins or CLINICAL_RANGES if self.variables is None else self.variables
            named = {*looked_at, *self.values} - {self.outcome, *text}
            stated = [name for name in named if find_static(name) is not None]
        return tuple(self._cut_static(name) for name in sorted(set(stated)))

    def _cut_static(self, name: str) -> StaticColumn:
        """A static column with its public cutoffs or values: as the study states them, or of a public list."""
        if values := self.values.get(name):
            if any(isinstance(value, str) for value in values):
                raise StudyError(
                    f"static column {name!r} has the values {list(values)}: series hold numbers, so that its values "
                    "are numbers, such as 0 and 1"
                )
            return StaticColumn(name, values=tuple(map(float, values)))
        if edges := self.bins.get(name):
            return StaticColumn(name, edges=tuple(map(float, edges)))
        if (public := find_static(name)) is not None:
            return StaticColumn(name, public.edges, public.values)
        if name in CLINICAL_RANGES:
            return StaticColumn(name, edges=place_limits(CLINICAL_RANGES[name]))
        raise StudyError(
            f"static column {name!r} has no public cutoffs: state them under bins, or its values under values"
        )

    def split_budget(self) -> dict[str, Fraction]:
        """rho for each part of a search by sums; together all of it, exactly."""
        grammar = open_grammar(self.task)
        many = any(grammar.count_children(form, VARIABLES) > MOST_TEMPLATES for form in grammar.skeletons)
        parts = {
            "clients": SIZE_SHARE if self.clients is None else Fraction(0),
            "names": NAME_SHARE if many else Fraction(0),
            "rules": RULES_SHARE if self.window is None else Fraction(0),
            "hours": HOURS_SHARE if self.window is not None else Fraction(0),
            "outcomes": OUTCOME_SHARE if self.window is not None else Fraction(0),
            "fit": FIT_SHARE if self.window is not None else Fraction(0),
        }
        parts["levels"] = 1 - sum(parts.values(), Fraction(0))
        return {part: self.rho * own for part, own in parts.items()}

    def open_search(self, names: tuple[str, ...] = (), partners: Partners | None = None) -> LevelSearch:
        """The search by sums, over all variables or over these; with the noise that sums of these partners have."""

        def find_variance(rho: Fraction, squared_sensitivity: int) -> Fraction:
            if partners is None:
                return sigma_squared_for(rho, squared_sensitivity)
            return partners.variance(rho, squared_sensitivity) * partners.noise_factor

        return LevelSearch(
            open_grammar(self.task, names),
            self.exact_prevalence,
            self.split_budget()["levels"],
            self.most_rules,
            self.tau,
            find_variance=find_variance,
            by_outcome=self.task.by_outcome,
        )

    def open_local_search(self) -> LocalSearch:
        groups = find_groups(self.window is not None)
        return LocalSearch(
            open_grammar(self.task),
            self.exact_prevalence,
            self.exact_epsilon,
            groups=groups,
            quantile=self.tau,
        )

    def open_path_search(self, patients: int) -> PathSearch:
        threshold = float(self.exact_prevalence)
        return PathSearch(
            open_grammar(self.task),
            threshold,
            self.exact_epsilon,
            patients,
            self.allocation,
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
        return Plan("rho", tuple(_plan_questions(self)))

    def converse(self, partners: Partners) -> Conversation[Learned[DiscoveryBody]]:
        if self.trust == "local":
            return converse_by_reports(self)
        if self.trust == "rule":
            return converse_along_paths(self)
        return converse_by_sums(self, partners)

    def conclude(
        self,
        patients: float,
        rules: list[FoundRule],
        warnings: Sequence[str],
        model: OutcomeModel | None = None,
    ) -> Learned[DiscoveryBody]:
        """What a conversation ends with."""
        fitted = model.fitted if model is not None else None
        decided, said = None, ""
        if model is not None and fitted is not None:
            decided, said = decide(self.threshold, 1, model.prevalence)
        body = DiscoveryBody(
            outcome=self.outcome,
            query=self.query,
            trust=self.trust,
            prevalence=str(self.prevalence),
            epsilon=str(self.epsilon),
            delta=str(self.delta),
            protects=_say_protection(self),
            patients=max(patients, 0.0),
            asked=[f"{kind}: {note} ({cost})" for kind, cost, note in self.plan().rows()[:-1]],
            step=self.step,
            window=self.window,
            carry=self.carry,
            rules=rules,
            beside=[] if model is None else list(model.beside),
            intercept=None if fitted is None else round(fitted.intercept, 6),
            intercept_error=None if fitted is None else round(fitted.errors[0], 6),
            base=None if model is None else round(model.prevalence, 6),
            hours=[] if model is None else list(model.hours),
            decided=decided,
        )
        said_of_windows = [] if model is None else [_say_windows(self)]
        silent = find_why_silent(body)
        not_predicting = [f"this model predicts nothing: {silent}"] if silent and rules else []
        unknown = self._say_left_out()
        static = _say_static(self, () if model is None else model.unknown)
        return Learned(
            body, {}, [body.protects, *unknown, *static, *warnings, *said_of_windows, *not_predicting], said
        )

    def _say_left_out(self) -> list[str]:
        """For the card: variables of which no limits are known."""
        if self.variables is None:
            return [] if self.bins else [NO_CLINICAL_RANGE]
        used = {*self.task.names, *self.task.static_names, self.outcome}
        lacking = [name for name in self.variables if name not in used]
        return [f"{LEFT_OUT}{', '.join(lacking)} (no clinical range is known: give bins)"] if lacking else []

    @property
    def rules_(self) -> list[FoundRule]:
        """The rules that were found: text, share, odds ratio, prevalence of the form, parameters. Those come first that
        say most of the outcome; without an outcome, the most frequent."""
        return list(self.body.rules)

    def list_terms(self) -> list[FoundRule]:
        """The rules that were found, as `rules_`."""
        return self.rules_

    @property
    def beside_(self) -> list[FoundRule]:
        """The conditions on static columns, such as `Age >= 65`, with share, odds ratio and weight as of rules."""
        return list(self.body.beside)

    @property
    def attributes_(self) -> list[str]:
        return sorted({*self.body.variables, *self.body.static})

    def find_why_silent(self) -> str | None:
        return find_why_silent(self.body)

    def predict_proba(self, patients: AnySeries) -> NDArray[np.float64]:
        """The predicted risk of each patient, by a logistic model of the rules that hold; columns as in classes_.

        ModelError where the study did not learn what rules say of the outcome: see `similarity`.
        """
        self._check_predicts()
        risk = score_courses(self.body, self._read(patients))
        return np.column_stack([1 - risk, risk])

    def similarity(self, patients: AnySeries) -> NDArray[np.float64]:
        """For each patient the share of the rules that hold, each counting by how many patients have it; NaN where no
        rule can be judged. It is no risk: it says how like the many a patient is."""
        return find_similarity(self.body, self._read(patients))

    def _check_predicts(self) -> None:
        if why := self.find_why_silent():
            raise ModelError(
                f"this model predicts nothing: {why}. Its rules are in rules_, and similarity(patients) says how many "
                "of them hold"
            )

    def find_unadaptable(self) -> str | None:
        if self.window is None:
            return (
                "this discovery was made without a window, so that its rules say what patients have in common and "
                "nothing of an outcome: there is nothing to adapt"
            )
        if why := self.find_why_silent():
            return f"this model predicts nothing, so that there is nothing to adapt: {why}"
        return None

    def open_stays(self, patients: Patients) -> Series:
        """The stays of these patients as they are judged: the variables of the rules and the outcome, values carried
        forward; ModelError where there is no outcome to judge by."""
        learning = self.task.learning
        if learning is None:
            raise ModelError(
                "this discovery was made without a window, so that its rules say nothing of an outcome"
            )
        if patients.series is None:
            raise ModelError("this model is about series of patients, and there are none")
        # What the rules are about: a model file does not tell the limits of the study, which are not needed here.
        variables = tuple(PublicLimits(name, ()) for name in self.body.variables) or self.task.variables
        static = tuple(StaticColumn(name) for name in self.body.static)
        return prepare(
            patients.series,
            RuleTask(variables, self.task.horizon, self.task.limits, learning, static=static),
        )

    def predict_steps(self, series: Series) -> NDArray[np.float64]:
        """The predicted risk at every step of these stays, by what was known until then; stays one after the other."""
        owners = np.repeat(np.arange(len(series)), series.lengths)
        ends = np.arange(len(owners)) - series.starts[:-1][owners] + 1
        steps = self.body.steps or 1
        # What was carried forward counts as where the rules were learned.
        carried = carry_values(series, self.body.variables, self.body.static, self.body.carry)
        return self.predict_proba(carried.cut(ends, steps, owners))[:, 1]

    def find_onsets(self, series: Series) -> NDArray[np.float64]:
        """The step of each stay at which the outcome begins; infinite where it does not."""
        onsets = np.full(len(series), np.inf)
        there = np.flatnonzero(series.stays[self.outcome] == 1)[::-1]
        owners = np.repeat(np.arange(len(series)), series.lengths)[there]
        onsets[owners] = there - series.starts[:-1][owners]  # the first of each stays
        return onsets

    def find_outcomes(self, patients: Patients) -> KnownOutcomes:
        """One window of each patient whom the query selects, and whether it has the outcome, chosen as where the rules
        were weighed: of patients without it at a time since admission that is matched to the others' onset."""
        series, learning = self.open_stays(patients), self.task.learning
        assert learning is not None
        ends, positive = find_judged_windows(series, learning.outcome, learning.steps, self.body.hours)
        about = Query.parse(self.query).mask(patients.selectable)
        rows = np.flatnonzero((ends > 0) & about)
        names = [name for name in series.names if name != learning.outcome]
        asked = series.choose(names).cut(ends[rows], learning.steps, rows) if len(rows) else series
        return KnownOutcomes(asked, positive[rows].astype(int).tolist(), rows)

    def _explain(self, patient: Mapping[str, Any]) -> Explanation:
        self._check_predicts()
        body, course = self.body, self._read([patient])
        measured = lay_out_courses([patient], self.attributes_, body.step)
        carried = say_carried(measured, body.variables, body.carry)
        return explain_courses(body, course, carried, self.card.dictionary)

    def draw_patient(self, patient: Mapping[str, Any], most: int = 5) -> str:
        """One patient's measurements over time as SVG, with the windows of the rules that weigh most for it, shaded
        where they hold and where they fail. It shows that patient's values: it is for the hospital that holds them."""
        body, course = self.body, self._read([patient])
        chosen = find_weightiest(body, course, most)
        captions = [say_formula(rule.formula, body.step, body.steps) for rule in chosen]
        return draw_patient([rule.formula for rule in chosen], course, captions)

    def _read(self, patients: AnySeries) -> Series:
        body = self.body
        names = body.variables or list(self.task.names)
        rules = [rule.formula for rule in body.rules if is_complete(rule)]
        return read_courses(patients, rules, names, body.static, body.step, body.window, body.carry)

    def _text(self) -> str:
        return write_table(self.body, self.card.dictionary)

    def pictures(self, *, whole: bool = False) -> dict[str, str]:
        """How many patients have each rule, as SVG; none where no rule was found."""
        return {"prevalence": draw_prevalences(self.body, whole=whole)} if self.body.rules else {}

    def _summary(self) -> str:
        return f"{len(self.body.rules)} rules"
