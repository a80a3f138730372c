"""What rules that were found say of a patient: evidence from noisy counts, or the share that holds.

Where a study asked, each rule adds the logarithm of how much likelier it holds (or fails) with the outcome than
without; as rules of one patient repeat each other, the mean of what they say counts, not the sum. What noise alone
could have made says nothing. All of it is made from what was released, so that it costs no more.

docs/methods.md, section 6.12.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from concilium.models.explanation import Explanation, Reason
from concilium.models.threshold import choose_one
from concilium.records.series import Series
from concilium.temporal.discovery_body import DiscoveryBody, FoundRule, is_complete
from concilium.temporal.rule_vote import cast_votes
from concilium.temporal.saying import say_formula

SURE = 2.0
"""So many standard deviations from nothing, or a rule says nothing."""
MOST_SHOWN = 10


def weigh_rules(counts: NDArray[np.int64], deviation: float) -> list[tuple[float, float]]:
    """For each rule what it adds to the log odds where it holds and where it fails: [rule, 4] as rule_outcomes.py.

    Shares are held away from 0 and 1 by as many patients as noise could have made of nobody. A rule whose shares with
    and without the outcome differ by less than noise and sampling leave open says nothing.
    """
    weights = []
    spare = 0.5 + deviation
    for row in np.maximum(counts, 0).tolist():
        shares, variance = [], 0.0
        for holds, fails in (row[:2], row[2:]):
            everyone = holds + fails + 2 * spare
            share = (holds + spare) / everyone
            shares.append(share)
            variance += share * (1 - share) / everyone + (deviation / everyone) ** 2
        with_outcome, without = shares
        tells = abs(with_outcome - without) > SURE * math.sqrt(variance)
        if_true = math.log(with_outcome / without) if tells else 0.0
        if_false = math.log((1 - with_outcome) / (1 - without)) if tells else 0.0
        weights.append((round(if_true, 6), round(if_false, 6)))
    return weights


def move_courses(body: DiscoveryBody, courses: Series) -> tuple[list[FoundRule], NDArray[np.float64]]:
    """The rules that can be judged, and what each adds for each patient, [patient, rule]: NaN where that is unknown."""
    rules = [rule for rule in body.rules if is_complete(rule)]
    if not rules:
        return [], np.zeros((len(courses), 0))
    votes = cast_votes([rule.formula for rule in rules], courses)
    if rules[0].if_true is None:
        shares = np.array([rule.prevalence for rule in rules])
        return rules, np.where(votes == 0, np.nan, (votes > 0) * shares)
    weights = np.array([[rule.if_false or 0.0, rule.if_true or 0.0] for rule in rules])
    moved = np.where(votes > 0, weights[:, 1], weights[:, 0])
    return rules, np.where(votes == 0, np.nan, moved)


def count_telling(rules: list[FoundRule], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """For each patient how many of the rules that are known say anything of the outcome; one at least."""
    tells = np.array([bool(rule.if_true or rule.if_false) for rule in rules])
    count: NDArray[np.float64] = np.maximum((known & tells).sum(axis=1), 1).astype(np.float64)
    return count


def score_courses(body: DiscoveryBody, courses: Series) -> NDArray[np.float64]:
    """How much the rules speak for the outcome of each patient, between 0 and 1; a half where nothing is known."""
    rules, moved = move_courses(body, courses)
    known = ~np.isnan(moved)
    total = np.where(known, moved, 0.0).sum(axis=1)
    if rules and rules[0].if_true is not None:
        chance: NDArray[np.float64] = 1 / (1 + np.exp(-total / count_telling(rules, known)))
        return chance
    whole = (known * np.array([rule.prevalence for rule in rules])).sum(axis=1)
    return np.where(whole > 0, total / np.where(whole > 0, whole, 1), 0.5)


def explain_courses(body: DiscoveryBody, course: Series) -> Explanation:
    """The explanation of one patient."""
    rules, moved = move_courses(body, course)
    likely = float(score_courses(body, course)[0])
    weighed = bool(rules) and rules[0].if_true is not None
    votes = cast_votes([rule.formula for rule in rules], course)[0] if rules else np.zeros(0)
    scale = float(count_telling(rules, ~np.isnan(moved))[0]) if rules else 1.0
    reasons, silent = [], 0
    for place, rule in enumerate(rules):
        if votes[place] == 0:
            continue
        said = say_formula(rule.formula, body.step)
        condition = said if votes[place] > 0 else f"not: {said}"
        adds = float(moved[0, place]) / scale if weighed else None
        if adds == 0:
            silent += 1
            continue
        reasons.append(
            Reason(tuple(sorted(rule.formula.variables)), condition, moved=adds, support=rule.prevalence)
        )
    unknown = len(rules) - len(reasons) - silent
    if weighed:
        reasons.sort(key=lambda reason: -abs(reason.moved or 0.0))
    prediction = choose_one([1 - likely, likely], body.classes, body.decided)
    chance = likely if prediction else 1 - likely
    notes = []
    if silent:
        notes.append(
            f"{silent} of {len(rules)} rules say nothing of the outcome, by what noise leaves to be seen."
        )
    if unknown:
        notes.append(f"{unknown} of {len(rules)} rules cannot be judged with what is known.")
    sentences = (_say_first(body, prediction, likely, weighed), *_say_reasons(reasons, weighed), *notes)
    return Explanation(
        body.outcome, prediction, chance, tuple(reasons), sentences, base=0.5, notes=tuple(notes)
    )


def _say_first(body: DiscoveryBody, prediction: int, likely: float, weighed: bool) -> str:
    if weighed:
        return f"{body.outcome} = {prediction} ({likely:.0%} if it were as frequent as not)."
    return f"{body.outcome} = {prediction} (rules that hold: {likely:.0%} of all, by how many patients have them)."


def _say_reasons(reasons: list[Reason], weighed: bool) -> list[str]:
    if not reasons:
        return ["No rule speaks for or against it."]
    lines = []
    for place, reason in enumerate(reasons[:MOST_SHOWN], start=1):
        moved = f": odds x {math.exp(reason.moved):.2f}" if weighed and reason.moved is not None else ""
        lines.append(f"{place}. {reason.condition}{moved} ({reason.support:.1%} of patients have this rule).")
    rest = len(reasons) - MOST_SHOWN
    return [*lines, f"{rest} more."] if rest > 0 else lines
