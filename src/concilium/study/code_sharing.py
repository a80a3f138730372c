"""A sharing of codes from file to files: `share_codes(SharingFiles(...), out)` is what `concilium share` runs.

The codes of a file pass the gate of the hospital that holds them (protocol/site.py): its policy, its ledger. Who
decides which codes are hidden with the sensitive ones are auxiliary patients, and those are never shared: patients of
another file, or a part of the hospital's own who are held back. Three files come of it: the codes and what is known of
how they were drawn, for whoever gets them, and a page for the hospital alone.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from concilium.codes.agreed_sharing import NOT_FOR_CARE, AgreedSharing
from concilium.codes.code_design import SINCE_FIRST, open_design
from concilium.codes.sharing import CodeSharing
from concilium.codes.sharing_report import SharingReport, find_expected_loss, report_sharing
from concilium.codes.taxonomy import Taxonomy
from concilium.consult.sharing_page import SharingOccasion, render_sharing_page
from concilium.errors import BudgetError, HouseError, RecordsError, StudyError
from concilium.ledger.budgets import Balance
from concilium.ledger.ledger import Ledger
from concilium.policy.policy import Policy
from concilium.privacy.accounting import rho_from_pure
from concilium.privacy.identity import Identity
from concilium.protocol.card import Card
from concilium.protocol.house import House
from concilium.protocol.journal import open_for_owner
from concilium.protocol.patient_numbers import derive_order, order_patients
from concilium.protocol.site import Site
from concilium.records.columns import label
from concilium.records.patients import Patients
from concilium.records.sequence_writing import FORMS
from concilium.records.sequences import Sequences
from concilium.records.table import Records
from concilium.study.planning import read_balance
from concilium.study.results import write_json

Tell = Callable[[str], None]
DAYS = 366
NOTICE = "not for care"
MOST_MEASURED = 5_000
"""Attacks look at so many patients at most, the first by their numbers, which are dealt at random."""
PAGE_EPSILONS = ("0.5", "1", "2.5", "5")


@dataclass(frozen=True, kw_only=True)
class SharingFiles:
    """What is shared, and behind which gate.

    codes, columns     a long table or FHIR Conditions, and what its columns patient, time and code are called
    auxiliary          a file of other patients; None: `percent` of those in `codes` are held back for that
    records, by        a table of the same patients, by this column of ids: for queries, and to share its ledger
    ledger             None: beside the codes
    policy, site       the hospital's policy, and its name; None: as its ledger says, or the name of the file
    house, purpose     who gets the codes: an identity file (None: made beside the ledger), and what for
    settings           parameters of `CodeSharing`, and `zeros` and `headings` of its taxonomy, which may be a file of
                       parents and children
    query, dates       whose codes; and whether they leave with their dates
    """

    codes: str
    columns: Mapping[str, str] = field(default_factory=dict)
    auxiliary: str | None = None
    percent: int = 20
    records: str | None = None
    by: str = "patient"
    ledger: str | None = None
    policy: str | None = None
    site: str | None = None
    house: str | None = None
    purpose: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    query: str = ""
    dates: str = SINCE_FIRST

    @property
    def ledger_path(self) -> Path:
        return Path(f"{self.codes}.ledger" if self.ledger is None else self.ledger)

    @property
    def identity_path(self) -> Path:
        return Path(f"{self.ledger_path}.identity")


@dataclass(frozen=True)
class SharingPlan:
    """What would be shared and cost, before anything is; `room` says why it does not fit, if it does not."""

    sharing: CodeSharing
    agreed: AgreedSharing
    patients: int
    auxiliary: int
    balance: Balance
    forbidden: tuple[str, ...]

    @property
    def cost(self) -> Fraction:
        """In the currency of the ledger."""
        pure = self.agreed.pure_price
        return rho_from_pure(pure) if self.balance.currency == "rho" else pure

    @property
    def room(self) -> str | None:
        try:
            self.balance.check(self.cost)
        except BudgetError as error:
            return f"{error}; {say_what_fits(self.sharing, self.balance)}"
        return None

    @property
    def fits(self) -> bool:
        return self.room is None and not self.forbidden

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values, exact numbers as text."""
        return {
            "patients": self.patients,
            "auxiliary": self.auxiliary,
            "design": msgspec.to_builtins(self.agreed.design),
            "epsilon_per_event": str(self.sharing.epsilon),
            "epsilon_per_patient": str(self.agreed.pure_price),
            "currency": self.balance.currency,
            "cost": str(self.cost),
            "spent": str(self.balance.spent),
            "left": None if self.balance.left is None else str(self.balance.left),
            "expected_loss": find_expected_loss(self.sharing),
            "replaced": float(open_design(self.agreed.design)[1].replaced),
            "fits": self.fits,
            "forbidden": list(self.forbidden),
        }


@dataclass(frozen=True)
class SharingResults:
    """What was shared and what the hospital may know of it; `names` are the patients' ids by their numbers."""

    sharing: CodeSharing
    shared: Sequences
    names: tuple[Any, ...]
    card: Card
    report: SharingReport
    files: Mapping[str, Path]


def plan_sharing(files: SharingFiles) -> SharingPlan:
    """Fit on the auxiliary patients, and look whether it fits; nothing is asked, charged or written."""
    policy = read_policy(files)
    patients = read_patients(files)
    identity = Identity.at(files.identity_path) if files.identity_path.exists() else Identity.create()
    chosen, auxiliary = set_apart(files, patients, identity)
    sharing = fit(files, auxiliary)
    agreed = sharing.propose(query=files.query, dates=files.dates)
    check_codes(sharing, patients)
    forbidden = [
        *(f"its policy releases nothing as {mode!r}" for mode in ("shared",) if mode not in policy.modes),
        *(f"its policy answers no {kind!r}" for kind in ("codes.shared",) if kind not in policy.kinds),
    ]
    balance = read_balance(policy, files.ledger_path)
    return SharingPlan(sharing, agreed, len(chosen), len(auxiliary), balance, tuple(forbidden))


def share_codes(
    files: SharingFiles,
    out: Path,
    *,
    again: bool = False,
    key: Path | None = None,
    tell: Tell = lambda _: None,
) -> SharingResults:
    """Share the codes and write what comes of it: the codes to `out`, and beside them what is known of how they were
    drawn (.json) and a page for the hospital (.html).

    The same call gives the same codes again and costs nothing; `again` draws anew, at the full price. `key` is for the
    hospital alone: which number is whom. StudyPending where a person must agree first: call it again then.
    """
    names = name_files(out)
    policy = read_policy(files)
    tell("reading the codes")
    patients = read_patients(files)
    whole = Site(find_name(files), patients, policy, ledger=files.ledger_path)
    try:
        chosen, auxiliary = set_apart(files, patients, whole.identity)
        tell(f"learning from {len(auxiliary):,} auxiliary patients which codes go together")
        sharing = fit(files, auxiliary)
        check_codes(sharing, patients)
        # The same ledger and identity: fewer patients open no new account.
        site = Site(whole.name, chosen, whole.policy, whole.ledger, whole.identity, whole.division_key)
        tell(f"sharing the codes of {len(chosen):,} patients")
        shared = ask(files, sharing, site, again)
        card = sharing.card_
        assert card is not None
        numbered = tuple(site.name_patients(card.study))
        balance = whole.ledger.balance()
    finally:
        whole.ledger.close()
    tell("measuring what attacks find and what is lost")
    recorded = put_in_order(chosen, numbered)
    report = measure(sharing, recorded, shared)
    page = SharingOccasion(
        site=whole.name,
        card=card.to_dict(),
        balance=balance,
        auxiliary=len(auxiliary),
        held_back=files.auxiliary is None,
        shared=len(shared),
        codes=len(shared.codes),
        cut=len(recorded.codes) - len(shared.codes),
        file=names["codes"].name,
    )
    shared.write(names["codes"], notice=NOTICE)
    write_json(names["draw"], describe_draw(sharing, card, report))
    write_for_owner(names["page"], render_sharing_page(report, page))
    if key is not None:
        rows = [
            "number,patient",
            *(f"{number},{quote(label(one))}" for number, one in enumerate(numbered, 1)),
        ]
        write_for_owner(key, "\n".join(rows) + "\n")
        names["key"] = key
    return SharingResults(sharing, shared, numbered, card, report, names)


def ask(files: SharingFiles, sharing: CodeSharing, site: Site, again: bool) -> Sequences:
    """The codes of a site, by a house whose journal lies beside the ledger: the same study is the same draw."""
    agreed = sharing.propose(query=files.query, dates=files.dates)
    about = msgspec.json.encode([agreed.get_params(), site.name, files.purpose], order="sorted")
    journal = Path(f"{files.ledger_path}.{hashlib.sha256(about).hexdigest()[:12]}.sharing")
    if again:
        for path in (journal, *(Path(f"{journal}{ending}") for ending in ("-wal", "-shm"))):
            path.unlink(missing_ok=True)
    identity = Path(f"{files.ledger_path}.house") if files.house is None else Path(files.house)
    house = House(
        [site],
        journal=journal,
        identity=identity,
        purpose=files.purpose,
        days=DAYS,
        on_loss="stop",
        timeout=3600,
    )
    try:
        return sharing.share(house, query=files.query, dates=files.dates)[site.name]
    except HouseError as error:
        if " would cost " not in str(error):
            raise
        raise HouseError(f"{error}; {say_what_fits(sharing, site.ledger.balance())}") from None


def say_what_fits(sharing: CodeSharing, balance: Balance) -> str:
    """What could be shared with what is left."""
    lefts = [left for left in (balance.left, balance.month_left) if left is not None]
    pure = find_affordable(min(lefts), balance.currency)
    events = math.floor(pure / sharing.epsilon)
    each = math.floor(pure / sharing.max_events * 10_000) / 10_000
    ways = [f"epsilon = {float(sharing.epsilon):g} with max_events = {events}"] if events else []
    ways += [f"max_events = {sharing.max_events} with epsilon = {each:g}"] if each else []
    fitting = f"what would fit: {' or '.join(ways)}; " if ways else ""
    return (
        f"everyone is charged max_events * epsilon = {float(sharing.price):g}, as many events as anyone may have; "
        f"{fitting}or give the hospital a larger budget (concilium ledger budget)"
    )


def find_affordable(left: Fraction, currency: str) -> Fraction:
    """The largest pure epsilon, to four digits, that costs no more than what is left."""
    if currency != "rho":
        return left
    low, high = 0, 10_000_000
    while low < high:
        middle = (low + high + 1) // 2
        if rho_from_pure(Fraction(middle, 10_000)) <= left:
            low = middle
        else:
            high = middle - 1
    return Fraction(low, 10_000)


def read_policy(files: SharingFiles) -> Policy:
    return Policy() if files.policy is None else Policy.read(files.policy)


def read_patients(files: SharingFiles) -> Patients:
    """The hospital's patients: their codes and, where there is one, their table."""
    codes = read_codes(files.codes, files.columns)
    if files.records is None:
        if files.query:
            raise StudyError(
                "a query is about columns of a table: name the table of these patients (records)"
            )
        return Patients(codes=codes)
    table = Records.read(files.records, schema={files.by: "code"})
    return Patients(table=table, codes=codes.with_patients(table.values(files.by)), by=files.by)


def read_codes(path: str, columns: Mapping[str, str]) -> Sequences:
    """A long table, or the Conditions of a FHIR Bundle."""
    if path.lower().removesuffix(".gz").endswith((".json", ".ndjson")):
        return Sequences.read_fhir(path)
    return Sequences.read(path, **columns)


def find_name(files: SharingFiles) -> str:
    """What the hospital is called: as it says, or as its ledger has it, or as the file is called."""
    if files.site is not None:
        return files.site
    if files.ledger_path.exists():
        with Ledger.open_readonly(files.ledger_path) as book:
            if book.settings.site is not None:
                return book.settings.site.rsplit(" (", 1)[0]
    return Path(files.codes).name.split(".")[0]


def set_apart(files: SharingFiles, patients: Patients, identity: Identity) -> tuple[Patients, Sequences]:
    """The patients whose codes are shared, and the auxiliary ones: nobody is both."""
    codes = patients.codes
    assert isinstance(codes, Sequences)
    names = [label(one) for one in codes.ids]
    if files.auxiliary is not None:
        others = read_codes(files.auxiliary, files.columns)
        own = set(names)
        apart: NDArray[np.bool_] = np.array([label(one) not in own for one in others.ids], dtype=bool)
        if not apart.any():
            raise RecordsError(
                f"{files.auxiliary}: all of its patients are among those that are shared; auxiliary patients are others"
            )
        return patients, others.take(apart)
    if not 1 <= files.percent <= 90:
        raise StudyError(
            f"from 1 to 90 percent of the patients can be held back as auxiliary; got {files.percent}"
        )
    count = math.ceil(len(names) * files.percent / 100)
    if not 0 < count < len(names):
        raise RecordsError(
            f"{files.codes}: {len(names)} patients are too few to hold some back; name a file of auxiliary patients"
        )
    held = np.zeros(len(names), dtype=bool)
    held[order_patients(derive_order(identity, "auxiliary patients"), codes.ids)[:count]] = True
    return patients.take(~held), codes.take(held)


def fit(files: SharingFiles, auxiliary: Sequences) -> CodeSharing:
    settings = dict(files.settings)
    taxonomy, digits = settings.get("taxonomy", "icd9"), settings.get("digits", 3)
    zeros, headings = settings.pop("zeros", "kept"), settings.pop("headings", "refuse")
    if taxonomy == "icd9":
        settings["taxonomy"] = Taxonomy.icd9(digits, zeros=zeros, headings=headings)
    elif taxonomy == "icd10":
        settings["taxonomy"] = Taxonomy.icd10(digits, headings=headings)
    elif isinstance(taxonomy, str):
        settings["taxonomy"] = Taxonomy.read(taxonomy)
    return CodeSharing(**settings).fit(auxiliary)


def check_codes(sharing: CodeSharing, patients: Patients) -> None:
    """UnknownCode names what is no code: here, where the hospital reads it, and not in a refusal."""
    codes = patients.codes
    assert isinstance(codes, Sequences)
    sharing.number(codes)


def put_in_order(patients: Patients, numbered: tuple[Any, ...]) -> Sequences:
    """What was recorded of those who were shared, in the order of their numbers."""
    codes = patients.codes
    assert isinstance(codes, Sequences)
    row_of = {label(one): row for row, one in enumerate(codes.ids)}
    return codes.take(np.array([row_of[label(one)] for one in numbered], dtype=np.intp))


def measure(sharing: CodeSharing, recorded: Sequences, shared: Sequences) -> SharingReport:
    """The report on what was shared, beside what was recorded of the same patients."""
    some = np.arange(min(len(shared), MOST_MEASURED))
    epsilons = sorted({sharing.epsilon, *map(Fraction, PAGE_EPSILONS)})
    return report_sharing(sharing, recorded.take(some), epsilons, shared.take(some))


def describe_draw(sharing: CodeSharing, card: Card, report: SharingReport) -> dict[str, Any]:
    """All that whoever analyses the codes needs: the design, and the probabilities that follow from it."""
    design = sharing.propose().design
    taxonomy, response = open_design(design)
    hidden = (*response.protected, *response.never_shown)
    return {
        "notice": NOT_FOR_CARE,
        "study": card.study,
        "purpose": card.purpose,
        "meaning": card.meaning,
        "design": msgspec.to_builtins(design),
        "probabilities": {
            "a code in the clear stays": float(1 - response.replaced),
            "a protected code becomes this one of its block": float(response.inside),
            "any code becomes this other protected one": float(response.elsewhere),
        },
        "blocks": {
            taxonomy.codes[code]: [taxonomy.codes[response.protected[place]] for place in block]
            for code, block in zip(hidden, response.blocks, strict=True)
        },
        "confounded": [list(group) for group in report.confounded],
    }


def name_files(out: Path) -> dict[str, Path]:
    """The files of a sharing, before anything is charged: the codes, how they were drawn, and the page."""
    ending = next((ending for ending in FORMS if out.name.lower().endswith(ending)), None)
    if ending is None:
        raise StudyError(f"{out}: codes are written to a file whose name ends in {', '.join(FORMS)}")
    if not out.absolute().parent.is_dir():
        raise StudyError(f"{out}: there is no folder {out.absolute().parent}")
    stem = out.name[: -len(ending)]
    return {"codes": out, "draw": out.with_name(f"{stem}.json"), "page": out.with_name(f"{stem}.html")}


def write_for_owner(path: Path, text: str) -> None:
    """A file that tells of patients: nobody else on this machine reads it."""
    try:
        with os.fdopen(open_for_owner(path, os.O_TRUNC), "wb") as file:
            file.write(text.encode())
    except OSError as error:
        raise StudyError(f"{path}: cannot be written ({error.strerror})") from None


def quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') else text
