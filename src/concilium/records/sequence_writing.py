"""Dated codes as a long table: a row for each code of a patient, dates as they were read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from concilium.errors import RecordsError
from concilium.records.columns import label
from concilium.records.relation import identifier, in_one_sentence, literal, scratch_database
from concilium.records.sequence_lists import MILLISECONDS

if TYPE_CHECKING:
    from concilium.records.sequences import Clock, Sequences

FORMS = {
    ".csv": "FORMAT csv, HEADER true",
    ".csv.gz": "FORMAT csv, HEADER true, COMPRESSION gzip",
    ".parquet": "FORMAT parquet",
}


def write_sequences(
    sequences: Sequences, path: str | os.PathLike[str], names: tuple[str, str, str], notice: str | None = None
) -> None:
    """One row for each event; `Sequences.write` says what is written."""
    target = Path(path)
    form = next((form for ending, form in FORMS.items() if target.name.lower().endswith(ending)), None)
    if form is None:
        raise RecordsError(f"{target}: codes are written to a file whose name ends in {', '.join(FORMS)}")
    if not target.absolute().parent.is_dir():
        raise RecordsError(f"there is no folder {target.absolute().parent}")
    empty = np.flatnonzero(sequences.counts == 0)
    events = {
        "owner": np.concatenate([sequences.owners, empty]),
        "place": np.concatenate([sequences.codes.astype(np.int64), np.full(len(empty), -1)]),
        "number": np.concatenate([_count(sequences), np.zeros(len(empty))]),
        "row": np.arange(len(sequences.codes) + len(empty)),
    }
    who = {"owner": np.arange(len(sequences)), "name": _texts([label(one) for one in sequences.ids])}
    what = {"place": np.arange(len(sequences.labels)), "text": _texts(sequences.labels)}
    in_text = form != FORMS[".parquet"]
    time = _write_days(in_text) if sequences.clock == "days" else _write_dates(in_text, sequences.clock)
    patient, moment, code = map(identifier, names)
    noticed = "" if notice is None else f", {literal(notice)} AS notice"
    with scratch_database() as (connection, folder), in_one_sentence(f"{target} cannot be written"):
        for table, columns in {"events": events, "who": who, "what": what}.items():
            connection.register(table, columns)
        written = folder / "written"
        connection.execute(
            f"COPY (SELECT name AS {patient}, CASE WHEN place >= 0 THEN {time} END AS {moment}, text AS {code}{noticed}"
            f" FROM events JOIN who USING (owner) LEFT JOIN what USING (place) ORDER BY owner, row)"
            f" TO {literal(str(written))} ({form})"
        )
        target.write_bytes(written.read_bytes())


def _write_days(in_text: bool) -> str:
    whole = "number = trunc(number) AND abs(number) < 1e15"
    return f"CASE WHEN {whole} THEN number::BIGINT::VARCHAR ELSE number::VARCHAR END" if in_text else "number"


def _write_dates(in_text: bool, clock: Clock) -> str:
    """Moments, in a text file a midnight as its date."""
    moment = "make_timestamp(number::BIGINT)"
    if clock == "zoned dates":
        return f"({moment} AT TIME ZONE 'UTC')"
    return f"regexp_replace({moment}::VARCHAR, ' 00:00:00$', '')" if in_text else moment


def _count(sequences: Sequences) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Days as they are, dates in microseconds."""
    return sequences.times if sequences.clock == "days" else np.rint(sequences.times * MILLISECONDS) * 1000


def _texts(texts: object) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    return np.array(texts, dtype=object)
