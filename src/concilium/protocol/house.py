"""The clearing house: which sites it reaches, how long it waits, what it remembers of them; never a record.

A method opens a `Run` (run.py) and asks its questions through that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from concilium.errors import HouseError, MaskError, StudyError, name_some
from concilium.ledger.chain import Head
from concilium.privacy.identity import Identity
from concilium.protocol.card import Card
from concilium.protocol.held_out import SIMULATION_KEY
from concilium.protocol.journal import open_for_owner
from concilium.protocol.messages import Answering, Transport
from concilium.protocol.questions import B, Conversation, Learned, Partners
from concilium.protocol.run import Run, SitesChanged
from concilium.protocol.site import Site
from concilium.protocol.terms import MOST_DAYS, MOST_ENCOUNTERS, MOST_PURPOSE, Draft
from concilium.records.dictionary import Dictionary
from concilium.records.patients import Patients
from concilium.records.sources import is_frame
from concilium.records.table import Records
from concilium.registry import load

# Where the transport of sites of this process is: what reaches sites elsewhere builds on the protocol.
EMBEDDED = "concilium.transports.embedded:Embedded"


class KnownSite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a house remembers of a site."""

    identity: str
    head: Head


class House:
    """`House([site, ...])` is embedded: no server, no network. `transport` reaches sites elsewhere.

    timeout   seconds to wait for the answers of one round
    on_loss   "continue": go on with the sites that stayed; "stop": stop, naming the lost site. A masked study
              always stops: its sum with a site and without it would differ by that site's whole answer
    journal   a file for finished rounds, so that an interrupted run can be resumed; it and the memory are made
              readable by their owner only
    memory    a file where the house keeps, for every site, the identity it signs with and the last head of its ledger,
              from one run to the next: a ledger that was put back to an older copy is noticed by that
    on_round  called with a line of text at each round
    identity  a file with the key by which hospitals know this house, made on first use; without one it is made for this
              process, or kept beside the journal
    purpose   what its studies are for, in words: hospitals read it before they agree
    dictionary  what the attributes of its studies are: public, it stands in their terms and on their cards
    check_tables  its studies ask hospitals whether their tables fit it: those whose policy tells that (`tell_fit`) say
              so, or which columns do not, and the cards name them
    days      its studies end after so many days
    total     what its next study and those after it may cost a patient together: hospitals without room for that refuse
              before they are asked anything
    after     what these are, such as "validation private": a hospital that would refuse them is asked nothing
    spare     how many of the hospitals each of these leaves out: under masks, enough must be left
    encounters  how many rows of each patient count at most in private studies, where a row is an encounter:
              the price is that of all of them, so that noise is as many times as large
    patience  seconds to wait where a person of a hospital must agree first
    """

    def __init__(
        self,
        sites: Sequence[Answering] = (),
        *,
        transport: Transport | None = None,
        timeout: float = 180.0,
        on_loss: Literal["continue", "stop"] = "continue",
        journal: str | Path | None = None,
        memory: str | Path | None = None,
        on_round: Callable[[str], None] | None = None,
        identity: str | Path | Identity | None = None,
        purpose: str = "",
        dictionary: Dictionary | None = None,
        check_tables: bool = False,
        days: int = 30,
        patience: float = 0.0,
        revoked: Sequence[str] = (),
        total: Fraction | None = None,
        after: Sequence[str] = (),
        spare: int = 0,
        encounters: int = 1,
    ) -> None:
        if transport is None:
            by_name: dict[str, Answering] = {}
            for site in sites:
                if not callable(getattr(site, "answer", None)):
                    raise HouseError(f"a house takes a list of sites; got {type(site).__name__} among them")
                if site.name in by_name:
                    raise HouseError(f"two sites are named {site.name!r}; give each site a name of its own")
                by_name[site.name] = site
            transport = load(EMBEDDED)(by_name)
        if not transport.names:
            raise HouseError("a house needs at least one site")
        if on_loss not in ("continue", "stop"):
            raise StudyError(f"on_loss must be 'continue' or 'stop'; got {on_loss!r}")
        if not isinstance(timeout, int | float) or not timeout > 0:
            raise StudyError(f"timeout must be a number of seconds above 0; got {timeout!r}")
        if not isinstance(days, int) or not 1 <= days <= MOST_DAYS:
            raise StudyError(f"days must be a whole number from 1 to {MOST_DAYS}; got {days!r}")
        if not isinstance(encounters, int) or not 1 <= encounters <= MOST_ENCOUNTERS:
            raise StudyError(
                f"encounters must be a whole number from 1 to {MOST_ENCOUNTERS}; got {encounters!r}"
            )
        if not isinstance(patience, int | float) or not patience >= 0:
            raise StudyError(f"patience must be a number of seconds from 0; got {patience!r}")
        if not isinstance(purpose, str) or len(purpose) > MOST_PURPOSE or not purpose.isprintable():
            raise StudyError(f"purpose must be a text of at most {MOST_PURPOSE} characters; got {purpose!r}")
        if dictionary is not None and not isinstance(dictionary, Dictionary):
            raise StudyError(
                f"dictionary must be a Dictionary, such as Dictionary.read(...); got {dictionary!r}"
            )
        self._identity = identity
        self.dictionary = Dictionary() if dictionary is None else dictionary
        self.purpose, self.days, self.patience = purpose, days, patience
        self.check_tables, self.encounters = check_tables, encounters
        self.total, self.after, self.spare = total, tuple(after), spare
        self.revoked = tuple(revoked)  # fingerprints of sites' identities that are never believed again
        self.transport = transport
        self.timeout = timeout
        self.on_loss = on_loss
        self.journal = journal
        self.on_round = on_round
        # The last ledger head each site told (echoed to it, so that a rolled-back ledger is noticed), and the
        # identity it first signed with (no other is believed later).
        self.heads: dict[str, Head] = {}
        self.identities: dict[str, bytes] = {}
        self._memory = None if memory is None else Path(memory)
        self._some: tuple[str, ...] | None = None
        self._recall()

    def __repr__(self) -> str:
        return f"House({len(self.names)} site{'' if len(self.names) == 1 else 's'}: {name_some(self.names)})"

    @classmethod
    def of(cls, sites: House | Mapping[str, Any] | Iterable[Any]) -> House:
        """A house as it is, or one of these sites: by name, or in a list; a table or a file is a site of its own."""
        if isinstance(sites, House):
            return sites
        if isinstance(sites, str | bytes | Path) or is_frame(sites) or not isinstance(sites, Iterable):
            raise HouseError(
                "fit takes a House, a list of sites or of tables, or tables by the names of their sites, such as "
                f'{{"north": "north.csv", "south": frame}}; got {type(sites).__name__}'
            )
        if isinstance(sites, Mapping):
            return cls([_open_site(str(name), one) for name, one in sites.items()])
        listed = list(sites)
        return cls([_open_site(_name_site(one, place), one) for place, one in enumerate(listed, start=1)])

    @cached_property
    def identity(self) -> Identity:
        """The key of this house: the one it was given, or one that lasts as long as its journal, or as this process."""
        if isinstance(self._identity, Identity):
            return self._identity
        if self._identity is None and self.journal is None:
            return Identity.create()
        try:
            return Identity.at(self._identity if self._identity is not None else f"{self.journal}.identity")
        except MaskError as error:
            raise HouseError(str(error)) from None

    def remember(self) -> None:
        """Write down who the sites are and how far their ledgers have come."""
        if self._memory is None:
            return
        known = {
            site: KnownSite(self.identities.get(site, b"").hex(), head) for site, head in self.heads.items()
        }
        partial = self._memory.with_name(f"{self._memory.name}.{os.getpid()}.part")
        try:
            # Another study of the same house may be writing, too: what it saw later stands.
            for site, said in self._read_memory().items():
                if site not in known or said.head.count > known[site].head.count:
                    known[site] = said
            with os.fdopen(open_for_owner(partial, os.O_TRUNC), "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(known), indent=1))
            partial.replace(self._memory)
        except OSError as error:
            raise HouseError(f"{self._memory}: cannot be written ({error.strerror})") from None

    def say_remembered(self) -> str:
        """Where it says who a site was, and when that may be changed."""
        if self._memory is None:
            return ""
        return (
            f"; {self._memory.name} remembers that. Take it out there if the hospital says that it began a new ledger; "
            "for a new key see docs/keys.md"
        )

    def _read_memory(self) -> dict[str, KnownSite]:
        if self._memory is None or not self._memory.exists():
            return {}
        try:
            return msgspec.json.decode(self._memory.read_bytes(), type=dict[str, KnownSite])
        except (OSError, ValueError) as error:
            raise HouseError(
                f"{self._memory}: this is not what a house remembers of its sites ({error})"
            ) from None

    def _recall(self) -> None:
        # Also those that are not its own sites: under masks it reaches hospitals through regions.
        known = self._read_memory()
        try:
            # Of a site that was given a new identity the head alone is known, until it answers (own_files.py).
            self.identities = {
                site: bytes.fromhex(said.identity) for site, said in known.items() if said.identity
            }
        except ValueError as error:
            raise HouseError(
                f"{self._memory}: this is not what a house remembers of its sites ({error})"
            ) from None
        self.heads = {site: said.head for site, said in known.items()}

    @property
    def names(self) -> tuple[str, ...]:
        return self.transport.names if self._some is None else self._some

    def limit(self, names: Iterable[str], journal: str | Path | None) -> House:
        """The same house for a further study of some of its sites, with a journal of its own."""
        self.identity  # noqa: B018  one for all of them, also where it would follow from the journal
        limited = copy(self)
        limited._some, limited.journal = tuple(names), journal
        limited.total, limited.after, limited.spare = None, (), 0
        return limited

    def open(self, draft: Draft) -> Run:
        """A run of a study over all sites of this house."""
        return Run(self, draft)

    def learn(self, draft: Draft, begin: Callable[[Partners], Conversation[Learned[B]]]) -> tuple[B, Card]:
        """What comes of a method's conversation with all sites, begun anew with the rest whenever some are lost."""
        with self.open(draft) as run:
            while True:
                try:
                    learned = run.converse(begin(run))
                    run.begin()  # a study that asked nothing was agreed to all the same
                except SitesChanged:
                    continue  # sites only ever get fewer, so this ends
                except HouseError as error:
                    raise run.say_spent(error) from None
                return learned.body, run.finish(learned.patients, learned.warnings, learned.decision)


def _open_site(name: str, one: Any) -> Answering:
    """A site as it is, or one of this table: a data frame, records, patients, or a file. That is a simulation, which
    holds out the same patients each time."""
    if isinstance(one, str | Path) or is_frame(one) or hasattr(one, "__arrow_c_stream__"):
        one = Records.read(one)
    return Site(name, one, division_key=SIMULATION_KEY) if isinstance(one, Records | Patients) else one


def _name_site(one: Any, place: int) -> str:
    """What a site of a list is called: after its file, or by its place."""
    return Path(one).stem if isinstance(one, str | Path) else f"site {place}"
