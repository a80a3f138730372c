"""Imports point one way, the public list is what the package exposes, and starting up loads nothing heavy."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import concilium as cc
from concilium import registry

SOURCE = Path(cc.__file__).parent

LISTED = [*registry.METHODS.values(), *registry.SHARINGS.values()]
METHODS = {place.split(".")[1] for place in LISTED} - {"consultations"}

# A layer may import from itself and from those before it.
LAYERS = [
    {"errors", "registry", "parameters", "compiling"},
    {"records", "privacy"},
    {"ledger"},
    {"policy"},
    {"protocol"},
    {"transports", "models"},
    METHODS,
    {"consultations"},  # which answers by naive Bayes of trees/
    {"evaluation", "consult"},
    {"study"},
    {"transports.flare"},
    {"console", "cli", "sklearn"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


@functools.cache
def read_nodes(path):
    """What a file imports, and its classes."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef)]


def imported(path):
    """The parts of concilium that a file imports, with the line."""
    for node in read_nodes(path):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "concilium" and len(parts) > 1 and parts[1] in RANK:
                yield find_layer(parts[1:]), node.lineno


def find_layer(parts):
    """The layer of a module: of the network across machines, which runs studies, one of its own."""
    return "transports.flare" if list(parts[:2]) == ["transports", "flare"] else parts[0].removesuffix(".py")


def test_imports_point_one_way():
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        own = find_layer(path.relative_to(SOURCE).parts)
        if own == "__init__":
            continue
        assert own in RANK, f"{own} has no place in the layers"
        for other, line in imported(path):
            if RANK[other] > RANK[own] or (other != own and {other, own} <= METHODS):
                wrong.append(f"{path.relative_to(SOURCE)}:{line} imports {other}")
    assert not wrong


def test_no_file_hides_what_is_inside():
    hiding = {"utils", "util", "helpers", "helper", "common", "misc", "base", "constants"}
    assert not [path for path in SOURCE.rglob("*.py") if path.stem in hiding]


def test_methods_open_no_socket_and_no_file():
    for method in (*METHODS, "consultations"):
        for path in (SOURCE / method).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            calls = {
                node.func.id
                for node in ast.walk(tree)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            modules = {
                alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
            }
            assert "open" not in calls, path
            assert not modules & {"socket", "http", "urllib", "sqlite3"}, path


def test_the_public_list_is_what_the_package_exposes():
    assert set(cc.__all__) == set(dir(cc))
    for name in cc.__all__:
        assert getattr(cc, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Sites'"):
        _ = cc.Sites


@pytest.mark.parametrize(
    "code",
    [
        "import concilium",
        "from concilium.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass",
    ],
)
def test_starting_up_loads_nothing_heavy(code):
    heavy = [
        "numba",
        "numpy",
        "duckdb",
        "opendp",
        "pandas",
        "lark",
        "cryptography",
        "jinja2",
        "scipy",
        "torch",
    ]
    check = f"\nimport sys; print('LOADED', [m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED []"


METHODS_PAGE = (SOURCE.parents[1] / "docs" / "methods.md").read_text(encoding="utf-8")


def test_references_lead_somewhere():
    """The sections of docs/methods.md that the code cites are there, and so are the files that it names."""
    sections = set(re.findall(r"^#+ (\d+(?:\.\d+)?)[ .]", METHODS_PAGE, flags=re.MULTILINE))
    for path in sorted(SOURCE.rglob("*.py")):
        text = " ".join(path.read_text(encoding="utf-8").split())
        for citation in re.findall(
            r"docs/methods\.md(?:, (?:sections?|parts?) |, )((?:\d+(?:\.\d+)?(?:, | and | to )?)+)", text
        ):
            assert set(re.findall(r"\d+(?:\.\d+)?", citation)) <= sections, f"{path}: {citation}"
        assert not re.search(r"\bMETHODS\.md|\bMETHODS,? section|\bDIDT\b", text), path
    for name in re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", METHODS_PAGE):
        assert (SOURCE / name).exists() or (SOURCE.parents[1] / name).exists(), name


def test_every_class_has_a_name_of_its_own():
    names = [
        node.name
        for path in SOURCE.rglob("*.py")
        for node in read_nodes(path)
        if isinstance(node, ast.ClassDef)
    ]
    assert not {name for name in names if names.count(name) > 1}


def test_nobody_outside_privacy_writes_to_the_ledger_s_tables():
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        if "ledger" in path.relative_to(SOURCE).parts or path.name in ("journal.py", "sources.py"):
            continue  # the house's journal is a file of its own, and a hospital's table is opened read-only
        for node in read_nodes(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if "sqlite3" in names or (isinstance(node, ast.ImportFrom) and node.module == "sqlite3"):
                wrong.append(path)
    assert not wrong
