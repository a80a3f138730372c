"""A region: a house with its own sites that answers a larger house as one site does (docs/methods.md, section 1.17).

Each tier reduces what it gathers to one value that moves up: metadata is united, counts are added, so that the tree
through any number of tiers is the tree of one house over all sites. A region is trusted with its region: under `exact`
it sees the numbers of each of its sites, and the house above sees their sum, believes it, and cannot tell who is
behind it (nor from its refusals, which say how many of its sites and why, and never which). It keeps no ledger, since
it has no patients: its sites charge themselves, and its answer carries what they entered: numbers together, and of
what has a price (`noised`) the most that any of them was charged, since nobody is a patient of two. There each site has
added all of its noise before the region sees a number, which protects its patients from the region as from everybody;
that the region adds them up takes none of it away. Under masks, where nobody may be trusted with a sum but all sites
together, it takes no part: its sites do, by name, and it passes on what house and sites say to each other (relay.py).
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from concilium.errors import HouseError, MessageError, StudyError, StudyPending
from concilium.ledger.chain import Head
from concilium.privacy.identity import Identity, statement
from concilium.protocol.card import Card, RefusalCard
from concilium.protocol.house import House
from concilium.protocol.masking import Greeting, Hello
from concilium.protocol.messages import (
    Charge,
    Envelope,
    Introducible,
    Refused,
    open_envelope,
    write_answer,
    write_refusal,
)
from concilium.protocol.questions import Gathered, Question, Statistic, Summed, open_question
from concilium.protocol.relay import Relay, pass_on
from concilium.protocol.releases import find_release
from concilium.protocol.run import MISFITS, Run, SitesChanged
from concilium.protocol.schema import AskSchema
from concilium.protocol.studies import NOT_PROPOSED, NOT_THE_HOUSE
from concilium.protocol.sums import add_sum, write_sum
from concilium.protocol.terms import (
    Agreed,
    Draft,
    OpenedTerms,
    Propose,
    derive_proof_key,
    is_proven,
    open_terms,
)

log = logging.getLogger(__name__)

REMEMBERED_STUDIES = 64

SEEN_ONLY = (
    "a region adds up exact numbers, and those that hospitals add all noise to themselves: {release!r} hides each "
    "hospital's numbers from whoever adds them up, and a region would see them; its hospitals join such a study by "
    "name, and the region passes messages on"
)
OWN_TO_SHARE = (
    "a region answers with sums only: entries of patients are for their own hospital to hand on; have its "
    "hospitals join the study themselves"
)
CANNOT = "the region could not answer; its own log says why"


@dataclass
class _RegionalStudy:
    """What a region remembers of one study: its run below, what answers cost, and why it ended (if it did)."""

    run: Run
    opened: OpenedTerms
    proof_key: bytes
    charged: dict[str, Charge] = field(default_factory=dict)
    ended: str | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Region:
    """`Region("bavaria", House([site, ...]))` takes a site's place in another house (or in another region).

    A hospital belongs to one region only: in two it would be counted twice. Sites that refuse or are silent in the
    first round of a study are left out of it, as in any house (or stop it, with `on_loss="stop"`); after that
    the region answers for the same sites or not at all. The house above must wait longer than this one.
    """

    def __init__(self, name: str, house: House, identity: str | Path | Identity | None = None) -> None:
        if not name or len(name) > 100 or not name.isprintable():
            raise StudyError(f"a region's name must have 1 to 100 printable characters; got {name!r}")
        if house.journal is not None:
            raise StudyError(
                f"the house of region {name!r} has a journal, which is for one study, and a region answers many; its "
                "sites keep their answers anyway"
            )
        self.name = name
        self.house = house
        if identity is not None:
            house.identity = identity if isinstance(identity, Identity) else Identity.at(identity)
        self.identity = house.identity
        self._studies: OrderedDict[str, _RegionalStudy] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, message: bytes) -> bytes:
        """Bytes of a question in; bytes of an answer or a refusal out."""
        envelope: Envelope | None = None
        try:
            envelope = open_envelope(message)
            question = open_question(envelope)
            release = find_release(envelope.release)
            if release.hands_on:
                raise Refused("mode", OWN_TO_SHARE)
            if isinstance(question, Relay):
                return pass_on(question, self.house.transport, self.house.timeout)
            if isinstance(question, Hello):
                return self._name_hospitals(envelope)
            if not release.added_below or not isinstance(question, Statistic | Propose):
                raise Refused("mode", SEEN_ONLY.format(release=envelope.release))
            if isinstance(question, Propose):
                return self._pass_on(envelope, question)
            below = self._recall(envelope, question)
            with below.lock:
                body = self._promote(envelope, question, below)
                return self._sign(envelope, body, below.charged[envelope.id], below)
        except Refused as refusal:
            return self._refuse(envelope, refusal.rule, refusal.reason)
        except MessageError as error:
            return self._refuse(envelope, "message", str(error))
        except Exception:
            log.exception("region %s could not answer a question", self.name)
            return self._refuse(envelope, "internal", CANNOT)

    @property
    def hospitals(self) -> list[Introducible]:
        """Its sites, where they are of this process."""
        transport = self.house.transport
        hospitals: list[Introducible] = getattr(transport, "hospitals", [])
        return hospitals

    def card(self, study: str) -> Card:
        """What the region itself can tell of a study: who of its sites took part, refused or was lost."""
        with self._lock:
            below = self._studies.get(study)
        if below is None:
            raise HouseError(f"region {self.name!r} was not asked in study {study!r}, or it is long ago")
        return below.run.finish({})

    def _name_hospitals(self, envelope: Envelope) -> bytes:
        """Under masks: whom it passes messages on to."""
        greeting = Greeting(0, tuple(self.house.names))
        return write_answer(self.identity, self.name, envelope.id, greeting, Head(0, ""))

    def _pass_on(self, envelope: Envelope, proposal: Propose) -> bytes:
        """Propose the study to the region's own sites, under its own name, and agree where they do."""
        opened = open_terms(proposal.terms, proposal.signature)
        if self.name not in opened.terms.participants:
            raise Refused("message", f"{self.name} is not a participant of this study")
        with self._lock:
            below = self._studies.get(opened.id)
            if below is None:
                terms = opened.terms
                draft = Draft(
                    terms.method,
                    opened.method.release,
                    terms.parameters,
                    opened.price,
                    terms.models,
                    terms.purpose,
                    nonce=terms.nonce,  # so that the sites know a repeated question again
                    ends=terms.ends,
                    dictionary=terms.dictionary or {},
                    holdout=terms.holdout or None,
                    evaluation=Fraction(terms.evaluation) if terms.evaluation else None,
                    subgroups=opened.subgroups,
                    encounters=opened.encounters,
                    spares_misfits=opened.method.spares_misfits,
                )
                key = derive_proof_key(self.identity, terms.exchange_key, opened.id, self.name)
                below = _RegionalStudy(self.house.open(draft), opened, key)
        with below.lock:
            self._begin(below)
            with self._lock:
                self._studies[opened.id] = below
                while len(self._studies) > REMEMBERED_STUDIES:
                    self._studies.popitem(last=False)
            return self._sign(envelope, Agreed(self.identity.exchange_key), None, below)

    def _begin(self, below: _RegionalStudy) -> None:
        run = below.run
        refused, asked = len(run.refusals), len(run.sites)
        try:
            run.begin()
        except StudyPending as pending:
            reason = f"{len(pending.sites)} of {asked} hospitals of the region have not decided yet"
            raise Refused("waiting", reason) from None
        except HouseError as error:
            log.warning("region %s could not begin a study: %s", self.name, error)
            raise _explain_loss(run, run.refusals[refused:]) from None

    def _recall(self, envelope: Envelope, question: Statistic) -> _RegionalStudy:
        """The study of a question, if the house that proposed it asks and it can ask this."""
        with self._lock:
            below = self._studies.get(envelope.study)
            if below is None:
                raise Refused("proposed", NOT_PROPOSED)
            self._studies.move_to_end(envelope.study)
        if not is_proven(below.proof_key, envelope):
            raise Refused("house", NOT_THE_HOUSE)
        objection = below.opened.find_objection(question, envelope.release)
        if objection is not None:
            raise Refused("agreed", f"not agreed: {objection}")
        return below

    def _promote(self, envelope: Envelope, question: Statistic, below: _RegionalStudy) -> msgspec.Struct:
        """The one value that moves up: what all sites of the region answer, united or added."""
        if below.ended is not None:
            raise Refused("lost", below.ended)
        if isinstance(question, Gathered):
            replies = self._gather(question, below, envelope.id)
            leaving = {site: reply.leaves for site, reply in replies.items() if reply.leaves is not None}
            if len(leaving) < len(replies):  # where all opt out, the region does, and is not asked again
                below.run.excuse(leaving)
            try:
                united: msgspec.Struct = question.unite(list(replies.values()))
            except MessageError as error:
                raise Refused("kind", str(error)) from None
            return united
        if not isinstance(question, Summed) or not question.adds_up:
            raise Refused("kind", f"a region cannot answer a question of kind {question.kind!r}")
        if find_release(envelope.release).tells_each:
            self._learn_values(envelope, question, below)
        return _add_up(question, self._ask(question, below, envelope.id))

    def _gather(self, question: Gathered[Any], below: _RegionalStudy, name: str) -> dict[str, Any]:
        """The answers of all sites."""
        answers = self._ask(question, below, name)
        return {site: below.run.read_reply(question, site, data) for site, data in answers.items()}

    def _learn_values(self, envelope: Envelope, question: Summed, below: _RegionalStudy) -> None:
        """Before a question that names values: know which of them each site has, also where this process was started
        again since the study began. It goes on with the same sites, or not at all."""
        if below.run.known or not any(attribute.values for attribute in question.named):
            return
        study = below.opened.method
        asked = {name: value for name, value in study.get_params().items() if name in ("bins", "attributes")}
        schema = AskSchema(query=study.query, target=study.must_know, followed=question.followed, **asked)
        if schema.kind not in below.opened.kinds or study.find_objection(schema) is not None:
            return
        self._gather(schema, below, f"{schema.kind} again")
        if envelope.seen is None or not envelope.seen.hash.startswith(_participants(below.run)):
            below.ended = (
                "the region was started again since the study began, and not all of the same sites are there: begin "
                "the study anew"
            )
            raise Refused("lost", below.ended)

    def _ask(self, question: Question, below: _RegionalStudy, name: str) -> dict[str, bytes]:
        """One round below; what it cost is remembered under the name of the question."""
        run = below.run
        before, refused, asked = run.numbers, len(run.refusals), len(run.sites)
        costs = run.costs
        try:
            answers = run.gather(question)
        except SitesChanged:
            below.ended = (
                f"the region lost sites after its first answer, and its sums are those of all or nothing: "
                f"{_count_lost(run, run.refusals[refused:], asked)}"
            )
            raise Refused("lost", below.ended) from None
        except HouseError as error:
            log.warning("region %s could not answer a question: %s", self.name, error)
            raise _explain_loss(run, run.refusals[refused:]) from None
        dearest = max((cost - costs.get(site, Fraction(0)) for site, cost in run.costs.items()), default=None)
        release = run.name_release(question)
        cost = str(dearest) if dearest is not None and find_release(release).bounded else None
        charge = Charge(release, cost, run.numbers - before, not run.uncapped)
        below.charged.setdefault(name, charge)
        return answers

    def _sign(
        self, envelope: Envelope, body: msgspec.Struct, charge: Charge | None, below: _RegionalStudy
    ) -> bytes:
        head, hospitals = _joint_head(below.run), below.run.hospitals
        return write_answer(self.identity, self.name, envelope.id, body, head, charge, hospitals)

    def _refuse(self, envelope: Envelope | None, rule: str, reason: str) -> bytes:
        question = "" if envelope is None else envelope.id
        log.info("region %s refused a question: %s", self.name, rule)
        return write_refusal(self.identity, self.name, question, rule, reason)

    def __repr__(self) -> str:
        return f"Region({self.name!r}, {len(self.house.names)} sites)"


def _add_up(question: Summed, answers: Mapping[str, bytes]) -> msgspec.Struct:
    """The sum of what the sites answered, as one of them would write it."""
    total = np.zeros(question.shape, dtype=np.int64)
    try:
        for data in answers.values():
            add_sum(total, data, question)
    except MessageError:
        raise Refused("region", "the region's sites answered with what cannot be added up") from None
    return write_sum(total, question.binary_places)


def _participants(run: Run) -> str:
    """Half a hash that says who takes part: names and the keys they sign with."""
    parts = [part for site in sorted(run.sites) for part in (site.encode(), run.house.identities[site])]
    return hashlib.sha256(statement("concilium/region-sites@1", *parts)).hexdigest()[:32]


def _joint_head(run: Run) -> Head:
    """One head for the ledgers of all participants: their entries together, and a hash of who they are and of theirs.

    Entries only become more, so the count rises with every charge below, as that of a single ledger does.
    """
    heads = {site: run.house.heads[site] for site in sorted(run.sites)}
    parts = [f"{site}\n{head.count}\n{head.hash}".encode() for site, head in heads.items()]
    ledgers = hashlib.sha256(statement("concilium/region-heads@1", *parts)).hexdigest()[:32]
    return Head(sum(head.count for head in heads.values()), _participants(run) + ledgers)


def _explain_loss(run: Run, refused: Sequence[RefusalCard]) -> Refused:
    """What is told above of a round that ended badly; the sites that took part in it are still those of the run."""
    asked = len(run.sites)
    # A question that fits no table, or a ledger behind its word, means the same above as below.
    for rules, problem in (
        (MISFITS, "the study does not fit every site"),
        ({"rollback"}, "a ledger cannot be trusted"),
    ):
        alike = [refusal for refusal in refused if refusal.rule in rules]
        if alike:
            return Refused(alike[0].rule, f"{problem}: {_count_reasons((r.reason for r in alike), asked)}")
    losses = _count_lost(run, refused, asked)
    return Refused("region", f"stopped {run.where}: {losses}" if losses else CANNOT)


def _count_lost(run: Run, refused: Sequence[RefusalCard], asked: int) -> str:
    """How many were lost in the last round, and why. What was seen of silent ones may name them, and is not told."""
    silent = sum(loss.round == run.rounds for loss in run.dropouts)
    return _count_reasons([*["no answer"] * silent, *(refusal.reason for refusal in refused)], asked)


def _count_reasons(reasons: Iterable[str], asked: int) -> str:
    """How many of the sites that were asked have each of these reasons, and never which."""
    counts = Counter(reasons)
    asked_all = f"{asked} site" + ("" if asked == 1 else "s")
    return "; ".join(f"{count} of {asked_all}: {reason}" for reason, count in counts.items())
