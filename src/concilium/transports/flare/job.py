"""A study as a FLARE job: four JSON files, and no code; and the house's check of a submitted one.

`render_job` is the one definition of a job. Whoever submits writes its files; the house accepts these files byte for
byte (`check_submitted_job`); a hospital writes its own copy of what concerns it and ignores what is sent (guards.py).
FLARE evaluates configurations (variables of the environment, includes), so its two are constant: the study is in a
file of ours beside them, which FLARE does not read. It goes to the house alone, with the files that it names
(attached_files.py). Hospitals learn what is asked by the proposal, which the house signs.

The check *protects:* the house and the hospitals, *from:* whoever may submit studies. A job can carry no code, no
configuration of FLARE, no other file, no link and no path that leads elsewhere, whatever a loader of FLARE would make
of one. *Cost:* none; `concilium flare submit` sends just these files. *Assumes:* it runs before FLARE reads the archive
(process.py). Archives are read as FLARE writes them, uncompressed, so that none is larger than what was sent.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from concilium.errors import HouseError
from concilium.study.attached_files import ENDINGS, MOST_BYTES, is_plain
from concilium.transports.flare.hardening import HOUSE_CLASS, SITE_CLASS

OUTCOME = "outcome.json"
MEASURED_TABLE, CARD = "measured.json", "card.json"
PROGRESS = "concilium.progress"
RESULTS = "concilium"
STUDY = "study.json"

META = "meta.json"
HOUSE_CONFIG = "house/config/config_fed_server.json"
HOUSE_STUDY = f"house/config/{STUDY}"
SITE_CONFIG = "site/config/config_fed_client.json"


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a job ended: what `problem` and `sites` say is for whoever submitted it."""

    ended: Literal["finished", "pending", "stopped", "failed"]
    problem: str = ""
    study: str = ""
    sites: tuple[str, ...] = ()
    seconds: float = 0.0


class MeasuredModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that hospitals measure: its file, the first day of the patients, and the subgroups, as a person wrote
    them. The file is JSON; the house and every hospital read it as any model, and run no code of it."""

    file: str
    since: str = ""
    by: tuple[str, ...] = ()


class SubmittedStudy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A study as it travels: its text, the one method of it that this job learns, and the files that it names, packed.
    The house knows it again by its `ticket`; one that is `resumed` it must know already. With `measured`, a model is
    measured and none is learned. Of a consultation, the `month` to release, and the pass that is `shown`."""

    name: str
    study: str
    method: str
    ticket: str
    sites: tuple[str, ...]
    files: dict[str, str] = {}
    resumed: bool = False
    measured: MeasuredModel | None = None
    month: str = ""
    shown: str = ""


def render_job(study: SubmittedStudy) -> dict[str, bytes]:
    """The files of a study's job, by their paths in its folder."""
    meta = {
        "name": study.name,
        "resource_spec": {},
        "min_clients": 1,
        "mandatory_clients": [],
        "deploy_map": {"house": ["server"], "site": list(study.sites)},
    }
    house = {
        "format_version": 2,
        "workflows": [{"id": "house", "path": HOUSE_CLASS, "args": {}}],
        "components": [],
    }
    return {
        META: _render(meta),
        HOUSE_CONFIG: _render(house),
        HOUSE_STUDY: _render(msgspec.to_builtins(study)),
        SITE_CONFIG: render_site_config(),
    }


def render_site_config() -> bytes:
    """What a hospital's process of a job builds: the one class, without arguments."""
    return _render(
        {
            "format_version": 2,
            "executors": [{"tasks": ["concilium"], "executor": {"path": SITE_CLASS, "args": {}}}],
            "components": [],
        }
    )


def _render(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1).encode("ascii")


def write_job(
    folder: Path,
    name: str,
    text: str,
    method: str,
    ticket: str,
    sites: Sequence[str],
    files: Mapping[str, str] | None = None,
    resumed: bool = False,
    measured: MeasuredModel | None = None,
    month: str = "",
    shown: str = "",
) -> Path:
    """Write the job of a study into a folder that is made for it."""
    study = SubmittedStudy(
        name=name,
        study=text,
        method=method,
        ticket=ticket,
        sites=tuple(sites),
        files=dict(files or {}),
        resumed=resumed,
        measured=measured,
        month=month,
        shown=shown,
    )
    for place, content in render_job(study).items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


# Attached files in base64, and the study's text.
MOST_JOB_BYTES = MOST_BYTES * 4 // 3 + (1 << 22)
MOST_SIGNATURE_BYTES = 1 << 16
# The folders of a job, each of which FLARE signs when it is submitted, and by which two files it does.
FOLDERS = ("", "house/", "house/config/", "site/", "site/config/")
SIGNATURES, CERTIFICATE = ".__nvfl_sig.json", ".__nvfl_submitter.crt"

FOLDER_NAME = re.compile("[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
SITE_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
TICKET = re.compile("[0-9a-f]{32}")
MONTH = re.compile("[0-9]{4}-[0-9]{2}")
PEM = re.compile(rb"(-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----\s*){1,8}")

NOT_OURS = (
    "this job is not one that `concilium flare submit` writes ({}): nothing of it is run; submit the study file with "
    "that command, of the same version as the house's"
)


def check_submitted_job(folder: str, archive: str | Path) -> SubmittedStudy:
    """The study that a submitted archive holds; HouseError where it holds anything else."""
    try:
        if not FOLDER_NAME.fullmatch(folder):
            raise HouseError("the name of its folder")
        return _check_files(_read_archive(folder, Path(archive)))
    except HouseError as error:
        raise HouseError(NOT_OURS.format(error)) from None
    except (
        Exception
    ) as error:  # an archive made to confuse its reader may fail anywhere, and is refused all the same
        raise HouseError(NOT_OURS.format(type(error).__name__)) from None


def _check_entries(folder: str, entries: Sequence[zipfile.ZipInfo], size: int) -> None:
    """HouseError unless an archive of this size holds plain files of a job's folders, as they are, each once."""
    names = [entry.filename for entry in entries]
    if len(set(names)) != len(names):
        raise HouseError("two files of one name")
    if not all(name.startswith(f"{folder}/") for name in names):
        raise HouseError("a file outside of its folder")
    for entry in entries:
        kind = entry.external_attr >> 28
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise HouseError("a compressed file")
        if kind not in (0, 0o04 if entry.is_dir() else 0o10):
            raise HouseError("a link or a special file")
    if sum(entry.file_size for entry in entries) > size:
        raise HouseError("files that overlap")
    if unknown := {name for name in names if name.endswith("/")} - {f"{folder}/{one}" for one in FOLDERS}:
        raise HouseError(f"{len(unknown)} other folders")
    if any(entry.is_dir() and entry.file_size for entry in entries):
        raise HouseError("a folder with a content")


def _read_archive(folder: str, archive: Path) -> dict[str, bytes]:
    """The files of a job's archive, by their paths in its folder."""
    _check_directory(archive)
    with zipfile.ZipFile(archive) as job:
        entries = job.infolist()
        _check_entries(folder, entries, archive.stat().st_size)
        return {
            entry.filename.removeprefix(f"{folder}/"): job.read(entry)
            for entry in entries
            if not entry.is_dir()
        }


def _check_directory(archive: Path) -> None:
    """HouseError where an archive, or its list of files, is larger than a job's; read before anything is built."""
    size = archive.stat().st_size
    if size > MOST_JOB_BYTES:
        raise HouseError(f"more than {MOST_JOB_BYTES >> 20} MiB")
    with archive.open("rb") as file:
        file.seek(max(0, size - 42))
        tail = file.read()
    if len(tail) < 22 or tail[-22:-18] != b"PK\x05\x06" or tail[:4] == b"PK\x06\x07":
        raise HouseError("an archive of another kind")
    (length,) = struct.unpack("<L", tail[-10:-6])
    if length > 1 << 13:
        raise HouseError("too many files")


def _check_files(files: dict[str, bytes]) -> SubmittedStudy:
    """The study of a job's files, which are those of its job and their signatures."""
    for folder in FOLDERS:
        _check_signature(files.pop(folder + SIGNATURES, None), files.pop(folder + CERTIFICATE, None))
    try:
        study = msgspec.json.decode(files[HOUSE_STUDY], type=SubmittedStudy)
    except KeyError:
        raise HouseError(f"no {PurePosixPath(HOUSE_STUDY).name}") from None
    except msgspec.DecodeError:
        raise HouseError("a study of another form") from None
    _check_names(study)
    expected = render_job(study)
    for name in sorted({*files, *expected}, key=lambda name: (name != META, name)):
        if files.get(name) != expected.get(name):
            known = name if name in expected else "a file of another name"
            raise HouseError(f"{known} differs")
    return study


def _check_signature(signatures: bytes | None, certificate: bytes | None) -> None:
    """HouseError unless these are what FLARE signs a folder with, or nothing; whether it holds FLARE checks."""
    if signatures is None and certificate is None:
        return
    if signatures is None or certificate is None or len(signatures) + len(certificate) > MOST_SIGNATURE_BYTES:
        raise HouseError("a signature of another form")
    msgspec.json.decode(signatures, type=dict[str, str])
    if not PEM.fullmatch(certificate):
        raise HouseError("a certificate of another form")


def _check_names(study: SubmittedStudy) -> None:
    """HouseError where a name could mean more than itself to whatever reads it next."""
    if not (study.name.isprintable() and 0 < len(study.name) <= 200):
        raise HouseError("the name of its study")
    if not TICKET.fullmatch(study.ticket):
        raise HouseError("its ticket")
    if study.month and not MONTH.fullmatch(study.month):
        raise HouseError("its month")
    if not study.sites or len(set(study.sites)) != len(study.sites):
        raise HouseError("its list of sites")
    if not all(SITE_NAME.fullmatch(site) and site != "server" for site in study.sites):
        raise HouseError("the name of a site")
    if not all(is_plain(name, ENDINGS) for name in study.files):
        raise HouseError("the name of an attached file")
