"""Studies of a house of the tests' own, agreed to as any other, for tests that look at single messages.

`Asker` proposes one study to some sites and proves its questions; `set_up_masks` does so under masks. `deliver` brings
one message to one site in a study that may ask anything about its query and target, and `draft` is such a study for a
house to open. A test of what a study may *not* ask takes an `Asker` with a method.
"""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar
from weakref import WeakKeyDictionary

import msgspec

from concilium.errors import MessageError
from concilium.models.method import Method, QueryText, ReleaseName
from concilium.parameters import Parameter
from concilium.privacy.accounting import Plan, PlannedQuestion
from concilium.privacy.identity import Identity, fingerprint
from concilium.privacy.manifest import Manifest
from concilium.privacy.masks import MaskedRound, _Commitment
from concilium.privacy.study_keys import call_roll
from concilium.protocol import terms as agreed_terms
from concilium.protocol.masking import Join, Joined, Meet
from concilium.protocol.messages import VERSION, Answer, Envelope, Refusal, decode, encode, open_reply
from concilium.protocol.questions import Question, Statistic, _read_question, open_question
from concilium.protocol.releases import find_release
from concilium.protocol.terms import (
    Agreed,
    Draft,
    Propose,
    Terms,
    derive_proof_key,
    name_study,
    open_terms,
    prove,
    sign_terms,
)
from concilium.registry import KINDS, PROPOSED, RELEASES, load

HOUSE = Identity.create()
PRICE = Fraction(10**6)
NAMES = itertools.count()


@dataclass(eq=False, repr=False)
class Anything(Method[Any]):
    """A method that asks whatever it likes about the patients of its query."""

    method: ClassVar[str] = "anything"
    called: ClassVar[str] = "a test"
    description: ClassVar[str] = "nothing"
    releases: ClassVar[tuple[str, ...]] = tuple(RELEASES)

    target: Annotated[str, Parameter("text", str, "what must be known of each patient, or nothing", "study")]
    query: QueryText = ""
    release: ReleaseName = "exact"

    def plan(self) -> Plan:
        statistics = {
            kind: load(place) for kind, place in KINDS.items() if issubclass(load(place), Statistic)
        }
        return Plan(
            "rho",
            tuple(
                PlannedQuestion(kind, price)
                for kind, form in statistics.items()
                for price in (PRICE, None)
                if price is None or any(RELEASES[name].priced for name in form.releases)
            ),
        )

    @property
    def needed_columns(self) -> frozenset[str]:
        return frozenset()

    def find_objection(self, question: Statistic) -> str | None:
        about = question.query == self.query and question.target == self.target
        return None if about else "it is about other patients"

    def converse(self, partners: Any) -> Any:
        raise NotImplementedError

    predict_proba = _explain = _text = attributes_ = converse


agreed_terms.PROPOSED = ChainMap({"anything": "agreed:Anything"}, PROPOSED)


def draft(release: str = "exact", query: str = "", target: str = "y", price: Fraction = Fraction(1)) -> Draft:
    """A study that may ask anything about these patients, for a house to open."""
    return Draft("anything", release, {"target": target, "query": query, "release": release}, price=price)


def afford(sites: Sequence[Any]) -> str | None:
    """The most that a study may cost at these sites: none is begun that does not fit."""
    balances = [site.ledger.balance() for site in sites if hasattr(site, "ledger")]
    if any(balance.currency != "rho" for balance in balances):
        return None
    left = [one for balance in balances for one in (balance.left, balance.month_left) if one is not None]
    price = min([PRICE if len(balances) == len(list(sites)) else Fraction(1), *left])
    return str(price) if price > 0 else None


class Asker:
    """A house that proposes one study to `sites` and asks them by hand."""

    def __init__(
        self,
        sites: Sequence[Any],
        *,
        query: str = "",
        target: str = "y",
        release: str = "exact",
        method: str = "anything",
        parameters: Mapping[str, Any] | None = None,
        colluders: int = 1,
        identity: Identity = HOUSE,
        **changes: Any,
    ) -> None:
        self.identity = identity
        declared = load(agreed_terms.PROPOSED[method]).parameters() if method in agreed_terms.PROPOSED else {}
        about = {"query": query, "target": target, "release": release}
        asked = {name: value for name, value in about.items() if not declared or name in declared}
        asked |= parameters or {}
        masked = not find_release(release).by_site
        keys = {site.name: site.identity.public if masked else b"" for site in sites}
        self.release = release
        self.terms = Terms(
            **{
                "house": identity.public,
                "exchange_key": identity.exchange_key,
                "nonce": "nonce-of-a-test",
                "purpose": "a test",
                "method": method,
                "parameters": asked,
                "models": 1,
                "price": afford(sites),
                "participants": tuple(sorted(keys)),
                "identities": tuple(keys[name] for name in sorted(keys)) if masked else (),
                "colluders": colluders if masked else None,
                "ends": agreed_terms.today().isoformat(),
                **changes,
            }
        ).encoded
        self.study = name_study(self.terms)
        self._keys: dict[str, bytes] = {}

    @property
    def manifest(self) -> Manifest:
        """The manifest of a study under masks."""
        return open_terms(self.terms, sign_terms(self.terms, self.identity)).manifest

    def show(self, site: Any, commitments: Iterable[_Commitment]) -> bytes:
        """What a site is shown of what all have committed to."""
        return encode(MaskedRound(self.manifest, b"", b"").show(commitments)[site.name])

    def propose(self, site: Any, name: str = "proposal-1") -> bytes:
        """Propose the study to a site; its reply."""
        introduce_house(site, self.identity)
        terms = msgspec.json.decode(self.terms, type=Terms)
        if terms.identities and hasattr(site, "introduce"):
            peers = dict(zip(terms.participants, map(fingerprint, terms.identities), strict=False))
            site.introduce(peers, self.identity.fingerprint)
        reply = site.answer(self.write_proposal(name))
        opened = open_reply(reply)
        if isinstance(opened, Answer):
            key = decode(opened.body, Agreed).exchange_key
            self._keys[site.name] = derive_proof_key(self.identity, key, self.study, site.name)
        return reply

    def write_proposal(self, name: str = "proposal-1") -> bytes:
        """The message that proposes the study."""
        proposal = Propose(terms=self.terms, signature=sign_terms(self.terms, self.identity))
        return encode(self.wrap(proposal, name=name))

    def wrap(self, question: Question, *, name: str = "question-1", template: bytes = b"") -> Envelope:
        return Envelope(
            version=VERSION,
            id=name,
            study=self.study,
            kind=question.kind,
            release=self.release,
            body=encode(question),
            template=template,
        )

    def seal(self, site: Any, envelope: Envelope) -> bytes:
        """The envelope as one of this study, proven to the site."""
        own = msgspec.structs.replace(envelope, study=self.study)
        key = self._keys.get(site.name)
        return encode(
            own
            if key is None
            else msgspec.structs.replace(own, proof=prove(key, own.id, own.digest, own.seen))
        )

    def ask(self, site: Any, envelope: Envelope) -> bytes:
        """What a site replies; to the proposal, where it does not agree to that."""
        if site.name not in self._keys:
            reply = self.propose(site)
            if site.name not in self._keys:
                return reply
        return site.answer(self.seal(site, envelope))

    def put(self, site: Any, question: Question, template: bytes = b"") -> Answer | Refusal:
        """What a site replies to one question more, under a name of its own."""
        envelope = self.wrap(question, name=f"question-{next(NAMES):08d}", template=template)
        return open_reply(self.ask(site, envelope))


def set_up_masks(sites: Sequence[Any], release: str = "masked", **options: Any) -> Asker:
    """A study under masks that these sites agreed to and have joined."""
    peers = {site.name: site.identity.fingerprint for site in sites}
    asker = Asker(sites, release=release, **options)
    for site in sites:
        site.introduce(peers, asker.identity.fingerprint)
    keys = [decode(asker.put(site, Join()).body, Joined).key for site in sites]
    rolls = call_roll(asker.manifest, keys)
    for site in sites:
        assert isinstance(asker.put(site, Meet(), encode(rolls[site.name])), Answer)
    return asker


def introduce_house(site: Any, identity: Identity = HOUSE) -> None:
    """Have a site know the house of the tests, as one of its own process."""
    context = getattr(site, "_context", None)
    if context is not None:
        context.studies.introduce(identity.fingerprint)


@dataclass(frozen=True)
class Absent:
    """A hospital that takes part by name only: a masked study has three participants at least."""

    name: str
    identity: Identity


ABSENT = [Absent(name, Identity.create()) for name in ("absent one", "absent two")]
ASKERS: WeakKeyDictionary[Any, dict[tuple[str, ...], Asker]] = WeakKeyDictionary()


def deliver(site: Any, message: bytes | Envelope) -> bytes:
    """What a site replies to a message, in a study that may ask anything about its query and target."""
    try:
        envelope = message if isinstance(message, Envelope) else decode(message, Envelope)
        question = open_question(envelope)
    except MessageError:
        return site.answer(message if isinstance(message, bytes) else encode(message))
    if not isinstance(question, Statistic):
        return site.answer(encode(envelope))
    about = (envelope.study, question.query, question.target, envelope.release)
    asker = ASKERS.setdefault(site, {}).get(about)
    if asker is None:
        options = {"query": question.query, "target": question.target, "release": envelope.release}
        sites = [site] if envelope.release == "exact" else [site, *ABSENT]
        asker = ASKERS[site][about] = Asker(sites, nonce=f"nonce-of-{envelope.study}", **options)
    return asker.ask(site, envelope)


def check(question: Question, release: str) -> Question:
    """The question as a site reads it under this release; MessageError where it would refuse it."""
    return _read_question(question.kind, release, encode(question))
