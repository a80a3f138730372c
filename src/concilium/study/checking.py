"""The tables of a study's hospitals, looked at where they lie: does each fit the study, its map and its policy?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from concilium.errors import StudyError, nearest
from concilium.federation.table_check import TableCheck, TableUnderStudy
from concilium.policy.policy import Policy
from concilium.records.table import Records
from concilium.records.table_map import read_mapped

if TYPE_CHECKING:
    from concilium.study.sections import Hospital, SplitTable
    from concilium.study.study import Study


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
    return _put_together(study, source, name, records, problems)


def _put_together(
    study: Study, source: Hospital | SplitTable, name: str, records: Records, problems: dict[str, str]
) -> TableUnderStudy:
    stated = dict.fromkeys([*study.values, *study.bins]) if study.way_out.bounded else {}
    return TableUnderStudy(
        name,
        records,
        study.dictionary,
        Policy.read(study.locate(source.policy)) if source.policy else Policy(),
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
        yield name, _put_together(study, split, name, records, dict(whole.problems))
