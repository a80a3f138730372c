"""A study's terms: what a house asks hospitals to agree to before it asks anything about a patient.

The house signs them, and their hash is the study's id: whoever changes a character proposes another study. A site reads
them as the method they name, with its parameters, so that it works out by itself which kinds of question the study can
ask, what they may hold, and what all of it costs at most; the house is believed in nothing but who it is, by its
signature. Who is protected: the hospital, from a house that asks something else than what was agreed. What the method's
own questions tell is protected as their release says (releases/), and no better.

Whether a hospital's table fits the dictionary of a study, as far as a house may learn it: which columns, no count.

Asked for in the terms (`check_tables`), told where the hospital's policy says so (`tell_fit`; by default it does
not).

Who is protected: patients with a rare value, from the house. A column does not fit if it is not there for the study
(not in the table, withheld or eliminated: these look alike), or if so many patients as any group the hospital tells
of (`minimum_patients`) have codes that the dictionary does not list, or if of a number more than half of those whose
value is known, and so many at least, are outside what is plausible, as in another unit; the slip of one patient is
not told. No value and no count: that is `concilium check`, at home. A house chooses the dictionary, and could ask by
it, in study after study, whether a value occurs, or on which side of a number the median is. So only columns are
looked at that the study asks about, whose values it may be told in any case; each study is one that the hospital
agrees to; and every column that was looked at is entered in the ledger as a number. What is left: by one study after
another a house may find out which values of agreed columns so many patients have, and medians. Under noise
(`private`, `local`) nothing may depend on a patient: there a column does not fit only if it is not there by its name
and the policy's, whatever the patients have.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np

from concilium.errors import ConciliumError, MessageError, QueryError, StudyError, nearest
from concilium.ledger.chain import Head
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.privacy.identity import Identity, is_signed, statement
from concilium.privacy.manifest import KEY_BYTES, NONCE_BYTES, Manifest, Participant, compose
from concilium.protocol.held_out import Holdout
from concilium.protocol.messages import Envelope
from concilium.protocol.questions import Question, Reply, Statistic, Step
from concilium.protocol.releases import find_release
from concilium.protocol.subgroups import Subgroup, check_subgroups
from concilium.records.columns import Coded, Column
from concilium.records.dictionary import DictionaryEntry, check_entries
from concilium.records.query import read_as_numbers
from concilium.registry import KINDS, PROPOSED, RELEASES, load

if TYPE_CHECKING:
    from concilium.protocol.cohort import View
    from concilium.protocol.proposal import Proposal

WORDS = {
    "absent": "it is not there",
    "codes": "it has codes that are not listed",
    "range": "most of its numbers are not plausible, as if in another unit",
}


class _Misfit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column that does not fit, and why."""

    column: str
    why: Literal["absent", "codes", "range"]


class TableFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a hospital tells of its table: the columns that do not fit, and in how many it looked at patients."""

    misfits: tuple[_Misfit, ...] = ()
    looked_at: int = 0

    def __str__(self) -> str:
        if not self.misfits:
            return "fits the dictionary"
        said = "; ".join(f"{one.column}: {WORDS[one.why]}" for one in self.misfits)
        return f"does not fit the dictionary ({said})"


def find_fit(
    view: View, dictionary: Mapping[str, DictionaryEntry], asked: Sequence[str], least: int, *, bounded: bool
) -> TableFit:
    """How the columns that a study asks about fit its dictionary, as the outside may know it."""
    names = frozenset(view.records.names)
    if bounded:  # nothing but what policy says of names
        names = view.named
    misfits, looked_at = [], 0
    for name in sorted(set(asked) & set(dictionary)):
        entry = dictionary[name]
        if name not in names:
            misfits.append(_Misfit(name, "absent"))
        elif not bounded and entry.values and isinstance(column := view.records[name], Coded):
            looked_at += 1
            if _count_unlisted(column, entry) >= least:
                misfits.append(_Misfit(name, "codes"))
        elif not bounded and entry.range is not None:
            looked_at += 1
            if _is_mostly_outside(view.records[name], entry.range, least):
                misfits.append(_Misfit(name, "range"))
    return TableFit(tuple(misfits), looked_at)


def _is_mostly_outside(column: Column, plausible: tuple[float, float], least: int) -> bool:
    """Whether more than half of the known numbers, and so many at least, are not plausible."""
    numbers = read_as_numbers(column)
    known = numbers[~np.isnan(numbers)]
    outside = int(((known < plausible[0]) | (known > plausible[1])).sum())
    return outside >= least and 2 * outside > len(known)


def _count_unlisted(column: Coded, entry: DictionaryEntry) -> int:
    """How many patients have a code that the dictionary does not list."""
    counts = np.bincount(column.codes, minlength=len(column.values) + 1)[1:]
    listed = np.array([entry.lists(value) for value in column.values], dtype=np.bool_)
    return int(counts[~listed].sum())


# What no committee could read is agreed to by none.
MOST_BYTES = 1 << 18
MOST_PURPOSE = 2000
MOST_MODELS = 10_000
MOST_ENCOUNTERS = 100
MEASURED = "model.risks"  # the kind of question that measures a model (models/risk_counts.py)
MOST_DIGITS = 10_000
MOST_DAYS = 366
MOST_REASON = 500


@dataclass(frozen=True)
class Draft:
    """What a study is about, before a house proposes it: the method by name, with its parameters as plain values.

    `price` is the most that all of it may cost a patient, None where nothing of it has a price; `models` are learned in
    it, one or as many as an evaluation has folds. A region proposes the study of the house above under its own name,
    with as many `encounters` of each patient; None: as the house says. `spares_misfits`: a hospital whose table does
    not fit is left out, where it would otherwise stop the study.
    """

    method: str
    release: str
    parameters: Mapping[str, Any]
    price: Fraction | None = None
    models: int = 1
    purpose: str = ""
    nonce: str | None = None
    ends: str | None = None
    dictionary: Mapping[str, DictionaryEntry] = field(default_factory=dict)
    holdout: Holdout | None = None
    evaluation: Fraction | None = None
    subgroups: tuple[Subgroup, ...] = ()
    encounters: int | None = None
    spares_misfits: bool = False


class Terms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms as they are written down, in one way only: JSON that people can read.

    house, exchange_key  who asks: the key that signs, and the one that proves questions
    nonce                makes two studies in the same words two studies
    participants         the hospitals that are asked at most, by name in order; under masks all of them
    identities           under masks: their keys, in that order
    colluders            under masks: how many of them may side with the house
    total                what this study and those that its house will propose after it may cost together: a hospital
                         without room for that is asked nothing
    after                what these are, each by method and release: a hospital that would refuse one is asked nothing
    encounters           how many rows of each patient count at most in what has a price; 1 without it
    ends                 the last day (UTC) on which anything is answered
    holdout              whom the study holds out of learning: its model is measured on them, by counts (MEASURED)
    evaluation           what measuring may cost of the price; none where nothing of it has a price
    subgroups            in which the model is measured as well, beside all patients together
    check_tables         whether hospitals are asked to say which columns do not fit the dictionary
    dictionary           what attributes mean, are measured in and can be: read by people, and by the hospital's map;
                         what a question may hold is said by the parameters alone
    """

    format: Literal["concilium/terms@1"] = "concilium/terms@1"
    house: bytes
    exchange_key: bytes
    nonce: str
    purpose: str
    method: str
    parameters: dict[str, Any]
    models: int
    price: str | None
    total: str | msgspec.UnsetType = msgspec.UNSET
    after: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    participants: tuple[str, ...]
    identities: tuple[bytes, ...]
    colluders: int | None
    ends: str
    encounters: int | msgspec.UnsetType = msgspec.UNSET
    holdout: Holdout | msgspec.UnsetType = msgspec.UNSET
    evaluation: str | msgspec.UnsetType = msgspec.UNSET
    subgroups: tuple[Subgroup, ...] | msgspec.UnsetType = msgspec.UNSET
    dictionary: dict[str, DictionaryEntry] | msgspec.UnsetType = msgspec.UNSET
    check_tables: bool | msgspec.UnsetType = msgspec.UNSET

    @property
    def encoded(self) -> bytes:
        return msgspec.json.encode(self)


_decoder = msgspec.json.Decoder(Terms)


class Propose(Step, frozen=True, kw_only=True):
    """Do you agree to this study? `signature` is that of the house over the terms."""

    kind: ClassVar[str] = "study.propose"
    before_study: ClassVar[bool] = True
    releases: ClassVar[frozenset[str]] = frozenset(RELEASES)

    terms: bytes
    signature: bytes


Told = Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None


class TableNews(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many patients of a hospital's tables were added, corrected and taken out since the version before that it
    answered from; None is fewer than `floor`, none at all among them.

    Who is protected: the few patients of whom something changed, from the house and whoever reads the card. Numbers are
    told where there are as many as in any group the hospital tells of, and nothing is said where all three are fewer,
    so that no change and a small one look alike. Only where a site's own counts are told anyway (`exact`): under masks
    a house learns sums over hospitals, and under noise nothing that one patient could change. Entered in the ledger.
    """

    added: Told
    corrected: Told
    gone: Told
    floor: Annotated[int, msgspec.Meta(ge=1)]

    @classmethod
    def of(cls, added: int, corrected: int, gone: int, floor: int) -> TableNews | None:
        """What may be told of these numbers, None where it is nothing."""
        if max(added, corrected, gone) < floor:
            return None
        told = [None if count < floor else count for count in (added, corrected, gone)]
        return cls(added=told[0], corrected=told[1], gone=told[2], floor=floor)

    def __str__(self) -> str:
        counts = {"added": self.added, "corrected": self.corrected, "taken out": self.gone}
        return ", ".join(
            f"fewer than {self.floor} {word}" if count is None else f"{count:,} {word}"
            for word, count in counts.items()
        )


class Agreed(Reply, frozen=True):
    """The hospital agrees; with `exchange_key` the house proves to it who asks. `table` is what it says of its table
    since an earlier study, `fit` whether the table fits the study's dictionary, where terms ask and policy agrees."""

    exchange_key: bytes
    table: TableNews | None = None
    fit: TableFit | None = None

    @property
    def numbers(self) -> int:
        return (0 if self.table is None else 3) + (0 if self.fit is None else self.fit.looked_at)


@dataclass(frozen=True)
class OpenedTerms:
    """Terms whose form and signature are right, the method that they name, and the study's id and price."""

    id: str
    price: Fraction | None
    terms: Terms
    encoded: bytes
    signature: bytes
    method: Proposal[Any]
    _last: list[tuple[Question, str, str | None]] = field(default_factory=list, compare=False)

    @property
    def proposal(self) -> Propose:
        """As a house sends it."""
        return Propose(terms=self.encoded, signature=self.signature)

    @property
    def total(self) -> Fraction | None:
        """What this study and those after it may cost together, in rho; None where it stands alone."""
        return Fraction(self.terms.total) if self.terms.total else None

    @property
    def after(self) -> list[tuple[str, str]]:
        """The method and the release of each study that its house will propose after it."""
        return [
            (name, release) for name, _, release in (one.partition(" ") for one in self.terms.after or ())
        ]

    def price_in(self, currency: str) -> Fraction | None:
        """The most that the study may cost a patient, in a ledger's currency. Terms state it in rho; this is the one
        place where it becomes pure epsilon. None: it has no price, or one that no such ledger can be charged with,
        and then nothing that has a price is answered.
        """
        if self.price is None or currency == "rho":
            return self.price
        if self.terms.evaluation:
            return None  # its noise is Gaussian
        pure, planned = self.method.pure_price, self.method.plan().total
        # Terms may allow for several models, or for more or less than the method's own questions cost.
        return None if pure is None or not planned else pure * self.price / planned

    @cached_property
    def kinds(self) -> dict[str, set[bool]]:
        """The kinds of question that the method asks, and whether some have a price, and some have none."""
        kinds: dict[str, set[bool]] = {}
        for question in self.plan.questions:
            kinds.setdefault(question.kind, set()).add(question.cost is not None)
        return kinds

    @property
    def needs(self) -> tuple[list[str], list[str]]:
        """The releases and the kinds of question that a policy must allow, or the study, or what follows it, cannot be
        finished."""
        releases, kinds = find_needs(self.method, self.plan)
        releases += [release for _, release in self.after]
        if any(method == "validation" for method, _ in self.after):
            kinds.append(MEASURED)
        return releases, kinds

    @cached_property
    def plan(self) -> Plan:
        """What the method asks and, where patients are held out of learning, what measures the model on them."""
        plan, held = self.method.plan(), self.terms.holdout
        if not held or any(question.kind == MEASURED for question in plan.questions):
            return plan
        price = Fraction(self.terms.evaluation) if self.terms.evaluation else None
        note = f"predicted risk x outcome{say_subgroups(self.subgroups)} of {held.describe()}"
        return replace(plan, questions=(*plan.questions, PlannedQuestion(MEASURED, price, note)))

    @property
    def subgroups(self) -> tuple[Subgroup, ...]:
        """In which the model is measured as well."""
        return self.terms.subgroups or ()

    @property
    def planned_price(self) -> Fraction:
        """What all of that costs a patient: what the method asks as often as there are models."""
        return self.plan.total + self.method.plan().total * (self.terms.models - 1)

    @property
    def encounters(self) -> int:
        """How many rows of each patient count at most in what has a price."""
        return self.terms.encounters or 1

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest of a masked study, which follows from its terms; MaskError where it cannot be."""
        members = zip(self.terms.participants, self.terms.identities, strict=True)
        return compose(
            self.id,
            [Participant(name, key) for name, key in members],
            colluders=self.terms.colluders or 0,
            nonce=bytes.fromhex(self.id)[:NONCE_BYTES],
        )

    def find_objection(self, question: Question, release: str) -> str | None:
        """Why this study cannot ask this question, None where it can. All sites of a process are asked the same: what
        was looked at last is remembered (but for steps, which take no looking and come between)."""
        if isinstance(question, Step):
            return self._find_objection(question, release)
        for last, its_release, objection in self._last:
            if last is question and its_release == release:
                return objection
        objection = self._find_objection(question, release)
        self._last[:] = [(question, release, objection)]
        return objection

    def _find_objection(self, question: Question, release: str) -> str | None:
        # A step serves all questions of the study: sums of either release are opened by one.
        is_step = isinstance(question, Step)
        prices = set().union(*self.kinds.values()) if is_step else self.kinds.get(question.kind, set())
        way_out = find_release(release)
        # What has a price may leave by a way of its own, but never show the numbers of one site where sums were agreed.
        as_agreed = (
            True in prices and way_out.bounded and (self.method.way_out.by_site or not way_out.by_site)
        )
        if release != self.method.release and not as_agreed:
            return f"its answers leave as {self.method.release!r}, not as {release!r}"
        if is_step:
            return None
        # What was agreed with a price is not asked without one.
        if not prices or not (RELEASES[release].priced or False in prices):
            return f"{self.method.called} released as {release!r} asks no question of kind {question.kind!r}"
        if not isinstance(question, Statistic):
            return "it is no question about patients"
        if question.subgroups and tuple(question.subgroups) != self.subgroups:
            return "it tells other subgroups apart than the study's"
        return self.method.find_objection(question)


def find_needs(method: Proposal[Any], plan: Plan) -> tuple[list[str], list[str]]:
    """The releases and the kinds of question that a policy must allow for all of a plan."""
    kinds = dict.fromkeys(question.kind for question in plan.questions)
    releases = [method.release]
    if not method.way_out.by_site:
        kinds |= dict.fromkeys(kind for kind in KINDS if kind.startswith("mask."))
        if plan.total and not method.way_out.bounded:  # a masked study may have a part with noise
            releases.append("private")
    return releases, list(kinds)


def say_subgroups(subgroups: Sequence[Subgroup]) -> str:
    """By what patients are told apart, for a line of a plan; empty where they are not."""
    return f", also by {', '.join(one.name for one in subgroups)}," if subgroups else ""


def name_study(encoded: bytes) -> str:
    """The id of a study: the hash of its terms."""
    return hashlib.sha256(statement("concilium/terms@1", encoded)).hexdigest()


def sign_terms(encoded: bytes, identity: Identity) -> bytes:
    return identity.sign(statement("concilium/terms@1", encoded))


def read_terms(encoded: bytes, signature: bytes) -> Terms:
    """Terms that arrived, in their one form and signed by the house that they name; MessageError otherwise.

    Protects: the hospital's machine, from whoever sends terms. What this takes is proportional to their bytes; the
    method that they name is opened (`open_terms`) once it is known that the house may ask.
    """
    if len(encoded) > MOST_BYTES:
        raise MessageError(
            f"the terms of a study may have at most {MOST_BYTES:,} bytes, so that a committee can read them; these "
            f"have {len(encoded):,}"
        )
    try:
        terms = _decoder.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"these are not the terms of a study: {str(error)[:200]}") from None
    if terms.encoded != encoded:
        raise MessageError("these terms are not in canonical form; take the bytes as the house composed them")
    if len(terms.house) != KEY_BYTES or not is_signed(
        statement("concilium/terms@1", encoded), signature, terms.house
    ):
        raise MessageError("these terms are not signed by the house that they name")
    return terms


@lru_cache(maxsize=32)  # all sites of a process are proposed the same
def open_terms(encoded: bytes, signature: bytes) -> OpenedTerms:
    """The same with the method that they name, all of it checked; MessageError otherwise."""
    terms = read_terms(encoded, signature)
    _check_form(terms)
    method = open_method(terms.method, terms.parameters)
    if len(terms.identities) != (0 if method.way_out.by_site else len(terms.participants)):
        raise MessageError(
            "the terms of a study under masks list the key of each participant, others list none"
        )
    price = None if terms.price is None else Fraction(terms.price)
    return OpenedTerms(name_study(encoded), price, terms, encoded, signature, method)


def _check_form(terms: Terms) -> None:
    names = terms.participants
    if not all(text.isprintable() for text in (terms.nonce, terms.purpose, terms.method, *names)):
        raise MessageError("the names and the purpose in a study's terms must be printable characters")
    if len(terms.purpose) > MOST_PURPOSE:
        raise MessageError(f"a study's purpose may have at most {MOST_PURPOSE} characters")
    if not 8 <= len(terms.nonce) <= 128 or not 1 <= terms.models <= MOST_MODELS:
        raise MessageError(
            f"a study's terms have a nonce of 8 to 128 characters and are for 1 to {MOST_MODELS} models"
        )
    if terms.holdout:
        terms.holdout.check()
    if terms.evaluation and not (terms.holdout and terms.price and _is_price(terms.evaluation)):
        raise MessageError(
            "what measuring costs is a fraction of the price, of a study that holds patients out"
        )
    if terms.subgroups is not msgspec.UNSET:
        check_subgroups(terms.subgroups)
    if terms.encounters is not msgspec.UNSET and not (
        terms.price and 2 <= terms.encounters <= MOST_ENCOUNTERS
    ):
        raise MessageError(
            f"of each patient 2 to {MOST_ENCOUNTERS} rows count, in a study that has a price, or one"
        )
    if terms.dictionary is not msgspec.UNSET:
        _check_dictionary(terms.dictionary)
    if not names or list(names) != sorted(set(names)):
        raise MessageError("a study's terms list its participants once each, in order of names")
    if terms.total and not (
        terms.price and _is_price(terms.total) and Fraction(terms.total) >= Fraction(terms.price)
    ):
        raise MessageError(
            "what studies cost together is a fraction, and not less than what one of them costs"
        )
    if terms.after is not msgspec.UNSET and not all(
        method in PROPOSED and release in RELEASES
        for method, _, release in (one.partition(" ") for one in terms.after)
    ):
        raise MessageError(
            "what follows a study is named by method and release, such as 'validation private'"
        )
    if not (_is_day(terms.ends) and (terms.price is None or _is_price(terms.price))):
        raise MessageError(
            "a study's terms say the day it ends, such as 2027-01-31, and its price as a fraction"
        )


def _check_dictionary(entries: Mapping[str, DictionaryEntry]) -> None:
    if not entries:
        raise MessageError("the terms of a study without a dictionary do not name one")
    try:
        check_entries(entries, "the dictionary of these terms")
    except StudyError as error:
        raise MessageError(str(error)[:MOST_REASON]) from None


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _is_price(text: str) -> bool:
    """Whether this is a fraction above zero, as Python writes it; '1e999999999', which would fill the memory, is not
    even looked at."""
    try:
        return (
            len(text) <= MOST_DIGITS
            and set(text) <= set("0123456789/")
            and Fraction(text) > 0
            and str(Fraction(text)) == text
        )
    except (ValueError, ZeroDivisionError):
        return False


def open_method(name: str, parameters: Mapping[str, Any]) -> Proposal[Any]:
    """The method of this name with these parameters, checked as those of a study file are."""
    if name not in PROPOSED:
        raise MessageError(f"there is no method {name[:60]!r}{nearest(name[:60], PROPOSED)}")
    form: type[Proposal[Any]] = load(PROPOSED[name])
    unknown = set(parameters) - set(form.parameters())
    if unknown:
        raise MessageError(f"a {name!r} study has no parameter {sorted(unknown)[0][:60]!r}")
    try:
        return form(**parameters)
    except (ConciliumError, TypeError, RecursionError) as error:
        reason = str(error)
        if isinstance(error, QueryError):  # without the query itself, in which anything may stand
            reason = f"{error.problem} (column {error.column} of the query)"
        wrong = "the parameters of these terms are not those of a study"
        raise MessageError(f"{wrong}: {reason[:MOST_REASON]}") from None


def today() -> date:
    return datetime.now(UTC).date()


def derive_proof_key(identity: Identity, other: bytes, study: str, site: str) -> bytes:
    """What a house proves its questions of a study to a site with: only these two can compute it."""
    about = statement("concilium/questions@1", study.encode(), site.encode())
    return identity.share_secret(other, about)


def prove(key: bytes, question: str, digest: str, seen: Head | None) -> bytes:
    """That the house which proposed the study asks this, of this site, and that nothing was changed on the way: keyed
    BLAKE2b, which takes a seventh of the time of HMAC for so few bytes."""
    head = "" if seen is None else f"{seen.count}\n{seen.hash}"
    asked = statement("concilium/proof@1", question.encode(), digest.encode(), head.encode())
    return hashlib.blake2b(asked, key=key, digest_size=32).digest()


def is_proven(key: bytes, envelope: Envelope) -> bool:
    proof = prove(key, envelope.id, envelope.digest, envelope.seen)
    return hmac.compare_digest(proof, envelope.proof)
