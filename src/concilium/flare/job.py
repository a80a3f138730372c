"""A study as a FLARE job: three JSON files, and no code.

The study's text goes to the house alone, with files that it names (attached_files.py); hospitals get the name of the
one class that they let a job name, and learn what is asked by the proposal, which the house signs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from concilium.flare.hardening import HOUSE_CLASS, SITE_CLASS

OUTCOME = "outcome.json"
PROGRESS = "concilium.progress"
RESULTS = "concilium"


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a job ended: what `problem` and `sites` say is for whoever submitted it."""

    ended: Literal["finished", "pending", "stopped", "failed"]
    problem: str = ""
    study: str = ""
    sites: tuple[str, ...] = ()
    seconds: float = 0.0


def write_job(
    folder: Path,
    name: str,
    text: str,
    method: str,
    ticket: str,
    sites: Sequence[str],
    files: Mapping[str, str] | None = None,
) -> Path:
    """The job of a study in a folder that is made for it: of one method, which is among those that the text names;
    `files` are those that it names, packed."""
    house = {
        "format_version": 2,
        "workflows": [
            {
                "id": "house",
                "path": HOUSE_CLASS,
                "args": {
                    "study": text,
                    "method": method,
                    "ticket": ticket,
                    "sites": list(sites),
                    "files": dict(files or {}),
                },
            }
        ],
        "components": [],
    }
    site = {
        "format_version": 2,
        "executors": [{"tasks": ["concilium"], "executor": {"path": SITE_CLASS, "args": {}}}],
        "components": [],
    }
    meta = {
        "name": name,
        "resource_spec": {},
        "min_clients": 1,
        "mandatory_clients": [],
        "deploy_map": {"house": ["server"], "site": list(sites)},
    }
    write(folder / "meta.json", meta)
    write(folder / "house" / "config" / "config_fed_server.json", house)
    write(folder / "site" / "config" / "config_fed_client.json", site)
    return folder


def write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
