"""The file `local/concilium.toml` of a kit: a hospital's, with its records, policy and ledger, and the house's, with
the folder of its identity, its memory and its studies under way.

The house keeps a study under way by its ticket, a number that whoever submits it draws. It holds the journal of
finished rounds (journal.py: under `exact`, each hospital's numbers), readable by the owner only, until it has been
finished for a week or nothing can be answered in it any more. It keeps each month's release of a consultation, for all
who may ask, for 31 days.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from concilium.errors import HouseError, KitError, MaskError, StudyError
from concilium.policy.policy import Policy
from concilium.privacy.identity import Identity, has_fingerprint, read_fingerprint
from concilium.protocol.house import KnownSite
from concilium.protocol.site import Site
from concilium.protocol.terms import today
from concilium.records.cohort_file import find_patient_column
from concilium.records.dictionary import Dictionary, find_dictionary
from concilium.records.patients import Patients
from concilium.records.table import Records
from concilium.records.table_map import TableMap
from concilium.study.results import WorkInProgress, write_whole
from concilium.study.sections import CourseColumns, Kind, Stated, Text, read_columns, read_section
from concilium.study.sources import read_as_stated
from concilium.temporal.rule_sets import RuleSets
from concilium.transports.flare.job import OUTCOME, JobOutcome, SubmittedStudy
from concilium.transports.flare.kit import read_toml

FILE = "local/concilium.toml"
SECTIONS = ("site", "schema", "series", "dictionary", "map")


class _Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """[site]: what the hospital holds, and what guards it."""

    policy: Text
    ledger: Text
    records: Text | None = None
    table: Text | None = None
    series: Text | None = None
    rules: Text | None = None
    identity: Text | None = None
    patient: Text | None = None
    one_row_per_patient: Stated = False
    encounters: Stated = False


class _HeldColumns(CourseColumns, frozen=True, kw_only=True):
    """[series]: as in a study file, and the step of the grid that its courses are read on."""

    step: Text = "1h"


@dataclass(frozen=True)
class SiteFile:
    """`SiteFile.read(kit)`; its `open` reads the records and opens the gate before them."""

    path: Path
    holds: _Holdings
    schema: dict[str, Kind]
    columns: _HeldColumns
    dictionary: Dictionary
    map: TableMap | None

    @classmethod
    def read(cls, kit: Path) -> SiteFile:
        """The file of a kit; KitError says which key is wrong and how."""
        path = kit / FILE
        document = read_toml(path, SECTIONS)
        try:
            holds = read_section(path, "site", document, _Holdings)
            columns = read_section(path, "series", document, _HeldColumns)
            schema = read_columns(path, "schema", document, Kind)
            dictionary = find_dictionary(path, document)
            map = TableMap.parse(document["map"], str(path)) if "map" in document else None
        except StudyError as error:
            raise KitError(str(error)) from None
        if (holds.series or holds.rules or holds.records) is None:
            raise KitError(f"{path}: [site] needs the key 'records' (or series, or rules)")
        return cls(path, holds, schema, columns, dictionary, map)

    @property
    def ledger(self) -> Path:
        return self.path.parent / self.holds.ledger

    @property
    def identity(self) -> Path:
        """Where the hospital's identity is: beside the ledger, if not elsewhere."""
        if self.holds.identity is not None:
            return self.path.parent / self.holds.identity
        return self.ledger.with_name(f"{self.ledger.name}.identity")

    def open(self, name: str) -> Site:
        """The hospital's site, its ledger found in order."""
        policy = Policy.read(self._locate(self.holds.policy))
        site = Site(name, self._read(), policy=policy, ledger=self.ledger, identity=self.identity)
        site.ledger.verify()  # a book that was tampered with is not written on
        return site

    def _read(self) -> Patients:
        holds, columns = self.holds, self.columns
        parts: dict[str, Any] = {}
        if holds.rules is not None:
            parts["rules"] = RuleSets.read(
                self._locate(holds.rules), patient=columns.patient or "patient", rule=columns.rule
            )
        if holds.series is not None:
            # Here, for it loads what hospitals with tables alone do without.
            from concilium.study.courses import read_series

            parts["series"] = read_series(
                self._locate(holds.series),
                columns.step,
                columns,
                columns.variables,
                folder=f"{self.ledger}.columns",
            )
        if holds.records is None:
            return Patients(**parts)
        patient = find_patient_column(holds.records, holds.patient)
        by = (columns.patient or patient or "patient") if parts else patient
        ids: dict[str, str] = {} if by is None else {by: "code"}
        table = self._read_table(self._locate(holds.records), {**ids, **self.schema})
        return Patients(
            table=table,
            by=by,
            one_row_per_patient=holds.one_row_per_patient,
            encounters=holds.encounters,
            **parts,
        )

    def _read_table(self, source: str, schema: dict[str, str]) -> Records:
        """The table under the hospital's map, its columns read as the dictionary says."""
        columns = f"{self.ledger}.columns"
        if self.map is None and not self.dictionary:
            return read_as_stated(source, self.holds.table, schema, columns)
        return Records.read(
            source,
            table=self.holds.table,
            schema=schema,
            dictionary=self.dictionary,
            map=self.map,
            columns=columns,
        )

    def _locate(self, place: str) -> str:
        return place if "://" in place else str(self.path.parent / place)


KEPT_DAYS, DAYS_OF_MONTH = 7, 31
Fingerprint = Annotated[str, Meta(description="a fingerprint, such as ABCD-EFGH-...")]


class _HouseFolder(msgspec.Struct, frozen=True, kw_only=True):
    """[house]: where it keeps what lasts."""

    folder: Text = "../../house-state"


@dataclass(frozen=True)
class HouseFile:
    """`HouseFile.read(kit)`. `pins` are the fingerprints that the house believes, by site; those that are `revoked` it
    never believes again."""

    folder: Path
    pins: dict[str, str]
    revoked: tuple[str, ...] = ()

    @classmethod
    def read(cls, kit: Path) -> HouseFile:
        """The file of a kit; KitError says which key is wrong and how."""
        path = kit / FILE
        document = read_toml(path, ("house", "sites", "revoked"))
        try:
            section = read_section(path, "house", document, _HouseFolder)
            pins = _read_pins(path, "sites", document)
            revoked = set(_read_pins(path, "revoked", document).values())
        except StudyError as error:
            raise KitError(str(error)) from None
        for site, pin in pins.items():
            if pin in revoked:
                raise KitError(
                    f"{path}: [sites] {site}: {pin} stands under [revoked]; enter its new fingerprint"
                )
        folder = (path.parent / section.folder).resolve()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise KitError(f"{folder}: cannot be written ({error.strerror})") from None
        own = cls(folder, pins, tuple(sorted(revoked)))
        own._expect_pinned()
        return own

    def _expect_pinned(self) -> None:
        """Forget the identity of a site that the house pins by another one now, and not how far its ledger had come."""
        if not self.memory.exists():
            return
        try:
            known = msgspec.json.decode(self.memory.read_bytes(), type=dict[str, KnownSite])
            changed = {
                site: msgspec.structs.replace(said, identity="")
                for site, said in known.items()
                if site in self.pins and said.identity
                if not has_fingerprint(bytes.fromhex(said.identity), self.pins[site])
            }
        except (OSError, ValueError) as error:
            raise KitError(
                f"{self.memory}: this is not what a house remembers of its sites ({error})"
            ) from None
        if changed:
            write_whole(self.memory, msgspec.json.encode(known | changed))
            self.memory.chmod(0o600)

    @property
    def identity(self) -> Identity:
        """By which hospitals know this house, made on first use."""
        return Identity.at(self.folder / "house.identity")

    @property
    def memory(self) -> Path:
        return self.folder / "sites.json"

    @contextlib.contextmanager
    def take_up(self, ticket: str, days: int, resumed: bool = False) -> Iterator[WorkInProgress]:
        """The work of a study under way, or of a new one; HouseError where another job is at it.

        Protects: the hospitals' budgets. A study that is `resumed` must be known here, or it would be charged anew.
        """
        if not re.fullmatch("[0-9a-f]{32}", ticket):
            raise HouseError("a study is taken up by its ticket of 32 hexadecimal digits")
        self._clear()
        work = WorkInProgress(self.folder / "studies" / ticket)
        if resumed and not work.folder.is_dir():
            raise HouseError(
                "this house holds no work of the study that is to go on: it never began there, or its last day is "
                "over; submit it without --resume, which proposes it again, and hospitals charge it again"
            )
        work.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(work.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HouseError(
                    "this study is still under way in another job; wait for it to end (concilium flare status), or "
                    "have it ended there"
                ) from None
            _keep_until(work.folder, days + 1)
            yield work
            _keep_until(work.folder, KEPT_DAYS)
        finally:
            os.close(lock)

    def find_release(self, submitted: SubmittedStudy) -> Path:
        """Where a month's release of a consultation lies, for all who may ask: the same text, files and month."""
        parts = [submitted.study, submitted.files, submitted.method, submitted.month]
        return self.folder / "consultations" / hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]

    def keep_release(self, place: Path, results: Path, outcome: JobOutcome) -> None:
        """Keep the files of a release for the next who asks: hospitals do not release a month twice."""
        self._clear()
        part = place.with_name(f"{place.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(results, part)
        write_whole(part / OUTCOME, msgspec.json.encode(outcome))
        _keep_until(part, DAYS_OF_MONTH)
        part.rename(place)

    def _clear(self) -> None:
        """Delete what nobody will take up any more."""
        for folder in (*(self.folder / "studies").glob("*"), *(self.folder / "consultations").glob("*")):
            with contextlib.suppress(OSError, ValueError):
                if date.fromisoformat((folder / "until").read_text()) < today():
                    shutil.rmtree(folder)


def _read_pins(path: Path, section: str, document: dict[str, Any]) -> dict[str, str]:
    """The fingerprints of a section, each in its usual form; KitError names the one that is none."""
    pins = read_columns(path, section, document, Fingerprint)
    try:
        return {name: read_fingerprint(text) for name, text in pins.items()}
    except MaskError as error:
        raise KitError(f"{path}: [{section}]: {error}") from None


def _keep_until(folder: Path, days: int) -> None:
    write_whole(folder / "until", (today() + timedelta(days=days)).isoformat().encode())
