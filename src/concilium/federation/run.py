"""One run of one method: its participants, its rounds, and what became of each site.

What a method asks goes out to all participants and comes back as answers by site, or as one sum. Who took part,
what it cost, who refused and who was lost is kept on the way and ends up on the card. A lost site ends in a
definite state: with `on_loss="continue"` the method starts again with the rest (answers already given are stored at
the sites and free), so that the model is that of the sites that stayed; otherwise the run stops with its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

import concilium
from concilium.errors import HouseError, MessageError
from concilium.federation.card import Card, DropoutCard, RefusalCard, ReleaseCard, SiteCard
from concilium.federation.conversation import Asked, Conversation, ToEach
from concilium.federation.embedded import Silence
from concilium.federation.journal import Journal
from concilium.federation.masked_study import MaskedStudy
from concilium.federation.messages import VERSION, Answer, Envelope, Refusal, encode, open_reply
from concilium.federation.questions import Gathered, Question, Reply, Summed
from concilium.federation.releases import find_release
from concilium.privacy.identity import fingerprint, is_signed
from concilium.privacy.randomness import draw_bytes

if TYPE_CHECKING:
    from concilium.federation.house import House

# The question does not fit the site's table (or is not understood): the study is wrong, not the site.
MISFITS = frozenset({"message", "query", "attribute"})

T = TypeVar("T")


class SitesChanged(Exception):
    """Sites were lost after the first round: what was gathered so far is of other sites; start again."""


class Run:
    """Opened by `House.open`. `study` is what sites know the run by: its id, or that of its manifest."""

    def __init__(self, house: House, method: str, release: str, parameters: Mapping[str, Any]) -> None:
        self.house = house
        self.method = method
        self.release = find_release(release)
        self.sites = list(house.names)
        self.rounds = 0
        self.bytes = 0
        self.fixed = False
        self.journal = None if house.journal is None else Journal(house.journal)
        self.id = draw_bytes(16).hex()
        if self.journal is not None:
            asked = msgspec.json.encode(
                [method, release, sorted(house.names), dict(parameters)], order="sorted"
            )
            self.id = self.journal.begin(self.id, hashlib.sha256(asked).hexdigest())
        self.study = self.id
        self._begun = False
        self._masked_study: MaskedStudy | None = None
        self._charges: dict[tuple[str, str, str], ReleaseCard] = {}
        self._answered: set[str] = set()
        self.opted_out: dict[str, str] = {}
        self.refusals: list[RefusalCard] = []
        self.dropouts: list[DropoutCard] = []
        self._regions: dict[str, int] = {}

    def converse(self, conversation: Conversation[T]) -> T:
        """What comes of a conversation with the participants; SitesChanged where it must begin anew with the rest."""
        try:
            asked = next(conversation)
            while True:
                replies = self.ask(asked)
                try:
                    asked = conversation.send(replies)
                except (ValueError, ArithmeticError, LookupError) as error:
                    # Each reply was what was asked for; together they cannot be true: some site says false numbers.
                    raise HouseError(f"what the sites answered does not fit together ({error})") from error
        except StopIteration as end:
            result: T = end.value
            return result

    def ask(self, asked: Asked) -> dict[str, Reply] | NDArray[np.int64]:
        """What one question brings: answers by site, or the sum."""
        if isinstance(asked, ToEach):
            return self.add_up(asked.question, asked.templates)
        if isinstance(asked, Summed):
            return self.add_up(asked)
        replies = self._read_replies(asked)
        leaving = {site: reply.leaves for site, reply in replies.items() if reply.leaves is not None}
        if len(leaving) < len(replies):
            self.excuse(leaving)
        return replies

    def _read_replies(self, question: Gathered[Any]) -> dict[str, Reply]:
        replies: dict[str, Reply] = {}
        for site, data in self.gather(question).items():
            try:
                replies[site] = question.read(data)
            except MessageError as error:
                raise HouseError(f"{site} answered with what was not asked for: {error}") from None
        return replies

    def add_up(self, question: Summed, templates: Mapping[str, bytes] | None = None) -> NDArray[np.int64]:
        """The sum over the participants of what they answer."""
        return find_release(self._name_release(question)).add_up(self, question, templates)

    def _name_release(self, question: Question) -> str:
        """That of the run; a question that has one release only keeps it (a masked run may have a private part)."""
        if self.release.name not in question.releases and len(question.releases) == 1:
            return next(iter(question.releases))
        return self.release.name

    @property
    def masked_study(self) -> MaskedStudy:
        """The masked study of this run, set up on first use."""
        if self._masked_study is None:
            self._masked_study = MaskedStudy(self)
        return self._masked_study

    @property
    def least_variance(self) -> Fraction:
        return self.masked_study.least_variance

    def variance(self, rho: Fraction, squared_sensitivity: Fraction | int) -> Fraction:
        return self.masked_study.variance(rho, squared_sensitivity)

    def gather(
        self,
        question: Question,
        templates: Mapping[str, bytes] | None = None,
        *,
        live: bool = False,
        release: str | None = None,
    ) -> dict[str, bytes]:
        """One round: the question to every participant, each with its own template; the bodies of answers by site.

        In the first round sites may refuse or be silent and the rest goes on; later that raises SitesChanged, or
        stops the run where participants are fixed. `live` rounds are not taken from the journal.
        """
        templates, kind = templates or {}, question.kind
        release = release or self._name_release(question)
        body = encode(question)
        envelopes = {s: self._envelope(s, kind, body, templates.get(s, b""), release) for s in self.sites}
        self.rounds += 1
        if self.house.on_round is not None:
            self.house.on_round(f"round {self.rounds}: {kind} to {len(envelopes)} sites")
        replies = self._exchange(envelopes, live)
        bodies, refused, lost = {}, [], []
        for site, envelope in envelopes.items():
            reply = self._read(envelope, site, replies[site])
            if isinstance(reply, Answer):
                bodies[site] = self._accept(site, kind, reply)
            elif isinstance(reply, Refusal):
                refused.append((site, reply))
            else:
                lost.append((site, reply))
        self.house.remember()
        self._settle(kind, bodies, refused, lost)
        return bodies

    def excuse(self, reasons: Mapping[str, str]) -> None:
        """Go on without sites that answered that they take no part, and why; the card names them."""
        self.opted_out |= reasons
        self.sites = [site for site in self.sites if site not in reasons]

    def finish(self, patients: Mapping[str, int | None], warnings: Iterable[str] = ()) -> Card:
        """End the run: the card of the model that came of it."""
        notes = list(warnings)
        if self._masked_study is not None:
            notes += self._masked_study.end()
        # Of every site that answered, in the model or not: what was released was released.
        releases = [self._charges[key] for key in sorted(self._charges)]
        notes += self.release.warn([one for one in releases if one.site in self.sites], patients)
        if self.opted_out:
            notes.append(f"opted out: {together(self.opted_out.items())}")
        lost = sorted({loss.site for loss in self.dropouts} - set(self.sites))
        if lost:
            notes.append(f"lost on the way: {', '.join(lost)}; the model is that of the sites that stayed")
        notes += warn_of_regions({s: count for s, count in self._regions.items() if s in self.sites})
        return Card(
            study=self.study,
            method=self.method,
            release=self.release.name,
            meaning=self.release.meaning,
            sites=[self._site_card(site, patients.get(site)) for site in self.sites],
            rounds=self.rounds,
            bytes=self.bytes,
            releases=releases,
            refusals=self.refusals,
            dropouts=self.dropouts,
            warnings=notes,
            version=concilium.__version__,
        )

    @property
    def numbers(self) -> int:
        """How many numbers the sites have entered in their ledgers for this run so far."""
        return sum(release.numbers for release in self._charges.values())

    @property
    def hospitals(self) -> int:
        """How many hospitals take part, those behind a region among them."""
        return sum(self._regions.get(site, 1) for site in self.sites)

    def close(self) -> None:
        if self.journal is not None:
            self.journal.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _envelope(self, site: str, kind: str, body: bytes, template: bytes, release: str) -> Envelope:
        envelope = Envelope(
            version=VERSION,
            id="",
            study=self.study,
            kind=kind,
            release=release,
            body=body,
            template=template,
            seen=self.house.heads.get(site),
        )
        name = hashlib.sha256(f"{self.id}\n{site}\n{envelope.digest}".encode()).hexdigest()
        return msgspec.structs.replace(envelope, id=name[:32])

    def _exchange(self, envelopes: Mapping[str, Envelope], live: bool) -> dict[str, bytes | str]:
        """What each site sent (or why nothing came): from the journal where the round was finished before."""
        replies: dict[str, bytes | str] = {}
        messages = {}
        for site, envelope in envelopes.items():
            kept = None if self.journal is None or live else self.journal.recall(envelope.id)
            message = encode(envelope)
            # Without the echo of the ledger's head, so that a run counts the same whatever was asked before it.
            self.bytes += len(encode(msgspec.structs.replace(envelope, seen=None)))
            if kept is None:
                messages[site] = message
            else:
                replies[site] = kept
        if messages:
            for site, reply in self.house.transport.ask(messages, self.house.timeout).items():
                replies[site] = str(reply) if isinstance(reply, Silence) else reply
        self.bytes += sum(len(reply) for reply in replies.values() if isinstance(reply, bytes))
        if self.journal is not None and messages and not live:
            fresh = {envelopes[site].id: replies[site] for site in messages}
            if self._stops:
                # A run that stops here asks these sites again when it is resumed.
                fresh = {question: reply for question, reply in fresh.items() if is_answer(reply)}
            self.journal.keep(fresh)
        return replies

    @property
    def _stops(self) -> bool:
        """Whether a loss ends the run."""
        return self.fixed or self.house.on_loss == "stop"

    def _read(self, envelope: Envelope, site: str, reply: bytes | str) -> Answer | Refusal | str:
        """A reply that belongs to the question and comes from the site, or in words what came instead."""
        if isinstance(reply, str):
            return reply
        try:
            opened = open_reply(reply)
        except MessageError as error:
            return str(error)
        if opened.id != envelope.id or opened.site != site:
            return "it answered another question"
        first = self.house.identities.get(site)
        if first is None and isinstance(opened, Refusal) and not opened.identity:
            return opened  # of an older version, and of nobody we know: there is nothing to hold it to
        identity = opened.identity if first is None else first
        if identity != opened.identity or not is_signed(opened.signed, opened.signature, identity):
            reply_is = "answer" if isinstance(opened, Answer) else "refusal"
            return f"its {reply_is} is not signed by the identity it had before"
        self.house.identities[site] = identity
        return opened

    def _accept(self, site: str, kind: str, answer: Answer) -> bytes:
        seen = self.house.heads.get(site)
        if seen is None or answer.ledger.count > seen.count:
            self.house.heads[site] = answer.ledger
        if answer.below:
            self._regions[site] = answer.below
        if answer.charge is not None and answer.id not in self._answered:
            self._answered.add(answer.id)
            key = (site, kind, answer.charge.release)
            before = self._charges.get(key) or ReleaseCard(*key, answers=0, numbers=0, cost=None)
            cost = answer.charge.cost
            self._charges[key] = msgspec.structs.replace(
                before,
                answers=before.answers + 1,
                numbers=before.numbers + answer.charge.numbers,
                cost=None if cost is None else str(Fraction(before.cost or 0) + Fraction(cost)),
            )
        return answer.body

    def _settle(
        self,
        kind: str,
        bodies: Mapping[str, bytes],
        refused: Sequence[tuple[str, Refusal]],
        lost: Sequence[tuple[str, str]],
    ) -> None:
        """Who goes on: all, the rest, or nobody, as the house was told."""
        self.refusals += [RefusalCard(site, kind, refusal.rule, refusal.reason) for site, refusal in refused]
        self.dropouts += [DropoutCard(site, self.rounds, reason) for site, reason in lost]
        misfit = [(site, refusal.reason) for site, refusal in refused if refusal.rule in MISFITS]
        if misfit:
            raise HouseError(f"the study does not fit every site: {together(misfit)}")
        behind = [(site, refusal.reason) for site, refusal in refused if refusal.rule == "rollback"]
        if behind:
            raise HouseError(f"a ledger cannot be trusted: {together(behind)}")
        gone = [*lost, *((site, refusal.reason) for site, refusal in refused)]
        if not bodies:
            raise HouseError(f"no site answered: {together(gone)}")
        if gone and self._stops:
            why = (
                "; a masked study cannot go on without it, so resume it when all are back"
                if self.fixed
                else ""
            )
            raise HouseError(f"stopped in round {self.rounds}: {together(gone)}{why}")
        self.sites = [site for site in self.sites if site in bodies]
        begun, self._begun = self._begun, True
        if gone and begun:
            raise SitesChanged

    def _site_card(self, site: str, patients: int | None) -> SiteCard:
        head = self.house.heads[site]
        return SiteCard(site, patients, fingerprint(self.house.identities[site]), head.count, head.hash)


def warn_of_regions(regions: Mapping[str, int]) -> list[str]:
    """What must be said of sums that a region vouches for."""
    if not regions:
        return []
    named = [f"{region} ({count} hospital{'' if count == 1 else 's'})" for region, count in regions.items()]
    listed = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
    return [
        f"trusted with the numbers of their hospitals, and believed in their sums, are the regions {listed}"
    ]


def is_answer(reply: bytes | str) -> bool:
    """Whether a site answered, rather than refused or sent something else."""
    try:
        return isinstance(reply, bytes) and isinstance(open_reply(reply), Answer)
    except MessageError:
        return False


def together(reasons: Iterable[tuple[str, str]]) -> str:
    """Sites and reasons as one sentence, sites with the same reason named together."""
    by_reason: dict[str, list[str]] = {}
    for site, reason in reasons:
        by_reason.setdefault(reason, []).append(site)
    parts = []
    for reason, sites in by_reason.items():
        named = ", ".join(sites[:3]) + (f" and {len(sites) - 3} more" if len(sites) > 3 else "")
        parts.append(f"{named}: {reason}")
    return "; ".join(parts)
