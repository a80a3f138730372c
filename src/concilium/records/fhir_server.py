"""Resources of a FHIR server, by its search: page after page, within bounds.

Asks for the codes of the cohort file only, where the server can look for them. Follows links to the server itself and
nowhere else. Protects: the machine that asks, from a server that never ends or sends it elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from concilium.errors import MissingExtra, RecordsError
from concilium.records.fhir_files import Bundle, Found, each_of_bundle, read_bundle

if TYPE_CHECKING:
    from concilium.records.cohort_file import CohortFile

PAGE = 1000  # resources that are asked for at once; a server may send fewer
MOST_PAGES = 20_000
MOST_BYTES = 1 << 27  # of a page
MOST_CODES = 50  # in one search
PATIENCE = 60  # seconds
TOKEN = "CONCILIUM_FHIR_TOKEN"
"""The environment variable with a bearer token, which stands in no file."""

SEARCHES = {
    "condition": (("Condition", "code"),),
    "measurement": (("Observation", "combo-code"),),
    "observation": (("Observation", "combo-code"),),
    "procedure": (("Procedure", "code"),),
    "drug": (
        ("MedicationRequest", "code"),
        ("MedicationStatement", "code"),
        ("MedicationAdministration", "code"),
        ("Immunization", "vaccine-code"),
    ),
}
"""The types of resources of each kind of event, and by which parameter of a search their codes are found."""


def search(file: CohortFile) -> Iterator[Found]:
    """Every resource that a cohort file needs: all patients and encounters, and what has one of its codes."""
    try:
        import httpx2
    except ImportError:
        raise MissingExtra("fhir", "reading from a FHIR server") from None
    base = file.fhir.rstrip("/")
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RecordsError("this is no address of a FHIR server; it has the form https://host/fhir")
    name = f"the FHIR server at {parts.hostname}"
    headers = {"Accept": "application/fhir+json"}
    if os.environ.get(TOKEN):
        headers["Authorization"] = f"Bearer {os.environ[TOKEN]}"
    with httpx2.Client(headers=headers, timeout=PATIENCE, follow_redirects=False) as client:
        for query in list_searches(file):
            yield from _Pages(client, name, base).each(query)


def list_searches(file: CohortFile) -> list[str]:
    """The searches that bring all that a cohort file needs, as the part of an address after the server's."""
    wanted: dict[tuple[str, str], dict[str, None] | None] = {}
    for event in file.events():
        for place in SEARCHES.get(event.kind, ()):
            codes = wanted.setdefault(place, {})
            if event.concepts is None or _needs_all(event.concepts):
                wanted[place] = None  # a server does not know which codes are longer ones
            elif codes is not None:
                codes |= {
                    f"{system}|{code}": None
                    for system, listed in event.concepts.codes.items()
                    for code in listed
                }
    searches = [f"Patient?_count={PAGE}", f"Encounter?_count={PAGE}"]
    for (kind, parameter), codes in wanted.items():
        if codes is None:
            searches.append(f"{kind}?_count={PAGE}")
            continue
        listed = list(codes)
        for first in range(0, len(listed), MOST_CODES):
            searches.append(f"{kind}?{parameter}={_join(listed[first : first + MOST_CODES])}&_count={PAGE}")
    if any(kind.startswith("Medication") for kind, _ in wanted):
        searches.append(f"Medication?_count={PAGE}")
    return searches


def _needs_all(concepts: Any) -> bool:
    return concepts.descendants and any("/icd-" in system for system in concepts.codes)


def _join(codes: Sequence[str]) -> str:
    from urllib.parse import quote

    return ",".join(quote(code, safe="") for code in codes)


class _Pages:
    """The pages of one search."""

    def __init__(self, client: Any, name: str, base: str) -> None:
        self._client, self._name, self._base = client, name, base

    def each(self, query: str) -> Iterator[Found]:
        address, seen = f"{self._base}/{query}", set[str]()
        kind = query.partition("?")[0]
        while address:
            where = f"{self._name}, {kind}, page {len(seen) + 1}"
            if address in seen or len(seen) >= MOST_PAGES:
                raise RecordsError(
                    f"{where}: the pages do not end; a search has at most {MOST_PAGES:,} of them"
                )
            seen.add(address)
            bundle = read_bundle(self._get(address, where), where)
            yield from each_of_bundle(bundle, where)
            address = self._find_next(bundle, address, where)

    def _get(self, address: str, where: str) -> bytes:
        import httpx2

        content = bytearray()
        try:
            with self._client.stream("GET", address) as answer:
                if answer.status_code != 200:
                    hint = (
                        f"; it may need a token, in the variable {TOKEN}"
                        if answer.status_code in (401, 403)
                        else ""
                    )
                    raise RecordsError(f"{where}: the server answers with status {answer.status_code}{hint}")
                for chunk in answer.iter_bytes():
                    content += chunk
                    if len(content) > MOST_BYTES:
                        raise RecordsError(f"{where}: is longer than {MOST_BYTES >> 20} MiB")
        except httpx2.HTTPError as fault:
            raise RecordsError(
                f"{self._name} does not answer ({type(fault).__name__}); check the address and that it is running"
            ) from None
        return bytes(content)

    def _find_next(self, bundle: Bundle, address: str, where: str) -> str:
        links = [one.url for one in bundle.link if one.relation == "next"]
        if not links:
            return ""
        given, own = urlsplit(links[0]), urlsplit(address)
        if (given.scheme, given.netloc) != (own.scheme, own.netloc):
            raise RecordsError(
                f"{where}: the next page is at another server; only its own pages are followed"
            )
        return links[0]
