"""A network as a TOML file, and its kits: certificates of one authority, made by FLARE.

The file says where the house listens, which hospitals dial it, and who may submit studies. Nothing in a kit says who a
hospital is. Whoever makes kits holds the authority, and can let anybody connect. That is all: a hospital's identity,
which signs its answers and which its peers pin, is made at the hospital when its site first starts, and so is the
house's.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from concilium.errors import KitError, StudyError, nearest
from concilium.study.results import write_whole
from concilium.study.sections import fill, read_section
from concilium.transports.flare.hardening import harden
from concilium.transports.flare.kit import read_json, read_toml

Name = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$",
        description="a name of letters, digits, - and _, such as north",
    ),
]
Host = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$",
        description="the name by which hospitals reach the house, such as house.example.org",
    ),
]
Port = Annotated[int, Meta(ge=1, le=65535, description="a whole number from 1 to 65535")]
People = Annotated[tuple[str, ...], Meta(min_length=1, description="a list of e-mail addresses")]
RESERVED = ("house", "server", "authority", "all")


class FlareNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """[project]: its name, and the people who may submit studies."""

    name: Name
    people: People


class _HouseAddress(msgspec.Struct, frozen=True, kw_only=True):
    """[house]: where it listens."""

    host: Host
    port: Port = 8402


class _Member(msgspec.Struct, frozen=True, kw_only=True):
    """[[site]]: a hospital."""

    name: Name


class FlareProject(msgspec.Struct, frozen=True, kw_only=True):
    """A checked project file."""

    path: Path
    network: FlareNetwork
    house: _HouseAddress
    sites: tuple[str, ...]

    @classmethod
    def read(cls, path: str | Path) -> FlareProject:
        """The project in a TOML file; KitError says which key is wrong and how."""
        path = Path(path)
        document = read_toml(path, ("project", "house", "site"))
        tables = document.get("site", [])
        if not isinstance(tables, list) or not tables:
            raise KitError(f"{path}: name every hospital by a [[site]] of its own, with two brackets")
        try:
            project = cls(
                path=path,
                network=read_section(path, "project", document, FlareNetwork),
                house=read_section(path, "house", document, _HouseAddress),
                sites=tuple(
                    fill(path, f"[[site]] number {n}", table, _Member).name
                    for n, table in enumerate(tables, start=1)
                ),
            )
        except StudyError as error:
            raise KitError(str(error)) from None
        project._check()
        return project

    def _check(self) -> None:
        for person in self.network.people:
            if not re.fullmatch(r"[A-Za-z0-9_.+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", person):
                raise KitError(f"{self.path}: [project] people: {person!r} is not an e-mail address")
        seen: set[str] = set()
        for name in (*self.sites, *self.network.people):
            is_taken = name.lower() in RESERVED or name.lower().endswith("-state")  # where ledgers lie
            if is_taken or name == self.house.host:
                raise KitError(
                    f"{self.path}: {name!r} is the name of something else; call the site otherwise"
                )
            if name.lower() in seen:
                raise KitError(f"{self.path}: two are named {name!r}; give each a name of its own")
            seen.add(name.lower())


AUTHORITY = "authority"
LEFT_OUT = (
    "start.sh",
    "sub_start.sh",
    "stop_fl.sh",
    "fl_admin.sh",
    "readme.txt",
    "system_info.ipynb",
)

SITE_FILE = """\
# What this hospital brings to studies. Paths are relative to this file.
[site]
records = "records.csv"     # csv, csv.gz, parquet, DuckDB, or a database address (with table = "...")
# patient = "id"            # the column of patients' ids, each once; or, where a row is a patient:
# one_row_per_patient = true
policy = "policy.toml"      # what may leave: docs/policies.md
ledger = "../../{name}-state/{name}.ledger"    # what has left, and beside it the identity: keep both, outside the kit

# How columns are read, where that is not left to a guess: [schema] of docs/studies.md.
# [schema]
# age = "number"
# ward = "code"
"""

POLICY_FILE = """\
# What this hospital lets out: docs/policies.md. Fingerprints are told by telephone or on paper, never by this network.
[houses]
# house = "ABCD-EFGH-IJKL-MNOP-QRST-UVWX-YZ23-4567"

[peers]
# south = "ABCD-EFGH-IJKL-MNOP-QRST-UVWX-YZ23-4567"

# Fingerprints that are never believed again, wherever else they stand: docs/keys.md.
# [revoked]
# "house until May" = "ABCD-EFGH-IJKL-MNOP-QRST-UVWX-YZ23-4567"

# Without [agree], every study waits for a person: concilium studies {name}-state/{name}.ledger
"""

HOUSE_FILE = """\
# The house of this network. Paths are relative to this file.
[house]
folder = "../../house-state"    # its identity, what it remembers of sites, and studies under way: outside the kit

# Fingerprints of the sites' identities, where the house shall believe no others.
# [sites]
# north = "ABCD-EFGH-IJKL-MNOP-QRST-UVWX-YZ23-4567"

# Fingerprints that are never believed again: docs/keys.md.
# [revoked]
# "north until May" = "ABCD-EFGH-IJKL-MNOP-QRST-UVWX-YZ23-4567"
"""


def provision(project: FlareProject, out: Path, renew: Iterable[str] = ()) -> dict[str, Path]:
    """Make the kits that are not there yet, and new certificates for those to `renew`; what was made, by name.

    Of a renewed kit the folder `startup` is replaced and nothing else: records, policies, ledgers and identities stay.
    """
    names = {
        project.house.host: "house",
        **{name: name for name in (*project.sites, *project.network.people)},
    }
    new = {name: folder for name, folder in names.items() if not (out / folder).exists()}
    old = {name: folder for name, folder in names.items() if folder in set(renew) - set(new.values())}
    for folder in set(renew) - set(old.values()):
        raise KitError(f"{out}: there is no kit {folder!r} to renew{nearest(folder, names.values())}")
    if not new and not old:
        raise KitError(
            f"{out}: all kits of this project are there; name one by --renew to give it a new certificate"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        out.chmod(0o700)
        _forget_certificates(out / AUTHORITY / project.network.name / "state" / "cert.json", {**new, **old})
        made = _make_kits(project, out / AUTHORITY)
        for name, folder in new.items():
            _finish(made / name, out / folder, folder, project)
        for name, folder in old.items():
            _finish(made / name, made / f"{name} finished", folder, project)
            _replace_startup(out / folder, made / f"{name} finished" / "startup")
        shutil.rmtree(made)
    except OSError as error:
        raise KitError(f"{out}: cannot be written ({error.strerror})") from None
    return {folder: out / folder for folder in (*new.values(), *old.values())}


def _replace_startup(kit: Path, startup: Path) -> None:
    """Put a new folder of certificates in place of that of a kit."""
    before = kit / "startup.old"
    if (kit / "startup").exists():
        shutil.rmtree(before, ignore_errors=True)
        (kit / "startup").rename(before)
    startup.rename(kit / "startup")
    shutil.rmtree(before, ignore_errors=True)


def _forget_certificates(state: Path, names: Iterable[str]) -> None:
    """Have new certificates made for these: FLARE would hand out the old ones again, even when they have expired."""
    if not state.exists():
        return
    known = read_json(state)
    for name in names:
        known.pop(name, None)
    write_whole(state, json.dumps(known).encode())
    state.chmod(0o600)


def _make_kits(project: FlareProject, workspace: Path) -> Path:
    """Have FLARE make all kits, with the authority that is in the workspace (or a new one); where they are."""
    from nvflare.lighter.provision import prepare_builders, prepare_project
    from nvflare.lighter.provisioner import Provisioner

    network = _write_network(project)
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        context = Provisioner(str(workspace.absolute()), prepare_builders(network)).provision(
            prepare_project(network)
        )
    error = context.get("__build_error__")
    if error:
        raise KitError(f"{project.path}: kits could not be made: {told.getvalue().strip()[-500:]}")
    sys.stdout.flush()
    return Path(context["current_prod_dir"])


def _write_network(project: FlareProject) -> dict[str, Any]:
    """The project as FLARE describes it."""
    house = project.house
    participants: list[dict[str, Any]] = [
        {"name": house.host, "type": "server", "org": "house", "fed_learn_port": house.port}
    ]
    participants += [
        {"name": name, "type": "client", "org": name.replace("-", "_")} for name in project.sites
    ]
    participants += [
        {"name": person, "type": "admin", "org": "house", "role": "lead"} for person in project.network.people
    ]
    builders = "nvflare.lighter.impl"
    return {
        "api_version": 3,
        "name": project.network.name,
        "description": f"{project.network.name}: a house and {len(project.sites)} hospitals",
        "participants": participants,
        "builders": [
            {
                "path": f"{builders}.workspace.WorkspaceBuilder",
                "args": {"template_file": ["master_template.yml"]},
            },
            {"path": f"{builders}.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
            {
                "path": f"{builders}.cert.CertBuilder",
                "args": {"root_valid_days": 3650},
            },
            {"path": f"{builders}.signature.SignatureBuilder", "args": {}},
        ],
    }


def _finish(made: Path, kit: Path, name: str, project: FlareProject) -> None:
    """A kit of ours from one of FLARE's: without its scripts, with our rules and the file to fill in."""
    shutil.copytree(made, kit)
    kit.chmod(0o700)
    for path in [*kit.glob("*.txt"), *(kit / "startup" / name for name in LEFT_OUT)]:
        path.unlink(missing_ok=True)
    for key in (kit / "startup").glob("*.key"):
        key.chmod(0o600)
    local = kit / "local"
    for path in [*local.glob("*.sample"), *(local.glob("*.default") if name in project.sites else ())]:
        path.unlink()
    if name in project.sites:
        harden(kit, "site")
        (local / "concilium.toml").write_text(SITE_FILE.format(name=name), encoding="utf-8")
        (local / "policy.toml").write_text(POLICY_FILE.format(name=name), encoding="utf-8")
    elif name == "house":
        for path in local.glob("*.default"):
            path.unlink()
        (local / "concilium.toml").write_text(HOUSE_FILE, encoding="utf-8")
