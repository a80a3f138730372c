"""Agreements read by a generator of policies: whatever [agree] says, a site agrees by itself to what an oracle that is
written apart says, and to nothing without a bound whose release and method the policy does not name."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import concilium as cc
from agreed import Asker
from concilium.cli.agreement_words import _ExampleStudy, _is_agreed, _list_examples, describe_agree
from concilium.consult.consent import find_study, write_page
from concilium.policy.policy import Agree
from concilium.protocol.attributes import Attribute
from concilium.protocol.counts import AskCounts
from concilium.protocol.messages import Answer, Refusal, open_reply
from concilium.protocol.questions import Laplace
from concilium.protocol.terms import open_method
from concilium.registry import METHODS, PROPOSED, load

DELTA = 1e-6
ROWS = [{"age": 20 + i % 60, "sex": "fm"[i % 2], "y": "ny"[i % 3 == 0]} for i in range(40)]
TABLE = cc.Records.from_rows(ROWS, schema={"age": "number", "sex": "code", "y": "code"})
STAYS = cc.Series({"age": np.full((4, len(ROWS)), 40.0), "y": np.zeros((4, len(ROWS)))}, ids=range(len(ROWS)))
PATIENTS = cc.Patients(
    table=cc.Records.from_rows(
        [{"id": place, **row} for place, row in enumerate(ROWS)],
        schema={"id": "code", "age": "number", "sex": "code", "y": "code"},
    ),
    series=STAYS,
    rules=cc.RuleSets([["age > 50"]] * len(ROWS), ids=range(len(ROWS))),
    by="id",
)
STATED = {"bins": {"age": [40, 60]}, "values": {"sex": ["f", "m"], "y": ["n", "y"]}}
HIDDEN = ["042", "303", "304"]


class Proposed(NamedTuple):
    """A study: its pure epsilon, or the epsilon of its Gaussian noise, None where it has no price of that sort."""

    method: str
    release: str
    parameters: dict[str, Any]
    pure: float | None = None
    gaussian: float | None = None


STUDIES = [
    Proposed("tree", "exact", {}),
    Proposed("tree", "masked", {}),
    Proposed("tree", "private", {**STATED, "epsilon": "1", "max_depth": 2}, gaussian=1.0),
    Proposed("voting-trees", "exact", {"positive": "y"}),
    Proposed("voting-trees", "masked", {"positive": "y"}),
    Proposed("naive-bayes", "exact", {}),
    Proposed("naive-bayes", "private", {**STATED, "epsilon": "1/2"}, gaussian=0.5),
    Proposed("rulefit", "masked", {"positive": "y", "bins": {"age": [30, 50]}, "epsilon": None}),
    Proposed("rulefit", "masked", {"positive": "y", "bins": {"age": [30, 50]}, "epsilon": "1"}, gaussian=1.0),
    Proposed(
        "rulefit",
        "exact",
        {"positive": "y", "bins": {"age": [30, 50]}, "noise": "laplace", "epsilon": "1/2"},
        pure=0.5,
    ),
    Proposed("discovery", "exact", {"outcome": "y", "trust": "rule", "bins": {"age": [30, 50]}}),
    Proposed("discovery", "local", {"outcome": "y", "trust": "local", "bins": {"age": [30, 50]}}, pure=1.0),
    Proposed("experts", "exact", {"bins": {"age": [20, 60]}}),
    Proposed("experts", "private", {"bins": {"age": [20, 60]}, "epsilon": "2"}, gaussian=2.0),
    Proposed("experts", "private", {"bins": {"age": [20, 60]}, "epsilon": "1", "answers": "step"}, pure=1.0),
    Proposed("code-counts", "noised", {"epsilon": "1/2", "pairs_with": ["042"]}, pure=0.5),
    Proposed(
        "code-sharing",
        "shared",
        {"sensitive": HIDDEN, "epsilon": "1/10", "max_events": 5, "block_size": 1},
        pure=0.5,
    ),
]
# The names themselves, not what the product makes of them.
WITH_A_BOUND = {"private", "local", "noised"}
LEARN_A_MODEL = set(METHODS)
RELEASES = ["exact", "masked", "private", "local", "noised", "shared"]


def find_rho(epsilon: float) -> float:
    """The rho whose best bound over Rényi orders is this epsilon at DELTA (Canonne, Kamath & Steinke), by bisection."""
    orders = [1 + 10 ** (step / 200) for step in range(-400, 900)]

    def bound(rho: float) -> float:
        return min(rho * a + math.log(1 / (a * DELTA)) / (a - 1) + math.log(1 - 1 / a) for a in orders)

    low, high = 0.0, epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if bound(middle) <= epsilon else (low, middle)
    return low


@functools.cache
def find_price(index: int, currency: str) -> float | None:
    """What a study costs in a currency, by the closed forms; infinite where that currency cannot pay for it."""
    study = STUDIES[index]
    if study.pure is None and study.gaussian is None:
        return None
    if currency == "epsilon":
        return math.inf if study.pure is None else study.pure
    return find_rho(study.gaussian or 0) if study.pure is None else study.pure * math.tanh(study.pure / 2)


def decide_plainly(
    keys: dict[str, Any], budget: dict[str, str], index: int, models: int, spent: float
) -> bool:
    """Whether a study may be agreed to without a person, in the plain words of docs/policies.md."""
    study = STUDIES[index]
    named = keys.get("releases")
    if study.release not in (WITH_A_BOUND if named is None else named):
        return False
    methods = keys.get("methods")
    if methods is None and (study.release not in WITH_A_BOUND or study.method not in LEARN_A_MODEL):
        return False
    if methods is not None and study.method not in methods:
        return False
    price = find_price(index, budget["currency"])
    if price is not None:
        if math.isinf(price):
            return False
        limits = [keys[key] for key in ("price_per_study", "price_per_month") if key in keys]
        if not limits and budget.get("total") == "unlimited":
            return False
        if "price_per_study" in keys and price * models > float(Fraction(keys["price_per_study"])):
            return False
        if "price_per_month" in keys and spent + price * models > float(Fraction(keys["price_per_month"])):
            return False
    return study.release in WITH_A_BOUND or len(ROWS) >= keys.get("least_patients", 0)


def has_room(budget: dict[str, str], index: int, models: int) -> bool:
    """Whether a ledger of which nothing is spent has room for a study."""
    price = find_price(index, budget["currency"])
    total = budget.get("total", {"rho": "1", "epsilon": "8"}[budget["currency"]])
    return price is None or total == "unlimited" or price * models <= float(Fraction(total))


def some_of(names: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), unique=True, max_size=len(names))


# No limit is a price of a study, or a sum of some, so that no rounding decides.
LIMITS = st.sampled_from(["1/1000", "0.013", "0.21", "0.57", "1.03", "2.57", "17"])
KEYS = st.fixed_dictionaries(
    {},
    optional={
        "releases": some_of(RELEASES),
        "methods": some_of(sorted(LEARN_A_MODEL | {"code-sharing", "code-counts"})),
        "price_per_study": LIMITS,
        "price_per_month": LIMITS,
        "least_patients": st.sampled_from([0, 10, 40, 41, 1000]),
    },
)
BUDGETS = st.fixed_dictionaries(
    {"currency": st.sampled_from(["rho", "epsilon"])},
    optional={"total": st.sampled_from(["1/2", "3", "unlimited"])},
)
PROPOSALS = st.lists(
    st.tuples(st.integers(0, len(STUDIES) - 1), st.integers(1, 2)), min_size=4, max_size=10, unique=True
)
ABSENT = [cc.Site(name, TABLE) for name in ("coast", "south")]


def open_site(keys: dict[str, Any], budget: dict[str, str]) -> cc.Site:
    agree = msgspec.convert({**keys, "sensitive": ("042", "303")}, Agree)
    return cc.Site(
        "north", PATIENTS, policy=cc.Policy(agree=agree, budget=cc.Budget(**budget), differencing=False)
    )


def propose(site: cc.Site, study: Proposed, models: int = 1) -> tuple[Answer | Refusal, Asker]:
    declared = load(PROPOSED[study.method]).parameters()
    about = {
        name: value for name, value in {"target": "y", "release": study.release}.items() if name in declared
    }
    total = open_method(study.method, {**about, **study.parameters}).plan().total
    asker = Asker(
        [site, *ABSENT],
        release=study.release,
        method=study.method,
        parameters=study.parameters,
        price=str(models * total) if total else None,
        models=models,
    )
    return open_reply(asker.propose(site)), asker


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(KEYS, BUDGETS, PROPOSALS)
def test_a_site_agrees_by_itself_to_what_the_policy_says_and_no_more(keys, budget, proposals):
    site, spent = open_site(keys, budget), 0.0
    for index, models in proposals:
        study = STUDIES[index]
        expected = decide_plainly(keys, budget, index, models, spent)
        reply, asker = propose(site, study, models)
        if expected and not has_room(budget, index, models):  # agreed to, and begun only where all of it fits
            assert reply.rule == "budget"
            continue
        agreed = isinstance(reply, Answer)
        assert agreed == expected, (keys, budget, study, models, reply)
        if agreed:
            spent += models * (find_price(index, budget["currency"]) or 0.0)
            if study.release not in WITH_A_BOUND:
                assert study.release in keys["releases"]
                assert study.method in keys["methods"]
        else:
            assert reply.rule == "waiting"
            page = write_page(find_study(site.ledger, asker.study, site.policy), site.ledger, site.policy)
            assert "A person decides" in page or "if enough patients match" in " ".join(page.split())


@settings(max_examples=40, deadline=None)
@given(KEYS, BUDGETS)
def test_the_words_of_policy_check_are_what_a_site_does(keys, budget):
    """An example that is read back is one that the site decides on so: by its name, and in this currency."""
    site = open_site(keys, budget)
    rules = site.policy
    assert rules.agree is not None
    words = describe_agree(rules)
    examples = {one: _is_agreed(rules, rules.agree, one) for one in _list_examples(rules, rules.agree)}
    for wanted, beginning in ((True, "for example, agrees to"), (False, "for example, leaves")):
        assert any(line.startswith(beginning) for line in words) == (wanted in examples.values())
    for index, study in enumerate(STUDIES):
        price = find_price(index, budget["currency"])
        unpriced = _ExampleStudy(study.release, study.method, None)
        if price is None and unpriced in examples and not rules.agree.least_patients:
            assert examples[unpriced] == decide_plainly(keys, budget, index, 1, 0.0)
        agreed = f"agrees to {study.release} studies by "
        named = any(line.startswith(agreed) and study.method in line for line in words)
        if decide_plainly(keys, budget, index, 1, 0.0):
            assert named or price is not None
    unbounded = [line for line in words if "WITHOUT A BOUND" in line]
    assert len(unbounded) <= len([one for one in keys.get("releases", ()) if one not in WITH_A_BOUND])
    limits = [line for line in words if line.endswith("at most")]
    assert all(f"{budget['currency']} = " in line for line in limits)


@pytest.mark.parametrize("currency", ["rho", "epsilon"])
@pytest.mark.parametrize("key", ["price_per_study", "price_per_month"])
@pytest.mark.parametrize("pure", [Fraction(1, 20), Fraction(1, 2), Fraction(2)])
def test_a_limit_is_in_the_currency_of_the_budget(currency, key, pure):
    """Against the closed form: pure epsilon itself, or epsilon * tanh(epsilon / 2) in rho."""
    sharing = Proposed(
        "code-sharing",
        "shared",
        {"sensitive": HIDDEN, "epsilon": str(pure), "max_events": 1, "block_size": 1},
    )
    price = float(pure) if currency == "epsilon" else float(pure) * math.tanh(float(pure) / 2)
    for factor, expected in ((0.999, "waiting"), (1.001, "answer")):
        keys = {"releases": ["shared"], "methods": ["code-sharing"], key: f"{factor * price:.12f}"}
        site = open_site(keys, {"currency": currency, "total": "100"})
        reply, _ = propose(site, sharing)
        assert (reply.rule if isinstance(reply, Refusal) else "answer") == expected
        if expected == "answer":
            (record,) = site.ledger.studies.list()
            assert float(record.price or 0) == pytest.approx(price, rel=1e-9)
            (words,) = [line for line in describe_agree(site.policy) if line.endswith("at most")]
            assert f"{currency} = " in words


@pytest.mark.parametrize("currency", ["rho", "epsilon"])
def test_many_small_questions_cost_no_more_than_was_agreed_in_the_ledger_s_currency(currency):
    """A hundred answers at epsilon 1/10 cost less rho than one at epsilon 1, and ten times its epsilon."""
    keys = {"releases": ["exact"], "methods": ["rulefit"], "price_per_study": "1"}
    site = open_site(keys, {"currency": currency, "total": "100"})
    edges = [float(edge) for edge in range(21, 79)]
    fit = Proposed(
        "rulefit", "exact", {"positive": "y", "bins": {"age": edges}, "noise": "laplace", "epsilon": "1"}
    )
    reply, asker = propose(site, fit)
    assert isinstance(reply, Answer)
    answered = 0
    for number in range(14):
        question = AskCounts(
            totals=False,
            query="",
            target="y",
            attributes=(Attribute("age", tuple(edges[number:])),),
            noise=Laplace("1/5"),
        )
        envelope = msgspec.structs.replace(asker.wrap(question, name=f"question-{number}"), release="noised")
        answered += isinstance(open_reply(asker.ask(site, envelope)), Answer)
    most = 1.0 if currency == "epsilon" else math.tanh(0.5)
    each = 0.2 if currency == "epsilon" else 0.2 * math.tanh(0.1)
    assert answered == min(14, int(most / each + 1e-9)) > 0
    assert float(site.ledger.spent()) <= most + 1e-9


def test_without_agree_a_house_of_another_process_waits_and_one_of_this_process_does_not():
    pinned = Asker([ABSENT[0]], method="tree").identity.fingerprint
    site = cc.Site("north", TABLE, policy=cc.Policy(houses={"network": pinned}))
    study = Asker([site], method="tree", price=None)
    assert open_reply(site.answer(study.write_proposal())).rule == "waiting"
    assert "every study" not in describe_agree(site.policy)[0]
    own = cc.Site("north", TABLE)
    assert isinstance(open_reply(Asker([own], method="tree", price=None).propose(own)), Answer)
