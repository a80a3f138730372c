"""Houses that search: every number that a house chooses, in a question or in a study's terms, put to one value after
the other, at two hospitals of which one has a patient more. Under masks nothing that is visible may tell the two apart,
whatever the value, and no sequence of values gets a second plain answer out of a study. What a hospital must refuse for
its patients is one bit, of which a month has so many.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

import concilium as cc
from adversary.recordings import NAMES, PLACES, STUDIES, Exchange, Relay, few_rounds, make_small
from agreed import Asker
from concilium.ledger.memory import LASTING_RULE
from concilium.models.outcome import Outcome
from concilium.protocol.attributes import Attribute
from concilium.protocol.messages import VERSION, Answer, Envelope, Refusal, decode, encode, open_reply
from concilium.protocol.questions import Gathered, Statistic
from concilium.protocol.studies import NO_MORE, TOO_FEW
from concilium.registry import KINDS, RELEASES, load
from concilium.rulefit.generation import AskRules, Rules
from contract.patients import SCHEMA, hold
from protocol.test_hostile_numbers import find_numbers, look, put

MOST_REFUSED = 4
POLICY = cc.Policy(budget=cc.Budget("unlimited"), refusals_per_month=MOST_REFUSED)
# Only the age tells them apart: where two attributes do it equally well, chance decides which a rule is made of.
TYPICAL = [
    {"age": 40.0, "pressure": 110.0, "sex": "f", "ward": "a", "y": "yes"},
    {"age": 70.0, "pressure": 110.0, "sex": "f", "ward": "a", "y": "no"},
]


def make_hospital(count: int) -> list[dict[str, Any]]:
    """Patients of two sorts, two of one to three of the other: one more changes how many there are, and nothing that
    may be told in plain."""
    return [TYPICAL[place % 5 > 1] for place in range(count)]


PATIENTS = make_hospital(100)
ONE_MORE = [*PATIENTS, TYPICAL[0]]
OTHERS = {"south": make_hospital(60), "west": make_hospital(64)}
# Where the counts of the two differ (how many there are, and how many are of the sort of the one more), half of that,
# and the ends of what a number may be.
COUNTS = [len(ONE_MORE), ONE_MORE.count(TYPICAL[0])]
VALUES = sorted(
    {-1, 0, 1, 2, 5, 2**31, *(at + more for at in COUNTS for more in (-1, 0, 1)), COUNTS[1] // 2 + 1}
)

UNDER_MASKS = [place for place in PLACES if not load(RELEASES[STUDIES[place][1]].place).by_site]
# Of one method the study that says most.
LAST = {STUDIES[place][:2]: place for place in UNDER_MASKS}
WITHOUT_BOUND = [place for place in LAST.values() if not RELEASES[STUDIES[place][1]].bounded]
under_masks = pytest.mark.parametrize("place", UNDER_MASKS, ids=[NAMES[place] for place in UNDER_MASKS])
without_bound = pytest.mark.parametrize("place", WITHOUT_BOUND, ids=[NAMES[place] for place in WITHOUT_BOUND])


def open_hospital(name: str, rows: list[dict[str, Any]], policy: cc.Policy = POLICY) -> cc.Site:
    schema = {column: SCHEMA.get(column, "code") for column in rows[0]}
    held = hold(rows, schema | ({"born": "number"} if "born" in schema else {}))
    return cc.Site(name, held, policy, division_key=b"the key of these tests")


def open_circle(rows: list[dict[str, Any]], policy: cc.Policy = POLICY) -> list[cc.Site]:
    return [open_hospital("north", rows, policy), *(open_hospital(*other) for other in OTHERS.items())]


def tell(kind: str, reply: Answer | Refusal, study: str) -> tuple[Any, ...]:
    """All that anybody sees of a reply: of a plain one what it says, of one under masks how long it is."""
    if isinstance(reply, Refusal):
        reason = reply.reason.replace(study, "")
        return reply.rule, reason, reply.asked, reply.spent, reply.left, reply.would_fit
    return "answer", reply.body if is_plain(kind) else len(reply.body), reply.charge


def is_plain(kind: str) -> bool:
    return issubclass(load(KINDS[kind]), Gathered)


def write_as(number: Any, value: int) -> Any:
    """A value in the form that a number has."""
    return str(value) if isinstance(number, str) else type(number)(value)


def vary(body: bytes) -> list[bytes]:
    """The same question with each of its numbers at every value."""
    paths = [path for path in find_numbers(body) if not isinstance(look(body, path), bytes)]
    variants = [put(body, path, write_as(look(body, path), value)) for path in paths for value in VALUES]
    return [variant for variant in dict.fromkeys(variants) if variant != body]


class Study:
    """A study that is agreed to at three hospitals, of which the first is asked by hand."""

    def __init__(self, method: Any, rows: list[dict[str, Any]]) -> None:
        self._sites = open_circle(rows)
        self._run = cc.House(self._sites, timeout=600).open(method.draft())
        self._run.masked_study  # noqa: B018  agreed, joined and met

    def ask(self, kind: str, release: str, body: bytes) -> tuple[Any, ...]:
        """What is visible of the first hospital's reply to this, asked by the house of the study."""
        envelope = self._run._envelope("north", kind, body, hashlib.sha256(body).digest(), b"", release)
        return tell(kind, open_reply(self._sites[0].answer(encode(envelope))), self._run.study)


@cache
def list_asked(place: int) -> list[Exchange]:
    """What the study at this place asks of the first hospital about patients: the first of each kind."""
    name, release, more = STUDIES[place]
    exchanges: list[Exchange] = []
    sites = [Relay(site, exchanges) for site in open_circle(PATIENTS)]
    with few_rounds():
        make_small(name, release, **more).fit(cc.House(sites, timeout=600))
    first: dict[tuple[str, str], Exchange] = {}
    for exchange in exchanges:
        if exchange.site == "north" and isinstance(exchange.question, Statistic):
            first.setdefault((exchange.envelope.kind, exchange.envelope.release), exchange)
    return list(first.values())


def test_every_kind_under_masks_is_searched():
    listed = {kind: load(place) for kind, place in KINDS.items() if issubclass(load(place), Statistic)}
    asked = {exchange.envelope.kind for place in UNDER_MASKS for exchange in list_asked(place)}
    by_site = {release for release, listed in RELEASES.items() if load(listed.place).by_site}
    assert asked == {kind for kind, form in listed.items() if form.releases - by_site}


@under_masks
def test_no_number_of_a_question_tells_two_hospitals_apart(place):
    name, release, more = STUDIES[place]
    method = make_small(name, release, **more)
    studies = Study(method, PATIENTS), Study(method, ONE_MORE)
    plain: dict[str, set[bytes]] = {}
    fates: Counter[str] = Counter()
    for exchange in list_asked(place):
        kind, way, body = exchange.envelope.kind, exchange.envelope.release, exchange.envelope.body
        variants = vary(body)
        # In the middle of its variants, so that some come before and some after it.
        half = len(variants) // 2
        for variant in [*variants[:half], body, *variants[half:]]:
            seen, seen_of_other = (study.ask(kind, way, variant) for study in studies)
            assert seen == seen_of_other, (kind, variant)
            fates[seen[0]] += 1
            if seen[0] == "answer" and is_plain(kind):
                plain.setdefault(kind, set()).add(seen[1])
    assert all(len(bodies) == 1 for bodies in plain.values())
    assert fates["answer"] >= len(list_asked(place))
    assert set(fates) <= {"answer", "agreed", "message", "mask", "work"}, fates


def fit_to(question: Gathered[Any], parameters: dict[str, Any]) -> bytes:
    """A recorded question as a study with these parameters would ask it, cutting at all of its edges."""
    bins = {
        name: edges for name, edges in (parameters.get("bins") or {}).items() if name != parameters["target"]
    }
    changed = {name: parameters[name] for name in question.__struct_fields__ if name in parameters}
    if question.named:
        changed["attributes"] = [
            replace(one, stated_edges=tuple(bins[one.name]), grid=None) if one.name in bins else one
            for one in question.named
        ]
    if "bins" in changed:
        changed["bins"] = {name: edges for name, edges in bins.items() if name in question.bins}
    return encode(replace(question, **changed))


def propose_and_ask(asker: Asker, site: cc.Site, bodies: dict[str, bytes]) -> list[tuple[Any, ...]]:
    """All that a house sees that proposes a study to one hospital and asks what is answered in plain."""
    proposed = open_reply(asker.propose(site))
    if isinstance(proposed, Refusal):
        return [tell("study.propose", proposed, asker.study)]
    visible: list[tuple[Any, ...]] = []
    for kind, body in bodies.items():
        named = {
            "id": f"{asker.study[:32]} {kind}",
            "study": asker.study,
            "kind": kind,
            "release": asker.release,
        }
        reply = asker.ask(site, Envelope(version=VERSION, body=body, **named))
        visible.append(tell(kind, open_reply(reply), asker.study))
    return visible


@without_bound
def test_no_number_of_a_studys_terms_tells_two_hospitals_apart(place):
    """One study after the other, at the same hospitals, in one month."""
    name, release, more = STUDIES[place]
    parameters = make_small(name, release, **more).get_params()
    plain = [exchange.question for exchange in list_asked(place) if is_plain(exchange.envelope.kind)]
    circles = open_circle(PATIENTS), open_circle(ONE_MORE)
    fates: list[Counter[str]] = [Counter(), Counter()]
    answered: set[int] = set()
    for path in find_numbers(parameters):
        number = look(parameters, path)
        for value in [] if isinstance(number, bool) else VALUES:
            changed = put(parameters, path, write_as(number, value))
            bodies = {question.kind: fit_to(question, changed) for question in plain}
            both = []
            for sites, count in zip(circles, fates, strict=True):
                nonce = f"the {path} at {value}"
                asker = Asker(sites, method=name, release=release, parameters=changed, nonce=nonce)
                both.append(propose_and_ask(asker, sites[0], bodies))
                count.update(seen[0] for seen in both[-1])
                answered |= {number for number, seen in enumerate(both[-1]) if seen[0] == "answer"}
            refused = any(seen[0] in (LASTING_RULE, "ended") for one in both for seen in one)
            assert refused or both[0] == both[1], (path, value)
    assert len(answered) == len(plain)
    for count in fates:
        assert count["answer"] > 10 or not plain  # of sums alone, under masks, nothing is seen
        assert set(count) <= {"answer", "agreed", "message", "mask", "attribute", LASTING_RULE, "ended"}
        assert count[LASTING_RULE] <= MOST_REFUSED


# A ward of so many, and all of them have the outcome: whoever may choose the support finds out how many they are.
WARD = 30
OF_A_WARD = [{**TYPICAL[0], "ward": "c"}] * WARD + [TYPICAL[1]] * 50
ASKED = {"positive": "yes", "trees": 20, "leaves": 2.0, "shrinkage": 0.5, "seed": 0, "bins": {}}


def find_rules(sites: list[cc.Site], release: str, support: int) -> Rules | str:
    """The rules of the first hospital, in a study of its own with this support."""
    parameters = {**ASKED, "support": support}
    asker = Asker(
        sites, method="rulefit", release=release, parameters=parameters, nonce=f"with support {support}"
    )
    said = {name: parameters[name] for name in ("trees", "leaves", "shrinkage", "seed", "support")}
    attributes = (Attribute("ward", (), ("a", "b", "c")),)
    question = AskRules(query="", target="y", outcome=Outcome(positive="yes"), attributes=attributes, **said)
    reply = open_reply(asker.ask(sites[0], asker.wrap(question, name=f"support {support}")))
    return decode(reply.body, Rules) if isinstance(reply, Answer) else reply.reason


def search(sites: list[cc.Site], release: str) -> tuple[int | None, int]:
    """The largest support at which there are rules, by halves, and how many studies that took."""
    low, high, studies = 5, 40, 0  # there are rules at `low`, and none at `high`
    if find_rules(sites, release, low) == find_rules(sites, release, high):
        return None, 2
    while high - low > 1:
        middle, studies = (low + high) // 2, studies + 1
        found = find_rules(sites, release, middle)
        low, high = (middle, high) if isinstance(found, Rules) and found.rules else (low, middle)
    return low, studies + 2


# The first release told the count of single hospitals to within 1, ten questions each, also around these rules.
@pytest.mark.parametrize("rule", [{}, {"minimum_cell": 3}, {"dominance": 0.9}, {"branch_floor": 6}], ids=str)
def test_searching_for_the_support_of_rules_counts_nobody(rule):
    policy = replace(POLICY, **rule)
    assert search(open_circle(OF_A_WARD, policy), "masked")[0] is None
    answers = {find_rules(open_circle(OF_A_WARD, policy), "masked", support) for support in range(5, 60, 6)}
    assert len(answers) == 1
    assert [rules for rules in answers if isinstance(rules, Rules) and rules.rules]


def test_under_exact_where_the_house_sees_counts_anyway_that_search_counts_the_ward():
    """So that it is a search that would find them."""
    assert search(open_circle(OF_A_WARD), "exact") == (WARD, 8)


# One of so many is ill, and whoever knows when she was born knows who she is.
YEARS = 128
ILL = 5


def list_born() -> list[dict[str, Any]]:
    return [
        {**TYPICAL[year % 2], "born": float(year), "hiv": "yes" if year == ILL else "no"}
        for year in range(YEARS)
    ]


def begin_study(site: cc.Site, others: list[cc.Site], query: str) -> tuple[str, str]:
    """Whether a masked study of this query begins at a hospital: the rule that refuses it and the reason."""
    asker = Asker([site, *others], method="tree", release="masked", query=query, nonce=f"search {query}")
    reply = open_reply(asker.propose(site))
    return (reply.rule, reply.reason) if isinstance(reply, Refusal) else ("", "")


def find_her(most_refused: int) -> tuple[range, Counter[str]]:
    """Search by halves for the year in which the one who is ill was born: a study of all others and of those born
    before some year is theirs in other words, or too close to it. In which years she may be, and what was replied."""
    policy = cc.Policy(refusals_per_month=most_refused, allow=("born",))
    site, *others = open_circle(list_born(), policy)
    fates = Counter([begin_study(site, others, "hiv = 'no'")[0]])
    years = range(YEARS)
    while len(years) > 1:
        middle = years.start + len(years) // 2
        rule, reason = begin_study(site, others, f"hiv = 'no' or born < {middle}")
        fates[rule] += 1
        if rule == "ended":
            assert reason.startswith(NO_MORE[:50])
            # Nor does any other study tell her: neither one that is without her, nor one that is her alone.
            for query in (f"hiv = 'no' or born < {ILL}", f"hiv = 'no' or born <= {ILL}", "hiv = 'yes'"):
                assert begin_study(site, others, query) == (rule, reason)
            break
        if rule:
            assert (rule, reason) == (LASTING_RULE, TOO_FEW)
            years = range(years.start, middle)
        else:
            years = range(middle, years.stop)
    return years, fates


@pytest.mark.parametrize("most", [1, 3])
def test_a_search_by_refusals_is_ended_by_those_of_the_month(most):
    """The first release answered any number of them: 17 questions found one woman with HIV at one hospital."""
    years, fates = find_her(most)
    assert fates[LASTING_RULE] == most
    assert fates["ended"] == 1
    assert len(years) == YEARS >> most


def test_that_search_would_find_her():
    """A month's allowance is a bound on what is told and no protection: a hospital that must not tell this much has
    studies wait for a person, who reads such queries."""
    years, fates = find_her(20)
    assert list(years) == [ILL]
    assert fates[LASTING_RULE] < 20
    assert fates["ended"] == 0
