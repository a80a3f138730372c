"""The SQL of a cohort file: one text for DuckDB, PostgreSQL and SQL Server.

The three differ in how days between two dates and seconds of a day are counted, and what a moment is called; that is
all of a `Dialect`. Of a cohort file nothing gets into a statement but whole numbers that were checked, and names of
schemas that were checked and are quoted. Every answer is of whole numbers, numbers and texts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from concilium.records.cohort_file import CohortFile, Covariate, Event, Kind


@dataclass(frozen=True)
class Dialect:
    """How one database counts: `days` from {b} to {a}, `seconds` of the day of the moment {a}."""

    name: str
    days: str
    seconds: str
    moment: str
    prefix: str = ""

    def count_days(self, later: str, earlier: str) -> str:
        return self.days.format(a=later, b=earlier)


PLAIN_SECONDS = "(EXTRACT(HOUR FROM {a}) * 3600 + EXTRACT(MINUTE FROM {a}) * 60 + EXTRACT(SECOND FROM {a}))"
DUCKDB = Dialect("DuckDB", "({a} - {b})", PLAIN_SECONDS, "TIMESTAMP", prefix="hospital.")
POSTGRESQL = Dialect("PostgreSQL", "({a} - {b})", PLAIN_SECONDS, "TIMESTAMP")
SQL_SERVER = Dialect(
    "SQL Server",
    "DATEDIFF(day, {b}, {a})",
    "(DATEPART(hour, {a}) * 3600 + DATEPART(minute, {a}) * 60 + DATEPART(second, {a}))",
    "DATETIME2",
)


@dataclass(frozen=True)
class EventTable:
    """Where the CDM keeps one kind of event."""

    name: str
    concept: str
    day: str
    id: str
    moment: str = ""
    source: str = ""


def _name_table(table: str, stem: str, start: str) -> EventTable:
    """The table of a kind whose columns are called as usual."""
    return EventTable(
        table,
        f"{stem}_concept_id",
        f"{start}_date",
        f"{table}_id",
        f"{start}_datetime",
        f"{stem}_source_value",
    )


EVENT_TABLES: dict[Kind, EventTable] = {
    "condition": _name_table("condition_occurrence", "condition", "condition_start"),
    "drug": _name_table("drug_exposure", "drug", "drug_exposure_start"),
    "procedure": _name_table("procedure_occurrence", "procedure", "procedure"),
    "measurement": _name_table("measurement", "measurement", "measurement"),
    "observation": _name_table("observation", "observation", "observation"),
    "visit": _name_table("visit_occurrence", "visit", "visit_start"),
    "death": EventTable("death", "", "death_date", ""),
}

# Concepts of operators: a value with < or > is no number.
BOUNDS = (4171754, 4171755, 4171756, 4172704)


@dataclass(frozen=True)
class Statements:
    """All that is asked of one database for one cohort file. Each statement stands for itself."""

    file: CohortFile
    dialect: Dialect
    usual: str = "main"

    def _name(self, table: str, schema: str = "") -> str:
        schema = schema or self.file.schema or self.usual
        quoted = ".".join(f'"{part}"' for part in schema.split("."))
        return f"{self.dialect.prefix}{quoted}.{table}"

    def _vocabulary(self, table: str) -> str:
        return self._name(table, self.file.vocabulary)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.file.sets)}

    def versions(self) -> str:
        return f"SELECT cdm_version FROM {self._name('cdm_source')}"

    def concepts(self, wanted: Collection[int]) -> str:
        listed = ", ".join(str(int(one)) for one in sorted(wanted))
        return (
            "SELECT CAST(concept_id AS BIGINT), concept_name, domain_id, standard_concept"
            f" FROM {self._vocabulary('concept')} WHERE concept_id IN ({listed})"
        )

    def codes_of_sets(self, vocabularies: Collection[str]) -> str:
        """set, concept, vocabulary and code of all that belongs to a set of concepts."""
        listed = ", ".join(f"'{one}'" for one in vocabularies)
        return (
            f"WITH {self._members}\nSELECT CAST(m.set_id AS BIGINT), CAST(c.concept_id AS BIGINT), c.vocabulary_id,"
            f" c.concept_code FROM members m JOIN {self._vocabulary('concept')} c ON c.concept_id = m.concept_id"
            f" WHERE c.vocabulary_id IN ({listed})"
        )

    def units(self) -> str:
        return (
            f"SELECT CAST(concept_id AS BIGINT), concept_code FROM {self._vocabulary('concept')}"
            " WHERE vocabulary_id = 'UCUM'"
        )

    # Who is in the cohort

    @cached_property
    def _cohort(self) -> str:
        """`cohort`: person_id, entry_day, seen_until; and `members`: the concepts of each set."""
        cohort, days = self.file.cohort, self.dialect.count_days
        entry = "SELECT DISTINCT person_id, event_day AS entry_day FROM entries"
        if not cohort.every:
            entry = "SELECT person_id, MIN(event_day) AS entry_day FROM entries GROUP BY person_id"
        since, until = (f"CAST(o.observation_period_{end}_date AS DATE)" for end in ("start", "end"))
        conditions = [
            *(self._fulfils(one, f">= {one.at_least}") for one in cohort.require),
            *(self._fulfils(one, f"< {one.at_least}") for one in cohort.exclude),
        ]
        return ",\n".join(
            [
                f"WITH {self._members}",
                f"entries AS ({' UNION ALL '.join(self._entry(one) for one in cohort.entry)})",
                f"starts AS ({entry})",
                f"observed AS (SELECT s.person_id, s.entry_day, MAX({until}) AS seen_until FROM starts s"
                f" JOIN {self._name('observation_period')} o ON o.person_id = s.person_id"
                f" AND {until} >= s.entry_day AND {days('s.entry_day', since)} >= {cohort.observed_before}"
                " GROUP BY s.person_id, s.entry_day)",
                "cohort AS (SELECT p.person_id, p.entry_day, p.seen_until FROM observed p"
                f" WHERE {' AND '.join(conditions) or '1 = 1'})",
            ]
        )

    @cached_property
    def _members(self) -> str:
        rows = [
            f"({self._numbers[one.name]}, {concept}, {int(one.descendants)})"
            for one in self.file.sets.values()
            for concept in one.omop
        ]
        return (
            "wanted AS (SELECT * FROM (VALUES " + (", ".join(rows) or "(-1, -1, 0)") + ")"
            " AS v(set_id, concept_id, descend)),\n"
            "members AS (SELECT set_id, concept_id FROM wanted"
            " UNION SELECT w.set_id, CAST(a.descendant_concept_id AS BIGINT) FROM wanted w"
            f" JOIN {self._vocabulary('concept_ancestor')} a ON a.ancestor_concept_id = w.concept_id"
            " WHERE w.descend = 1)"
        )

    def _set(self, event: Event) -> int:
        return -1 if event.concepts is None else self._numbers[event.concepts.name]

    def _entry(self, event: Event) -> str:
        table = EVENT_TABLES[event.kind]
        chosen = (
            f"SELECT e.person_id, CAST(e.{table.day} AS DATE) AS event_day FROM {self._name(table.name)} e"
        )
        if event.concepts is None:
            return chosen
        return (
            f"{chosen} JOIN members m ON m.concept_id = e.{table.concept} AND m.set_id = {self._set(event)}"
        )

    def _fulfils(self, event: Event, compared: str) -> str:
        """Whether a person of `observed`, p, has so many events of a window."""
        day = f"CAST(e.{EVENT_TABLES[event.kind].day} AS DATE)"
        table = EVENT_TABLES[event.kind]
        joined = f" JOIN members m ON m.concept_id = e.{table.concept} AND m.set_id = {self._set(event)}"
        window = f"{self.dialect.count_days(day, 'p.entry_day')} BETWEEN {event.days[0]} AND {event.days[1]}"
        return (
            f"(SELECT COUNT(*) FROM {self._name(table.name)} e{'' if event.concepts is None else joined}"
            f" WHERE e.person_id = p.person_id AND {window}) {compared}"
        )

    def _since_epoch(self, day: str) -> str:
        return f"CAST({self.dialect.count_days(day, self._epoch)} AS BIGINT)"

    _epoch = "CAST('1970-01-01' AS DATE)"

    def people(self) -> str:
        """person, day of entry, days observed after it, year, month and day of birth, gender."""
        return (
            f"{self._cohort}\nSELECT CAST(c.person_id AS BIGINT), {self._since_epoch('c.entry_day')},"
            f" CAST({self.dialect.count_days('c.seen_until', 'c.entry_day')} AS BIGINT),"
            " CAST(p.year_of_birth AS BIGINT), CAST(p.month_of_birth AS BIGINT), CAST(p.day_of_birth AS BIGINT),"
            f" CAST(p.gender_concept_id AS BIGINT) FROM cohort c JOIN {self._name('person')} p"
            " ON p.person_id = c.person_id"
        )

    def attrition(self) -> str:
        """How many had an entry event, and how many of these were observed long enough."""
        return (
            f"{self._cohort}\nSELECT CAST(COUNT(*) AS BIGINT),"
            " CAST((SELECT COUNT(*) FROM observed) AS BIGINT) FROM starts"
        )

    def outcome(self) -> str:
        """person, day of entry, days until the first outcome of the time at risk, and whether there was one before."""
        outcome = self.file.outcome
        assert outcome is not None
        low, high = outcome.event.days
        gap = self.dialect.count_days("e.event_day", "c.entry_day")
        return (
            f"{self._cohort},\nhappened AS ({self._entry(outcome.event)})\n"
            f"SELECT CAST(c.person_id AS BIGINT), {self._since_epoch('c.entry_day')},"
            f" CAST(MIN(CASE WHEN {gap} BETWEEN {low} AND {high} THEN {gap} END) AS BIGINT),"
            f" CAST(MAX(CASE WHEN {gap} < {low} THEN 1 ELSE 0 END) AS BIGINT)"
            " FROM cohort c JOIN happened e ON e.person_id = c.person_id GROUP BY c.person_id, c.entry_day"
        )

    # What is known of them

    def _windows(self, chosen: Sequence[Covariate]) -> str:
        rows = [
            f"({number}, {self._set(one.event)}, {one.event.days[0]}, {one.event.days[1]})"
            for number, one in enumerate(chosen)
        ]
        return f"windows AS (SELECT * FROM (VALUES {', '.join(rows)}) AS v(number, set_id, low, high))"

    def _found(self, kind: Kind) -> str:
        """The rows of a kind that lie in a window of a covariate; c, e and w are person, event and window."""
        table = EVENT_TABLES[kind]
        gap = self.dialect.count_days(f"CAST(e.{table.day} AS DATE)", "c.entry_day")
        members = "JOIN windows w ON 1 = 1"
        if table.concept:
            members = (
                f"JOIN members m ON m.concept_id = e.{table.concept} JOIN windows w ON w.set_id = m.set_id"
            )
        return (
            f"FROM cohort c JOIN {self._name(table.name)} e ON e.person_id = c.person_id {members}"
            f" WHERE {gap} BETWEEN w.low AND w.high"
        )

    def events(self, kind: Kind, chosen: Sequence[Covariate]) -> str:
        """person, day of entry, covariate, how many events."""
        return (
            f"{self._cohort},\n{self._windows(chosen)}\n"
            f"SELECT CAST(c.person_id AS BIGINT), {self._since_epoch('c.entry_day')}, CAST(w.number AS BIGINT),"
            f" CAST(COUNT(*) AS BIGINT) {self._found(kind)} GROUP BY c.person_id, c.entry_day, w.number"
        )

    def _amount(self) -> str:
        """A value as a number; one with < or > is none."""
        listed = ", ".join(map(str, BOUNDS))
        return (
            f"CASE WHEN COALESCE(e.operator_concept_id, 0) IN ({listed}) THEN NULL"
            " ELSE CAST(e.value_as_number AS DOUBLE PRECISION) END"
        )

    def _value(self, kind: Kind) -> str:
        return self._amount() if kind == "measurement" else "CAST(e.value_as_number AS DOUBLE PRECISION)"

    def _moment(self, kind: Kind) -> str:
        table, moment = EVENT_TABLES[kind], self.dialect.moment
        return f"COALESCE(CAST(e.{table.moment} AS {moment}), CAST(e.{table.day} AS {moment}))"

    def values(self, kind: Kind, chosen: Sequence[Covariate]) -> str:
        """person, day of entry, covariate, unit, events, values, and of these sum, smallest, largest, latest."""
        table = EVENT_TABLES[kind]
        return (
            f"{self._cohort},\n{self._windows(chosen)},\n"
            "amounts AS (SELECT c.person_id, c.entry_day, w.number, COALESCE(e.unit_concept_id, 0) AS unit_id,"
            f" {self._value(kind)} AS amount, CAST(e.{table.day} AS DATE) AS event_day, {self._moment(kind)} AS moment,"
            f" e.{table.id} AS event_id {self._found(kind)}),\n"
            "placed AS (SELECT person_id, entry_day, number, unit_id, amount, ROW_NUMBER() OVER ("
            "PARTITION BY person_id, entry_day, number ORDER BY CASE WHEN amount IS NULL THEN 1 ELSE 0 END,"
            " event_day DESC, moment DESC, event_id DESC) AS place FROM amounts)\n"
            f"SELECT CAST(person_id AS BIGINT), {self._since_epoch('entry_day')}, CAST(number AS BIGINT),"
            " CAST(unit_id AS BIGINT), CAST(COUNT(*) AS BIGINT), CAST(COUNT(amount) AS BIGINT),"
            " SUM(amount), MIN(amount), MAX(amount), MAX(CASE WHEN place = 1 THEN amount END)"
            " FROM placed GROUP BY person_id, entry_day, number, unit_id"
        )

    def codes(self) -> str:
        """person, day of entry, days from it, code."""
        parts = [self._codes_of(one) for one in self.file.codes]
        return f"{self._cohort}\n{' UNION ALL '.join(parts)}"

    def _codes_of(self, event: Event) -> str:
        table = EVENT_TABLES[event.kind]
        gap = self.dialect.count_days(f"CAST(e.{table.day} AS DATE)", "c.entry_day")
        code = f"CAST(e.{table.source if self.file.code_source else table.concept} AS VARCHAR(255))"
        known = f"{code} <> ''" if self.file.code_source else f"e.{table.concept} <> 0"
        return (
            f"SELECT CAST(c.person_id AS BIGINT), {self._since_epoch('c.entry_day')}, CAST({gap} AS BIGINT), {code}"
            f" FROM cohort c JOIN {self._name(table.name)} e ON e.person_id = c.person_id"
            f" WHERE {gap} BETWEEN {event.days[0]} AND {event.days[1]} AND {known}"
        )

    def series(self, kind: Kind, chosen: Sequence[Covariate]) -> str:
        """person, day of entry, variable, unit, seconds since the window began, value."""
        table, value = EVENT_TABLES[kind], self._value(kind)
        gap = self.dialect.count_days(f"CAST(e.{table.day} AS DATE)", "c.entry_day")
        seconds = self.dialect.seconds.format(a=self._moment(kind))
        return (
            f"{self._cohort},\n{self._windows(chosen)}\n"
            f"SELECT CAST(c.person_id AS BIGINT), {self._since_epoch('c.entry_day')}, CAST(w.number AS BIGINT),"
            f" CAST(COALESCE(e.unit_concept_id, 0) AS BIGINT), CAST(({gap} - w.low) * 86400 + {seconds} AS BIGINT),"
            f" {value} {self._found(kind)} AND {value} IS NOT NULL"
        )
