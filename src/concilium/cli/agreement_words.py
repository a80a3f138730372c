"""[agree] of a policy read back in words: what is agreed to without a person, and an example of what waits for one.

The examples are found by asking the rule that a site itself decides by (`Agree.find_reservation`), not by the words.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

from concilium.errors import name_some
from concilium.ledger.ledger import DEFAULT_DELTA
from concilium.policy.policy import BOUNDED, Agree, Policy
from concilium.privacy.accounting import epsilon_from_rho, exact_delta, say_epsilon
from concilium.registry import PROPOSED, RELEASES, load


class _ExampleStudy(NamedTuple):
    """A study that a house might propose; `price` in the currency of the budget."""

    release: str
    method: str
    price: Fraction | None


def describe_agree(rules: Policy) -> list[str]:
    """What the policy agrees to without a person, in sentences, with an example of that and one of what waits."""
    agree = rules.agree
    if agree is None:
        return [
            "agrees to no study of a house of another process: there is no [agree], so that each of them waits",
            "agrees to every study of a house of its own process, as in a simulation",
        ]
    sentences = []
    if not rules.houses:
        sentences.append("knows no house of another process: there is no [houses], so that it refuses them")
    agreed = [*_describe_releases(rules, agree)]
    sentences += (
        [*agreed, *_describe_limits(rules, agree)] if agreed else ["agrees to nothing: each study waits"]
    )
    for wanted, beginning in ((True, "for example, agrees to"), (False, "for example, leaves to a person:")):
        example = next(
            (one for one in _list_examples(rules, agree) if _is_agreed(rules, agree, one) == wanted), None
        )
        if example is not None:
            sentences.append(f"{beginning} {_say_example(rules, agree, example)}")
    return sentences


def _describe_releases(rules: Policy, agree: Agree) -> Iterator[str]:
    """A sentence for each release that is agreed to, the ones without a bound marked."""
    for release, listed in RELEASES.items():
        methods = [
            name
            for name, form in _list_forms(release).items()
            if name in agree.list_methods(release) and _is_chargeable(rules, release, form)
        ]
        if methods and release in rules.modes:
            bound = "" if listed.bounded else ", WITHOUT A BOUND on what is learned about a patient"
            yield f"agrees to {release} studies by {', '.join(methods)}{bound}"


def _describe_limits(rules: Policy, agree: Agree) -> Iterator[str]:
    """What such studies may cost, in the currency of the budget, and how many patients they are about."""
    alone, together = agree.most_per_study, agree.most_per_month
    if alone is not None:
        yield f"agrees to a study that costs each patient {_say_price(rules, alone)} at most"
    if together is not None:
        yield f"agrees to studies of one month that cost each patient {_say_price(rules, together)} together at most"
    if alone is together is None:
        if rules.allowance.unlimited:
            yield "leaves to a person what has a price: neither a study nor the budget has a limit"
        else:
            yield f"sets no limit to the price of a study: only the budget, in {rules.currency}, limits it"
    if rules.currency == "epsilon":
        yield "leaves to a person what has Gaussian noise: it cannot be charged to a budget in epsilon"
    if agree.least_patients:
        yield f"leaves to a person exact, masked and shared studies about fewer than {agree.least_patients} patients"
    scopes = {
        "other targets": agree.targets,
        "other attributes": agree.attributes,
        "consultations by other cells": agree.grid,
        "consultations that others may ask": agree.requesters,
    }
    for what, listed in scopes.items():
        if listed is not None:
            yield f"leaves to a person {what} than {name_some([*listed], 9) or 'none'}"


def _list_examples(rules: Policy, agree: Agree) -> Iterator[_ExampleStudy]:
    """Studies that a house might propose, and the policy does not refuse outright; without a bound first, as nobody
    should agree to those by accident."""
    limits = [most for most in (agree.most_per_study, agree.most_per_month) if most is not None]
    limit = min(limits, default=Fraction(1, 100))
    for release in sorted(RELEASES, key=lambda name: RELEASES[name].bounded):
        for method, form in _list_forms(release).items() if release in rules.modes else ():
            if not RELEASES[release].priced:
                yield _ExampleStudy(release, method, None)
            elif _is_chargeable(rules, release, form):
                yield from (_ExampleStudy(release, method, price) for price in (limit, 2 * limit))


def _is_chargeable(rules: Policy, release: str, form: Any) -> bool:
    """Whether the ledger can be charged with what such a study costs, if it costs anything."""
    return rules.currency == "rho" or not RELEASES[release].priced or release in form.pure_releases


def _is_agreed(rules: Policy, agree: Agree, study: _ExampleStudy) -> bool:
    limited = not rules.allowance.unlimited
    return agree.find_reservation(*study, Fraction(0), has_budget=limited) is None


def _say_example(rules: Policy, agree: Agree, study: _ExampleStudy) -> str:
    words = f"{study.method}, released as {study.release}"
    if study.price is not None:
        words += f", at {_say_price(rules, study.price)} for each patient"
    if not RELEASES[study.release].bounded and _is_agreed(rules, agree, study):
        words += f", about {agree.least_patients} patients or more" if agree.least_patients else ""
        words += (
            ", if it hides all codes of `sensitive`"
            if _list_forms(study.release)[study.method].handed_on
            else ""
        )
    return words


def find_idle_names(rules: Policy) -> list[str]:
    """What [agree] names in vain, as warnings."""
    agree = rules.agree
    if agree is None or agree.releases == BOUNDED:
        return []
    warnings = []
    for release in agree.releases:
        if release not in rules.modes:
            warnings.append(f"[agree] names {release}, which `modes` of [release] closes")
        elif not RELEASES[release].bounded and agree.methods is None:
            warnings.append(
                f"[agree] names {release}, which has no bound, but no `methods`: such studies wait"
            )
        elif _list_forms(release) and not set(agree.list_methods(release)) & set(_list_forms(release)):
            warnings.append(f"[agree] names {release}, but no method that is released so: such studies wait")
    return warnings


@cache
def _list_forms(release: str) -> dict[str, Any]:
    """What can be proposed under a release, by name."""
    forms = {name: load(place) for listed in PROPOSED.maps for name, place in listed.items()}
    return {name: form for name, form in forms.items() if release in form.releases}


def _say_price(rules: Policy, amount: Fraction) -> str:
    """An amount in the budget's currency; of rho also the epsilon."""
    if rules.currency != "rho":
        return f"{rules.currency} = {amount}"
    delta = DEFAULT_DELTA if rules.budget is None else exact_delta(rules.budget.delta)
    return f"rho = {amount} (epsilon = {say_epsilon(epsilon_from_rho(amount, delta))})"
