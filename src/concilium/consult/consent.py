"""Studies as the people of a hospital see them: a list of what was proposed, a page to decide on, and the decision.

The page is worked out from the signed terms and from the hospital's own ledger and policy, by nothing else that a house
says; what the house wrote in it (purpose, names, query, values) is shown with nothing that a terminal would obey.
"""

from __future__ import annotations

import itertools
import json
import math
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import Any, NamedTuple

from concilium.errors import LedgerError, MessageError
from concilium.ledger.budgets import BY_DEFAULT, Balance
from concilium.ledger.ledger import Ledger
from concilium.ledger.study_book import AGREED, ENDED, POLICY, WAITING, StudyRecord
from concilium.policy.policy import Policy
from concilium.privacy.accounting import (
    PlannedQuestion,
    epsilon_from_rho,
    float_above,
    pure_from_rho,
    say_epsilon,
    shown,
)
from concilium.privacy.identity import Identity, fingerprint, has_fingerprint
from concilium.protocol.questions import Gathered, Randomised, Reported
from concilium.protocol.studies import find_reservation
from concilium.protocol.terms import OpenedTerms, name_study, open_terms, today
from concilium.records.dictionary import describe_entry
from concilium.registry import KINDS, load

RUNNING = "running"
NOT_SIGNED = "this hospital's identity did not sign that, so it counts as not decided"
SHORT_ID = 12
MOST_NAME = 40
WIDE = 98
LABELS = 16
HARDLY_A_BOUND, NO_BOUND = 5.0, 20.0


@dataclass(frozen=True)
class StudyOverview:
    """A study that was proposed to a hospital. `opened` is None where its terms are not as a house signed them, and
    `problem` then says so; `numbers` without a bound left in its `answers`; `house_name` is pinned in the policy;
    `forged` says that the decision in the file was not signed by the hospital (None: nobody looked), so that it counts
    as not made."""

    record: StudyRecord
    opened: OpenedTerms | None
    problem: str
    answers: int
    numbers: int
    house_name: str | None
    forged: bool | None = None

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def short_id(self) -> str:
        return self.record.id[:SHORT_ID]

    @property
    def status(self) -> str:
        """waiting, agreed, running (agreed, and answers were given), refused or ended (by a person, or by its date)."""
        status = WAITING if self.forged else self.record.status
        if status in (WAITING, AGREED) and self.opened is not None and _is_over(self.opened):
            return ENDED
        return RUNNING if status == AGREED and self.answers else status

    @property
    def is_pure(self) -> bool:
        """Whether what it costs is the pure epsilon of one answer: then that is shown, and no delta."""
        if self.opened is None:
            return False
        method = self.opened.method
        priced = [question for question in method.plan().questions if question.cost]
        return method.pure_price is not None and len(priced) == 1 and self.opened.terms.models == 1

    @property
    def name(self) -> str:
        """What people call it: its purpose, not at length."""
        if self.opened is None:
            return "not readable"
        purpose = self.opened.terms.purpose or self.opened.method.description
        return purpose if len(purpose) <= MOST_NAME else f"{purpose[: MOST_NAME - 1]}…"

    @property
    def asks(self) -> str:
        """Which method it is, and what it is about."""
        return "–" if self.opened is None else f"{self.opened.terms.method}: {self.opened.method.subject}"

    @property
    def query(self) -> str:
        """Whom it is about."""
        return "–" if self.opened is None else self.opened.method.query.strip() or "everyone"

    @property
    def asked_by(self) -> str:
        """The house by its name in the policy, or how its fingerprint begins."""
        return self.house_name or f"{self.house[:9]}…"

    @property
    def house(self) -> str:
        return "" if self.opened is None else fingerprint(self.opened.terms.house)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values, exact numbers as text."""
        record, opened = self.record, self.opened
        return {
            "study": self.id,
            "name": self.name,
            "asks": self.asks,
            "query": self.query,
            "status": self.status,
            "proposed": record.proposed.isoformat(),
            "decided": None if record.decided is None else record.decided.isoformat(),
            "who": record.who,
            "why": record.why,
            "house": self.house,
            "house_name": self.house_name,
            "price": None if record.price is None else str(record.price),
            "spent": str(record.spent),
            "answers": self.answers,
            "unlimited_numbers": self.numbers,
            "release": None if opened is None else opened.method.release,
            "terms": None if opened is None else json.loads(opened.encoded),
            "problem": self.problem or (NOT_SIGNED if self.forged else None),
        }


def list_studies(
    ledger: Ledger, policy: Policy | None = None, public: bytes | None = None
) -> list[StudyOverview]:
    """All studies of a hospital's ledger, in the order in which they were proposed. `public` is the hospital's key, to
    see whether decisions are its own."""
    answers = ledger.studies.count_answers()
    return [_look_at(record, answers, policy, public) for record in ledger.studies.list()]


def find_study(
    ledger: Ledger, beginning: str, policy: Policy | None = None, public: bytes | None = None
) -> StudyOverview:
    """The one study whose id begins so; LedgerError where there is none, or more than one."""
    return _look_at(ledger.studies.get(beginning), ledger.studies.count_answers(), policy, public)


def decide_on_study(
    ledger: Ledger, beginning: str, status: str, who: str, why: str, identity: Identity
) -> StudyOverview:
    """Enter a person's decision, signed by the hospital's identity; LedgerError where it cannot be."""
    study = find_study(ledger, beginning)
    if not f"{who}{why}".isprintable():
        raise LedgerError("who decided, and why, are each a line of printable characters")
    if status == AGREED:
        if study.opened is None:
            raise LedgerError(f"study {study.short_id} cannot be agreed to: {study.problem}")
        if _is_over(study.opened):
            raise LedgerError(
                f"study {study.short_id} ended on {study.opened.terms.ends}, so there is nothing left to agree to; "
                "have the house propose a new one"
            )
    bound = ledger.settings.site
    if bound is not None and f"({identity.fingerprint})" not in bound:
        raise LedgerError(
            f"{ledger.path} is the ledger of {bound}, and this is the identity {identity.fingerprint}: its decisions "
            "would not count there, so name the identity file of that hospital"
        )
    ledger.studies.decide(study.id, status, who.strip(), why.strip(), identity)
    return find_study(ledger, study.id, public=identity.public)


def _look_at(
    record: StudyRecord, answers: dict[str, tuple[int, int]], policy: Policy | None, public: bytes | None
) -> StudyOverview:
    opened, problem, name = None, "", None
    try:
        if name_study(record.terms) != record.id:
            raise MessageError("its terms were changed since they were proposed")
        opened = open_terms(record.terms, record.signature)
    except MessageError as error:
        problem = str(error)
    if opened is not None and policy is not None:
        house = opened.terms.house
        name = next((name for name, pin in policy.houses.items() if has_fingerprint(house, pin)), None)
    forged = None if public is None else not record.counts_for(public)
    return StudyOverview(record, opened, problem, *answers.get(record.id, (0, 0)), name, forged)


def _is_over(opened: OpenedTerms) -> bool:
    return date.fromisoformat(opened.terms.ends) < today()


def describe_cost(study: StudyOverview, balance: Balance) -> str:
    """What a study has cost so far, in words."""
    parts = []
    if study.record.spent:
        parts.append(say_amount(study.record.spent, balance, pure=study.is_pure))
    if study.numbers:
        parts.append(_count(study.numbers, "unbounded number"))
    return ", ".join(parts) or "nothing"


def _say_price(rho: Fraction, delta: Fraction, pure: bool = False) -> str:
    epsilon = float_above(pure_from_rho(rho)) if pure else epsilon_from_rho(rho, delta)
    return f"epsilon {say_epsilon(epsilon)} (rho {say_epsilon(float_above(rho))})"


def say_amount(amount: Fraction, balance: Balance, *, pure: bool = False) -> str:
    """An amount in the ledger's currency; `pure` where it is the price of one release whose mechanism is."""
    if balance.currency == "rho":
        return _say_price(amount, balance.delta, pure and amount > 0)
    return f"{balance.currency} {say_epsilon(float_above(amount))}"


class PageSection(NamedTuple):
    """A part of the page: what it is called, and its paragraphs, each with a mark where they are a list."""

    label: str
    paragraphs: Sequence[str]
    mark: str = ""


def write_page(study: StudyOverview, ledger: Ledger, policy: Policy | None = None) -> str:
    """The study as a page that a committee can decide on."""
    lines = [say_title(study, ledger), ""]
    for section in (
        *describe_study(study, ledger, policy),
        PageSection("Decision", _describe_decision(study, ledger.path)),
        PageSection("Full id", [study.id]),
    ):
        lines += _fill(section)
    return "\n".join(lines)


def say_title(study: StudyOverview, ledger: Ledger) -> str:
    """The first line of the page: which study, to whom, since when, and how it stands."""
    site = ledger.settings.site
    where = "" if site is None else f" to {site.split(' (')[0]}"
    return f"Study {study.short_id}, proposed{where} on {study.record.proposed:%Y-%m-%d}: {study.status}"


def describe_study(study: StudyOverview, ledger: Ledger, policy: Policy | None = None) -> list[PageSection]:
    """What is proposed, what leaves, what it may cost and what is left: all of the page but the decision."""
    if study.opened is None:
        return [PageSection("Not readable", [f"Nothing is answered in this study: {study.problem}."])]
    return [one for one in _describe_terms(study, study.opened, ledger, policy) if one.paragraphs]


def _describe_terms(
    study: StudyOverview, opened: OpenedTerms, ledger: Ledger, policy: Policy | None
) -> list[PageSection]:
    """The sections of the page that are about what is proposed."""
    terms, method = opened.terms, opened.method
    return [
        PageSection("Who asks", _describe_house(study, policy)),
        PageSection("Purpose", [terms.purpose or "The house gives none."]),
        PageSection("What is asked", list(_describe_subject(opened, policy))),
        PageSection("Dictionary", list(_describe_dictionary(opened)), "- "),
        PageSection("Questions", list(_describe_questions(opened)), "- "),
        PageSection("Settings", list(_describe_settings(opened)) or ["none"], "- "),
        PageSection("Who takes part", _describe_participants(opened, policy)),
        PageSection("What leaves", [f"The card will say: {method.way_out.meaning}"]),
        PageSection("Worst case", _describe_worst_case(opened, ledger)),
        PageSection("Price", _describe_price(study, opened, ledger)),
        PageSection("Until", [f"{terms.ends} (UTC), then nothing more is answered{_say_days_left(opened)}."]),
        *(
            []
            if policy is None
            else [PageSection("The policy", [_describe_policy(study, opened, ledger, policy)])]
        ),
    ]


def _describe_house(study: StudyOverview, policy: Policy | None) -> list[str]:
    if policy is not None and study.opened is not None and policy.revokes(study.opened.terms.house):
        who = "It is REVOKED in the policy: the site refuses whatever it asks."
    elif study.house_name is not None:
        who = f"It is pinned in the policy as {_quote(study.house_name)}."
    elif policy is None:
        who = "Whether the policy pins it is shown with --policy FILE."
    elif policy.houses:
        who = "It is NOT pinned under [houses] of the policy: the site refuses whatever it asks."
    else:
        who = "It is NOT pinned: the policy has no [houses], so that only a house of the site's own process may ask."
    return [f"The house {study.house}, by its signature. {who}"]


def _describe_subject(opened: OpenedTerms, policy: Policy | None) -> Iterator[str]:
    """What is to be learned, about whom, and from what."""
    method = opened.method
    yield _quote(method.aim)
    if opened.terms.models > 1:
        yield f"{opened.terms.models} models: hospitals are left out in turn, to measure how good they are."
    who = f"those for whom {_quote(method.query)}" if method.query else "everyone"
    known = f", if {_quote(method.must_know)} is known" if method.must_know else ""
    yield f"Patients: {who}{known}."
    if (rows := opened.encounters) > 1:
        yield (
            f"Of each patient at most {rows} rows of the table count, the last ones. The price is that of all of them: "
            f"noise is {rows} times as large as for one row."
        )
    if held := opened.terms.holdout:
        what = (
            "those whom the site's own key chooses"
            if held.percent
            else f"by the date in {_quote(held.column)}"
        )
        yield f"Held out of learning: {held.describe()} ({what}); the model is measured on them, by counts."
    if opened.subgroups:
        groups = "; ".join(f"{_quote(one.name)}: {_quote(', '.join(one.groups))}" for one in opened.subgroups)
        yield f"The model is measured in subgroups too, by counts of each: {groups}."
    if not method.reads_columns:
        return
    attributes: Sequence[str] | None = getattr(method, "attributes", None)
    withheld = () if policy is None else policy.withhold
    if attributes is None:
        but = f" (withheld: {', '.join(map(_quote, withheld))})" if withheld else ""
        limit = " that are stated below" if method.way_out.bounded else " that are not withheld"
        yield f"Attributes: all{limit}{but}."
    else:
        secret = [name for name in attributes if name in withheld]
        but = f"; the policy withholds {', '.join(map(_quote, secret))}" if secret else ""
        yield f"{_count(len(attributes), 'attribute')}: {', '.join(map(_quote, attributes))}{but}."
    for parameter, label in (("bins", "Cutoffs"), ("values", "Values")):
        for name, listed in (getattr(method, parameter, None) or {}).items():
            yield f"{label} of {_quote(name)}: {', '.join(_quote(_write_value(one)) for one in listed)}."


def _describe_dictionary(opened: OpenedTerms) -> Iterator[str]:
    """What the attributes are, as the house says."""
    for name, entry in (opened.terms.dictionary or {}).items():
        label = f" ({_quote(entry.label)})" if entry.label else ""
        codes = "".join(f"; {_quote(system)} {_quote(code)}" for system, code in entry.codes.items())
        yield f"{_quote(name)}{label}: {_quote(describe_entry(entry))}{codes}"
    if opened.terms.check_tables is True:
        yield "Asks whether the table fits it, or which columns do not: told where the policy has tell_fit."


def _describe_questions(opened: OpenedTerms) -> Iterator[str]:
    """The kinds of question, each with what it tells and how that leaves."""
    for question, alike in itertools.groupby(opened.plan.questions):
        times = len(list(alike))
        often = f"{times} times: " if times > 1 else ""
        way_out = _say_way_out(opened, question) + (" each" if question.cost and times > 1 else "")
        yield f"{often}{question.note or question.kind} ({question.kind}; {way_out})"


def _say_way_out(opened: OpenedTerms, question: PlannedQuestion) -> str:
    if issubclass(load(KINDS[question.kind]), Randomised) and question.cost is not None:
        return f"each entry randomised by itself, rho {say_epsilon(float_above(question.cost))}"
    if question.cost is not None and issubclass(load(KINDS[question.kind]), Reported):
        return f"randomised by each patient, rho {say_epsilon(float_above(question.cost))}"
    if question.cost is not None and opened.method.way_out.by_site:
        return f"this hospital's own answer, with noise that it adds, rho {say_epsilon(float_above(question.cost))}"
    if question.cost is not None:
        return f"a sum over all hospitals with noise, rho {say_epsilon(float_above(question.cost))}"
    plain = opened.method.way_out.by_site or issubclass(load(KINDS[question.kind]), Gathered)
    return "this hospital's own answer, as it is" if plain else "a sum over all hospitals"


def _describe_settings(opened: OpenedTerms) -> Iterator[str]:
    """The parameters that every question is held to, besides those that the page tells elsewhere."""
    method = opened.method
    for name, one in method.parameters().items():
        value = method.get_params()[name]
        if not one.parameter.section and value is not None:
            yield f"{name} = {_quote(_write_value(value))}: {one.parameter.about.replace('None: ', 'without it: ')}"


def _describe_participants(opened: OpenedTerms, policy: Policy | None) -> list[str]:
    """Who is asked; under masks with the keys that the masks are made with, which the policy pins."""
    participants = opened.terms.participants
    if opened.method.way_out.by_site:
        names = ", ".join(map(_quote, participants))
        return [f"{_count(len(participants), 'hospital')} at most: {names}."]
    lines = [f"{_count(len(participants), 'hospital')}, all of them or none:"]
    for name, key in zip(participants, opened.terms.identities, strict=True):
        pin = None if policy is None else policy.peers.get(name)
        other = pin is not None and not has_fingerprint(key, pin)
        lines.append(
            f"{_quote(name)}, {fingerprint(key)}{', NOT the key that the policy pins' if other else ''}"
        )
    return lines


def _describe_worst_case(opened: OpenedTerms, ledger: Ledger) -> list[str]:
    """What can come of it for patients, whatever the house does with what it gets."""
    release, others = opened.method.way_out, max(0, len(opened.terms.participants) - 1)
    colluders = opened.terms.colluders or 0
    if opened.method.worst_case:
        return list(opened.method.worst_case)
    if release.by_site and release.bounded:
        return [
            _say_factor("the reports", opened, ledger),
            "That holds whoever sides with whom, for what is true of a patient; that the patient is there is seen.",
        ]
    if release.by_site:
        handed_over = (
            "The house sees the numbers of this hospital as they are: treat this as handing over these tables. A count "
            "of one, or two counts that differ by one, can single out a patient, and nothing bounds what they tell."
        )
        if opened.price is None:
            return [handed_over]
        return [handed_over, _say_factor("what is asked with noise", opened, ledger)]
    side = "sides" if colluders == 1 else "side"
    circle = f"at most {colluders} of the {_count(others, 'other hospital')} {side} with the house"
    if not release.bounded:
        worst = [
            "The house sees sums over all hospitals; whatever is marked above as this hospital's own, it sees as that. "
            "A value that only patients of this hospital have is no sum, and a small sum can single out a patient: "
            "nothing bounds what they tell.",
            f"This hospital's own sums stay hidden as long as {circle}; if more do, treat this as handing them over.",
        ]
        if opened.price is not None:
            worst.append(_say_factor("what is asked with noise", opened, ledger))
        return worst
    return [
        _say_factor("all that leaves", opened, ledger),
        f"That holds as long as {circle}; if more do, less noise is left to protect this hospital's patients.",
    ]


def _say_factor(what: str, opened: OpenedTerms, ledger: Ledger) -> str:
    """What the price of a study means for a patient."""
    settings = ledger.settings
    price, chance = opened.price_in(settings.currency), ""
    if settings.currency == "rho" or price is None:
        epsilon = epsilon_from_rho(opened.price or opened.method.plan().total, settings.delta)
        chance = f"; with a chance of delta = {shown(settings.delta)} this may fail"
    else:
        epsilon = float_above(price)
    if epsilon > NO_BOUND:
        return f"No bound worth the name holds for {what} (epsilon = {say_epsilon(epsilon)})."
    factor = say_epsilon(math.exp(epsilon))
    factor = f"{float(factor):,.0f}" if float(factor) >= 100 else factor
    hardly = "; that is hardly a bound" if epsilon > HARDLY_A_BOUND else ""
    return (
        f"Whatever anybody may conclude about a patient from {what}: the patient's record being there makes it at "
        f"most {factor} times as likely as it would be without (epsilon = {say_epsilon(epsilon)}{chance}){hardly}."
    )


def _describe_price(study: StudyOverview, opened: OpenedTerms, ledger: Ledger) -> list[str]:
    """The price at most, and what is left of the budget after it."""
    unbounded = not opened.method.way_out.bounded
    lines = []
    if unbounded:
        what = "What leaves without noise" if opened.price else "What leaves"
        lines.append(f"{what} has no bound: it costs nothing of the budget, and no budget protects from it.")
    elif opened.price is None:
        lines.append(
            "The terms name no price, and whatever has one is refused then: that is all of this study."
        )
    if opened.price is not None:
        what = "What is asked with noise costs" if unbounded else "It costs"
        balance = ledger.balance()
        price, planned = opened.price_in(balance.currency), opened.planned_price
        is_pure = study.is_pure
        shown_price = (
            _say_price(opened.price, balance.delta)
            if price is None
            else say_amount(price, balance, pure=is_pure)
        )
        lines.append(f"{what} every patient of this hospital at most {shown_price}.")
        if opened.price != planned:
            but = "only" if opened.price > planned else "and not all of them would be answered"
            lines.append(f"The method's questions cost {_say_price(planned, balance.delta, is_pure)} {but}.")
        if opened.total is not None:
            after = ", ".join(f"{name} released as {release}" for name, release in opened.after)
            lines.append(
                f"With the studies that follow it{f' ({after})' if after else ''}: "
                f"{_say_price(opened.total, balance.delta, is_pure)}."
            )
        lines += _describe_balance(balance, None if price is None else price - study.record.spent)
    if study.answers:
        cost = describe_cost(study, ledger.balance())
        lines.append(f"{_count(study.answers, 'answer')} left in it so far: {cost}.")
    return lines


def _describe_balance(balance: Balance, cost: Fraction | None) -> list[str]:
    """What is left of the budget and of the month, before and after a cost in the ledger's currency; None where it
    cannot be charged to that."""
    if cost is None:
        return [
            f"The budget is in {balance.currency}, to which such noise cannot be charged: nothing of it is answered."
        ]
    after = f"all private answers together come to {say_amount(balance.spent + cost, balance)} after it"
    if balance.left is None:
        lines = [f"No budget limits private answers; {after}."]
    else:
        by_default = " (which holds by default)" if balance.source == BY_DEFAULT else ""
        lines = [f"{_say_left(balance.left, cost, f'the budget{by_default}', balance.currency)}; {after}."]
    if balance.month_left is not None:
        month = f"what {balance.month} may cost"
        lines.append(f"{_say_left(balance.month_left, cost, month, balance.currency)}.")
    return lines


def _say_left(left: Fraction, cost: Fraction, of: str, currency: str) -> str:
    if cost > left:
        return (
            f"Of {of}, {currency} {shown(left)} is left: it does NOT fit, and what is beyond is not answered"
        )
    return f"Of {of}, {currency} {shown(left)} is left now, and {currency} {shown(left - cost)} after it"


def _describe_policy(study: StudyOverview, opened: OpenedTerms, ledger: Ledger, policy: Policy) -> str:
    """What the policy makes of it by itself."""
    method = opened.method
    if method.release not in policy.modes:
        return f"It lets nothing out as {method.release!r}: the site refuses this study whatever is decided."
    closed = sorted(set(opened.kinds) - set(policy.kinds))
    if closed:
        return f"It answers no {closed[0]!r}: the site refuses this study whatever is decided."
    if policy.agree is None:
        return "It has no [agree]: a person decides on what a house of another process proposes."
    reservation = find_reservation(opened, policy.agree, ledger)
    if reservation is None:
        return "[agree] covers it, if enough patients match."
    return f"A person decides: {reservation.replace('its policy', 'it')}."


def _describe_decision(study: StudyOverview, path: str) -> list[str]:
    record = study.record
    if record.status == WAITING or study.forged:
        if study.status == ENDED:
            return ["None was made before its last day."]
        about = f"{shlex.quote(path)} {study.short_id} --who NAME --why TEXT"
        claimed = f"The file says {record.status} by {_quote(record.who)}, but {NOT_SIGNED}. "
        return [
            f"{claimed if study.forged else ''}None yet; either is signed, and entered in the ledger:",
            f"concilium studies agree {about}",
            f"concilium studies refuse {about}",
        ]
    when = "" if record.decided is None else f" on {record.decided:%Y-%m-%d %H:%M} UTC"
    who = "the hospital's policy" if record.who == POLICY else _quote(record.who)
    unchecked = study.forged is None and record.who != POLICY
    lines = [f"{record.status.capitalize()} by {who}{when}: {_quote(record.why)}."]
    return lines + (
        ["Whether the hospital signed that is shown where its identity can be read."] if unchecked else []
    )


def _say_days_left(opened: OpenedTerms) -> str:
    left = (date.fromisoformat(opened.terms.ends) - today()).days
    if left <= 0:
        return "; that is today" if left == 0 else "; that day is over"
    return f"; {_count(left, 'day')} from today"


def _fill(section: PageSection) -> list[str]:
    """A label, and beside it its paragraphs, filled to the width of the page; an empty line below."""
    lines: list[str] = []
    for paragraph in section.paragraphs:
        lines += textwrap.wrap(
            section.mark + paragraph,
            WIDE - LABELS,
            subsequent_indent=" " * len(section.mark),
            break_on_hyphens=False,
            break_long_words=False,
        )
    if not lines:
        return []
    beside = itertools.chain([section.label], itertools.repeat(""))
    return [*(f"{name:{LABELS}}{line}".rstrip() for name, line in zip(beside, lines, strict=False)), ""]


def _quote(text: str) -> str:
    """What a house wrote, with nothing in it that a terminal would obey, and no line of its own."""
    return text if text.isprintable() else repr(text)[1:-1]


def _write_value(value: Any) -> str:
    if isinstance(value, list | tuple | dict) and not value:
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_write_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
