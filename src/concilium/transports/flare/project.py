"""A network as a TOML file: where the house listens, which hospitals dial it, who may submit studies."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from concilium.errors import KitError, StudyError, nearest
from concilium.study.sections import fill, read_section

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


class HouseAddress(msgspec.Struct, frozen=True, kw_only=True):
    """[house]: where it listens."""

    host: Host
    port: Port = 8402


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """[[site]]: a hospital."""

    name: Name


class FlareProject(msgspec.Struct, frozen=True, kw_only=True):
    """A checked project file."""

    path: Path
    network: FlareNetwork
    house: HouseAddress
    sites: tuple[str, ...]

    @classmethod
    def read(cls, path: str | Path) -> FlareProject:
        """The project in a TOML file; KitError says which key is wrong and how."""
        path = Path(path)
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise KitError(f"{path}: cannot be read ({error.strerror})") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise KitError(f"{path}: is not a TOML file: {error}") from None
        for name in document:
            if name not in ("project", "house", "site"):
                raise KitError(
                    f"{path}: there is no section [{name}]{nearest(name, ('project', 'house', 'site'))}"
                )
        tables = document.get("site", [])
        if not isinstance(tables, list) or not tables:
            raise KitError(f"{path}: name every hospital by a [[site]] of its own, with two brackets")
        try:
            project = cls(
                path=path,
                network=read_section(path, "project", document, FlareNetwork),
                house=read_section(path, "house", document, HouseAddress),
                sites=tuple(
                    fill(path, f"[[site]] number {n}", table, Member).name
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
