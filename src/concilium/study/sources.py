"""Where a study's patients come from: its tables, the sites in front of them, and the clearing house that asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from concilium.errors import RecordsError, StudyError, nearest
from concilium.policy.constrain import say_held
from concilium.policy.policy import Policy
from concilium.protocol.cohort import identifies
from concilium.protocol.held_out import SIMULATION_KEY
from concilium.protocol.house import House
from concilium.protocol.region import Region
from concilium.protocol.schema import state_values
from concilium.protocol.site import Site
from concilium.records.coding import Place, code_values, reads_as_number
from concilium.records.columns import Coded, Column, Numbers, Value, label
from concilium.records.grammar import measure, read_text
from concilium.records.patients import Patients
from concilium.records.query import Query, read_as_labels
from concilium.records.sources import find_names
from concilium.records.table import Records
from concilium.records.table_map import TableMap, say_remedy
from concilium.study.sections import SplitTable

if TYPE_CHECKING:
    from concilium.study.sections import Hospital
    from concilium.study.study import Study


def read_tables(study: Study) -> dict[str, Records]:
    """Every hospital's records by its name, once the study's columns are known to be there."""
    require_patients(study)
    reading = study.reading
    if study.split is not None:
        assert study.split.records is not None
        assert study.split.by is not None
        source = study.locate(study.split.records)
        whole = read_table(study, source, study.split, reading)
        _require_target(study, whole, source, reading)
        _require_columns(study, {source: whole})
        return whole.split(study.split.by)
    tables: dict[str, Records] = {}
    for hospital in study.hospitals:
        assert hospital.records is not None
        source = study.locate(hospital.records)
        if "://" not in source and not Path(source).exists():
            raise StudyError(
                f"{study.path}: site {hospital.name!r}: there is no file {source}: correct 'records', or take the "
                "[[site]] out if the hospital left"
            )
        ids: dict[str, str] = {} if hospital.patient is None else {hospital.patient: "code"}
        tables[hospital.name] = read_table(study, source, hospital, {**reading, **ids})
        _require_target(study, tables[hospital.name], f"site {hospital.name!r}, {source}", reading)
    _require_columns(study, {f"site {name!r}": table for name, table in tables.items()})
    return tables


def require_patients(study: Study) -> None:
    """In a private study each hospital states that one row is one patient; no row is looked at for it."""
    stated = all(one.patient is not None or one.one_row_per_patient for one in study.hospitals)
    if study.split is not None and not study.split.one_row_per_patient:
        stated = False
    if study.asks_privately and not stated:
        raise StudyError(
            f"{study.path}: a private study states that one row is one patient; a patient with many rows would change "
            "more than is charged for. Write one_row_per_patient = true under [sites] or under each [[site]], or name "
            'the column of patients\' ids under each [[site]], patient = "..."'
        )


def read_test_file(study: Study) -> dict[str, Records]:
    """The patients of `[evaluate] file`, by hospital where the file has the column [sites] splits by."""
    if study.evaluate is None or study.evaluate.file is None:
        return {}
    source, reading = study.locate(study.evaluate.file), study.reading
    patients = read_table(
        study, source, SplitTable(map=None if study.split is None else study.split.map), reading
    )
    _require_target(study, patients, source, reading)
    if study.split is not None and study.split.by is not None and study.split.by in patients:
        return patients.split(study.split.by)
    return {Path(study.evaluate.file).name: patients}


def read_table(
    study: Study,
    source: str,
    site: Hospital | SplitTable,
    schema: Mapping[str, str],
) -> Records:
    """One of several tables, under its hospital's map: a column that is stated may be absent from some of them."""
    table, map = site.table, study.find_map(site)
    ledger = getattr(site, "ledger", None)
    columns = None if ledger is None else f"{study.locate(ledger)}.columns"
    if map is not None or study.dictionary:
        return Records.read(
            source, table=table, schema=schema, dictionary=study.dictionary, map=map, columns=columns
        )
    return read_as_stated(source, table, schema, columns)


def read_as_stated(
    source: str, table: str | None, schema: Mapping[str, str], columns: str | None = None
) -> Records:
    """A table as it is: a column that is stated may be absent from it."""
    try:
        return Records.read(source, table=table, schema=schema, columns=columns)
    except RecordsError:
        names = find_names(source, table)
        present = {column: kind for column, kind in schema.items() if column in names}
        return Records.read(source, table=table, schema=present, columns=columns)


def _require_target(study: Study, records: Records, where: str, reading: Mapping[str, str]) -> None:
    """The target is a column, and a number or not, as the study says (what is private cannot be looked at)."""
    if study.target not in records:
        hint = nearest(study.target, records.names)
        raise StudyError(f"{where}: there is no column {study.target!r}, which is the target{hint}")
    if study.way_out.bounded:
        return
    column = records[study.target]
    is_class = study.target_range is None
    problem = _suspect_number(study, column, reading) if is_class else _suspect_text(column)
    if problem:
        raise StudyError(f"{where}: the target {study.target!r} {problem}")


def _suspect_number(study: Study, column: Column, reading: Mapping[str, str]) -> str:
    """What is wrong with a target that should be classes; nothing where it is."""
    if study.positive is not None:
        return ""
    implied = reading.get(study.target) == "code" and study.target not in study.schema
    if not (isinstance(column, Numbers) or (implied and _is_measured(column))):
        return ""
    method = "" if study.method_type.predicts_numbers else ' and take method = "shapes"'
    return (
        f"is a number; give its range under [bins] of the study, such as {study.target} = [0, 100]{method}, "
        "or make classes of it"
    )


def _suspect_text(column: Column) -> str:
    """What is wrong with a target that should be a number; nothing where it is."""
    if isinstance(column, Numbers):
        if any(map(math.isinf, column.numbers.tolist())):
            return "is infinite for some patient; fix the column, or leave it empty where it is not known"
        return ""
    text = [label(value) for value in column.values if isinstance(value, str | bool)]
    if not text:
        return ""
    odd = next((value for value in text if not reads_as_number(value)), text[0])
    return (
        f"is a number by its range under [bins], and holds text here ({odd!r}); fix the column, or predict "
        "classes without the range"
    )


def _is_measured(column: Coded) -> bool:
    """Whether a code would be taken for a number, if the study did not imply that it is one."""
    values = [read_text(value) if isinstance(value, str) else value for value in column.values]
    return isinstance(code_values(values, None, Place("", "")), Numbers)


def _require_columns(study: Study, by_site: Mapping[str, Records]) -> None:
    """Every column that the study names is known somewhere, and what it says; one that nobody has is a slip."""
    tables = list(by_site.values())
    _require_mentioned(study, {name for table in tables for name in table.names})
    for column in study.unstated:
        if not all(table[column].by_itself for table in tables if column in table):
            raise StudyError(f"{study.path}: {say_missing(column)}")
    for site, table in by_site.items():
        _require_numbers(study, site, table)
        _require_classes(study, site, table)


def _require_mentioned(study: Study, names: Collection[str]) -> None:
    """Every column that the study mentions is one that some site has."""
    mentions = {
        "[study] query": sorted(Query.parse(study.query).attributes),
        "[study] attributes": study.attributes or (),
        "[schema]": study.schema,
        "[values]": study.values,
        "[bins]": study.bins,
    }
    # A dictionary may be of a whole network, and a study of what there is; a private one asks about all of it.
    spared = frozenset() if study.way_out.bounded else frozenset(study.dictionary)
    for place, columns in mentions.items():
        for column in columns:
            if column not in names and (column not in spared or place == "[study] query"):
                raise StudyError(
                    f"{study.path}: {place} names {column!r}, a column no site has{nearest(column, names)}"
                )


def _require_numbers(study: Study, site: str, table: Records) -> None:
    """What the study cuts at numbers holds numbers; where it holds text beside, the hospital's map says what it is."""
    for column in study.bins:
        if column == study.target or column not in table:
            continue
        held = table[column]
        odd = [] if isinstance(held, Numbers) else [v for v in held.values if math.isnan(measure(v))]
        if odd and not study.way_out.bounded:
            text = label(odd[0])
            raise StudyError(
                f"{site}: {column!r} has bins, and holds {text!r} and the like beside numbers, or none; "
                f"{say_remedy(text, TableMap())}, in the map of the hospital (docs/dictionary.md)"
            )


def _require_classes(study: Study, site: str, table: Records) -> None:
    """Of the classes that a study states some patient has one: otherwise its budget would be spent on nothing, or
    everyone there would count as without the outcome. In a simulation only, where all tables are at hand; between
    hospitals each looks for itself (`concilium check`)."""
    numbers = study.target in table and isinstance(table[study.target], Numbers)
    if study.target in study.values and study.target_range is None and (study.way_out.bounded or not numbers):
        require_classes(site, study.target, study.values[study.target], table, "which the study states")


def require_classes(site: str, target: str, stated: Sequence[Value], table: Records, where: str) -> None:
    """StudyError where no patient of a table has one of these classes."""
    column, listed = table[target], {label(value) for value in state_values(stated)}
    held = set() if isinstance(column, Numbers) else {label(v) for v in read_as_labels(column).values}
    if not held & listed:
        raise StudyError(
            f"{site}: no patient has {target} = {' or '.join(sorted(listed))}, {where}; the "
            f"column holds {say_held(column)}: write the classes as they are there, or map them"
        )


def say_missing(column: str) -> str:
    """What to do about a column that a private study asks about and does not state."""
    return (
        f"a study that asks privately states how the columns it asks about are read, and {column!r} is not stated: "
        f'write {column} = "number" or {column} = "code" under [schema]'
    )


def open_sites(
    study: Study, tables: Mapping[str, Records | Patients], spare: Path | None = None
) -> dict[str, Site]:
    """A site for every table, each behind its own policy and ledger.

    A hospital that names no ledger gets one in the folder `spare`, or in memory without that.
    """
    policies = {hospital.name: hospital.policy for hospital in study.hospitals}
    ledgers = {
        hospital.name: study.locate(hospital.ledger) for hospital in study.hospitals if hospital.ledger
    }
    if study.split is not None and study.split.policy:
        policies = dict.fromkeys(tables, study.split.policy)
    sites = {}
    for number, (name, records) in enumerate(tables.items(), start=1):
        file = policies.get(name)
        policy = Policy.read(study.locate(file)) if file else None
        if isinstance(records, Records):
            _refuse_identifier(study, name, records, policy or Policy())
        sites[name] = Site(
            name,
            _know_patients(study, name, records),
            policy=policy,
            ledger=ledgers.get(name) or (spare / f"{number}.ledger" if spare else None),
            division_key=None if name in ledgers else SIMULATION_KEY,
        )
        if name in ledgers:
            sites[name].ledger.verify()  # a book that was tampered with is not written on
    return sites


def keep_patients(study: Study, sites: Mapping[str, Site], tables: Mapping[str, Records]) -> dict[str, Site]:
    """The same sites with some of their patients only. Each keeps its ledger: fewer patients open no new account."""
    for name, site in sites.items():
        _refuse_identifier(study, name, tables[name], site.policy)
    return {
        name: Site(
            name,
            _know_patients(study, name, tables[name]),
            site.policy,
            site.ledger,
            site.identity,
            site.division_key,
        )
        for name, site in sites.items()
    }


def _know_patients(study: Study, name: str, records: Records | Patients) -> Patients:
    """A hospital's table with its column of patients, or with what it states of its rows."""
    if isinstance(records, Patients):
        return records
    hospital = next((one for one in study.hospitals if one.name == name), None)
    by = None if hospital is None else hospital.patient
    source = hospital or study.split
    try:
        return Patients(
            table=records,
            by=by,
            one_row_per_patient=source is not None and source.one_row_per_patient,
            encounters=hospital is not None and hospital.encounters,
        )
    except RecordsError as error:
        raise StudyError(f"site {name!r}: {error}") from None


def _refuse_identifier(study: Study, site: str, records: Records, policy: Policy) -> None:
    """A whole number to predict that differs from patient to patient looks like one that names them, and would be
    withheld."""
    if study.target_range is not None and identifies(study.target, records[study.target], policy):
        raise StudyError(
            f"site {site!r}: nearly every patient has another {study.target!r}, which is taken for an identifier"
            f' and withheld; to predict it, give the site a policy with [release] allow = ["{study.target}"]'
        )


def _join_regions(study: Study, sites: Sequence[Site]) -> list[Site | Region]:
    """Sites as the house reaches them: those of a region through it, and a region `germany/bavaria` through the one
    above. Where hospitals keep ledgers, a region keeps its identity beside the study file."""
    regions = {one.name: one.region.split("/") if one.region else [] for one in study.hospitals}
    keeps = any(one.ledger for one in study.hospitals)

    def join(members: Sequence[Site], depth: int) -> list[Site | Region]:
        joined: dict[tuple[bool, str], list[Site]] = {}
        for site in members:
            path = regions.get(site.name, [])
            below = len(path) > depth
            joined.setdefault((below, path[depth] if below else site.name), []).append(site)
        return [
            Region(
                name,
                House(join(found, depth + 1), timeout=study.house.timeout, on_loss=study.house.on_loss),
                identity=study.locate(f"{name}.identity") if keeps else None,
            )
            if below
            else found[0]
            for (below, name), found in joined.items()
        ]

    return join(sites, 0)


def open_house(
    study: Study,
    sites: Iterable[Site],
    journal: Path | None = None,
    on_round: Callable[[str], None] | None = None,
) -> House:
    """The clearing house of this study over some of its sites, or over their regions."""
    return House(
        _join_regions(study, list(sites)),
        timeout=study.house.timeout,
        on_loss=study.house.on_loss,
        journal=journal,
        # Beside the study, so that the next run notices a ledger that was put back to an older copy.
        memory=study.path.with_suffix(".house.json") if any(h.ledger for h in study.hospitals) else None,
        on_round=on_round,
        identity=None if study.house.identity is None else study.locate(study.house.identity),
        purpose=study.aim,
        dictionary=study.dictionary,
        days=study.house.days,
        patience=study.house.patience,
        check_tables=study.house.check_tables,
        encounters=study.encounters or 1,
    )
