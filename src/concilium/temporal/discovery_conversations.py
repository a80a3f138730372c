"""The conversations of a discovery, one for each kind of trust: noisy sums, randomised reports, yes/no along paths."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.errors import StudyError
from concilium.models.private_descent import descend
from concilium.privacy.shares import widen_sensitivity
from concilium.protocol.counts import AskCounts
from concilium.protocol.questions import Conversation, Gaussian, Learned, Partners, Summed
from concilium.protocol.sums import read_reals
from concilium.temporal import outcome_fit
from concilium.temporal.discovery_body import (
    DiscoveryBody,
    FoundRule,
    OutcomeModel,
    enter_effects,
    find_judged,
    is_complete,
    open_conditions,
    rank_rules,
    write_rules,
)
from concilium.temporal.discovery_search import (
    DiscoveredRule,
    Discovery,
    LevelQuestion,
    SearchQuestion,
    estimate_parameter,
    find_share,
)
from concilium.temporal.formula import Formula
from concilium.temporal.limit_pairs import is_vacuous
from concilium.temporal.local_search import BinQuestion, ReportQuestion, find_groups
from concilium.temporal.outcome_fit import FittedWeights, RuleEffect
from concilium.temporal.outcome_questions import (
    EVENLY,
    AskOutcomeHours,
    AskOutcomeReports,
    AskRuleGradient,
    AskRuleOutcomes,
    match_controls,
)
from concilium.temporal.path_search import PATH_LENGTH, BitQuestion, PathDiscovery
from concilium.temporal.rule_grammar import fill_structure
from concilium.temporal.rule_questions import (
    AskRuleBits,
    AskRuleCodes,
    AskRuleCounts,
    AskRuleReports,
    estimate_codes,
)
from concilium.temporal.rule_task import STAGES, RulePart, Stage, open_grammar

if TYPE_CHECKING:
    from concilium.temporal.rule_discovery import RuleDiscovery

GRADIENTS = 20
PLACES = 16
LARGEST = 1e3
MOST_REPORTED = 20
"""Rules on which clients report how they stand to the outcome: the more there are, the noisier are the reports. Up to
half of them are conditions on static columns."""

Q = TypeVar("Q")
D = TypeVar("D")


@dataclass(frozen=True)
class _OutcomeFit:
    """The rules that are fitted, what each says by itself, and when controls are judged."""

    rules: tuple[str, ...]
    effects: Sequence[RuleEffect]
    weights: tuple[float, ...]


NOTHING_IN_COMMON = (
    "no rule was found: none that the study looks for is frequent enough to be told from noise. Rules about other "
    "variables, or of other forms, are not looked for: each hospital's log says whether its patients have any"
)


def converse_by_sums(study: RuleDiscovery, partners: Partners) -> Conversation[Learned[DiscoveryBody]]:
    """Noisy sums over all hospitals: `trust = "secure-sum"` (docs/methods.md, sections 6.8, 6.11 and 6.12).

    First, for a thousandth of the budget, how many patients there are, unless the study states it: a study that
    cannot work ends there. Then, where there are many variables, which of them occur at all: a rule is as rare as
    each of its variables. Then the search, and at last what the rules say of the outcome, where hospitals hold
    series.
    """
    budget = study.split_budget()
    if budget["clients"]:
        counts = yield _ask_counts(study, partners, budget["clients"], "clients", 1)
        _check_estimate(study, float(counts[-1]), _find_deviation(partners, budget["clients"], 1))
    names: tuple[str, ...] = ()
    if budget["names"]:
        size = min(study.most_rules, len(study.task.names)) + 1
        counts = yield _ask_counts(study, partners, budget["names"], "names", size)
        names = _find_names(study, counts, _find_deviation(partners, budget["names"], size))
        if not names:
            return study.conclude(float(counts[-1]), [], [NOTHING_IN_COMMON])
    found: Discovery = yield from _search_levels(study, partners, names)
    rules, warnings = write_rules(found.rules), []
    model: OutcomeModel | None = None
    if rules and study.window is not None:
        rules, model = yield from _weigh_outcomes(study, partners, rules)
    elif rules:
        rules = yield from _count_rules(study, partners, rules, budget["rules"], found)
    if not rules:
        warnings.append(NOTHING_IN_COMMON)
    left_out = sum(report.left_out for report in found.levels)
    if left_out:
        warnings.append(
            f"{left_out} templates were not looked into, for want of room for what follows from them: give fewer "
            "variables under bins, or fewer limits"
        )
    return study.conclude(found.clients, rules, warnings, model)


def _count_rules(
    study: RuleDiscovery, partners: Partners, rules: list[FoundRule], rho: Fraction, found: Discovery
) -> Conversation[list[FoundRule]]:
    """The rules with the share of the clients who have them with these very numbers."""
    complete = [rule for rule in rules if is_complete(rule)]
    if not complete:
        return rules
    texts = tuple(dict.fromkeys(rule.text for rule in complete))
    size = min(study.most_rules, len(texts))
    counts = yield _ask_counts(study, partners, rho, "rules", size, about=texts)
    deviation = _find_deviation(partners, rho, size)
    shares = {
        text: find_share(float(count), deviation, found.clients, found.clients_deviation)
        for text, count in zip(texts, counts.tolist(), strict=True)
    }
    return [
        msgspec.structs.replace(rule, share=shares[rule.text][0], share_interval=shares[rule.text][1])
        if rule.text in shares
        else rule
        for rule in rules
    ]


def _relay(
    search: Generator[Q, Any, D],
    ask: Callable[[Q], Summed],
    read: Callable[[NDArray[np.int64]], Any] = np.asarray,
) -> Conversation[D]:
    """Put the questions of a search to the hospitals, one after the other, and return what it came to."""
    try:
        question = next(search)
        while True:
            counts = yield ask(question)
            question = search.send(read(counts))
    except StopIteration as end:
        discovery: D = end.value
        return discovery


def _search_levels(
    study: RuleDiscovery, partners: Partners, names: tuple[str, ...]
) -> Conversation[Discovery]:
    """The breadth-first search over these variables (none: all)."""

    def ask(question: SearchQuestion) -> AskRuleCounts:
        if isinstance(question, LevelQuestion):
            stage, about = STAGES[question.level - 1], question.parents
        else:
            stage, about = "parameters", question.structures
        texts = tuple(map(str, about))
        return _ask_counts(study, partners, question.rho, stage, question.squared_sensitivity, names, texts)

    return (yield from _relay(study.open_search(names, partners).run(), ask))


def _ask_counts(
    study: RuleDiscovery,
    partners: Partners,
    rho: Fraction,
    stage: Stage,
    squared_sensitivity: int,
    names: tuple[str, ...] = (),
    about: tuple[str, ...] = (),
) -> AskRuleCounts:
    return AskRuleCounts(
        query=study.query,
        target="",
        part=RulePart(study.task, stage, names, about),
        most=study.most_rules,
        noise=_make_noise(partners, rho, squared_sensitivity),
    )


def _find_deviation(partners: Partners, rho: Fraction, squared_sensitivity: Fraction | int) -> float:
    """Of the noise that a sum of this price really has."""
    return math.sqrt(partners.variance(rho, squared_sensitivity) * partners.noise_factor)


def _check_estimate(study: RuleDiscovery, patients: float, deviation: float) -> None:
    """Stop where the patients are too few by more than the noise on their number."""
    try:
        study.check_feasible(max(1, math.ceil(patients + 2 * deviation)))
    except StudyError as error:
        raise StudyError(
            f"{error}. There are about {max(patients, 0):.0f} patients: finding that out has cost a thousandth of the "
            "budget, and nothing else was asked; state clients= where their number is public"
        ) from None


def _find_names(study: RuleDiscovery, counts: NDArray[np.int64], deviation: float) -> tuple[str, ...]:
    """The variables that a rule at the threshold can be about."""
    wanted = float(study.exact_prevalence) * float(counts[-1])
    least = max(wanted - deviation, deviation)
    return tuple(
        name for name, count in zip(study.task.names, counts.tolist(), strict=False) if count >= least
    )


Weighed = tuple[list[FoundRule], OutcomeModel | None]


def _weigh_outcomes(
    study: RuleDiscovery, partners: Partners, rules: list[FoundRule]
) -> Conversation[Weighed]:
    """The rules with what each says of the outcome, and the model that they make together.

    Only rules without holes that fit into a window are judged: noise may put together what no patient's rule is. The
    conditions on static columns are judged with them.
    """
    judged = find_judged(rules, study.task)
    if not judged:
        return rules, None
    judged += open_conditions(study.task)
    budget = study.split_budget()
    hours = yield AskOutcomeHours(
        query=study.query, target="", task=study.task, noise=_make_noise(partners, budget["hours"], 1)
    )
    weights = match_controls(hours, _find_deviation(partners, budget["hours"], 1))
    texts = tuple(rule.text for rule in judged)
    counts = yield AskRuleOutcomes(
        query=study.query,
        target="",
        task=study.task,
        rules=texts,
        weights=weights,
        noise=_make_noise(partners, budget["outcomes"], len(judged)),
    )
    deviation = _find_deviation(partners, budget["outcomes"], len(judged))
    effects = outcome_fit.find_effects(counts, [deviation] * len(judged))
    patients = np.maximum(hours.sum(axis=1), 1).astype(np.float64)
    telling = outcome_fit.choose_fitted(effects)
    fitted = None
    if telling:
        model = _OutcomeFit(
            tuple(texts[place] for place in telling), [effects[place] for place in telling], weights
        )
        fitted = yield from _fit_weights(study, partners, model, patients, budget["fit"])
    known = enter_effects(judged, effects, telling, fitted)
    return _part_conditions(
        study,
        rules,
        known,
        effects,
        OutcomeModel(fitted, weights, float(patients[0] / patients.sum())),
    )


def _part_conditions(
    study: RuleDiscovery,
    rules: Sequence[FoundRule],
    known: Sequence[FoundRule],
    effects: Sequence[RuleEffect],
    model: OutcomeModel,
) -> Weighed:
    """The rules, ranked, and the model with the conditions beside them. What hardly anybody can be judged by, where
    others can be judged by many, is left out: noise alone could be it."""
    static = set(study.task.static_names)
    beside: list[FoundRule] = []
    unknown: list[str] = []
    unseen: set[str] = set()
    many = max(effect.known for effect in effects) > 2 * outcome_fit.LEAST_KNOWN
    for one, effect in zip(known, effects, strict=True):
        seen = effect.known > outcome_fit.LEAST_KNOWN
        if one.formula.variables <= static:
            if not seen:
                unknown += one.formula.variables
            elif one.share is not None and one.share_interval is not None:
                beside.append(msgspec.structs.replace(one, prevalence=one.share, interval=one.share_interval))
        elif many and not seen:
            unseen.add(one.text)
    kept = {name for one in beside for name in one.formula.variables}
    lacking = tuple(name for name in dict.fromkeys(unknown) if name not in kept)
    ranked = rank_rules([rule for rule in rules if rule.text not in unseen], known)
    return ranked, replace(model, beside=tuple(beside), unknown=lacking)


def _fit_weights(
    study: RuleDiscovery, partners: Partners, model: _OutcomeFit, patients: NDArray[np.float64], rho: Fraction
) -> Conversation[FittedWeights]:
    """A logistic model of the votes of these rules, by noisy gradients."""
    begun = outcome_fit.begin_descent(model.effects, float(patients[0] / patients.sum()))
    each = rho / GRADIENTS
    widened = widen_sensitivity(Fraction(begun.norm) ** 2, len(model.rules) + 1, PLACES)
    centres = tuple(round(effect.share, 6) for effect in model.effects)

    def ask(w: NDArray[np.float64]) -> Conversation[NDArray[np.float64]]:
        total = yield AskRuleGradient(
            query=study.query,
            target="",
            task=study.task,
            rules=model.rules,
            weights=model.weights,
            centres=centres,
            at=tuple(np.clip(w, -LARGEST, LARGEST).tolist()),
            norm=begun.norm,
            places=PLACES,
            noise=_make_noise(partners, each, widened),
        )
        mean: NDArray[np.float64] = read_reals(total, PLACES) / patients.sum()
        return mean

    noise = _find_deviation(partners, each, widened) * 2.0**-PLACES / float(patients.sum())
    w = yield from descend(ask, begun.start, begun.hessian, begun.doubt, noise, GRADIENTS, begun.signs)
    return outcome_fit.end_descent(begun, w, model.effects, noise, GRADIENTS, float(patients.sum()))


def _make_noise(partners: Partners, rho: Fraction, squared_sensitivity: Fraction | int) -> Gaussian:
    return Gaussian(str(partners.variance(rho, squared_sensitivity)))


def converse_by_reports(study: RuleDiscovery) -> Conversation[Learned[DiscoveryBody]]:
    """One randomised report of each patient: `trust = "local"` (docs/methods.md, sections 6.9 and 6.11)."""
    counted = yield AskCounts(query="", target="")
    patients = int(counted[0, 0, 0])
    study.check_feasible(patients)

    def ask(question: ReportQuestion | BinQuestion) -> AskRuleReports:
        stage: Stage = "skeletons"
        about: Sequence[Formula] = ()
        if isinstance(question, BinQuestion):
            stage, about = "parameters", question.structures
        elif question.parents:
            stage, about = "structures", question.parents
        return AskRuleReports(
            query="",
            target="",
            part=RulePart(study.task, stage, (), tuple(map(str, about))),
            most=question.channel.most,
            epsilon=str(study.exact_epsilon),
            group=question.group,
        )

    found = yield from _relay(study.open_local_search().run(), ask)
    seen = f"a rule was seen if at least {found.least_share:.1%} of the patients have it"
    rules, model = write_rules(found.rules), None
    if rules and study.window is not None:
        rules, model = yield from _weigh_reports(study, rules)
    return study.conclude(float(patients), rules, [seen], model)


def _weigh_reports(study: RuleDiscovery, rules: list[FoundRule]) -> Conversation[Weighed]:
    """The rules with what each says of the outcome, by the reports of the last group."""
    judged = find_judged(rules, study.task)
    if not judged:
        return rules, None
    conditions = open_conditions(study.task)[: MOST_REPORTED // 2]
    judged = judged[: MOST_REPORTED - len(conditions)] + conditions
    question = AskOutcomeReports(
        query="",
        target="",
        task=study.task,
        rules=tuple(rule.text for rule in judged),
        epsilon=str(study.exact_epsilon),
        group=len(find_groups(True)) - 1,
    )
    histogram = yield question
    clients, channel = int(histogram.sum()), question.channel
    counts = channel.estimate(histogram).reshape(-1, 4)
    spread = [channel.find_deviation(clients, max(float(row.max()), 0.0)) for row in counts]
    effects = outcome_fit.find_effects(np.rint(counts).astype(np.int64), spread)
    cases, controls = np.maximum(counts[:, :2].sum(), 1.0), np.maximum(counts[:, 2:].sum(), 1.0)
    prevalence = float(cases / (cases + controls))
    telling = [place for place, effect in enumerate(effects) if effect.tells]
    fitted = outcome_fit.choose_one_of_each(effects, [rule.formula.variables for rule in judged])
    if fitted is not None:
        # Of the log odds: sampling, and the noise of all cells.
        error = math.sqrt(
            clients / (cases * controls) + 2 * sum(one**2 for one in spread) * (cases**-2 + controls**-2)
        )
        fitted = outcome_fit.center_intercept(fitted, effects, prevalence, error)
        telling = [place for place in telling if fitted.weights[place]]
        fitted = FittedWeights(
            fitted.intercept,
            tuple(fitted.weights[place] for place in telling),
            (fitted.errors[0], *(fitted.errors[1 + place] for place in telling)),
        )
    known = enter_effects(judged, effects, telling, fitted)
    return _part_conditions(study, rules, known, effects, OutcomeModel(fitted, EVENLY, prevalence))


def converse_along_paths(study: RuleDiscovery) -> Conversation[Learned[DiscoveryBody]]:
    """Yes/no questions along a tree of templates: `trust = "rule"` (docs/methods.md, section 6.10).

    Three quarters of the epsilon of a path go to the search with its final check, one to the parameters of its
    results.
    """
    counted = yield AskCounts(query=study.query, target="")
    patients = int(counted[0, 0, 0])
    study.check_feasible(patients)
    found = yield from _walk_paths(study, patients)
    rules = []
    for rule in found.rules:
        complete = yield from _ask_parameters(study, rule)
        if not is_vacuous(complete.formula):
            rules.append(complete)
    more = f"the search ended after {found.questions} questions, with more to ask"
    return study.conclude(float(patients), write_rules(rules), [] if found.exhausted else [more])


def _walk_paths(study: RuleDiscovery, patients: int) -> Conversation[PathDiscovery]:
    """The search, question by question."""
    plan = study.open_path_search(patients)
    last = plan.budget - (PATH_LENGTH - 1) * plan.per_question

    def ask(question: BitQuestion) -> AskRuleBits:
        return AskRuleBits(
            query=study.query,
            target="",
            task=study.task,
            template=str(question.template),
            each=str(plan.per_question),
            last=str(last),
            final=question.final,
        )

    return (yield from _relay(plan.run(), ask, lambda yes: int(yes[0])))


def _ask_parameters(study: RuleDiscovery, rule: DiscoveredRule) -> Conversation[DiscoveredRule]:
    """The rule with its parameters, each asked for by itself."""
    estimates = []
    for place, bins in enumerate(open_grammar(study.task).find_bins(rule.structure)):
        question = AskRuleCodes(
            query=study.query,
            target="",
            task=study.task,
            structure=str(rule.structure),
            parameter=place,
            epsilon=str(study.exact_epsilon),
        )
        said = yield question
        counts, deviation = estimate_codes(said, Fraction(question.own_epsilon))
        estimates.append(estimate_parameter(bins, counts, deviation, study.tau))
    formula = fill_structure(rule.structure, ((each.bins, each.chosen) for each in estimates))
    return replace(rule, formula=formula, parameters=tuple(estimates))
