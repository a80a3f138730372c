"""A standing consultation: a study file under which questions are asked month after month.

Hospitals agree to its terms. The first question of a month (UTC) has them release that month's counts, through their
gates and for the price that the terms say. Every further question of the month is answered from the file of that
release, which stays at the house: nothing is asked of a hospital, and nothing is charged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from concilium.consult.fhir_values import add_codes, list_inputs
from concilium.consultations.answers import ConsultationAnswer, read_request
from concilium.consultations.consultation import Consultation
from concilium.consultations.passes import RequesterPass
from concilium.errors import HouseError, ModelError, StudyError, StudyPending
from concilium.models.model_file import load
from concilium.protocol.terms import today
from concilium.records.dictionary import draft_entries
from concilium.records.fhir_patient import OLDEST, is_bundle, read_bundle

if TYPE_CHECKING:
    from concilium.records.dictionary import DictionaryEntry
    from concilium.study.study import Study

MODEL = "model.json"
DRAFT = """# A consultation: concilium ask {file} ATTRIBUTE=VALUE ... (docs/asking.md says what else it may state)
[study]
method = "consultation"
target = {outcome}
"""
# Gets the release of a dated study into a folder, and takes up work in progress where there is some.
Fetch = Callable[["Study", Path, bool], object]


def ask(
    path: str | Path,
    patient: Mapping[str, Any],
    *,
    requester: str | RequesterPass = "",
    tell: Callable[[str], None] | None = None,
    fetch: Fetch | None = None,
    oldest: int = OLDEST,
    mapping: Path | None = None,
) -> ConsultationAnswer:
    """Answer for a patient by the file of a release, or by the study file of a standing consultation.

    Whatever is wrong with the patient or the requester is said before a hospital is asked anything. `fetch` gets a
    month's release from elsewhere, such as the house of a network; without it, the hospitals of the study file release
    it here. `mapping`: a dictionary that says where in a FHIR Bundle attributes are.
    """
    path = Path(path)
    if path.suffix == ".json":
        return _answer(_open(path), patient, requester, oldest, mapping)
    from concilium.study.study import Study

    study = Study.read(path, elsewhere=fetch is not None)
    agreed = _take_consultation(study, study.open_method())
    agreed.check_request(requester)
    month = today().isoformat()[:7]
    folder = _find_release(path, month)
    if not (folder / MODEL).exists():
        _check_patient(study, agreed, patient, oldest, mapping)
        if tell is not None:
            tell(f"releasing the counts of {month}")
        dated = date_study(study, month)
        interrupted = folder.with_name(f".{folder.name}.partial").is_dir()
        try:
            if fetch is not None:
                fetch(dated, folder, interrupted)
            else:
                dated.run(folder, resume=interrupted, on_progress=tell, warn=tell)
        except StudyPending as pending:
            raise HouseError(
                f"{', '.join(pending.sites)} did not agree to this consultation by their policies, so a person decides "
                f"there (concilium studies agree LEDGER {pending.study[:12]}): ask again when they have; nothing is "
                "charged until then"
            ) from None
        except HouseError as error:
            if "its key is deleted" not in str(error):
                raise
            raise HouseError(
                f"the counts of {month} were released before, and hospitals do that once a month: {folder} is not "
                "there any more, so put its folder back, or ask again next month"
            ) from None
    released = _open(folder / MODEL)
    _check_unchanged(path, agreed, released)
    return _answer(released, patient, requester, oldest, mapping)


def _answer(
    released: Consultation,
    patient: Mapping[str, Any],
    requester: str | RequesterPass,
    oldest: int,
    mapping: Path | None,
) -> ConsultationAnswer:
    entries = None
    if mapping is not None:
        if not is_bundle(patient):
            raise ModelError("--map is for a FHIR Bundle, and this patient is none: leave it out")
        entries = add_codes(released.card.dictionary, mapping, list_inputs(released))
    return released.ask(patient, requester=requester, oldest=oldest, entries=entries)


def _check_unchanged(path: Path, agreed: Consultation, released: Consultation) -> None:
    """StudyError where the study file says something else than what a month's counts were released for: an answer would
    be about another outcome or other cells."""
    now = {**agreed.get_params(), "month": released.month}
    for name, then in released.get_params().items():
        if now[name] != then:
            raise StudyError(
                f"{path}: {name!r} was changed after the counts of {released.month} were released (it was "
                f"{_say(then)}): undo that, or save it as another file, which is a consultation of its own"
            )


def draft_study(tables: Sequence[Path], outcome: str) -> tuple[Path, bool]:
    """Write the study file of a consultation of these tables, a hospital each, and nothing else stated, in this folder;
    and whether it was not there. StudyError where another file is in its place."""
    path = Path(f"{re.sub(r'[^0-9A-Za-z_-]+', '-', outcome)}.toml")
    text = DRAFT.format(file=path, outcome=json.dumps(outcome))
    for table in tables:
        text += f"\n[[site]]\nname = {json.dumps(table.stem)}\nrecords = {json.dumps(str(table))}\n"
    if not path.exists():
        path.write_text(text, encoding="utf-8")
        return path, True
    if path.read_text(encoding="utf-8") != text:
        raise StudyError(
            f"{path}: is there, and says something else than these tables and this outcome: ask it, concilium ask "
            f"{path} ATTRIBUTE=VALUE, or move it away"
        )
    return path, False


def _say(value: object) -> str:
    return "not stated" if value in (None, "", (), [], {}) else f"{value!r}"


def date_study(study: Study, month: str) -> Study:
    """The study of one month's release."""
    return msgspec.structs.replace(study, parameters={**study.parameters, "month": month})


def _find_release(path: Path, month: str) -> Path:
    """Where the release of a month lies: beside the study file."""
    return path.with_name(f"{path.stem}.asked") / month


def _open(path: Path) -> Consultation:
    method = load(path)
    if not isinstance(method, Consultation):
        raise StudyError(f"{path}: is {method.called}: ask it by `concilium consult`")
    return method


def _take_consultation(study: Study, method: Any) -> Consultation:
    if not isinstance(method, Consultation):
        raise StudyError(
            f'{study.path}: questions are asked under method = "consultation"; this study is {method.called}, so run '
            "it and ask its model by `concilium consult`"
        )
    if method.month:
        raise StudyError(f"{study.path}: [consultation] month is filled in when it is asked: take it out")
    return method


def _check_patient(
    study: Study, agreed: Consultation, patient: Mapping[str, Any], oldest: int, mapping: Path | None
) -> None:
    """ModelError where the patient could not be asked about, as far as the study file tells."""
    grid, named = _list_named(study, agreed)
    entries: Mapping[str, DictionaryEntry] = study.dictionary.entries
    if is_bundle(patient):
        mapped = entries if mapping is None else add_codes(entries, mapping, named)
        patient = read_bundle(patient, named, mapped, today(), oldest).values
    entries = {**draft_entries(study.values), **entries}
    known = named or {*patient} - {study.target}
    read_request(patient, grid, known, entries, study.query, target=study.target, numbers=study.bins)


def _list_named(study: Study, agreed: Consultation) -> tuple[list[str], list[str]]:
    """The attributes of the grid, and all that the study file names."""
    named = sorted(
        {*study.bins, *study.values, *(study.attributes or ()), *study.dictionary} - {study.target}
    )
    return agreed.find_grid(named), named


def list_attributes(path: str | Path, *, elsewhere: bool = False) -> dict[str, DictionaryEntry | None]:
    """What a form asks of a patient, the grid first, each with its entry in the dictionary."""
    path = Path(path)
    release = _find_release(path, today().isoformat()[:7]) / MODEL
    if path.suffix == ".json" or release.exists():
        released = _open(release if release.exists() else path)
        grid, named = [one.name for one in released.body.by], released.attributes_
        entries = released.entries
    else:
        from concilium.study.study import Study

        study = Study.read(path, elsewhere=elsewhere)
        grid, named = _list_named(study, _take_consultation(study, study.open_method()))
        entries = {**draft_entries(study.values), **study.dictionary.entries}
        if not named:
            raise StudyError(
                f"{path}: names no attributes that a form could ask for before the first release: give them as "
                "attribute=value, such as age=63"
            )
    return {name: entries.get(name) for name in (*grid, *(one for one in named if one not in grid))}
