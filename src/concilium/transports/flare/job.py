"""A study as a FLARE job: four JSON files, and no code.

`render_job` is the one definition of a job. Whoever submits writes its files; the house accepts these files byte for
byte (submitted_job.py); a hospital writes its own copy of what concerns it and ignores what is sent (deployed_job.py).
FLARE evaluates configurations (variables of the environment, includes), so its two are constant: the study is in a
file of ours beside them, which FLARE does not read. It goes to the house alone, with the files that it names
(attached_files.py). Hospitals learn what is asked by the proposal, which the house signs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from concilium.transports.flare.hardening import HOUSE_CLASS, SITE_CLASS

OUTCOME = "outcome.json"
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


class SubmittedStudy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A study as it travels: its text, the one method of it that this job learns, and the files that it names, packed.
    The house knows it again by its `ticket`; one that is `resumed` it must know already."""

    name: str
    study: str
    method: str
    ticket: str
    sites: tuple[str, ...]
    files: dict[str, str] = {}
    resumed: bool = False


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
        META: render(meta),
        HOUSE_CONFIG: render(house),
        HOUSE_STUDY: render(msgspec.to_builtins(study)),
        SITE_CONFIG: render_site_config(),
    }


def render_site_config() -> bytes:
    """What a hospital's process of a job builds: the one class, without arguments."""
    return render(
        {
            "format_version": 2,
            "executors": [{"tasks": ["concilium"], "executor": {"path": SITE_CLASS, "args": {}}}],
            "components": [],
        }
    )


def render(document: Mapping[str, Any]) -> bytes:
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
    )
    for place, content in render_job(study).items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
