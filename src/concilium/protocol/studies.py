"""The studies of a hospital: what was proposed to it, what it agreed to, and whether a question is one of those.

Who is protected, and from whom: patients and hospital, from a house that asks what was never agreed, from anybody who
asks in a house's name, and from a house that feels its way along the limits. A study is about one population, which is
compared once, when the study begins, with those of all studies before; whether there are enough patients is decided
then and not again. Such a refusal is one bit about patients: at most `refusals_per_month` different ones are given to a
house that the policy lists, and as many to all others together; then no study of theirs is begun that could get one.
What a refusal reveals is the same for whom it is counted: one text, one bit, once for a population. So a house learns
at most as much in a month as when all houses shared one count. Houses that side with each other learn as much each, and
a hospital has named each of them. One house's mistakes do not stop the studies of others. A private study depends on no
patient, and none of this applies to it.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from datetime import date
from fractions import Fraction

from concilium.errors import DoesNotFit
from concilium.ledger.ledger import Ledger
from concilium.ledger.memory import LASTING_RULE
from concilium.ledger.study_book import AGREED, ENDED, REFUSED, WAITING, StudyRecord
from concilium.policy.policy import Agree, Policy
from concilium.privacy.identity import Identity, fingerprint, has_fingerprint, statement
from concilium.protocol.attributes import Attribute
from concilium.protocol.cohort import View
from concilium.protocol.disclosure import Populations
from concilium.protocol.held_out import Part
from concilium.protocol.masking import check_circle
from concilium.protocol.messages import Envelope, Refused
from concilium.protocol.meter import Meter
from concilium.protocol.questions import Question
from concilium.protocol.terms import (
    MOST_DAYS,
    Agreed,
    OpenedTerms,
    Propose,
    TableFit,
    TableNews,
    derive_proof_key,
    find_fit,
    is_proven,
    open_terms,
    read_terms,
    today,
)

REMEMBERED_STUDIES = 1000
REPORTS = "reports"  # of groups of patients, as the ledger notes them

# One text for all of it: which of them it was would tell something about the patients.
TOO_FEW = "too few patients match this study, or too few tell it apart from what was asked before"
NO_MORE = (
    "too many different studies of this month were refused to this house for too few patients: until {until} none of "
    "its studies is begun here that could be refused so, unless a steward forgives them; private studies are"
)
WAITS = "this study waits for a person of this hospital to agree: {why}"
NOT_THE_HOUSE = "this question does not come from the house that proposed the study to this hospital"
NOT_PROPOSED = "this study was not proposed to this hospital, or it was started again since: propose it first"


class Studies:
    """What a site knows of studies. `record` of what was decided is in the ledger (ledger/study_book.py)."""

    def __init__(
        self,
        site: str,
        identity: Identity,
        policy: Policy,
        ledger: Ledger,
        view: View,
        populations: Populations,
        meter: Meter,
    ) -> None:
        self._site, self._identity, self._policy, self._ledger = site, identity, policy, ledger
        self._view, self._populations, self._meter = view, populations, meter
        self._book, self._currency = ledger.studies, ledger.settings.currency  # which a ledger has for good
        self._introduced: frozenset[str] = frozenset()
        self._running: dict[str, bytes] = {}  # by study, what its house proves its questions with
        # Also of studies that another process may just have ended: questions that are being answered need theirs.
        self._terms: OrderedDict[str, OpenedTerms] = OrderedDict()
        self._version = -1
        self._deciding = threading.Lock()

    def introduce(self, house: str) -> None:
        """Know a house of this process by its fingerprint: whoever runs it there holds the records anyway."""
        self._introduced |= {house}

    def consider(self, proposal: Propose) -> Agreed:
        """Agree to a study, now or as decided before; Refused where it is refused, ended, or waits for a person.

        One study at a time: what is decided is on disk before the next is. Whoever is no known house is told so before
        anything but the signature is looked at; what a known house proposes is counted as work before it is read.
        """
        terms = read_terms(proposal.terms, proposal.signature)
        house = fingerprint(terms.house)
        self._check_house(terms.house, house)
        self._meter.admit_proposal(house, len(proposal.terms))
        opened = open_terms(proposal.terms, proposal.signature)
        self._check_participant(opened)
        _check_dates(opened.terms.ends)
        self._check_allowed(opened)
        self._look_again()
        with self._deciding:
            if opened.id not in self._running:
                proof_key = self._derive_key(opened)  # MaskError, before anything is entered
                record = self._find(opened.id)
                if record is None or record.status == WAITING:
                    self._decide(opened, proposal, house)
                else:
                    self._take_up(opened, record)
                    self._check_fits(opened, record.spent)
                self._run(opened, proof_key)
        news = None  # of how the tables have changed since the study before
        if opened.method.way_out.by_site:
            news = TableNews.of(*self._populations.count_news(), max(1, self._policy.minimum_patients))
        return Agreed(self._identity.exchange_key, news, self._tell_fit(opened))

    def _tell_fit(self, opened: OpenedTerms) -> TableFit | None:
        """Whether the table fits the study's dictionary (terms.py), where terms ask and policy agrees."""
        if opened.terms.check_tables is not True or not self._policy.tell_fit:
            return None
        dictionary, method = opened.terms.dictionary or {}, opened.method
        asked = getattr(method, "attributes", None) or tuple(dictionary)
        return find_fit(
            self._view,
            dictionary,
            [*asked, *filter(None, [getattr(method, "target", "")])],
            max(1, self._policy.minimum_patients),
            bounded=method.way_out.bounded,
        )

    def hold(self, envelope: Envelope, question: Question) -> None:
        """Refused unless the study of this envelope was agreed to and has not ended, the house that proposed it asks,
        and it can ask this."""
        self._look_again()
        proof_key = self._running.get(envelope.study) or self._recall(envelope.study)
        if not is_proven(proof_key, envelope):
            raise Refused("house", NOT_THE_HOUSE)
        _check_dates(self.at(envelope.study).terms.ends)
        self.check(envelope.study, question, envelope.release)

    def at(self, study: str) -> OpenedTerms:
        """The terms of a study that was found to be agreed."""
        return self._terms[study]

    def look_up(self, study: str) -> OpenedTerms:
        """The terms of a study that was proposed here at any time, for the hospital itself."""
        record = self._book.get(study)
        return open_terms(record.terms, record.signature)

    def check(self, study: str, question: Question, release: str) -> None:
        """Refused unless the study can ask this."""
        objection = self.at(study).find_objection(question, release)
        if objection is not None:
            raise Refused("agreed", f"not agreed: {objection}")

    def ask_in_plain(self, envelope: Envelope) -> None:
        """Inside a charge: Refused where a study asks a kind that is answered in plain about something else again.

        Once; but where the house sees each hospital's numbers anyway, and one is lost, a method begins anew with the
        rest, and may have to ask otherwise.
        """
        opened = self.at(envelope.study)
        most = len(opened.terms.participants) if opened.method.way_out.begins_anew else 1
        if not self._book.ask(envelope.study, envelope.kind, envelope.content, most):
            raise Refused("agreed", f"not agreed: a study asks a question of kind {envelope.kind!r} once")

    def ask_once(self, envelope: Envelope, settings: str, content: str) -> None:
        """Inside a charge: Refused where a study asks once more what is answered at random, or by other settings."""
        study, kind = envelope.study, envelope.kind
        if not self._book.ask(study, f"{kind} settings", settings, 1):
            raise Refused("agreed", f"not agreed: all questions of kind {kind!r} have the same settings")
        if not self._book.ask_once(study, kind, content):
            raise Refused("agreed", f"not agreed: a study asks each question of kind {kind!r} once")

    def have_reported(self, study: str, epsilon: str) -> bool:
        """Whether a group of patients has reported in a study already, at the epsilon that all its groups report at."""
        reported = self._book.find_asked(study, REPORTS)
        if any(one.split(" ", 1)[1] != epsilon for one in reported):
            raise Refused("agreed", "not agreed: all groups of a study report at one epsilon")
        return bool(reported)

    def report(self, envelope: Envelope, group: int, epsilon: str, *, paid: bool) -> None:
        """Inside a charge: note that a group reports; Refused where it has, or where its price was taken for paid."""
        if paid != self.have_reported(envelope.study, epsilon) and paid:
            raise Refused("agreed", "not agreed: no report of this study was paid for")
        if not self._book.ask_once(envelope.study, REPORTS, f"{group} {epsilon}"):
            raise Refused("agreed", "not agreed: a group of patients reports once in a study")

    def _recall(self, study: str) -> bytes:
        with self._deciding:
            record = self._find(study)
            if record is None:
                raise Refused("proposed", NOT_PROPOSED)
            opened = open_terms(record.terms, record.signature)
            self._check_revoked(opened.terms.house)
            if self._policy.houses:  # which may have been taken out since
                self._check_house(opened.terms.house, fingerprint(opened.terms.house))
            self._check_allowed(opened)
            self._take_up(opened, record)
            return self._run(opened, self._derive_key(opened))

    def _take_up(self, opened: OpenedTerms, record: StudyRecord) -> None:
        """Go on with what was decided: begin what a person agreed to, unless it was begun before."""
        if record.status == REFUSED:
            raise Refused("refused", f"this hospital refused the study: {record.why}")
        if record.status == ENDED:
            raise Refused("ended", f"this hospital ended the study: {record.why}")
        if record.status != AGREED:
            raise Refused("waiting", WAITS.format(why="nobody has decided yet"))
        if not self._book.has_begun(opened.id):  # what a person agreed to, when it is first asked about
            self._begin(opened)

    def _derive_key(self, opened: OpenedTerms) -> bytes:
        return derive_proof_key(self._identity, opened.terms.exchange_key, opened.id, self._site)

    def _run(self, opened: OpenedTerms, proof_key: bytes) -> bytes:
        self._terms[opened.id] = opened
        while len(self._terms) > REMEMBERED_STUDIES:
            forgotten, _ = self._terms.popitem(last=False)
            self._running.pop(forgotten, None)  # read again from the ledger when it is asked
        self._running[opened.id] = proof_key
        return proof_key

    def _look_again(self) -> None:
        """Where another process has written the ledger since, it may have ended a study."""
        version = self._book.version
        if version != self._version:
            with self._deciding:
                self._version = version
                self._running.clear()

    def _find(self, study: str) -> StudyRecord | None:
        """The record of a study; what a person decided without the hospital's signature was never decided."""
        record = self._book.find(study)
        return record if record is not None and record.counts_for(self._identity.public) else None

    def _check_participant(self, opened: OpenedTerms) -> None:
        if self._site not in opened.terms.participants:
            raise Refused("message", f"{self._site} is not a participant of this study")
        if opened.method.way_out.by_site:
            return
        manifest = opened.manifest  # MaskError where it cannot be
        listed = {participant.name: participant.identity for participant in manifest.participants}
        if listed[self._site] != self._identity.public or manifest.colluders < self._policy.colluders:
            raise Refused(
                "mask",
                f"this study lists {self._site} under a key that is not its own, or tolerates fewer colluding "
                f"hospitals than the {self._policy.colluders} it asks for",
            )

    def _check_revoked(self, public: bytes) -> None:
        if self._policy.revokes(public):
            raise Refused(
                "house",
                f"the house {fingerprint(public)} is revoked at this hospital: others may have its key",
            )

    def _check_house(self, public: bytes, house: str) -> None:
        self._check_revoked(public)
        pinned = self._policy.houses
        pins = any(has_fingerprint(public, fingerprint) for fingerprint in pinned.values())
        if not (pins if pinned else house in self._introduced):
            raise Refused(
                "house",
                f"the house {house} is not known at this hospital, which enters the fingerprints of houses that may "
                "ask under [houses] of its policy",
            )

    def _check_allowed(self, opened: OpenedTerms) -> None:
        """Refused where the policy lets nothing of the sort out."""
        releases, kinds = opened.needs
        for release in releases:
            if release not in self._policy.modes:
                fitting = ", ".join(self._policy.modes)
                raise Refused(
                    "mode", f"nothing is released as {release!r} here", asked=release, would_fit=fitting
                )
        for kind in kinds:
            if kind not in self._policy.kinds:
                reason = f"questions of kind {kind!r} are not answered here"
                raise Refused("kind", reason, asked=kind, would_fit=", ".join(self._policy.kinds))

        if opened.terms.holdout and not opened.method.way_out.bounded and self._leaves_out:
            raise Refused(
                "kind", "a site that leaves small counts out does not tell part of its patients apart"
            )

    @property
    def _leaves_out(self) -> bool:
        """Whether the policy leaves small counts out of tables."""
        policy = self._policy
        return bool(policy.branch_floor or policy.minimum_cell or policy.dominance is not None)

    def _check_fits(self, opened: OpenedTerms, spent: Fraction) -> None:
        """Refuse, before any hospital is charged, what this one would refuse later: nothing is asked unless all of it
        fits. What waits for a person waits all the same."""
        self._check_columns(opened)
        if opened.price is None:
            return
        if not opened.method.way_out.by_site:  # or the others could go on without this hospital
            self._check_sums(opened)
        self._check_room(opened, spent)

    def _check_sums(self, opened: OpenedTerms) -> None:
        """Refuse what would keep this hospital from the sums of all, in which the others are charged for nothing."""
        method = opened.method
        if not method.way_out.comparable:
            check_circle(self._policy, self._ledger, opened.manifest.names)
        priced = sum(bool(question.cost) for question in opened.plan.questions)
        if method.reads_columns and priced:
            numbers = method.needed_columns & {*(getattr(method, "bins", None) or ())}
            columns = [Attribute(one, (0.0,) if one in numbers else ()) for one in method.needed_columns]
            self._meter.check_study(method.query, columns, priced * opened.terms.models)

    def _check_columns(self, opened: OpenedTerms) -> None:
        """DoesNotFit where a private question of the study would be refused for a column, by names and policy alone: it
        is found before any hospital is charged, and says nothing about patients. What is not private is selected when
        the study begins (`_admit`)."""
        required = opened.method.required_columns | {one.name for one in opened.subgroups}
        if not opened.method.way_out.bounded and (absent := sorted(required - set(self._view.records.names))):
            raise DoesNotFit(
                f"there is no column {absent[0]!r} at this hospital, which the study cannot do without"
            )
        needed = opened.method.needed_columns | required
        if opened.price is not None and needed and any(True in prices for prices in opened.kinds.values()):
            holdout = opened.terms.holdout
            dates = [holdout.column] if holdout and holdout.column else []
            self._view.each_by_itself.require([*needed, *dates])
        if opened.price is not None and (name := opened.method.reads_beside):
            if name not in self._view.parts:
                raise DoesNotFit(f"this hospital holds no {name} of its patients")
            opened.method.check_part(self._view.each_by_itself.find_part(name))

    def _check_room(self, opened: OpenedTerms, spent: Fraction) -> None:
        """BudgetError, or Refused, where the ledger has no room for all that the study may still cost, nor for what its
        house says that further ones will. A balance depends on no patient."""
        assert opened.price is not None  # `_check_fits`
        if (price := opened.price_in(self._currency)) is None:
            raise Refused("currency", say_currency(self._currency))
        total = price if opened.total is None else price * opened.total / opened.price
        if total > spent:
            self._ledger.check_room(total - spent, self._currency)

    def _decide(self, opened: OpenedTerms, proposal: Propose, house: str) -> None:
        """As the policy says: agree and begin, or have it wait for a person."""
        try:
            agree, why = self._policy.agree, None
            if agree is not None:
                why = find_reservation(opened, agree, self._ledger)
            elif house not in self._introduced:
                why = "its policy agrees to nothing by itself"
            if why is not None:
                raise Refused("waiting", WAITS.format(why=why))
            self._check_fits(opened, Fraction(0))
            self._begin(opened, proposal)
        except Refused as refusal:
            if refusal.rule == "waiting":
                price = opened.price_in(self._currency)
                self._book.wait(opened.id, opened.encoded, proposal.signature, price)
            raise

    def _begin(self, opened: OpenedTerms, proposal: Propose | None = None) -> None:
        """Compare the population of a study with those before, and enter it with what the policy agreed to."""
        bounded = opened.method.way_out.bounded
        if not bounded:
            refused, until = self._ledger.count_refused(self._name_listed(opened))
            if refused >= self._policy.refusals_per_month:
                raise Refused("ended", NO_MORE.format(until=until))
            self._meter.admit_selection(opened.method.query, opened.method.way_out)
        try:
            with self._ledger.writing():
                if not bounded:
                    self._admit(opened, by_policy=proposal is not None)
                self._book.begin(opened.id)
                if proposal is not None:
                    self._book.agree_by_policy(
                        opened.id,
                        opened.encoded,
                        proposal.signature,
                        opened.price_in(self._currency),
                        "as [agree] says" if self._policy.agree else "a house of this process",
                    )
        except Refused as refusal:
            if refusal.rule in (LASTING_RULE, "waiting"):  # both tell something of how many there are
                self._ledger.refuse_for_patients(
                    opened.id,
                    Propose.kind,
                    opened.terms.nonce,
                    _name_population(opened),
                    self._name_listed(opened),
                )
            raise

    def _name_listed(self, opened: OpenedTerms) -> str:
        """The fingerprint of a house that the policy lists; of any other nothing, since it could be made anew."""
        public = opened.terms.house
        listed = any(has_fingerprint(public, pin) for pin in self._policy.houses.values())
        return fingerprint(public) if listed else ""

    def _admit(self, opened: OpenedTerms, *, by_policy: bool) -> None:
        """Refused where a study's patients, or those of a part that it tells apart, are too few, or too close to those
        of a study before. Inside the transaction in which it is entered."""
        method, least = opened.method, self._policy.minimum_patients
        cohort = self._view.select(method.query, method.must_know)
        if cohort.count_patients() < least:
            raise Refused(LASTING_RULE, TOO_FEW)
        agree = self._policy.agree
        if by_policy and agree is not None and cohort.count_patients() < agree.least_patients:
            raise Refused("waiting", WAITS.format(why="its policy agrees by itself to larger studies only"))
        if not self._policy.differencing:
            return
        cohorts = [cohort]
        if opened.terms.holdout and not cohort.floored:
            holdout = opened.terms.holdout
            cohorts += [holdout.choose(cohort, least, held=held) for held in (True, False)]
        if method.percent_held_out is not None and not cohort.floored:
            for held in (True, False):
                part = Part(percent=method.percent_held_out, held=held)
                cohorts.append(part.choose(cohort, least))
        if method.folds is not None and not cohort.floored:
            cohorts += method.folds.list_parts(cohort)
        if not all(self._populations.admit(one.population) for one in cohorts):
            raise Refused(LASTING_RULE, TOO_FEW)


def find_reservation(opened: OpenedTerms, agree: Agree, ledger: Ledger) -> str | None:
    """Why [agree] leaves a study to a person, None where it covers it (if enough patients match)."""
    balance, method = ledger.balance(), opened.method
    price = opened.price_in(balance.currency)
    if price is None and opened.price is not None:
        return f"its budget is in {balance.currency}, to which the noise of this study cannot be charged"
    of_month = ledger.studies.price_of_month()
    if price is not None and opened.price and opened.total is not None:  # and those after it
        of_month += price * opened.total / opened.price - price
    has_budget = balance.budget is not None
    own = agree.find_reservation(method.release, method.method, price, of_month, has_budget=has_budget)
    later = (
        agree.find_reservation(release, name, None, of_month, has_budget=has_budget)
        for name, release in opened.after
    )
    own = own or agree.find_foreign(method.get_params()) or method.find_reservation(agree.sensitive)
    return own or next(filter(None, later), None)


def say_currency(currency: str) -> str:
    """Why Gaussian noise cannot be paid here."""
    return (
        f"this hospital's budget is in {currency}, for pure mechanisms; the noise of this question is Gaussian and "
        "costs rho"
    )


def _check_dates(ends: str) -> None:
    """Refused where a study is over, or would last too long."""
    left = (date.fromisoformat(ends) - today()).days
    if left < 0:
        raise Refused("ended", f"this study ended on {ends}")
    if left > MOST_DAYS:
        raise Refused("message", f"a study lasts {MOST_DAYS} days at most; this one ends on {ends}")


def _name_population(opened: OpenedTerms) -> str:
    """Whom a study is about, under whatever name: the same patients count once among the refusals of a month."""
    method, holdout = opened.method, opened.terms.holdout
    about = (
        method.query,
        method.must_know,
        str(method.percent_held_out),
        *([str(holdout)] if holdout else []),
    )
    parts = [text.encode() for text in about]
    return hashlib.sha256(statement("concilium/population@1", *parts)).hexdigest()
