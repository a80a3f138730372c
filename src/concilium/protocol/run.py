"""One run of one method: its participants, its rounds, and what became of each site.

What a method asks goes out to all participants and comes back as answers by site, or as one sum. Who took part,
what it cost, who refused and who was lost is kept on the way and ends up on the card. A lost site ends in a
definite state: with `on_loss="continue"` the method starts again with the rest (answers already given are stored at
the sites and free), so that the model is that of the sites that stayed; otherwise the run stops with its name.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

import concilium
from concilium.errors import HouseError, MaskError, MessageError, RunStopped, StudyError, StudyPending
from concilium.privacy.accounting import shown
from concilium.privacy.identity import fingerprint, has_fingerprint, is_signed
from concilium.privacy.manifest import require_participants
from concilium.privacy.randomness import draw_bytes
from concilium.protocol.attributes import Attribute
from concilium.protocol.card import OPTED_OUT, Card, DropoutCard, RefusalCard, ReleaseCard, SiteCard
from concilium.protocol.journal import Journal
from concilium.protocol.masking import Greeting, Hello, MaskedStudy
from concilium.protocol.messages import (
    VERSION,
    Answer,
    Envelope,
    Refusal,
    Silence,
    decode,
    digest_question,
    encode,
    find_signed,
    open_reply,
)
from concilium.protocol.questions import Among, Asked, BySite, Conversation, Gathered, Question, Reply, Summed
from concilium.protocol.relay import Route, ask_through, check_below, find_twice
from concilium.protocol.releases import find_release
from concilium.protocol.sums import add_sum, read_sum
from concilium.protocol.terms import (
    Agreed,
    Draft,
    OpenedTerms,
    TableFit,
    TableNews,
    Terms,
    derive_proof_key,
    open_terms,
    prove,
    sign_terms,
    today,
)
from concilium.records.columns import label
from concilium.records.dictionary import DictionaryEntry
from concilium.registry import RELEASES

if TYPE_CHECKING:
    from concilium.protocol.house import House

# The question does not fit the site's table (or is not understood): the study is wrong, not the site.
MISFITS = frozenset({"message", "query", "attribute", "agreed"})

# So often, in seconds, stewards are asked whether they have decided.
ASKED_AGAIN = 2.0

T = TypeVar("T")


class SitesChanged(Exception):
    """Sites were lost after the first round: what was gathered so far is of other sites; start again."""


class Run:
    """Opened by `House.open`. `study` is what sites know the run by: the hash of the terms that they agreed to."""

    def __init__(self, house: House, draft: Draft) -> None:
        self.house = house
        self.draft = draft
        self.method = draft.method
        self.release = find_release(draft.release)
        self.sites = list(house.names)
        self.rounds = 0
        self.bytes = 0
        self.answered = 0
        self.fixed = False
        self.journal = None if house.journal is None else Journal(house.journal)
        self.id = draft.nonce or draw_bytes(16).hex()
        if self.journal is not None:
            asked = msgspec.json.encode(
                [draft.method, draft.release, sorted(house.names), dict(draft.parameters)]
                + ([draft.holdout, str(draft.evaluation)] if draft.holdout else [])
                + ([draft.subgroups] if draft.subgroups else [])
                + ([self.encounters] if self.encounters > 1 else []),
                order="sorted",
            )
            self.id = self.journal.begin(self.id, hashlib.sha256(asked).hexdigest())
        self.study = self.id
        self.asserted = False
        self._opened: OpenedTerms | None = None
        self._proof_keys: dict[str, bytes] = {}
        self._begun = self._asked_at_a_price = False
        self._masked_study: MaskedStudy | None = None
        self._charges: dict[tuple[str, str, str], ReleaseCard] = {}
        self._answered: set[str] = set()
        self._news: dict[str, TableNews] = {}
        self._fits: dict[str, TableFit] = {}
        self._uncapped: set[str] = set()
        self.opted_out: dict[str, str] = {}
        self.refusals: list[RefusalCard] = []
        self.dropouts: list[DropoutCard] = []
        # The values that sites listed, by attribute, as labels; and what they are told of attributes for that reason.
        self.known: dict[str, dict[str, frozenset[str]]] = {}
        self._narrowed: dict[tuple[str, str], tuple[Attribute, Attribute]] = {}
        self._regions: dict[str, int] = {}
        self._routes: dict[str, Route] = {}

    def begin(self) -> OpenedTerms:
        """Have all participants agree to the study, before the first of its questions; its terms.

        Sites that refuse it are left out, or stop the run. StudyPending where a person has not decided yet and the
        house's patience ends.
        """
        while self._opened is None:
            self.asserted = self.house.transport.introduce(self.house.identity.fingerprint)
            opened = self._compose()
            self.study = opened.id
            self._propose(opened)
            if self.release.by_site or len(self.sites) == len(opened.terms.participants):
                self._opened = opened
                self.fixed = not self.release.begins_anew
        return self._opened

    def _compose(self) -> OpenedTerms:
        """The terms of the study, as they were proposed first where the run is resumed."""
        colluders, keys = None, {}
        if not self.release.by_site:
            greetings = self._greet()
            colluders = max(greeting.colluders for greeting in greetings.values())
            keys = {site: self.house.identities[site] for site in greetings}
        terms = self._write_terms(colluders, [keys[site] for site in sorted(keys)])
        if self.journal is not None:
            terms = self.journal.note(f"terms {' '.join(sorted(self.sites))}", terms)
        try:
            opened = open_terms(terms, sign_terms(terms, self.house.identity))
            if not self.release.by_site:
                opened.manifest  # noqa: B018  MaskError where it cannot be
                require_participants(opened.id, len(self.sites) - self.house.spare, colluders or 0)
        except MessageError as error:
            raise StudyError(f"this study cannot be proposed: {error}") from None
        except MaskError as error:
            gone = [(one.site, one.reason) for one in self.refusals]
            gone += [(one.site, one.reason) for one in self.dropouts]
            if not gone:
                raise
            raise HouseError(f"{together(gone)}; without them it cannot go on: {error}") from None
        return opened

    def _write_terms(self, colluders: int | None, identities: Sequence[bytes]) -> bytes:
        """The terms of the study; what it does not have is not written down."""
        draft, house, price = self.draft, self.house, self.draft.price
        optional: dict[str, Any] = {
            "after": house.after,
            "holdout": draft.holdout,
            "evaluation": str(draft.evaluation) if draft.evaluation else "",
            "subgroups": draft.subgroups,
            "dictionary": dict(self.dictionary),
            "check_tables": house.check_tables and bool(self.dictionary),
        }
        if price is not None:
            optional["encounters"] = self.encounters if self.encounters > 1 else 0
            optional["total"] = str(house.total) if house.total is not None and house.total > price else ""
        return Terms(
            house=house.identity.public,
            exchange_key=house.identity.exchange_key,
            nonce=self.id,
            purpose=draft.purpose or house.purpose,
            method=draft.method,
            parameters=dict(draft.parameters),
            models=draft.models,
            price=None if price is None else str(price),
            participants=tuple(sorted(self.sites)),
            identities=tuple(identities),
            colluders=colluders,
            ends=draft.ends or (today() + timedelta(days=house.days)).isoformat(),
            **{name: value for name, value in optional.items() if value},
        ).encoded

    @property
    def encounters(self) -> int:
        return self.draft.encounters or self.house.encounters

    def _greet(self) -> dict[str, Greeting]:
        """Who takes part under masks: the sites, and through regions the hospitals behind them, by name."""
        greetings: dict[str, Greeting] = {}
        while unmet := [site for site in self.sites if site not in greetings]:
            replies, refused, lost = self._round(Hello(), unmet, live=True)
            # Before the study is agreed to, sites may still stay away.
            self._settle(Hello.kind, {**dict.fromkeys(greetings, b""), **replies}, refused, lost)
            self._begun = False
            try:
                found = {site: decode(data, Greeting) for site, data in replies.items()}
            except MessageError as error:
                raise HouseError(f"a site answered with what was not asked for: {error}") from None
            below = {region: greeting.below for region, greeting in found.items() if greeting.below}
            for region, names in below.items():
                route = (*self._routes.get(region, ()), region)
                check_below(route, names, self.sites)
                self._routes |= dict.fromkeys(names, route)
            if (twice := find_twice([*self.sites, *itertools.chain(*below.values())])) is not None:
                sources = [region for region, names in below.items() if twice in names]
                raise HouseError(
                    f"two hospitals or regions are named {twice!r} (by {', '.join(sources)}); under masks each needs a "
                    "name of its own"
                )
            greetings |= {site: greeting for site, greeting in found.items() if site not in below}
            self.sites = [name for site in self.sites for name in below.get(site, (site,))]
        return greetings

    def _propose(self, opened: OpenedTerms) -> None:
        proposal = opened.proposal
        until = time.monotonic() + self.house.patience
        while True:
            bodies, refused, lost = self._round(proposal, self.sites, live=True)
            waiting = [site for site, refusal in refused if refusal.rule == "waiting"]
            if not waiting:
                break
            if time.monotonic() >= until:
                raise StudyPending(opened.id, waiting)
            self._report(f"study {opened.id[:12]} waits for {', '.join(waiting)} to agree")
            time.sleep(min(ASKED_AGAIN, max(0.0, until - time.monotonic())))
        self._settle(proposal.kind, bodies, refused, lost)
        self._begun = False
        self._keep_keys(opened.id, bodies)

    def _keep_keys(self, study: str, replies: Mapping[str, bytes]) -> None:
        for site, data in replies.items():
            try:
                agreed = decode(data, Agreed)
                self._proof_keys[site] = derive_proof_key(
                    self.house.identity, agreed.exchange_key, study, site
                )
                if agreed.table is not None:
                    self._news[site] = agreed.table
                if agreed.fit is not None:
                    if not {one.column for one in agreed.fit.misfits} <= set(self.dictionary):
                        raise MessageError("columns that do not fit, and are not in the dictionary")
                    self._fits[site] = agreed.fit
            except (MessageError, MaskError) as error:
                raise HouseError(f"{site} answered with what was not asked for: {error}") from None

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

    def ask(self, asked: Asked) -> dict[str, Reply] | NDArray[np.int64] | dict[str, NDArray[np.int64]]:
        """What one question brings: answers by site, or the sum."""
        if isinstance(asked, BySite):
            return self._read_by_site(asked.question)
        if isinstance(asked, Among):
            if not self.release.by_site:
                raise MessageError(
                    "a sum over some of the sites, beside one over all, tells those of the others"
                )
            return self.add_answers(asked.question, asked.sites)
        if isinstance(asked, Summed):
            return find_release(self.name_release(asked)).add_up(self, asked)
        replies = self.gather_replies(asked)
        leaving = {site: reply.leaves for site, reply in replies.items() if reply.leaves is not None}
        if len(leaving) < len(replies):
            self.excuse(leaving)
        return replies

    def add_answers(self, question: Summed, among: Collection[str] | None = None) -> NDArray[np.int64]:
        """The sum of what the sites (or those among them) answer, each seen by itself."""
        total = np.zeros(question.shape, dtype=np.int64)
        for site, data in self.gather(question, among=among).items():
            try:
                add_sum(total, data, question)
            except MessageError as error:
                raise HouseError(f"{site} answered with what cannot be added up: {error}") from None
        return total

    def _read_by_site(self, question: Summed) -> dict[str, NDArray[np.int64]]:
        """What each site answers to a question whose answers could be added up."""
        if not self.release.by_site:
            raise MessageError(f"under {self.release.name!r} the house reads no single site's numbers")
        tables: dict[str, NDArray[np.int64]] = {}
        for site, data in self.gather(question).items():
            try:
                tables[site] = read_sum(data, question).astype(np.int64)
            except MessageError as error:
                raise HouseError(f"{site} answered with what cannot be read: {error}") from None
        return tables

    def gather_replies(self, question: Gathered[Any]) -> dict[str, Reply]:
        """What each site answers."""
        replies: dict[str, Reply] = {}
        for site, data in self.gather(question).items():
            try:
                replies[site] = self.read_reply(question, site, data)
            except MessageError as error:
                raise HouseError(f"{site} answered with what was not asked for: {error}") from None
        return replies

    def read_reply(self, question: Gathered[Any], site: str, data: bytes) -> Reply:
        """A site's answer; what it says of its values is remembered, so that it is told of no others."""
        reply: Reply = question.read(data)
        known = question.find_known(reply)
        self.known.setdefault(site, {}).update(
            {name: frozenset(label(v) for v in values if v is not None) for name, values in known.items()}
        )
        return reply

    def name_release(self, question: Question) -> str:
        """That of the run; a sum with noise leaves by a release that adds it, and shows the house what the run does:
        each site's numbers, or sums over all (a masked run may have a private part)."""
        noise = question.noise if isinstance(question, Summed) else None
        if noise is None or isinstance(noise, self.release.noise):
            return self.release.name
        by_site = self.release.by_site
        releases = [find_release(name) for name in RELEASES]
        return next(one.name for one in releases if isinstance(noise, one.noise) and one.by_site == by_site)

    @property
    def masked_study(self) -> MaskedStudy:
        """The masked study of this run, set up on first use."""
        self.begin()
        if self._masked_study is None:
            self._masked_study = MaskedStudy(self)
        return self._masked_study

    @property
    def least_variance(self) -> Fraction:
        return self.masked_study.least_variance

    @property
    def noise_factor(self) -> Fraction:
        return self.masked_study.noise_factor

    def variance(self, rho: Fraction, squared_sensitivity: Fraction | int) -> Fraction:
        # Statistics say what one row can change; N rows of a patient change N times that (group privacy).
        return self.masked_study.variance(rho, self.encounters**2 * squared_sensitivity)

    def gather(
        self,
        question: Question,
        templates: Mapping[str, bytes] | None = None,
        *,
        live: bool = False,
        release: str | None = None,
        among: Collection[str] | None = None,
    ) -> dict[str, bytes]:
        """One round: the question to every participant (or to those `among` them); the bodies of answers by site.

        A step of the protocol may tell each site something of its own (`templates`).

        In the first round sites may refuse or be silent and the rest goes on; later that raises SitesChanged, or
        stops the run where participants are fixed. `live` rounds are not taken from the journal.
        """
        opened = self.begin()
        self.rounds += 1
        asked = self.sites if among is None else [site for site in self.sites if site in among]
        spared = [] if among is None else [site for site in self.sites if site not in among]
        self._report(f"round {self.rounds}: {question.kind} to {len(asked)} sites{self._say_absent()}")
        self._asked_at_a_price |= isinstance(question, Summed) and question.noise is not None
        bodies, refused, lost = self._round(question, asked, templates, live=live, release=release)
        forgetful = [site for site, refusal in refused if refusal.rule == "proposed"]
        if forgetful:  # started again since, and without memory of the study: propose it once more
            agreed, unwilling, silent = self._round(opened.proposal, forgetful, live=True)
            self._keep_keys(opened.id, agreed)
            again = self._round(question, list(agreed), templates, live=live, release=release)
            refused = [one for one in refused if one[0] not in forgetful]
            bodies = {site: (bodies | again[0])[site] for site in self.sites if site in bodies | again[0]}
            refused, lost = [*refused, *unwilling, *again[1]], [*lost, *silent, *again[2]]
        self.house.remember()
        self._settle(question.kind, {**bodies, **dict.fromkeys(spared, b"")}, refused, lost)
        return bodies

    def _round(
        self,
        question: Question,
        sites: Sequence[str],
        templates: Mapping[str, bytes] | None = None,
        *,
        live: bool = False,
        release: str | None = None,
    ) -> tuple[dict[str, bytes], list[tuple[str, Refusal]], list[tuple[str, str]]]:
        """One question to these sites: the bodies of answers, refusals, and what was seen of those lost."""
        templates, kind = templates or {}, question.kind
        release = release or self.name_release(question)
        written: dict[int, tuple[Question, bytes, bytes]] = {}  # most sites are told the same
        envelopes = {}
        for site in sites:
            own = self._narrow(question, site) if find_release(release).tells_each else question
            if id(own) not in written:
                body = encode(own)
                written[id(own)] = own, body, hashlib.sha256(body).digest()
            _, body, body_digest = written[id(own)]
            template = templates.get(site, b"")
            envelopes[site] = self._envelope(site, kind, body, body_digest, template, release)
        replies = self._exchange(envelopes, live, max(self.house.timeout, question.patience))
        bodies, refused, lost = {}, [], []
        for site, envelope in envelopes.items():
            reply = self._read(envelope, site, replies[site])
            if isinstance(reply, Answer):
                bodies[site] = self._accept(site, kind, reply)
            elif isinstance(reply, Refusal):
                refused.append((site, reply))
            else:
                lost.append((site, reply))
        return bodies, refused, lost

    def _narrow(self, question: Question, site: str) -> Question:
        """The question as this site is asked it: of each attribute it is told the values that it listed itself.

        Who is protected: the other hospitals, from this one, which never reads an attribute or value that only they
        have (the thesis' conditional schema, steps 7 and 8). Methods and statistics see the shared codes alone.
        """
        known, narrowed = self.known.get(site, {}), {}
        for name in question.__struct_fields__ if known else ():
            field = getattr(question, name)
            if isinstance(field, Attribute):
                own: Any = self._narrow_attribute(field, known, site)
            elif isinstance(field, tuple) and field and isinstance(field[0], Attribute):
                own = tuple([self._narrow_attribute(one, known, site) for one in field])
            else:
                continue
            if own != field:
                narrowed[name] = own
        return msgspec.structs.replace(question, **narrowed) if narrowed else question

    def _narrow_attribute(
        self, attribute: Attribute, known: Mapping[str, frozenset[str]], site: str
    ) -> Attribute:
        if not attribute.values or attribute.name not in known:
            return attribute
        before, narrow = self._narrowed.get((site, attribute.name), (None, None))
        if before is not attribute or narrow is None:
            narrow = attribute.narrow(known[attribute.name])
            self._narrowed[site, attribute.name] = attribute, narrow
        return narrow

    def _say_absent(self) -> str:
        """Who answered earlier rounds no more."""
        named = [*(one.site for one in self.refusals), *(one.site for one in self.dropouts)]
        gone = dict.fromkeys(site for site in named if site not in self.sites)
        return f", without {', '.join(gone)}" if gone else ""

    def _report(self, text: str) -> None:
        if self.house.on_round is not None:
            self.house.on_round(text)

    def excuse(self, reasons: Mapping[str, str]) -> None:
        """Go on without sites that answered that they take no part, and why; the card names them."""
        self.opted_out |= reasons
        self.sites = [site for site in self.sites if site not in reasons]

    def finish(
        self, patients: Mapping[str, int | None], warnings: Iterable[str] = (), decision: str = ""
    ) -> Card:
        """End the run: the card of the model that came of it."""
        notes = list(warnings)
        if self._masked_study is not None:
            notes += self._masked_study.end()
        # Of every site that answered, in the model or not: what was released was released.
        releases = [self._charges[key] for key in sorted(self._charges)]
        notes += self.release.warn([one for one in releases if one.site in self.sites], patients)
        if self._uncapped:
            notes.append(
                "an unlimited budget, so that what private answers tell of a patient in the end has no bound: "
                f"{', '.join(sorted(self._uncapped))}"
            )
        if self.opted_out:
            notes.append(f"{OPTED_OUT}{together(self.opted_out.items())}")
        lost = sorted({loss.site for loss in self.dropouts} - set(self.sites))
        if lost:
            notes.append(f"lost on the way: {', '.join(lost)}; the model is that of the sites that stayed")
        notes += [
            f"the table of {site} has changed since the version before that it answered from: {self._news[site]}"
            for site in self.sites
            if site in self._news
        ]
        notes += [f"the table of {site} {self._fits[site]}" for site in self.sites if site in self._fits]
        if relays := {self._routes[site][-1] for site in self.sites if site in self._routes}:
            notes.append(
                f"some hospitals were reached through {_list_first(sorted(relays))}, which passed on what only they "
                "and the house say"
            )
        regions = [
            f"{region} ({count} hospital{'' if count == 1 else 's'})"
            for region, count in self._regions.items()
            if region in self.sites
        ]
        if regions:
            notes.append(
                "trusted with the numbers of their hospitals, and believed in their sums, are the regions "
                f"{_list_first(regions)}"
            )
        sites = []
        for site in self.sites:
            head, identity = self.house.heads[site], self.house.identities[site]
            sites.append(SiteCard(site, patients.get(site), fingerprint(identity), head.count, head.hash))
        return Card(
            study=self.study,
            purpose=self.draft.purpose or self.house.purpose,
            dictionary=dict(self.dictionary),
            method=self.method,
            release=self.release.name,
            meaning=self.release.meaning,
            sites=sites,
            rounds=self.rounds,
            bytes=self.bytes,
            releases=releases,
            refusals=self.refusals,
            dropouts=self.dropouts,
            warnings=notes,
            decision=decision,
            date=today().isoformat(),
            version=concilium.__version__,
        )

    @property
    def dictionary(self) -> Mapping[str, DictionaryEntry]:
        """What the study's attributes are, as far as it says."""
        return self.draft.dictionary or self.house.dictionary.entries

    @property
    def where(self) -> str:
        """How far the run has come, in words."""
        return f"in round {self.rounds}" if self.rounds else "when the study was proposed"

    @property
    def numbers(self) -> int:
        """How many numbers the sites have entered in their ledgers for this run so far."""
        return sum(release.numbers for release in self._charges.values())

    @property
    def costs(self) -> dict[str, Fraction]:
        """What the sites have entered for this run so far of what has a price, by site."""
        costs: dict[str, Fraction] = {}
        for (site, _, _), release in self._charges.items():
            if release.cost is not None:
                costs[site] = costs.get(site, Fraction(0)) + Fraction(release.cost)
        return costs

    def say_spent(self, error: HouseError) -> HouseError:
        """The error that ended the run, with what hospitals were charged until then: that is spent for nothing, unless
        the run is resumed. A question that was not finished may have been charged as well, of which a house under masks
        is not told; at no hospital is it more than the price of the study (site_context.py)."""
        # A run that was stopped goes on, and says how.
        unfinished = self._asked_at_a_price and not isinstance(error, RunStopped)
        if isinstance(error, StudyPending) or not (self.costs or unfinished):
            return error
        spent = together((site, f"rho {shown(cost)}") for site, cost in self.costs.items())
        spent = spent or "an unfinished question, at hospitals that answered it"
        return HouseError(
            f"{error} (charged until then, for nothing unless it is resumed: {spent}, and at most "
            f"rho {shown(self.draft.price or Fraction(0))})"
        )

    @property
    def uncapped(self) -> bool:
        """Whether a site that was charged a price has set no budget."""
        return bool(self._uncapped)

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

    def _envelope(
        self, site: str, kind: str, body: bytes, body_digest: bytes, template: bytes, release: str
    ) -> Envelope:
        digest = digest_question(self.study, kind, release, body_digest, template)
        name = hashlib.sha256(f"{self.id}\n{site}\n{digest}".encode()).hexdigest()[:32]
        key, seen = self._proof_keys.get(site), self.house.heads.get(site)
        return Envelope(
            version=VERSION,
            id=name,
            study=self.study,
            kind=kind,
            release=release,
            body=body,
            template=template,
            seen=seen,
            proof=b"" if key is None else prove(key, name, digest, seen),
        )

    def _exchange(
        self, envelopes: Mapping[str, Envelope], live: bool, timeout: float
    ) -> dict[str, bytes | str]:
        """What each site sent (or why nothing came): from the journal where the round was finished before."""
        replies: dict[str, bytes | str] = {}
        messages = {}
        for site, envelope in envelopes.items():
            kept = None if self.journal is None or live else self.journal.recall(envelope.id)
            message = encode(envelope)
            # As if it did not echo the ledger's head (but nil, one byte), so that a run counts the same whatever was
            # asked before it.
            self.bytes += len(message) - (0 if envelope.seen is None else len(encode(envelope.seen)) - 1)
            if kept is None:
                messages[site] = message
            else:
                replies[site] = kept
        if messages:
            release = self.release.name
            carried = ask_through(self.house.transport, messages, self._routes, release, timeout)
            for site, reply in carried.items():
                replies[site] = str(reply) if isinstance(reply, Silence) else reply
        self.bytes += sum(len(reply) for reply in replies.values() if isinstance(reply, bytes))
        if self.journal is not None and messages and not live:
            fresh = {envelopes[site].id: replies[site] for site in messages}
            if self._stops:
                # A run that stops here asks these sites again when it is resumed.
                fresh = {question: reply for question, reply in fresh.items() if _is_answer(reply)}
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
        identity = opened.identity if first is None else first
        if identity != opened.identity or not is_signed(find_signed(opened), opened.signature, identity):
            reply_is = "answer" if isinstance(opened, Answer) else "refusal"
            had = "names" if first is None else f"had before{self.house.say_remembered()}"
            return f"its {reply_is} is not signed by the identity it {had}"
        if any(has_fingerprint(identity, pin) for pin in self.house.revoked):
            return f"its identity {fingerprint(identity)} is revoked at the house"
        self.house.identities[site] = identity
        return opened

    def _accept(self, site: str, kind: str, answer: Answer) -> bytes:
        seen = self.house.heads.get(site)
        if seen is None or answer.ledger.count > seen.count:
            self.house.heads[site] = answer.ledger
        self.answered += len(answer.body)
        if answer.below:
            self._regions[site] = answer.below
        if answer.charge is not None and answer.id not in self._answered:
            self._answered.add(answer.id)
            if not answer.charge.capped:
                self._uncapped.add(site)
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
        if misfit and not (self.draft.spares_misfits and bodies):
            raise HouseError(f"the study does not fit every site: {together(misfit)}")
        behind = [(site, refusal.reason) for site, refusal in refused if refusal.rule == "rollback"]
        if behind:
            raise HouseError(f"a ledger cannot be trusted: {together(behind)}")
        gone = [*lost, *((site, refusal.reason) for site, refusal in refused)]
        if not bodies:
            raise HouseError(f"no site answered: {together(gone)}")
        if gone and self._stops:
            study = "a study of reports" if self.release.by_site else "a masked study"
            # Who is lost comes back; a refusal says itself what would do, and resuming is no part of that.
            back = "" if refused else ", so resume it when all are back"
            why = f"; {study} cannot go on without it{back}" if self.fixed else ""
            raise HouseError(f"stopped {self.where}: {together(gone)}{why}")
        self.sites = [site for site in self.sites if site in bodies]
        begun, self._begun = self._begun, True
        if gone and begun:
            raise SitesChanged


def _list_first(names: Sequence[str]) -> str:
    """The first three, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _is_answer(reply: bytes | str) -> bool:
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
        parts.append(f"{_list_first(sites)}: {reason}")
    return "; ".join(parts)
