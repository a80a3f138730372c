"""A hospital's own file, `local/concilium.toml` of its kit: its records, policy and ledger, and how columns are
read."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from concilium.errors import KitError, StudyError, nearest
from concilium.policy.policy import Policy
from concilium.protocol.site import Site
from concilium.records.dictionary import Dictionary, find_dictionary
from concilium.records.patients import Patients
from concilium.records.series import Series
from concilium.records.table import Records
from concilium.records.table_map import TableMap
from concilium.study.sections import CourseColumns, Kind, Stated, Text, read_columns, read_section
from concilium.study.sources import read_as_stated
from concilium.temporal.rule_sets import RuleSets

FILE = "local/concilium.toml"
SECTIONS = ("site", "schema", "series", "dictionary", "map")


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
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


class HeldColumns(CourseColumns, frozen=True, kw_only=True):
    """[series]: as in a study file, and the step of the grid that its courses are read on."""

    step: Text = "1h"


@dataclass(frozen=True)
class SiteFile:
    """`SiteFile.read(kit)`; its `open` reads the records and opens the gate before them."""

    path: Path
    holds: Holdings
    schema: dict[str, Kind]
    columns: HeldColumns
    dictionary: Dictionary
    map: TableMap | None

    @classmethod
    def read(cls, kit: Path) -> SiteFile:
        """The file of a kit; KitError says which key is wrong and how."""
        path = kit / FILE
        document = read_toml(path, SECTIONS)
        try:
            holds = read_section(path, "site", document, Holdings)
            columns = read_section(path, "series", document, HeldColumns)
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
            parts["series"] = Series.read(
                self._locate(holds.series),
                step=columns.step,
                patient=columns.patient,
                time=columns.time,
                time_unit=columns.time_unit,
                origin=columns.origin,
                variable=columns.variable,
                value=columns.value,
                variables=columns.variables,
            )
        if holds.records is None:
            return Patients(**parts)
        by = (columns.patient or holds.patient or "patient") if parts else holds.patient
        ids: dict[str, str] = {} if by is None else {by: "code"}
        table = self._read_table(self._locate(holds.records), {**ids, **self.schema})
        return Patients(table=table, by=by, one_row_per_patient=holds.one_row_per_patient, **parts)

    def _read_table(self, source: str, schema: dict[str, str]) -> Records:
        """The table under the hospital's map, its columns read as the dictionary says."""
        if self.map is None and not self.dictionary:
            return read_as_stated(source, self.holds.table, schema)
        return Records.read(
            source, table=self.holds.table, schema=schema, dictionary=self.dictionary, map=self.map
        )

    def _locate(self, place: str) -> str:
        return place if "://" in place else str(self.path.parent / place)


def read_toml(path: Path, sections: tuple[str, ...]) -> dict[str, Any]:
    """A file of a kit that has no other sections than these."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KitError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KitError(f"{path}: is not a TOML file: {error}") from None
    for name in document:
        if name not in sections:
            raise KitError(f"{path}: there is no section [{name}]{nearest(name, sections)}")
    return document
