"""What a site remembers beside the chain of its entries, in the ledger's file: the patients that each plain answer
was about, and the hospitals that it has opened masked sums with.

Who is protected: patients and hospitals, from two answers of which one is subtracted from the other (the rules are in
federation/disclosure.py and federation/masking.py). What is remembered inside a charge is on disk with its entry, or
not at all. A table is made when something is first remembered.
"""

from __future__ import annotations

import json

from concilium.privacy.ledger_file import LedgerFile

_POPULATIONS = """CREATE TABLE IF NOT EXISTS disclosure_population (
    number INTEGER PRIMARY KEY, records TEXT NOT NULL, digest BLOB NOT NULL, patients BLOB NOT NULL,
    UNIQUE (records, digest))"""
_CIRCLES = """CREATE TABLE IF NOT EXISTS mask_circle (
    records TEXT NOT NULL, names TEXT NOT NULL, PRIMARY KEY (records, names)) WITHOUT ROWID"""


def read_populations(file: LedgerFile, records: str, after: int) -> list[tuple[int, bytes, bytes]]:
    """Number, digest and patients of every population of these records with a number above `after`, in order."""
    if not _has_table(file, "disclosure_population"):
        return []
    rows = file.rows(
        "SELECT number, digest, patients FROM disclosure_population"
        " WHERE records = ? AND number > ? ORDER BY number",
        (records, after),
    )
    return [(number, digest, patients) for number, digest, patients in rows]


def remember_population(file: LedgerFile, records: str, digest: bytes, patients: bytes) -> None:
    """Keep a population of these records, once."""
    file.run(_POPULATIONS)
    file.run(
        "INSERT OR IGNORE INTO disclosure_population (records, digest, patients) VALUES (?, ?, ?)",
        (records, digest, patients),
    )


def read_circles(file: LedgerFile) -> list[tuple[str, ...]]:
    """The circles of hospitals that masked sums were opened with, whatever the records were."""
    if not _has_table(file, "mask_circle"):
        return []
    try:
        return [tuple(json.loads(names)) for (names,) in file.rows("SELECT DISTINCT names FROM mask_circle")]
    except (ValueError, TypeError):
        file.damaged("a circle of hospitals in it cannot be read")


def remember_circle(file: LedgerFile, records: str, names: tuple[str, ...]) -> None:
    """Keep a circle of hospitals, once for each state of the records."""
    file.run(_CIRCLES)
    file.run("INSERT OR IGNORE INTO mask_circle VALUES (?, ?)", (records, json.dumps(names)))


def _has_table(file: LedgerFile, name: str) -> bool:
    return file.find("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)) is not None
