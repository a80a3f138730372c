"""A study as a TOML file: which hospitals, which question, which method, at what privacy, evaluated how.

The file is checked whole before any record is read; every key, with what it means, is in docs/studies.md.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from concilium import closed_lists, model
from concilium.errors import ConciliumError, QueryError, RecordsError, StudyError, nearest
from concilium.sections import fill, read_columns, read_section
from concilium.study_sections import (
    GIVEN,
    HELD_BACK,
    LATER,
    METHODS,
    SECTIONS,
    About,
    Edges,
    Evaluate,
    Hospital,
    HouseRules,
    Kind,
    Listed,
    Method,
    Privacy,
    Split,
    Value,
)

if TYPE_CHECKING:
    from concilium.federation.house import House
    from concilium.federation.site import Site
    from concilium.policy.policy import Policy
    from concilium.records.table import Records


class Study(About, frozen=True, kw_only=True):
    """A checked study file. Paths in it are relative to its own folder."""

    path: Path
    privacy: Privacy
    split: Split | None
    hospitals: tuple[Hospital, ...]
    schema: dict[str, Kind]
    values: dict[str, tuple[Value, ...]]
    bins: dict[str, tuple[float, ...]]
    limits: msgspec.Struct
    house: HouseRules
    evaluate: Evaluate | None
    digest: str

    @classmethod
    def read(cls, path: str | Path) -> Study:
        """The study in a TOML file; StudyError says in one sentence which key is wrong and how."""
        path = Path(path)
        try:
            content = path.read_bytes()
            document = tomllib.loads(content.decode("utf-8"))
        except OSError as error:
            raise StudyError(f"{path}: cannot be read ({error.strerror})") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise StudyError(f"{path}: is not a TOML file: {error}") from None
        for name in document:
            if name not in SECTIONS:
                raise StudyError(f"{path}: there is no section [{name}]{nearest(name, SECTIONS)}")
        if "study" not in document:
            raise StudyError(f"{path}: the section [study] with name, method and target is missing")
        about = read_section(path, "study", document, About)
        method = _find_method(path, about, document)
        study = cls(
            **msgspec.structs.asdict(about),
            path=path,
            privacy=read_section(path, "privacy", document, Privacy),
            split=read_section(path, "sites", document, Split) if "sites" in document else None,
            hospitals=_hospitals(path, document.get("site", [])),
            schema=read_columns(path, "schema", document, Kind),
            values=read_columns(path, "values", document, Listed),
            bins=read_columns(path, "bins", document, Edges),
            limits=read_section(path, about.method, document, method.limits),
            house=read_section(path, "house", document, HouseRules),
            evaluate=read_section(path, "evaluate", document, Evaluate) if "evaluate" in document else None,
            digest=hashlib.sha256(content).hexdigest(),
        )
        study._check()
        return study

    def _check(self) -> None:
        """What no single key can tell: keys that need, exclude or contradict each other."""
        if (self.split is None) == (not self.hospitals):
            problem = "names no hospitals" if self.split is None else "names hospitals twice"
            raise StudyError(
                f"{self.path}: the study {problem}; give either [sites] with records and by (one table split "
                "by a column) or one [[site]] with name and records per hospital"
            )
        if self.split is not None and self.split.by == self.target:
            raise StudyError(f"{self.path}: [sites] by = {self.split.by!r} is the target itself")
        _refuse_namesakes(self.path, self.hospitals)
        self._check_query()
        for column, edges in self.bins.items():
            if any(not low < high for low, high in pairwise(edges)):
                raise StudyError(
                    f"{self.path}: [bins] {column} must be numbers in rising order; got {list(edges)}"
                )
        if self.target in self.bins:
            self._check_range(self.bins[self.target])
        if self.evaluate is not None:
            self._check_evaluation(self.evaluate)

    def _check_range(self, edges: Sequence[float]) -> None:
        """Bins of the target say that it is a number, and between which ends."""
        problem = ""
        if not METHODS[self.method].numbers:
            problem = (
                f"is the target; bins are for attributes, since method = {self.method!r} predicts classes: a number is "
                'predicted by method = "rulefit"'
            )
        elif self.privacy.release == "private":
            problem = (
                "is the target, and a private study predicts yes or no: take it out of [bins] and state its classes "
                'under [values], or predict a number with release = "exact" or "masked"'
            )
        elif self.positive is not None:
            problem = (
                f"says that the target is a number, and [study] positive = {self.positive!r} that it is yes or no: "
                "leave one of them out"
            )
        elif self.schema.get(self.target) == "code":
            problem = (
                "says that the target is a number, and [schema] that it is a code: leave one of them out"
            )
        elif len(edges) < 2:
            problem = f"must give both ends of the target's range, such as [0, 100]; got {list(edges)}"
        if problem:
            raise StudyError(f"{self.path}: [bins] {self.target!r} {problem}")

    @property
    def target_range(self) -> tuple[float, float] | None:
        """The ends of a target that is a number; None where classes are predicted."""
        return (self.bins[self.target][0], self.bins[self.target][-1]) if self.target in self.bins else None

    def _check_query(self) -> None:
        from concilium.records.query import Query

        try:
            Query.parse(self.query)
        except QueryError as error:
            raise StudyError(f"{self.path}: [study] query: {error}") from None

    def _check_evaluation(self, evaluate: Evaluate) -> None:
        ways = [name for name in HELD_BACK if getattr(evaluate, name) is not None]
        if len(ways) != 1:
            got = f"it has {' and '.join(ways)}" if ways else "it has none"
            raise StudyError(f"{self.path}: [evaluate] takes one of {', '.join(HELD_BACK)}; {got}")
        if evaluate.compare and (evaluate.leave_out is None or self.privacy.release != "exact"):
            raise StudyError(
                f"{self.path}: [evaluate] compare puts hospitals that are left out beside what they learn alone: it "
                'goes with leave_out and release = "exact" only'
            )
        if evaluate.compare and not METHODS[self.method].compares:
            raise StudyError(
                f"{self.path}: [evaluate] compare does not go with method = {self.method!r}: few hospitals have enough "
                "patients with a rare condition to learn alone, or to lend their model"
            )
        if evaluate.bands == 1:
            raise StudyError(f'{self.path}: [evaluate] leave_out = "band:1" would leave nobody to learn from')
        keeping = [hospital.name for hospital in self.hospitals if hospital.ledger]
        if keeping and self.privacy.release == "private":
            raise StudyError(
                f"{self.path}: [evaluate] does not go with private hospitals that keep a ledger ({keeping[0]}): its "
                "figures are exact, and charged to nobody; evaluate in a simulation, without ledgers"
            )
        if evaluate.leave_out and self.privacy.release == "masked":
            raise StudyError(
                f'{self.path}: [evaluate] leave_out does not go with release = "masked": the sum with a '
                "hospital minus the sum without it is that hospital's whole answer; use holdout, or release "
                '= "exact" or "private"'
            )

    def locate(self, place: str) -> str:
        """A path of the study file as seen from here; a database address stays as it is."""
        return place if "://" in place else str(self.path.parent / place)

    def read_tables(self) -> dict[str, Records]:
        """Every hospital's records by its name, once the study's columns are known to be there."""
        from concilium.records.table import Records

        if self.split is not None:
            source = self.locate(self.split.records)
            whole = Records.read(source, table=self.split.table, schema=self.schema)
            self._require_target(whole, source)
            self._require_columns([whole])
            return whole.split(self.split.by)
        tables: dict[str, Records] = {}
        for hospital in self.hospitals:
            source = self.locate(hospital.records)
            tables[hospital.name] = self._read(source, hospital.table)
            self._require_target(tables[hospital.name], f"site {hospital.name!r}, {source}")
        self._require_columns(list(tables.values()))
        return tables

    def _read(self, source: str, table: str | None = None) -> Records:
        """One of several tables: a column that [schema] states may be absent from some of them."""
        from concilium.records.table import Records

        try:
            return Records.read(source, table=table, schema=self.schema)
        except RecordsError:
            names = Records.read(source, table=table).names
            stated = {column: kind for column, kind in self.schema.items() if column in names}
            return Records.read(source, table=table, schema=stated)

    def read_test_file(self) -> dict[str, Records]:
        """The patients of `[evaluate] file`, by hospital where the file has the column [sites] splits by."""
        if self.evaluate is None or self.evaluate.file is None:
            return {}
        source = self.locate(self.evaluate.file)
        patients = self._read(source)
        self._require_target(patients, source)
        if self.split is not None and self.split.by in patients:
            return patients.split(self.split.by)
        return {Path(self.evaluate.file).name: patients}

    def _require_target(self, records: Records, where: str) -> None:
        if self.target not in records:
            known = nearest(self.target, records.names)
            raise StudyError(f"{where}: there is no column {self.target!r}, which is the target{known}")
        if self.privacy.release != "private":
            self._require_outcome(records, where)

    def _require_outcome(self, records: Records, where: str) -> None:
        """The target is a number or it is not, as the study says."""
        from concilium.records.coding import reads_as_number
        from concilium.records.table import Numbers, label

        column, problem = records[self.target], ""
        if self.target_range is None:
            if isinstance(column, Numbers) and self.positive is None:
                method = "" if METHODS[self.method].numbers else ' and take method = "rulefit"'
                problem = (
                    f"is a number; give its range under [bins] of the study, such as {self.target} = [0, 100]{method}, "
                    "or make classes of it"
                )
        elif isinstance(column, Numbers):
            if any(map(math.isinf, column.numbers.tolist())):
                problem = (
                    "is infinite for some patient; mend the column, or leave it empty where it is not known"
                )
        elif text := [label(value) for value in column.values if isinstance(value, str | bool)]:
            odd = next((value for value in text if not reads_as_number(value)), text[0])
            problem = (
                f"is a number by its range under [bins], and holds text here ({odd!r}); mend the column, or predict "
                "classes without the range"
            )
        if problem:
            raise StudyError(f"{where}: the target {self.target!r} {problem}")

    def _require_columns(self, tables: Sequence[Records]) -> None:
        """Every column the study names is known somewhere; a column nobody has is a slip of the pen."""
        from concilium.records.query import Query

        known = {name for table in tables for name in table.names}
        named = {
            "[study] query": sorted(Query.parse(self.query).attributes),
            "[study] attributes": self.attributes or (),
            "[schema]": self.schema,
            "[values]": self.values,
            "[bins]": self.bins,
        }
        for place, columns in named.items():
            for column in columns:
                if column not in known:
                    raise StudyError(
                        f"{self.path}: {place} names {column!r}, a column no site has{nearest(column, known)}"
                    )

    def open_sites(self, tables: Mapping[str, Records], spare: Path | None = None) -> dict[str, Site]:
        """A site for every table, each behind its own policy and ledger.

        A hospital that names no ledger gets one in the folder `spare`, or in memory without that.
        """
        from concilium.federation.site import Site
        from concilium.policy.policy import Policy

        policies = {hospital.name: hospital.policy for hospital in self.hospitals}
        ledgers = {
            hospital.name: self.locate(hospital.ledger) for hospital in self.hospitals if hospital.ledger
        }
        if self.split is not None and self.split.policy:
            policies = dict.fromkeys(tables, self.split.policy)
        sites = {}
        for number, (name, records) in enumerate(tables.items(), start=1):
            file = policies.get(name)
            policy = Policy.read(self.locate(file)) if file else None
            self.refuse_identifier(name, records, policy or Policy())
            sites[name] = Site(
                name,
                records,
                policy=policy,
                ledger=ledgers.get(name) or (spare / f"{number}.ledger" if spare else None),
            )
            if name in ledgers:
                sites[name].ledger.verify()  # a book that was tampered with is not written on
        return sites

    def refuse_identifier(self, site: str, records: Records, policy: Policy) -> None:
        """A whole number to predict that differs from patient to patient looks like one that names them, and would be
        withheld."""
        from concilium.federation.cohort import identifies

        if self.target_range is not None and identifies(self.target, records[self.target], policy):
            raise StudyError(
                f"site {site!r}: nearly every patient has another {self.target!r}, which is taken for an identifier"
                f' and withheld; to predict it, give the site a policy with [release] allow = ["{self.target}"]'
            )

    def open_house(
        self,
        sites: Iterable[Site],
        journal: Path | None = None,
        on_round: Callable[[str], None] | None = None,
    ) -> House:
        """The clearing house of this study over some of its sites."""
        from concilium.federation.house import House

        return House(
            list(sites),
            timeout=self.house.timeout,
            on_loss=self.house.on_loss,
            journal=journal,
            # Beside the study, so that the next run notices a ledger that was put back to an older copy.
            memory=self.path.with_suffix(".house.json") if any(h.ledger for h in self.hospitals) else None,
            on_round=on_round,
        )

    def open_method(self) -> model.Estimator:
        """The method this study asks for, not yet fitted."""
        asked = METHODS[self.method]
        said = {**msgspec.structs.asdict(self), **msgspec.structs.asdict(self.privacy)}
        given = {name: said[name] for name in (*GIVEN, *asked.takes, *asked.needs)}
        try:
            estimator: model.Estimator = closed_lists.load(closed_lists.METHODS[self.method])(
                **given, **msgspec.structs.asdict(self.limits)
            )
            return estimator
        except ConciliumError as error:
            raise StudyError(f"{self.path}: {error}") from None

    def find_classes(self, tables: Iterable[Records]) -> list[Value]:
        """What is told apart: all values of the target, the positive one and the rest, or nothing: it is a number."""
        from concilium.evaluation.leave_out import find_classes, set_apart

        if self.target_range is not None:
            return []
        classes = find_classes(tables, self.target)
        positive = self.find_positive(classes)
        if METHODS[self.method].against_rest and positive is not None:
            return set_apart(classes, positive)
        return classes

    def find_positive(self, classes: list[Value]) -> Value | None:
        """The class that sensitivity and AUC are about: the stated one, or the second of two."""
        from concilium.records.table import label

        if self.positive is None:
            return classes[1] if len(classes) == 2 else None
        for value in classes:
            if label(value) == label(self.positive):
                return value
        shown = ", ".join(label(value) for value in classes)
        raise StudyError(
            f"{self.path}: [study] positive = {self.positive!r} is not a value of {self.target!r} "
            f"(it has {shown})"
        )


def _find_method(path: Path, about: About, document: Mapping[str, Any]) -> Method:
    """The study's method, which has all it needs, and no other's section beside its own."""
    if about.method not in METHODS:
        if about.method in LATER:
            problem = f"method {about.method!r} is not in this version"
        else:
            problem = f"there is no method {about.method!r}{nearest(about.method, METHODS)}"
        raise StudyError(f"{path}: [study] {problem} (available: {', '.join(METHODS)})")
    for other in METHODS:
        if other in document and other != about.method:
            raise StudyError(
                f"{path}: [{other}] is for method = {other!r}; the keys of this study's method go under "
                f"[{about.method}]"
            )
    method = METHODS[about.method]
    for key in method.needs:
        if getattr(about, key) is None:
            raise StudyError(f"{path}: [study] method = {about.method!r} needs the key {key!r}")
    return method


def _hospitals(path: Path, given: object) -> tuple[Hospital, ...]:
    if not isinstance(given, list):
        raise StudyError(f"{path}: write [[site]] with two brackets, once for every hospital")
    return tuple(
        fill(path, f"[[site]] number {n}", table, Hospital) for n, table in enumerate(given, start=1)
    )


def _refuse_namesakes(path: Path, hospitals: tuple[Hospital, ...]) -> None:
    seen: dict[str, Hospital] = {}
    for hospital in hospitals:
        if hospital.name in seen:
            raise StudyError(
                f"{path}: two sites are named {hospital.name!r} ({seen[hospital.name].records} and "
                f"{hospital.records}); give each a name of its own"
            )
        seen[hospital.name] = hospital
