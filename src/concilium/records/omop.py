"""The tables of a cohort file, out of an OMOP CDM database (5.3, 5.4).

The database selects, joins and counts. One statement is sent for the persons, one for the outcome, and one for each
kind of covariate, however many covariates there are. What comes back are numbers and, for codes, texts: at most one row
for a person, a covariate and a unit. Nothing is written into the database.

How one cell is read depends on that person's rows alone. Units are the exception that refuses: a number that the
database holds in two units is an error that names them, unless the file says which unit it wants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from concilium.errors import RecordsError, name_some, nearest
from concilium.records.cdm_databases import Cdm, open_cdm
from concilium.records.cohort_file import (
    CODES,
    LARGEST_CONCEPT,
    MEASUREMENTS,
    OF_EVENTS,
    PATIENT,
    PATIENTS,
    CohortFile,
    Covariate,
    Event,
    Kind,
    list_columns,
)
from concilium.records.omop_statements import EVENT_TABLES, Statements
from concilium.records.units import convert

if TYPE_CHECKING:
    import pyarrow

Numbers = NDArray[np.float64]
TABLES = (PATIENTS, CODES, MEASUREMENTS)
VERSIONS = ("5.3", "5.4")
MALE, FEMALE, OTHER = 8507, 8532, 8521
SEX_OF = {MALE: "male", FEMALE: "female", OTHER: "other"}
EPOCH = date(1970, 1, 1).toordinal()
DOMAIN_LETTERS = 3  # of a domain that tell it from others: `Condition/Meas` is of two
VOCABULARIES = {
    "SNOMED": "snomed",
    "LOINC": "loinc",
    "RxNorm": "rxnorm",
    "ATC": "atc",
    "CVX": "cvx",
    "ICD10": "icd10",
    "ICD10CM": "icd10cm",
    "ICD10GM": "icd10gm",
}
"""What OMOP calls the code systems that resources of a FHIR patient may have."""
DOMAINS_OF = {"observation": None, "death": None}  # what is observed may be of any domain


def read_tables(file: CohortFile, names: Iterable[str]) -> dict[str, pyarrow.Table]:
    """These tables of a cohort file: `patients`, `codes` (patient, time, code) and `measurements` (patient, time in
    hours, variable, value), all of the same patients and in one reading of the database."""
    with _open(file) as reading:
        makers = {PATIENTS: reading.patients, CODES: reading.codes, MEASUREMENTS: reading.measurements}
        return {name: makers[name]() for name in names}


def find_words(file: CohortFile) -> tuple[dict[str, str], dict[str, dict[str, list[str]]]]:
    """What the vocabulary says: the label of each column for which one concept is looked for; and of each concept set
    the codes of FHIR's code systems, of its own concepts first, and then of those below them."""
    if file.fhir:
        return {}, {}
    with _open(file) as reading:
        return reading.labels(), reading.codes_of_sets()


@contextmanager
def _open(file: CohortFile) -> Iterator[_CohortReading]:
    """The database of a cohort file, or its resources, known to have what the file needs."""
    with open_cdm(file) as cdm:
        if file.fhir:
            from concilium.records.fhir_cdm import name_sets

            yield _CohortReading(name_sets(file), cdm)
            return
        reading = _CohortReading(file, cdm)
        reading.check()
        yield reading


def choose_table(table: str | None, file: CohortFile, usual: str = PATIENTS) -> str:
    """The table of a cohort file that is meant."""
    if table is not None and table not in TABLES:
        raise RecordsError(
            f"{file.path}: there is no table {table!r}{nearest(table, TABLES)}; a cohort file makes {', '.join(TABLES)}"
        )
    chosen = table or usual
    if chosen == CODES and not file.codes:
        raise RecordsError(f"{file.path}: has no section [codes], so there are no codes")
    if chosen == MEASUREMENTS and not file.series:
        raise RecordsError(f"{file.path}: has no section [series.variables], so there are no measurements")
    return chosen


@dataclass(frozen=True)
class _People:
    """Who is in the cohort: for each row the person, the day of entry since 1970, and how long the person is observed
    after it."""

    persons: NDArray[np.int64]
    entries: NDArray[np.int64]
    follow: NDArray[np.int64]
    ages: Numbers
    genders: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.persons)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> _People:
        return _People(
            self.persons[rows], self.entries[rows], self.follow[rows], self.ages[rows], self.genders[rows]
        )

    @cached_property
    def keys(self) -> NDArray[np.complex128]:
        return _join_keys(self.persons, self.entries)

    def find(
        self, persons: NDArray[np.int64], entries: NDArray[np.int64]
    ) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The row of each person and entry, and whether there is one."""
        if not len(self):
            return np.zeros(len(persons), dtype=np.intp), np.zeros(len(persons), dtype=bool)
        keys = _join_keys(persons, entries)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self) - 1)
        return places, self.keys[places] == keys


def _join_keys(persons: NDArray[np.int64], entries: NDArray[np.int64]) -> NDArray[np.complex128]:
    """One sortable value of both."""
    return persons.astype(np.complex128) + 1j * entries  # ids below 2**53, which are exact


@dataclass(frozen=True)
class _CohortReading:
    """One cohort file and the database that it is read from."""

    file: CohortFile
    cdm: Cdm

    @cached_property
    def statements(self) -> Statements:
        return Statements(self.file, self.cdm.dialect, self.cdm.usual)

    def _ask(self, statement: str) -> list[list[Any]]:
        """The columns of an answer as lists."""
        batches = list(self.cdm.batches(statement))
        width = batches[0].num_columns if batches else 0
        return [
            [cell for batch in batches for cell in batch.column(place).to_pylist()] for place in range(width)
        ]

    def _count(self, statement: str, width: int) -> list[NDArray[Any]]:
        """The columns of an answer as arrays; NULL is NaN in a column of numbers, and 0 in one of whole numbers."""
        columns: list[list[NDArray[Any]]] = [[] for _ in range(width)]
        for batch in self.cdm.batches(statement):
            for place, column in enumerate(batch.columns):
                columns[place].append(_to_numpy(column))
        return [np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64) for parts in columns]

    # What the database is

    def check(self) -> None:
        """That this is a CDM of a version we read, with the tables, columns and concepts that the file needs."""
        self._check_tables()
        self._check_version()
        self._check_concepts()

    def _check_tables(self) -> None:
        file, name = self.file, self.cdm.name
        places = [(file.schema or self.cdm.usual, needed) for needed in self._find_needs().items()]
        if any(one.concepts is not None for one in file.events()):
            vocabulary = file.vocabulary or file.schema or self.cdm.usual
            places += [(vocabulary, needed) for needed in VOCABULARY_TABLES.items()]
        held: dict[str, dict[str, set[str]]] = {}
        for schema, table, column in self.cdm.list_columns():
            held.setdefault(schema.lower(), {}).setdefault(table.lower(), set()).add(column.lower())
        for schema, (table, columns) in places:
            key = schema.rpartition(".")[2].lower()
            if key not in held:
                listed = ", ".join(sorted(held)[:10]) or "none"
                raise RecordsError(f"{name}: there is no schema {schema!r}; there are: {listed}")
            if table not in held[key]:
                other = next((one for one in sorted(held) if table in held[one]), "")
                named = "vocabulary" if table in VOCABULARY_TABLES else "schema"
                hint = f'{other!r} has one: write {named} = "{other}" under [source]' if other else ""
                raise RecordsError(
                    f"{name}: schema {schema!r} has no table {table!r} that can be read, and the cohort file needs it; "
                    + (hint or "is it the schema of the CDM, and may this user SELECT from it?")
                )
            lacking = sorted(set(columns) - held[key][table])
            if lacking:
                raise RecordsError(
                    f"{name}: table {table!r} has no column {name_some(lacking)}, which CDM {' and '.join(VERSIONS)} "
                    "have"
                )

    def _find_needs(self) -> dict[str, tuple[str, ...]]:
        needs = dict(CDM_TABLES)
        for event in self.file.events():
            table = EVENT_TABLES[event.kind]
            needs[table.name] = ("person_id", *(one for one in (table.concept, table.day, table.id) if one))
        return needs

    def _check_version(self) -> None:
        (versions,) = self._ask(self.statements.versions()) or [[]]
        for version in versions:
            text = str(version or "").strip().lower().removeprefix("cdm").strip().removeprefix("v").strip()
            if text and not text.startswith(VERSIONS):
                raise RecordsError(
                    f"{self.cdm.name}: its table cdm_source says CDM version {text[:20]!r}; versions "
                    f"{' and '.join(VERSIONS)} are read"
                )

    def _check_concepts(self) -> None:
        wanted = {concept for one in self.file.sets.values() for concept in one.omop}
        if not wanted:
            return
        known = {row[0]: row[1:] for row in zip(*self._ask(self.statements.concepts(wanted)), strict=True)}
        for event in self.file.events():
            for concept in () if event.concepts is None else event.concepts.omop:
                self._check_concept(event, concept, known)

    def _check_concept(self, event: Event, concept: int, known: dict[int, Any]) -> None:
        assert event.concepts is not None
        where = f"{self.file.path}: concept {concept}"
        named = "" if event.concepts.name.startswith("concept ") else f" of {event.concepts.name!r}"
        if concept not in known:
            raise RecordsError(f"{where}{named} is not in the vocabulary of {self.cdm.name}")
        title, domain, standard = known[concept]
        if standard != "S" and event.kind != "observation":
            raise RecordsError(
                f"{where}{named} ({title}) is no standard concept, so that nobody has it; take the one it maps to"
            )
        if event.kind not in DOMAINS_OF and event.kind[:DOMAIN_LETTERS] not in str(domain).lower():
            raise RecordsError(
                f"{where}{named} ({title}) is of the domain {domain}, and the file looks for it among the "
                f"{event.kind}s"
            )

    def labels(self) -> dict[str, str]:
        """The names of columns that stand for one concept."""
        events = {one.name: one.event for one in (*self.file.covariates, *self.file.series)}
        if self.file.outcome is not None:
            events[self.file.outcome.name] = self.file.outcome.event
        of = {name: one.concepts.omop for name, one in events.items() if one.concepts is not None}
        wanted = {ids[0] for ids in of.values() if len(ids) == 1}
        if not wanted:
            return {}
        ids, titles, *_ = self._ask(self.statements.concepts(wanted))
        known = dict(zip(ids, titles, strict=True))
        return {name: str(known[ids[0]]) for name, ids in of.items() if len(ids) == 1 and ids[0] in known}

    def codes_of_sets(self) -> dict[str, dict[str, list[str]]]:
        """By concept set and code system, the codes that the vocabulary has."""
        sets, found = list(self.file.sets.values()), dict[str, dict[str, list[str]]]()
        rows = zip(*self._ask(self.statements.codes_of_sets(VOCABULARIES)), strict=True)
        for own, _, vocabulary, code, number in sorted(
            (concept not in sets[number].omop, concept, vocabulary, str(code), number)
            for number, concept, vocabulary, code in rows
        ):
            del own
            found.setdefault(sets[number].name, {}).setdefault(VOCABULARIES[vocabulary], []).append(code)
        return found

    # Who

    @cached_property
    def people(self) -> _People:
        """The cohort, after its ages, its sex, and those whose outcome is not known."""
        persons, entries, follow, years, months, days, genders = self._count(self.statements.people(), 7)
        if len(persons) and max(persons.max(), -persons.min()) >= LARGEST_CONCEPT:
            raise RecordsError(f"{self.cdm.name}: a person_id has more digits than can be told apart")
        ages = _count_years(entries, years, months, days)
        order: NDArray[np.intp] = np.lexsort((entries, persons))
        people = _People(persons, entries, follow, ages, genders).take(order)
        cohort = self.file.cohort
        keep = np.ones(len(people), dtype=bool)
        if cohort.age is not None:
            keep &= (people.ages >= cohort.age[0]) & (people.ages <= cohort.age[1])
        if cohort.sex:
            keep &= people.genders == (FEMALE if cohort.sex == "female" else MALE)
        if not keep.any():
            raise RecordsError(f"{self.cdm.name}: nobody is in the cohort: {self._say_why(len(keep))}")
        return people.take(keep)

    def _say_why(self, selected: int) -> str:
        entered, observed = (int(column[0]) for column in self._ask(self.statements.attrition()))
        before = self.file.cohort.observed_before
        return (
            f"{entered} had the entry event; of these {observed} were under observation then, and for {before} days "
            f"before; of these {selected} were left by require and exclude; age and sex left none"
            if selected
            else f"{entered} had the entry event; of these {observed} were under observation then, and for {before} "
            "days before; require and exclude left none of them"
            if observed
            else f"{entered} had the entry event, and none of them was under observation then, and for {before} days "
            "before"
        )

    @cached_property
    def outcome(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Numbers]:
        """Whose outcome is used; and of each, whether it happened, and days until it did, or until nothing more is
        known."""
        people, outcome = self.people, self.file.outcome
        assert outcome is not None
        low, high = outcome.event.days
        persons, entries, first, earlier = self._count(self.statements.outcome(), 4)
        rows, present = people.find(persons, entries)
        until = np.full(len(people), np.nan)
        until[rows[present]] = _as_numbers(first)[present]
        prior = np.zeros(len(people), dtype=bool)
        prior[rows[present]] = earlier[present] > 0
        happened = ~np.isnan(until)
        followed = np.minimum(people.follow, high)
        used = np.ones(len(people), dtype=bool)
        if outcome.before == "leave out":
            used &= ~prior
        if outcome.time:
            used &= happened | (people.follow >= low)
        elif outcome.lost == "leave out":
            used &= happened | (people.follow >= high)
        if not used.any():
            raise RecordsError(
                f"{self.cdm.name}: nobody of the {len(people)} in the cohort has a known outcome: {int(prior.sum())} "
                f"had it before day {low}, and others were not observed long enough"
            )
        return used, happened, np.where(happened, until, followed)

    @cached_property
    def _used(self) -> NDArray[np.bool_]:
        return np.ones(len(self.people), dtype=bool) if self.file.outcome is None else self.outcome[0]

    @cached_property
    def _ids(self) -> pyarrow.Array:
        """The patients' ids as text, by row of the cohort."""
        import pyarrow

        names = self.cdm.name_people(self.people.persons)
        return pyarrow.array(names, pyarrow.string())

    # What becomes of each

    def patients(self) -> pyarrow.Table:
        """One row for each person and entry."""
        import pyarrow

        file, people, used = self.file, self.people, self._used
        columns: dict[str, Any] = {PATIENT: self._ids}
        if file.cohort.date:
            columns[file.cohort.date] = _to_days(people.entries)
        if file.age:
            columns[file.age] = people.ages
        if file.sex:
            columns[file.sex] = [SEX_OF.get(one) for one in people.genders.tolist()]
        columns |= self._covariates()
        if file.outcome is not None:
            _, happened, until = self.outcome
            if file.outcome.time:
                columns[file.outcome.time] = until
            columns[file.outcome.name] = _to_words(happened)
        mask = pyarrow.array(used.tolist())
        arrays = {name: _to_arrow(columns[name]).filter(mask) for name in list_columns(file)}
        return pyarrow.table(arrays)

    def _covariates(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        kinds = dict.fromkeys(one.event.kind for one in self.file.covariates)
        for kind in kinds:
            chosen = [one for one in self.file.covariates if one.event.kind == kind]
            if any(one.take not in OF_EVENTS for one in chosen):
                made |= self._values(kind, chosen)
            else:
                made |= self._events(kind, chosen)
        return made

    def _events(self, kind: Kind, chosen: Sequence[Covariate]) -> dict[str, Any]:
        people = self.people
        persons, entries, numbers, counts = self._count(self.statements.events(kind, chosen), 4)
        rows, present = people.find(persons, entries)
        table = np.zeros((len(chosen), len(people)))
        table[numbers[present], rows[present]] = counts[present]
        return {one.name: _take_events(one, row) for one, row in zip(chosen, table, strict=True)}

    def _values(self, kind: Kind, chosen: Sequence[Covariate]) -> dict[str, Any]:
        """Columns of values, from what the database sums up for a person, a covariate and a unit."""
        people = self.people
        columns = self._count(self.statements.values(kind, chosen), 10)
        persons, entries, numbers, units, rows_of = columns[:5]
        known, total, low, high, last = map(_as_numbers, columns[5:])
        rows, present = people.find(persons, entries)
        made = {}
        for number, one in enumerate(chosen):
            mine = present & (numbers == number)
            if one.take in OF_EVENTS:
                counts = np.zeros(len(people))
                np.add.at(counts, rows[mine], rows_of[mine])
                made[one.name] = _take_events(one, counts)
                continue
            mine &= known > 0
            amounts = {"mean": total / np.maximum(known, 1), "min": low, "max": high, "latest": last}[
                one.take
            ]
            amounts = self._convert(one, amounts, units, mine)
            made[one.name] = _combine(one.take, len(people), rows[mine], amounts[mine], known[mine])
        return made

    def _convert(
        self, one: Covariate, amounts: Numbers, units: NDArray[np.int64], mine: NDArray[np.bool_]
    ) -> Numbers:
        """The amounts in the covariate's unit; RecordsError where two units would be mixed."""
        where = f"{self.file.path}: {one.name}"
        named = {
            unit: self.units.get(unit, f"unit concept {unit}") if unit else one.without_unit
            for unit in np.unique(units[mine]).tolist()
        }
        if not one.unit:
            if len(set(named.values())) > 1:
                texts = " and ".join(sorted({text or "no unit" for text in named.values()}))
                raise RecordsError(
                    f"{where} is measured in {texts}: say which one it should be, unit = "
                    f'"{next(text for text in named.values() if text)}", and what rows without a unit are in, '
                    'without_unit = "..."'
                )
            return amounts
        converted = amounts.copy()
        for unit, text in named.items():
            if not text:
                raise RecordsError(
                    f"{where}: some rows have no unit; say what they are in, as in without_unit = {one.unit!r}"
                )
            rows = mine & (units == unit)
            converted[rows] = convert(amounts[rows], text, one.unit, where, one.molar_mass)
        return converted

    @cached_property
    def units(self) -> dict[int, str]:
        """The units of the vocabulary: what UCUM calls each."""
        columns = self._ask(self.statements.units())
        return dict(zip(columns[0], map(str, columns[1]), strict=True)) if columns else {}

    def codes(self) -> pyarrow.Table:
        """One row for each code of a patient, and one without a code for who has none; times in days from entry."""
        import pyarrow

        persons, entries, times, codes = (self._ask(self.statements.codes()) or [[], [], [], []])[:4]
        ids, rows, present = self._place(persons, entries)
        shown = pyarrow.array(codes, pyarrow.string()).filter(present)
        days = pyarrow.array(times, pyarrow.float64()).filter(present)
        without = np.setdiff1d(np.flatnonzero(self._used), rows)
        return pyarrow.table(
            {
                PATIENT: pyarrow.concat_arrays(
                    [ids, self._ids.take(pyarrow.array(without.tolist(), "int64"))]
                ),
                "time": pyarrow.concat_arrays([days, pyarrow.nulls(len(without), pyarrow.float64())]),
                "code": pyarrow.concat_arrays([shown, pyarrow.nulls(len(without), pyarrow.string())]),
            }
        )

    def measurements(self) -> pyarrow.Table:
        """One row for each measurement of a patient, its time in hours from the window's begin; and one without a value
        for who has none."""
        import pyarrow

        chosen = self.file.series
        columns: list[list[NDArray[Any]]] = []
        for kind in dict.fromkeys(one.event.kind for one in chosen):
            mine = [one for one in chosen if one.event.kind == kind]
            persons, entries, numbers, units, seconds, amounts = self._count(
                self.statements.series(kind, mine), 6
            )
            amounts = _as_numbers(amounts)
            for number, one in enumerate(mine):
                rows = numbers == number
                amounts = self._convert(one, amounts, units, rows) if rows.any() else amounts
            names = np.array([one.name for one in mine], dtype=object)[numbers.astype(np.intp)]
            columns.append([persons, entries, seconds, names, amounts])
        persons, entries, seconds, names, amounts = (
            np.concatenate(parts) for parts in zip(*columns, strict=True)
        )
        ids, rows, present = self._place(persons, entries)
        without = np.setdiff1d(np.flatnonzero(self._used), rows)
        empty = len(without)
        variables = pyarrow.array(names.tolist(), pyarrow.string()).filter(present)
        return pyarrow.table(
            {
                PATIENT: pyarrow.concat_arrays(
                    [ids, self._ids.take(pyarrow.array(without.tolist(), "int64"))]
                ),
                "hours": pyarrow.concat_arrays(
                    [
                        pyarrow.array((seconds / 3600.0).tolist(), "float64").filter(present),
                        pyarrow.array([0.0] * empty, "float64"),
                    ]
                ),
                "variable": pyarrow.concat_arrays(
                    [variables, pyarrow.array([chosen[0].name] * empty, "string")]
                ),
                "value": pyarrow.concat_arrays(
                    [
                        pyarrow.array(amounts.tolist(), "float64").filter(present),
                        pyarrow.nulls(empty, "float64"),
                    ]
                ),
            }
        )

    def _place(self, persons: Any, entries: Any) -> tuple[pyarrow.Array, NDArray[np.intp], pyarrow.Array]:
        """The ids and rows of events of the cohort's patients, and which events these are."""
        import pyarrow

        rows, present = self.people.find(np.asarray(persons, np.int64), np.asarray(entries, np.int64))
        present &= self._used[rows] if len(rows) else present
        mine = rows[present]
        return (
            self._ids.take(pyarrow.array(mine.tolist(), "int64")),
            mine,
            pyarrow.array(present.tolist(), "bool"),
        )


CDM_TABLES = {
    "person": ("person_id", "gender_concept_id", "year_of_birth", "month_of_birth", "day_of_birth"),
    "observation_period": ("person_id", "observation_period_start_date", "observation_period_end_date"),
    "cdm_source": ("cdm_version",),
}
VOCABULARY_TABLES = {
    "concept": (
        "concept_id",
        "concept_name",
        "domain_id",
        "standard_concept",
        "concept_code",
        "vocabulary_id",
    ),
    "concept_ancestor": ("ancestor_concept_id", "descendant_concept_id"),
}


def _to_numpy(column: Any) -> NDArray[Any]:
    """A column of an answer; Arrow's own way would load pandas."""
    from pyarrow import types

    if types.is_floating(column.type):
        return np.array(column.fill_null(float("nan")).to_pylist(), dtype=np.float64)
    return np.array(column.cast("int64").fill_null(NULL).to_pylist(), dtype=np.int64)


NULL = -(2**62)


def _as_numbers(column: NDArray[Any]) -> Numbers:
    """Whole numbers as numbers, NaN for NULL."""
    return np.where(column == NULL, np.nan, column).astype(np.float64)


def _count_years(
    entries: NDArray[np.int64], years: NDArray[np.int64], months: NDArray[np.int64], days: NDArray[np.int64]
) -> Numbers:
    """Completed years at entry; without month or day of birth, the difference of the years, which may be one more."""
    ages = []
    for entry, year, month, day in zip(
        *(one.tolist() for one in (entries, years, months, days)), strict=True
    ):
        if year == NULL:
            ages.append(np.nan)
            continue
        on = date.fromordinal(entry + EPOCH)
        before = month > 0 and (on.month, on.day) < (month, max(day, 1))
        ages.append(float(on.year - year - before))
    return np.array(ages, dtype=np.float64)


def _take_events(one: Covariate, counts: Numbers) -> Any:
    return counts if one.take == "count" else _to_words(counts >= one.event.at_least)


def _combine(take: str, people: int, rows: NDArray[np.intp], amounts: Numbers, known: Numbers) -> Numbers:
    """One number for each row, where a person has several units; `latest` is in the unit that has it."""
    column = np.full(people, np.nan)
    if take == "mean":
        total, counts = np.zeros(people), np.zeros(people)
        np.add.at(total, rows, amounts * known)
        np.add.at(counts, rows, known)
        column[counts > 0] = total[counts > 0] / counts[counts > 0]
    elif take == "latest":
        column[rows[~np.isnan(amounts)]] = amounts[~np.isnan(amounts)]
    else:
        (np.fmin if take == "min" else np.fmax).at(column, rows, amounts)
    return column


def _to_words(truths: NDArray[np.bool_]) -> list[str]:
    return ["yes" if one else "no" for one in truths.tolist()]


def _to_days(entries: NDArray[np.int64]) -> list[str]:
    return [date.fromordinal(one + EPOCH).isoformat() for one in entries.tolist()]


def _to_arrow(column: Any) -> pyarrow.Array:
    import pyarrow

    if isinstance(column, np.ndarray):
        return pyarrow.array([None if one != one else one for one in column.tolist()], pyarrow.float64())
    return column if isinstance(column, pyarrow.Array) else pyarrow.array(column, pyarrow.string())
