"""A study as a TOML file: which hospitals, which question, which method, at what privacy, evaluated how.

The file is checked whole before any record is read; every key, with what it means, is in docs/studies.md.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from concilium.errors import ConciliumError, QueryError, RecordsError, StudyError, nearest

if TYPE_CHECKING:
    from concilium.federation.site import Site
    from concilium.records.table import Records
    from concilium.trees.tree import DecisionTree

Value = str | int | float | bool  # as in records.columns, which is too heavy to load for reading a study
HELD_BACK = ("leave_out", "holdout", "file")
METHODS = ("tree",)
LATER = ("voting-trees", "rulefit", "discovery", "experts")

Text = Annotated[str, Meta(min_length=1, description="text")]
Count = Annotated[int, Meta(ge=1, description="a whole number of at least 1")]
Amount = Annotated[float, Meta(gt=0, le=1e9, description="a number above 0")]
Share = Annotated[float, Meta(gt=0, lt=1, description="a number between 0 and 1")]
LeaveOut = Annotated[str, Meta(pattern="^(site|band:[1-9][0-9]*)$", description='"site" or, say, "band:10"')]
Names = Annotated[tuple[Text, ...], Meta(min_length=1, description="a list of columns")]
Kind = Literal["code", "number"]
Listed = Annotated[
    tuple[str | int | float | bool, ...],
    Meta(min_length=1, description="a list of values, such as ['f', 'm']"),
]
Exact = Annotated[str, Meta(min_length=1, description='a number in quotes, such as "1e-6"')]
Edges = Annotated[
    tuple[float, ...], Meta(min_length=1, description="a list of numbers, each larger than the one before")
]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """[study]: what is asked."""

    name: Text
    method: Text
    target: Text
    query: Annotated[str, Meta(description="text")] = ""
    attributes: Names | None = None
    positive: Annotated[str | int | float | bool, Meta(description="a value of the target")] | None = None


class Privacy(msgspec.Struct, frozen=True, kw_only=True):
    """[privacy]: how answers leave a hospital, and the budget of what is private."""

    release: Literal["exact", "masked", "private"] = "exact"
    epsilon: Amount | None = None
    delta: Exact = "1e-6"


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """[sites]: one table split by a column, a simulation."""

    records: Text
    by: Text
    table: Text | None = None
    policy: Text | None = None


class Hospital(msgspec.Struct, frozen=True, kw_only=True):
    """[[site]]: one hospital with its own table."""

    name: Text
    records: Text
    table: Text | None = None
    policy: Text | None = None
    ledger: Text | None = None


class TreeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """[tree]: how far a tree grows."""

    max_depth: Count | None = None
    min_leaf: Count = 1
    cutoffs: Count | None = None
    criterion: Literal["entropy", "gain-ratio"] = "entropy"
    reduce: Annotated[float, Meta(ge=0, lt=1, description="a share from 0 to below 1")] | None = None
    prune: Share | None = None
    group: Annotated[bool, Meta(description="true or false")] = False


class HouseRules(msgspec.Struct, frozen=True, kw_only=True):
    """[house]: how long the clearing house waits, and what a lost hospital means."""

    timeout: Amount = 60.0
    on_loss: Literal["continue", "stop"] = "continue"


class Evaluate(msgspec.Struct, frozen=True, kw_only=True):
    """[evaluate]: who is held back from learning, so that the model can be measured on them."""

    leave_out: LeaveOut | None = None
    holdout: Share | None = None
    file: Text | None = None
    compare: Annotated[bool, Meta(description="true or false")] = False

    @property
    def bands(self) -> int | None:
        """How many groups of sites take turns being left out; None when every site is its own."""
        return int(self.leave_out.removeprefix("band:")) if self.leave_out not in (None, "site") else None


class Study(About, frozen=True, kw_only=True):
    """A checked study file. Paths in it are relative to its own folder."""

    path: Path
    privacy: Privacy
    split: Split | None
    hospitals: tuple[Hospital, ...]
    schema: dict[str, Kind]
    values: dict[str, tuple[Value, ...]]
    bins: dict[str, tuple[float, ...]]
    tree: TreeLimits
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
        about = _section(path, "study", document, About)
        study = cls(
            **msgspec.structs.asdict(about),
            path=path,
            privacy=_section(path, "privacy", document, Privacy),
            split=_section(path, "sites", document, Split) if "sites" in document else None,
            hospitals=_hospitals(path, document.get("site", [])),
            schema=_columns(path, "schema", document, Kind),
            values=_columns(path, "values", document, Listed),
            bins=_columns(path, "bins", document, Edges),
            tree=_section(path, "tree", document, TreeLimits),
            house=_section(path, "house", document, HouseRules),
            evaluate=_section(path, "evaluate", document, Evaluate) if "evaluate" in document else None,
            digest=hashlib.sha256(content).hexdigest(),
        )
        study._check()
        return study

    def _check(self) -> None:
        """What no single key can tell: keys that need, exclude or contradict each other."""
        if self.method not in METHODS:
            if self.method in LATER:
                problem = f"method {self.method!r} is not in this version"
            else:
                problem = f"there is no method {self.method!r}{nearest(self.method, METHODS)}"
            raise StudyError(f"{self.path}: [study] {problem} (available: {', '.join(METHODS)})")
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
            raise StudyError(f"{self.path}: [bins] {self.target!r} is the target; bins are for attributes")
        if self.evaluate is not None:
            self._check_evaluation(self.evaluate)

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
            policy = policies.get(name)
            sites[name] = Site(
                name,
                records,
                policy=Policy.read(self.locate(policy)) if policy else None,
                ledger=ledgers.get(name) or (spare / f"{number}.ledger" if spare else None),
            )
            if name in ledgers:
                sites[name].ledger.verify()  # a book that was tampered with is not written on
        return sites

    def open_method(self) -> DecisionTree:
        """The method this study asks for, not yet fitted."""
        from concilium.trees.tree import DecisionTree

        try:
            return DecisionTree(
                target=self.target,
                query=self.query,
                release=self.privacy.release,
                epsilon=self.privacy.epsilon,
                delta=self.privacy.delta,
                values=self.values,
                attributes=self.attributes,
                bins=self.bins,
                max_depth=self.tree.max_depth,
                min_leaf=self.tree.min_leaf,
                cutoffs=self.tree.cutoffs,
                criterion=self.tree.criterion,
                reduce=self.tree.reduce,
                prune=self.tree.prune,
                group=self.tree.group,
            )
        except ConciliumError as error:
            raise StudyError(f"{self.path}: {error}") from None

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


SECTIONS: dict[str, type[msgspec.Struct] | None] = {
    "study": About,
    "privacy": Privacy,
    "sites": Split,
    "site": Hospital,
    "schema": None,
    "values": None,
    "bins": None,
    "tree": TreeLimits,
    "house": HouseRules,
    "evaluate": Evaluate,
}

S = TypeVar("S", bound=msgspec.Struct)


def _section(path: Path, name: str, document: Mapping[str, Any], kind: type[S]) -> S:
    """One section as its struct; without the section, its defaults."""
    return _fill(path, f"[{name}]", document.get(name, {}), kind)


def _fill(path: Path, title: str, given: object, kind: type[S]) -> S:
    """A table of keys as a struct; StudyError for the first key unknown, missing or of the wrong kind."""
    if not isinstance(given, dict):
        raise StudyError(f"{path}: {title} must be a section of its own with keys, not {_shown(given)}")
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for key in given:
        if key not in fields:
            raise StudyError(f"{path}: {title} has no key {key!r}{nearest(key, fields)}")
    for key, field in fields.items():
        if field.required and key not in given:
            raise StudyError(f"{path}: {title} needs the key {key!r}")
    values = {key: _value(path, title, key, value, fields[key].type) for key, value in given.items()}
    return kind(**values)


def _columns(path: Path, name: str, document: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """A section whose keys are columns of the hospitals' tables."""
    given = document.get(name, {})
    if not isinstance(given, dict):
        raise StudyError(f"{path}: [{name}] must be a section of its own with keys, not {_shown(given)}")
    return {column: _value(path, f"[{name}]", column, value, kind) for column, value in given.items()}


def _hospitals(path: Path, given: object) -> tuple[Hospital, ...]:
    if not isinstance(given, list):
        raise StudyError(f"{path}: write [[site]] with two brackets, once for every hospital")
    return tuple(
        _fill(path, f"[[site]] number {n}", table, Hospital) for n, table in enumerate(given, start=1)
    )


def _value(path: Path, title: str, key: str, value: object, kind: Any) -> Any:
    try:
        if isinstance(value, float) and not abs(value) < float("inf"):
            raise msgspec.ValidationError
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise StudyError(f"{path}: {title} {key} must be {_wanted(kind)}; got {_shown(value)}") from None


def _wanted(kind: Any) -> str:
    """What a key takes, in words."""
    if get_origin(kind) is Annotated:
        return str(next(note.description for note in get_args(kind) if isinstance(note, Meta)))
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(kind))
    return _wanted(get_args(kind)[0])


def _shown(value: object) -> str:
    """A value of the file as the user wrote it, more or less, and not at length."""
    text = (
        f'"{value}"'
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else repr(value)
    )
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse_namesakes(path: Path, hospitals: tuple[Hospital, ...]) -> None:
    seen: dict[str, Hospital] = {}
    for hospital in hospitals:
        if hospital.name in seen:
            raise StudyError(
                f"{path}: two sites are named {hospital.name!r} ({seen[hospital.name].records} and "
                f"{hospital.records}); give each a name of its own"
            )
        seen[hospital.name] = hospital
