"""The tables of a study's hospitals, looked at where they lie: does each fit the study, its map and its policy?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from concilium.consult.table_check import TableCheck, TableUnderStudy
from concilium.errors import StudyError, nearest
from concilium.policy.policy import Policy
from concilium.records.cells import read_as_numbers
from concilium.records.table import Records
from concilium.records.table_map import read_mapped

if TYPE_CHECKING:
    from concilium.study.sections import Hospital, SplitTable
    from concilium.study.study import Study


LEAST_PATIENTS = 10
OTHER_SIZE = 5.0  # medians that differ by this factor are hardly of one unit


def check_study(study: Study, site: str | None = None) -> list[TableCheck]:
    """What is found of every hospital's table, or of one."""
    if study.method_type.reads_courses:
        raise StudyError(
            f"{study.path}: tables are checked, and method = {study.method!r} learns from series or rules"
        )
    if study.split is not None:
        tables = dict(_split(study, study.split))
    else:
        tables = {
            one.name: _look_at(study, one, one.name) for one in study.hospitals if site in (None, one.name)
        }
    if site is not None and site not in tables:
        names = [*tables, *(one.name for one in study.hospitals)]
        raise StudyError(f"{study.path}: there is no site {site!r}{nearest(site, names)}")
    return [table.check() for name, table in tables.items() if site in (None, name)]


def find_faults(study: Study, tables: Mapping[str, Records]) -> Iterator[str]:
    """What whoever runs a simulation should know before it is believed: hospitals whose tables do not fit, and whose
    numbers are of another size than those of the others."""
    policies = {one.name: one.policy for one in study.hospitals}
    for name, records in tables.items():
        file = policies.get(name) or (study.split.policy if study.split is not None else None)
        policy = Policy.read(study.locate(file)) if file else Policy()
        table = _put_together(study, policy, name, records, {})
        yield from (f"{name}: {fault}" for fault in table.find_faults())
    for column in study.bins:
        yield from _find_other_sizes(column, tables)


def _find_other_sizes(column: str, tables: Mapping[str, Records]) -> Iterator[str]:
    medians = {}
    for name, table in tables.items():
        if column in table:
            numbers = read_as_numbers(table[column])
            known = numbers[np.isfinite(numbers)]
            if known.size >= LEAST_PATIENTS:
                medians[name] = float(np.median(known))
    for name, median in medians.items():
        others = float(np.median([other for site, other in medians.items() if site != name] or [median]))
        if min(median, others) > 0 and max(median, others) >= OTHER_SIZE * min(median, others):
            yield (
                f"{name}: {column}: the median is {median:.4g}, and {others:.4g} at the others: is it another unit "
                "there? Its map converts it (docs/dictionary.md)"
            )


def _look_at(study: Study, source: Hospital | SplitTable, name: str) -> TableUnderStudy:
    assert source.records is not None
    problems: dict[str, str] = {}
    records = read_mapped(
        study.locate(source.records),
        source.table,
        study.reading,
        dictionary=study.dictionary,
        map=study.find_map(source),
        problems=problems,
    )
    policy = Policy.read(study.locate(source.policy)) if source.policy else Policy()
    return _put_together(study, policy, name, records, problems)


def _put_together(
    study: Study, policy: Policy, name: str, records: Records, problems: dict[str, str]
) -> TableUnderStudy:
    stated = dict.fromkeys([*study.values, *study.bins]) if study.way_out.bounded else {}
    return TableUnderStudy(
        name,
        records,
        study.dictionary,
        policy,
        study.query,
        study.target,
        [*dict.fromkeys([*(study.attributes or ()), *stated])],
        study.values,
        problems,
    )


def _split(study: Study, split: SplitTable) -> Iterator[tuple[str, TableUnderStudy]]:
    assert split.by is not None
    whole = _look_at(study, split, "")
    for name, records in whole.records.split(split.by).items():
        yield name, _put_together(study, whole.policy, name, records, dict(whole.problems))
