"""FHIR resources of a bundle, of NDJSON files as a bulk export writes them, or of a server, one by one.

An NDJSON file is read line by line. Errors name the file and the line or entry, and no patient.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import msgspec

from concilium.errors import RecordsError
from concilium.records.fhir_resources import TYPES

if TYPE_CHECKING:
    from concilium.records.cohort_file import CohortFile

LINES = (".ndjson", ".ndjson.gz", ".jsonl", ".jsonl.gz")
BUNDLES = (".json", ".json.gz")
LONGEST = 50_000_000  # bytes of a line
LARGEST = 1 << 30  # bytes of a bundle, which is read as a whole


class Found(NamedTuple):
    """A resource, where it stands, and the address that a bundle gives it."""

    resource: Any
    where: str
    address: str = ""


class _Typed(msgspec.Struct, rename="camel"):
    resource_type: str


class _BundleEntry(msgspec.Struct, rename="camel"):
    full_url: str = ""
    resource: msgspec.Raw = msgspec.Raw(b"")


class _Link(msgspec.Struct):
    relation: str = ""
    url: str = ""


class Bundle(msgspec.Struct, rename="camel"):
    """A bundle, its resources as they are written."""

    resource_type: str
    entry: list[_BundleEntry] = []
    link: list[_Link] = []


_find_type = msgspec.json.Decoder(_Typed)
_read_bundle = msgspec.json.Decoder(Bundle)
_DECODERS = {name: msgspec.json.Decoder(form) for name, form in TYPES.items()}


def each_resource(file: CohortFile) -> Iterator[Found]:
    """Every resource, of a type that is read, that a cohort file names."""
    if "://" in file.fhir:
        from concilium.records.fhir_server import search

        yield from search(file)
        return
    place = Path(file.fhir)
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    chosen = [one for one in files if one.name.lower().endswith((*LINES, *BUNDLES))]
    if not chosen:
        problem = "holds no file" if place.is_dir() else "is no file"
        problem = problem if place.exists() else "is not there: expected a file"
        raise RecordsError(f"{place}: {problem} whose name ends in {', '.join((*LINES, *BUNDLES))}")
    for one in chosen:
        yield from _each_line(one) if one.name.lower().endswith(LINES) else _each_entry(one)


def _open(file: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(file)) if file.suffix.lower() == ".gz" else file.open("rb")


def _each_line(file: Path) -> Iterator[Found]:
    number = 0
    try:
        with _open(file) as lines:
            while line := lines.readline(LONGEST):
                number += 1
                if line.strip():
                    yield from decode(line, f"{file}, line {number}")
    except (OSError, EOFError) as fault:
        raise _refuse(file, fault) from None


def _each_entry(file: Path) -> Iterator[Found]:
    try:
        with _open(file) as content:
            text = content.read(LARGEST + 1)
    except (OSError, EOFError) as fault:
        raise _refuse(file, fault) from None
    if len(text) > LARGEST:
        raise RecordsError(f"{file}: a bundle has at most {LARGEST >> 20} MiB; export it as NDJSON")
    yield from each_of_bundle(read_bundle(text, str(file)), str(file))


def read_bundle(text: bytes, where: str) -> Bundle:
    """The bundle of a text."""
    try:
        bundle = _read_bundle.decode(text)
    except msgspec.ValidationError as fault:
        raise RecordsError(f"{where}: is not a bundle as FHIR has it ({fault})") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RecordsError(f"{where}: is not JSON") from None
    if bundle.resource_type != "Bundle":
        raise RecordsError(
            f"{where}: is a FHIR resource and no Bundle; resources alone stand in an .ndjson file"
        )
    return bundle


def each_of_bundle(bundle: Bundle, where: str) -> Iterator[Found]:
    """The resources of a bundle."""
    for number, entry in enumerate(bundle.entry, start=1):
        if bytes(entry.resource):
            yield from decode(entry.resource, f"{where}, entry {number}", entry.full_url)


def decode(text: bytes | msgspec.Raw, where: str, address: str = "") -> Iterator[Found]:
    """The resource of a text, if it is of a type that is read."""
    try:
        decoder = _DECODERS.get(_find_type.decode(text).resource_type)
        if decoder is not None:
            yield Found(decoder.decode(text), where, address)
    except msgspec.ValidationError as fault:
        raise RecordsError(f"{where}: is not a resource as FHIR has it ({fault})") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RecordsError(f"{where}: is not JSON") from None


def _refuse(file: Path, fault: Exception) -> RecordsError:
    if isinstance(fault, FileNotFoundError):
        return RecordsError(f"there is no file {file}")
    if isinstance(fault, EOFError | gzip.BadGzipFile):
        return RecordsError(f"{file} is not a complete gzip file; compress it anew")
    reason = getattr(fault, "strerror", None) or "unknown reason"
    return RecordsError(f"{file} cannot be opened: {reason.lower()}")
