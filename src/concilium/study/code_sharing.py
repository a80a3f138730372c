"""A sharing of codes from file to files: `SharingStudy.read("share.toml").run("shared.csv")`.

`concilium run` reads a study file with method = "code-sharing"; `concilium share` takes the same as options. The codes
of a file pass the gate of the hospital that holds them (protocol/site.py): its policy, its ledger. Everyone in it is
shared. Which codes are hidden with the sensitive ones follows from none of these patients: from the public list, from
codes that the study names, or from patients of another file. Three files come of it: the codes and what is known of how
they were drawn, for whoever gets them, and a page for the hospital alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from concilium.codes.agreed_sharing import NOT_FOR_CARE, AgreedSharing
from concilium.codes.code_counts import CodeCounts
from concilium.codes.code_design import describe_taxonomy, open_design
from concilium.codes.recipient import digest_design
from concilium.codes.sharing import CodeSharing
from concilium.codes.sharing_report import SharingReport, report_sharing
from concilium.codes.taxonomy import split_scheme
from concilium.consult.sharing_page import SharingOccasion, render_sharing_page
from concilium.errors import HouseError, RecordsError, RunStopped, StudyError, UnknownCode, nearest
from concilium.ledger.budgets import Balance
from concilium.ledger.ledger import Ledger
from concilium.policy.policy import Policy
from concilium.protocol.card import Card
from concilium.protocol.house import House
from concilium.protocol.journal import open_for_owner
from concilium.protocol.site import Site
from concilium.protocol.terms import find_needs
from concilium.records.columns import label
from concilium.records.patients import Patients
from concilium.records.sequence_reading import FORMS
from concilium.records.sequences import Sequences
from concilium.records.table import Records
from concilium.study.planning import read_balance
from concilium.study.results import encode_json, write_whole
from concilium.study.sections import (
    Days,
    Patience,
    Purpose,
    Text,
    fill,
    read_document,
    read_parameters,
    read_section,
)
from concilium.study.sharing_plan import Histories, SharingPlan, find_affordable, find_left, say_what_fits

Tell = Callable[[str], None]
NOTICE = "not for care"
MOST_MEASURED = 5_000
"""Attacks look at so many patients at most, the first by their numbers, which are dealt at random."""
PAGE_EPSILONS = ("0.5", "1", "2.5", "5")
PUBLIC_LIST = "the public list"
NAMED = "named by the study"
TAUGHT = "taught by auxiliary patients"
COUNTED = "the public list, and noisy counts that were charged"


class _About(msgspec.Struct, frozen=True, kw_only=True):
    """[study]: what is shared, and what for."""

    name: Text
    method: Text
    query: Annotated[str, Meta(description="text")] = ""
    purpose: Purpose = ""


class _Hospital(msgspec.Struct, frozen=True, kw_only=True):
    """[[site]]: the hospital whose codes are shared; `records` is a table of the same patients, for the query."""

    name: Text
    codes: Text
    records: Text | None = None
    wishes: Text | None = None
    patient: Text = "patient"
    ledger: Text | None = None
    policy: Text | None = None


class _CodeColumns(msgspec.Struct, frozen=True, kw_only=True):
    """[codes]: the columns of files of codes; those that are not named are recognised by their names."""

    patient: Text | None = None
    time: Text | None = None
    code: Text | None = None


class _Auxiliary(msgspec.Struct, frozen=True, kw_only=True):
    """[auxiliary]: codes of other patients, who teach which codes to hide; without them the public list is hidden."""

    codes: Text | None = None


class _CodeReceiver(msgspec.Struct, frozen=True, kw_only=True):
    """[house]: who gets the codes."""

    identity: Text | None = None
    days: Days = 366
    patience: Patience = 0.0


SHARING_SECTIONS: dict[str, type[msgspec.Struct] | None] = {
    "study": _About,
    "site": _Hospital,
    "codes": _CodeColumns,
    "auxiliary": _Auxiliary,
    "house": _CodeReceiver,
    CodeSharing.method: None,
}


@dataclass(frozen=True, kw_only=True)
class SharingStudy:
    """What is shared, and behind which gate.

    codes, columns     a long table or FHIR Conditions, and what its columns patient, time and code are called
    auxiliary          a file of other patients, who teach which codes to hide; None: the public list
    records, by        a table of the same patients, by this column of ids: for queries, and to share its ledger
    wishes             a table with the columns patient and hide: the codes that each patient wants hidden
    ledger             None: beside the codes
    policy, site       the hospital's policy, and its name; None: as its ledger says, or the name of the file
    house, purpose     who gets the codes: an identity file (None: made beside the ledger), and what for
    days, patience     how long the study is open, and how many seconds to wait for a person to agree
    parameters         those of `CodeSharing`
    """

    codes: str
    columns: Mapping[str, str] = field(default_factory=dict)
    auxiliary: str | None = None
    records: str | None = None
    wishes: str | None = None
    by: str = "patient"
    ledger: str | None = None
    policy: str | None = None
    site: str | None = None
    house: str | None = None
    purpose: str = ""
    days: int = 366
    patience: float = 0.0
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> SharingStudy:
        """Read a study file with method = "code-sharing"; StudyError says which key is wrong and how."""
        path = Path(path)
        _, document = read_document(path)
        for name in document:
            if name not in SHARING_SECTIONS:
                hint = nearest(name, SHARING_SECTIONS)
                raise StudyError(f"{path}: a sharing of codes has no section [{name}]{hint}")
        about = read_section(path, "study", document, _About)
        if about.method != CodeSharing.method:
            raise StudyError(
                f"{path}: [study] method = {about.method!r} has no study file: release counts of codes by "
                "concilium share CODES --counts EPSILON --out counts.json"
            )
        sites = document.get("site")
        if not isinstance(sites, list) or len(sites) != 1:
            raise StudyError(f"{path}: a hospital shares its own codes: name it by one [[site]]")
        site = fill(path, "[[site]]", sites[0], _Hospital)
        auxiliary = read_section(path, "auxiliary", document, _Auxiliary)
        house = read_section(path, "house", document, _CodeReceiver)
        columns = msgspec.structs.asdict(read_section(path, "codes", document, _CodeColumns))
        parameters = read_parameters(path, CodeSharing, document)

        def locate(place: str | None) -> str | None:
            return place if place is None or "://" in place else str(path.parent / place)

        if parameters.get("taxonomy", "icd9") not in ("icd9", "icd10"):
            scheme, file = split_scheme(parameters["taxonomy"])
            parameters["taxonomy"] = f"{scheme}:{locate(file)}" if scheme else locate(file)
        return cls(
            codes=str(locate(site.codes)),
            columns={name: column for name, column in columns.items() if column is not None},
            auxiliary=locate(auxiliary.codes),
            records=locate(site.records),
            wishes=locate(site.wishes),
            by=site.patient,
            ledger=locate(site.ledger),
            policy=locate(site.policy),
            site=site.name,
            house=locate(house.identity),
            purpose=" ".join((about.purpose or about.name).split()),
            days=house.days,
            patience=house.patience,
            parameters={**parameters, "query": about.query},
        )

    def plan(self, out: str | Path | None = None) -> SharingPlan:
        """Settle the design, and look whether it fits: nothing is asked or charged; the same study has the same plan.

        With `out` the plan is kept beside where the copy will be (shared.plan.json), and sharing follows it.
        """
        policy = _read_policy(self)
        patients = _read_patients(self)
        plan = self._plan(policy, patients, read_balance(policy, self.ledger_path))
        if out is not None:
            _write_for_owner(_name_files(Path(out))["plan"], encode_json(plan.to_dict()))
        return plan

    def _plan(self, policy: Policy, patients: Patients, balance: Balance) -> SharingPlan:
        sharing, teachers = _fit(self, patients)
        codes = patients.codes
        assert isinstance(codes, Sequences)
        agreed = sharing.propose()
        modes, kinds = find_needs(agreed, agreed.plan())
        forbidden = [
            *(f"its policy releases nothing as {mode!r}" for mode in modes if mode not in policy.modes),
            *(f"its policy answers no {kind!r}" for kind in kinds if kind not in policy.kinds),
        ]
        return SharingPlan(
            sharing=sharing,
            agreed=agreed,
            site=_find_name(self),
            purpose=self.purpose,
            patients=len(codes),
            source=teachers.source,
            auxiliary=teachers.patients,
            records=patients.digest,
            teacher=teachers.digest,
            balance=balance,
            forbidden=tuple(forbidden),
            histories=Histories.measure(codes, sharing),
            recorded=codes,
        )

    def run(
        self,
        out: str | Path,
        *,
        again: bool = False,
        key: Path | None = None,
        tell: Tell = lambda _: None,
    ) -> SharingResults:
        """Share the codes and write what comes of it: the codes to `out`, and beside them what is known of how they
        were drawn (.json) and a page for the hospital (.html).

        The same call gives the same codes again and costs nothing; `again` draws anew, at the full price. `key` is for
        the hospital alone: which number is whom. StudyPending where a person must agree first: call it again then.
        """
        names = _name_files(Path(out))
        policy = _read_policy(self)
        tell("reading the codes")
        patients = _read_patients(self)
        plan = self._plan(policy, patients, read_balance(policy, self.ledger_path))
        plan.follow(names["plan"])
        sharing, codes = plan.sharing, plan.recorded
        site = Site(plan.site, patients, policy, ledger=self.ledger_path)
        try:
            tell(f"sharing the codes of {len(codes):,} patients")
            shared = _ask(self, sharing, site, again)
            card = sharing.card_
            assert card is not None
            numbered = tuple(site.name_patients(card.study))
            balance = site.ledger.balance()
        finally:
            site.ledger.close()
        tell("measuring what attacks find and what is lost")
        recorded = _put_in_order(codes, numbered)
        report = _measure(sharing, recorded, shared)
        occasion = SharingOccasion(
            site=site.name,
            card=card.to_dict(),
            balance=balance,
            plan=plan.digest,
            source=plan.source,
            auxiliary=plan.auxiliary,
            shared=len(shared),
            codes=len(shared.codes),
            cut=len(recorded.codes) - len(shared.codes),
            file=names["codes"].name,
            affordable=None
            if (left := find_left(balance)) is None
            else find_affordable(left, balance.currency),
        )
        written = {name: names[name] for name in ("codes", "draw", "page")}
        if key is not None:
            written["key"] = key
        _write_all(written, shared, numbered, report, occasion, _describe_draw(sharing, card, report))
        return SharingResults(sharing, shared, numbered, card, report, written)

    def count(self, out: str | Path, epsilon: Any) -> CodeCounts:
        """Release noisy counts of codes, and of pairs with the sensitive ones, at this epsilon: to `out` (.json).

        They pass the same gate, and are charged once: the same call gives the same counts again. They answer questions
        about frequencies better than a copy at that price, and as `auxiliary` they teach which codes to hide, free.
        """
        target = Path(out)
        if target.suffix != ".json" or not target.absolute().parent.is_dir():
            raise StudyError(f"{out}: counts are written to a .json file in a folder that is there")
        sharing = CodeSharing(**self.parameters)
        known = describe_taxonomy(sharing.taxonomy)
        asked = CodeCounts(
            epsilon=epsilon,
            pairs_with=sharing.sensitive,
            taxonomy=known["taxonomy"],
            digits=known["digits"],
            query=sharing.query,
        )
        patients = _read_patients(self)
        assert isinstance(patients.codes, Sequences)
        with _naming(self.codes):
            sharing.number(patients.codes)
        site = Site(_find_name(self), patients, _read_policy(self), ledger=self.ledger_path)
        about = msgspec.json.encode([asked.get_params(), site.name, self.purpose], order="sorted")
        journal = Path(f"{self.ledger_path}.{hashlib.sha256(about).hexdigest()[:12]}.counts")

        def say_what_fits() -> str:
            balance = site.ledger.balance()
            left = find_left(balance)
            most = 0.0 if left is None else float(find_affordable(left, balance.currency))
            return (
                f"these counts cost epsilon = {float(asked.pure_price):g}, and epsilon = {most:g} would fit; or give "
                "the hospital a larger budget (concilium ledger budget)"
            )

        try:
            with _open_house(self, site, journal, say_what_fits) as house:
                counts: CodeCounts = asked.fit(house)
        finally:
            site.ledger.close()
        counts.save(target)
        return counts

    @property
    def ledger_path(self) -> Path:
        return Path(f"{self.codes}.ledger" if self.ledger is None else self.ledger)


@dataclass(frozen=True)
class SharingResults:
    """What was shared and what the hospital may know of it; `names` are the patients' ids by their numbers."""

    sharing: CodeSharing
    shared: Sequences
    names: tuple[Any, ...]
    card: Card
    report: SharingReport
    files: Mapping[str, Path]


def _ask(study: SharingStudy, sharing: CodeSharing, site: Site, again: bool) -> Sequences:
    """The codes of a site, by a house whose journal lies beside the ledger: the same study is the same draw.

    Another draw has a journal of its own. The one before is deleted when the other is on disk, and not earlier: a draw
    that is refused, or waits for a person, leaves what was paid for as it is.
    """
    draws = _Draws(study, sharing.propose(), site.name)
    number = draws.latest + again
    with _open_house(
        study, site, draws.locate(number), lambda: say_what_fits(sharing, site.ledger.balance())
    ) as house:
        shared = sharing.share(house)[site.name]
    draws.settle(number)
    return shared


@contextmanager
def _open_house(
    study: SharingStudy, site: Site, journal: Path, say_what_fits: Callable[[], str]
) -> Iterator[House]:
    """A house that asks this site; an error says how to go on, or what could be paid for."""
    identity = Path(f"{study.ledger_path}.house") if study.house is None else Path(study.house)
    try:
        yield House(
            [site],
            journal=journal,
            identity=identity,
            purpose=study.purpose,
            days=study.days,
            patience=study.patience,
            on_loss="stop",
            timeout=3600,
        )
    except RunStopped as error:
        raise HouseError(
            f"{error.reason}, and run the same command again: nothing is charged twice"
        ) from None
    except HouseError as error:
        if " would cost " not in str(error):
            raise
        raise HouseError(f"{error}; {say_what_fits()}") from None


class _Draws:
    """The draws of one sharing, numbered from 1; a small file says which is the latest that was finished."""

    def __init__(self, study: SharingStudy, agreed: AgreedSharing, site: str) -> None:
        about = msgspec.json.encode([agreed.get_params(), site, study.purpose], order="sorted")
        self._stem = f"{study.ledger_path}.{hashlib.sha256(about).hexdigest()[:12]}"
        self._pointer = Path(f"{self._stem}.draw")
        try:
            self.latest = int(self._pointer.read_text()) if self._pointer.exists() else 1
        except (OSError, ValueError):
            raise StudyError(
                f"{self._pointer}: cannot be read; it holds the number of the latest draw"
            ) from None

    def locate(self, number: int) -> Path:
        return Path(f"{self._stem}.sharing" if number == 1 else f"{self._stem}.{number}.sharing")

    def settle(self, number: int) -> None:
        """This draw is the latest from now on."""
        if number == self.latest:
            return
        write_whole(self._pointer, f"{number}\n".encode())
        before = self.locate(self.latest)
        for path in (before, *(Path(f"{before}{ending}") for ending in ("-wal", "-shm"))):
            path.unlink(missing_ok=True)


def _read_policy(study: SharingStudy) -> Policy:
    return Policy() if study.policy is None else Policy.read(study.policy)


def _read_patients(study: SharingStudy) -> Patients:
    """The hospital's patients: their codes and, where there is one, their table."""
    ledger = study.ledger
    codes = _read_codes(study.codes, study.columns, None if ledger is None else f"{ledger}.columns")
    if study.records is None:
        if study.parameters.get("query"):
            raise StudyError(
                "a query is about columns of a table: name the table of these patients (records)"
            )
        return Patients(codes=codes)
    table = Records.read(study.records, schema={study.by: "code"})
    return Patients(table=table, codes=codes.with_patients(table.values(study.by)), by=study.by)


def _read_codes(path: str, columns: Mapping[str, str], folder: str | None = None) -> Sequences:
    """A long table, or the Conditions of a FHIR Bundle; a large table is read into a folder."""
    if path.lower().removesuffix(".gz").endswith((".json", ".ndjson")):
        return Sequences.read_fhir(path)
    try:
        return Sequences.read(path, **columns, columns=folder)
    except RecordsError as error:
        said = str(error)
        for role in ("patient", "time", "code"):
            option = f"--{role} COLUMN ({role} = under [codes] of a study file)"
            said = said.replace(f"{role}=...", option).replace(
                f": {role} names a column", f": {option} names a column"
            )
        if said == str(error):
            raise
        raise RecordsError(said) from None


def _find_name(study: SharingStudy) -> str:
    """What the hospital is called: as it says, or as its ledger has it, or as the file is called."""
    if study.site is not None:
        return study.site
    if study.ledger_path.exists():
        with Ledger.open_readonly(study.ledger_path) as book:
            if book.settings.site is not None:
                return book.settings.site.rsplit(" (", 1)[0]
    return Path(study.codes).name.split(".")[0]


@dataclass(frozen=True)
class _Teachers:
    """Where the hidden codes come from: in words, how many patients taught them, and the digest of their file."""

    source: str
    patients: int = 0
    digest: str = ""


def _fit(study: SharingStudy, patients: Patients) -> tuple[CodeSharing, _Teachers]:
    """The sharing, and what decided on its hidden codes. UnknownCode names what is no code of the patients: here, where
    the hospital reads it, and not in a refusal."""
    codes = patients.codes
    assert isinstance(codes, Sequences)
    sharing = CodeSharing(**study.parameters)
    if study.auxiliary is None:
        source = NAMED if sharing.hidden is not None else PUBLIC_LIST
        sharing, teachers = sharing.fit(), _Teachers(source)
    else:
        named = sharing.hidden is not None
        if _holds_counts(study.auxiliary):
            sharing = sharing.fit(CodeCounts.load(study.auxiliary))
            digest = hashlib.sha256(Path(study.auxiliary).read_bytes()).hexdigest()
            teachers = _Teachers(NAMED if named else COUNTED, 0, digest)
        else:
            others = _read_others(study.auxiliary, study.columns, codes)
            with _naming(study.auxiliary):
                sharing = sharing.fit(others)
            teachers = _Teachers(NAMED if named else TAUGHT, len(others), others.digest)
    with _naming(study.codes):
        sharing.number(codes)
    if study.wishes is not None:
        _check_wishes(study.wishes, sharing)
    return sharing, teachers


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """Say in which file codes stand that are none of the classification."""
    try:
        yield
    except UnknownCode as error:
        raise UnknownCode(f"{file}: {error}", error.unknown) from None


def _check_wishes(path: str, sharing: CodeSharing) -> None:
    """StudyError unless whatever patients want hidden is hidden, for everyone. It says so to the hospital alone, and
    changes nothing: what is shared does not depend on any wish."""
    table = Records.read(path, schema={"patient": "code", "hide": "code"})
    if "hide" not in table.names:
        raise RecordsError(f"{path}: there is no column 'hide', which names what a patient wants hidden")
    texts = {label(value) for value in table.values("hide") if value is not None}
    wanted = {one.strip() for text in texts for one in text.split(";") if one.strip()}
    hidden = set(sharing.protected_)
    known = {text: set(sharing.taxonomy.under(text)) for text in sorted(wanted)}
    if missed := [text for text, codes in known.items() if not codes <= hidden]:
        listed = ", ".join(missed[:10]) + (", ..." if len(missed) > 10 else "")
        raise StudyError(
            f"{path}: patients want codes hidden that are not hidden: {listed}; name them under choices, which hides "
            "them for everyone, or leave these patients out"
        )


def _holds_counts(path: str) -> bool:
    """Whether a file holds noisy counts of codes, and not codes of patients."""
    if not path.lower().endswith(".json"):
        return False
    try:
        with Path(path).open("rb") as file:
            return b"concilium/code-counts" in file.read(200)
    except OSError as error:
        raise RecordsError(f"{path}: cannot be read ({error.strerror})") from None


def _read_others(path: str, columns: Mapping[str, str], codes: Sequences) -> Sequences:
    """Auxiliary patients: those of the file who are not shared."""
    others = _read_codes(path, columns)
    own = {label(one) for one in codes.ids}
    apart: NDArray[np.bool_] = np.array([label(one) not in own for one in others.ids], dtype=bool)
    if not apart.any():
        raise RecordsError(
            f"{path}: all of its patients are among those that are shared; auxiliary patients are others"
        )
    return others.take(apart)


def _put_in_order(codes: Sequences, numbered: tuple[Any, ...]) -> Sequences:
    """What was recorded of those who were shared, in the order of their numbers."""
    row_of = {label(one): row for row, one in enumerate(codes.ids)}
    return codes.take(np.array([row_of[label(one)] for one in numbered], dtype=np.intp))


def _measure(sharing: CodeSharing, recorded: Sequences, shared: Sequences) -> SharingReport:
    """The report on what was shared, beside what was recorded of the same patients."""
    some = np.arange(min(len(shared), MOST_MEASURED))
    epsilons = sorted({sharing.epsilon, *map(Fraction, PAGE_EPSILONS)})
    return report_sharing(sharing, recorded.take(some), epsilons, shared.take(some))


def _describe_draw(sharing: CodeSharing, card: Card, report: SharingReport) -> dict[str, Any]:
    """All that whoever analyses the codes needs: the design, and the probabilities that follow from it."""
    design = sharing.propose().design
    taxonomy, response = open_design(design)
    hidden = (*response.protected, *response.never_shown)
    return {
        "notice": NOT_FOR_CARE,
        "study": card.study,
        "purpose": card.purpose,
        "meaning": card.meaning,
        "design": json.loads(msgspec.json.encode(design)),
        "probabilities": {
            "an unprotected code stays": float(1 - response.replaced),
            "a protected code becomes this one of its block": float(response.inside),
            "any code becomes this other protected one": float(response.elsewhere),
        },
        "blocks": {
            taxonomy.codes[code]: [taxonomy.codes[response.protected[place]] for place in block]
            for code, block in zip(hidden, response.blocks, strict=True)
        },
        "confounded": [list(group) for group in report.confounded],
    }


def _name_files(out: Path) -> dict[str, Path]:
    """The files of a sharing, before anything is charged: the codes, how they were drawn, and the page."""
    ending = next((ending for ending in FORMS if out.name.lower().endswith(ending)), None)
    if ending is None:
        raise StudyError(f"{out}: codes are written to a file whose name ends in {', '.join(FORMS)}")
    if not out.absolute().parent.is_dir():
        raise StudyError(f"{out}: there is no folder {out.absolute().parent}")
    stem = out.name[: -len(ending)]
    beside = {"draw": f"{stem}.json", "page": f"{stem}.html", "plan": f"{stem}.plan.json"}
    return {"codes": out} | {name: out.with_name(file) for name, file in beside.items()}


def _write_all(
    files: Mapping[str, Path],
    shared: Sequences,
    numbered: tuple[Any, ...],
    report: SharingReport,
    occasion: SharingOccasion,
    draw: dict[str, Any],
) -> None:
    """All files of a sharing, each written beside its place first and moved there when all are on disk: what was there
    before stays until then. The copy itself is kept in the journal: the same command writes it again, free."""
    parts = {name: path.with_name(f".part-{path.name}") for name, path in files.items()}
    try:
        shared.write(parts["codes"], notice=NOTICE)
        content = parts["codes"].read_bytes()
        described = {
            "name": files["codes"].name,
            "sha256": hashlib.sha256(content).hexdigest(),
            "design": digest_design(draw["design"]),
        }
        counted = {"patients": len(shared), "entries": len(shared.codes)}
        parts["draw"].write_bytes(encode_json(draw | {"file": described | counted}))
        _write_owned(parts["page"], render_sharing_page(report, occasion).encode())
        if "key" in parts:
            rows = [f"{number},{_quote(label(one))}\n" for number, one in enumerate(numbered, 1)]
            _write_owned(parts["key"], "".join(["number,patient\n", *rows]).encode())
        for name, part in parts.items():
            part.replace(files[name])
    except (OSError, RecordsError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StudyError(
            f"{files['codes']}: the files cannot be written ({reason}); what was there before is as it was, and the "
            "same command writes this copy again, free"
        ) from None
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def _write_owned(path: Path, content: bytes) -> None:
    """A file that tells of patients: nobody else on this machine reads it."""
    with os.fdopen(open_for_owner(path, os.O_TRUNC), "wb") as file:
        file.write(content)


def _write_for_owner(path: Path, content: bytes) -> None:
    """The same, there in full or not at all."""
    part = path.with_name(f".part-{path.name}")
    try:
        _write_owned(part, content)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StudyError(f"{path}: cannot be written ({error.strerror})") from None


def _quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') else text
