"""Print hashes.txt: a pin with the hashes of its files for every package that a hospital's processes need.

Asks the package index that pip is configured for. Takes files for CPython 3.11 to 3.13 on Linux, macOS and Windows, and
the source where a package has no such file. Leaves out torch (extra `experts`), of which each machine has its own
build, and what only tests and benchmarks need.
"""

from __future__ import annotations

import importlib.metadata as metadata
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

ROOT = Path(__file__).parents[1]
EXTRAS = frozenset({"cds", "codes", "excel", "fhir", "flare", "hl7", "postgres", "sqlserver", "units", "web"})
INTERPRETERS = {"cp311", "cp312", "cp313", "py3", "py2.py3"}
PLATFORMS = re.compile(r"any|manylinux\w+_(?:x86_64|aarch64)|macosx\w+_(?:x86_64|arm64|universal2)|win_amd64")


def read_pins(text: str) -> dict[str, str]:
    """Versions by name, of lines such as `name==version`."""
    found = re.findall(r"^([\w.-]+)==([^\s\\]+)", text, flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def read_project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def find_needs() -> set[str]:
    """The distributions that a hospital's processes need, by what pyproject.toml and those installed here say."""
    project = read_project()["project"]
    optional = project["optional-dependencies"]
    left = [
        (text, "")
        for text in [*project["dependencies"], *(one for extra in EXTRAS for one in optional[extra])]
    ]
    needs: set[tuple[str, str]] = set()
    while left:
        text, extra = left.pop()
        need = Requirement(text)
        if need.marker is not None and not need.marker.evaluate({"extra": extra}):
            continue
        for inner in ("", *need.extras):
            one = (canonicalize_name(need.name), inner)
            if one not in needs:
                needs.add(one)
                left += [(text, inner) for text in metadata.requires(one[0]) or ()]
    return {name for name, _ in needs}


def find_hashes(page: str, version: str) -> list[str]:
    """The hashes of the files of a version that a page of the index lists."""
    wheels, sources = set(), set()
    for name, digest in re.findall(r"/([^/\"#]+)#sha256=([0-9a-f]{64})", page):
        try:
            if name.endswith(".whl"):
                _, found, _, tags = parse_wheel_filename(name)
                fits = any(
                    (tag.interpreter in INTERPRETERS or tag.abi == "abi3")
                    and PLATFORMS.fullmatch(tag.platform)
                    for tag in tags
                    if tag.abi != "cp313t"
                )
                wheels |= {digest} if str(found) == version and fits else set()
            else:
                _, found = parse_sdist_filename(name)
                sources |= {digest} if str(found) == version else set()
        except ValueError:
            continue  # a file of a kind that is no longer used
    return sorted(wheels or sources)


def main() -> None:
    from pip._internal.models.index import PyPI
    from pip._internal.network.session import PipSession

    session, index = PipSession(), os.environ.get("PIP_INDEX_URL", PyPI.simple_url).rstrip("/")
    pins = read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    print("# Made by `make hashes`. The packages of a hospital's processes, and what builds this one.")
    for name in sorted(find_needs() | find_build_needs()):
        page = session.get(f"{index}/{name}/")
        page.raise_for_status()
        hashes = find_hashes(page.text, pins[name])
        if not hashes:
            raise SystemExit(f"{name}=={pins[name]}: the index has no file of this version")
        print(f"{name}=={pins[name]}", *(f"--hash=sha256:{digest}" for digest in hashes), sep=" \\\n    ")


def find_build_needs() -> set[str]:
    """What builds this package, with what that needs: all of it is pinned, though not installed here."""
    names = {canonicalize_name(Requirement(one).name) for one in read_project()["build-system"]["requires"]}
    return names | {"packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers"}


if __name__ == "__main__":
    main()
