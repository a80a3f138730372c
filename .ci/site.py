"""Lay out the pages of the site in a folder: those of docs/, README.md as the first one, and a reference made of
docstrings; and look whether a built site fetches anything from elsewhere.

    python .ci/site.py build/docs/pages            then: mkdocs build --strict
    python .ci/site.py --look build/site
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GROUPS = {
    "methods": (
        "Methods",
        "DecisionTree VotingTrees RuleFit ShapeModel NaiveBayes Consultation RuleDiscovery Experts Describe Regression "
        "SurvivalCurve CoxRegression CodeSharing",
    ),
    "records": (
        "Patients and tables",
        "Records Series Sequences RuleSets Patients Dictionary TableMap Query Taxonomy SharedCodes",
    ),
    "hospitals": ("Hospitals and houses", "Site Region House Policy Budget Ledger"),
    "studies": ("Studies and models", "Study load adapt"),
    "modules": ("Modules", "errors policy privacy stl sklearn"),
}
ROOTS = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
OF_EVERY_METHOD = [
    "fit",
    "classes_",
    "attributes_",
    "predict",
    "predict_proba",
    "explain",
    "score",
    "evaluate",
    "importances",
    "feature_importances_",
    "text",
    "table",
    "list_terms",
    "plot",
    "pictures",
    "card",
    "save",
    "get_params",
    "set_params",
    "plan",
]
INTERNAL = {"converse", "plan", "read_parameters", "from_body", "of", "parameters_in"}
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(https?:|//)[^>]*>"
    r"|<link\b[^>]*rel=[\"']?(?:stylesheet|preconnect|preload|icon)[^>]*href=[\"']?(https?:|//)[^>]*>"
)


def lay_out(folder: Path) -> None:
    """All pages; a link to a file that is no page becomes its name."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    for name, page in ROOTS.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, its in ROOTS.items():
            text = text.replace(f"]({other})", f"]({its})")
        (folder / page).write_text(text, encoding="utf-8")
    for page in folder.rglob("*.md"):
        text = page.read_text(encoding="utf-8").replace("../README.md", "../index.md")
        text = re.sub(r"\[([^\]]+)\]\(((?:\.\./)+(?!index\.md)[^)#]+)[^)]*\)", keep_page(page, folder), text)
        page.write_text(text, encoding="utf-8")
    (folder / "reference").mkdir()
    for name, (title, listed) in GROUPS.items():
        shared = describe_shared() if name == "methods" else []
        lines = [f"# {title}", "", *shared, *(line for one in listed.split() for line in describe(one))]
        (folder / "reference" / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def keep_page(page: Path, folder: Path) -> Any:
    def keep(link: re.Match[str]) -> str:
        found = (page.parent / link[2]).resolve()
        return link[0] if found.is_relative_to(folder.resolve()) and found.exists() else link[1]

    return keep


def describe(name: str) -> list[str]:
    """A public name as Markdown: how it is called, what it says of itself, its parameters and its own members."""
    import concilium as cc
    import concilium.sklearn

    found = concilium.sklearn if name == "sklearn" else getattr(cc, name)
    if inspect.ismodule(found):
        here = {
            one: value
            for one, value in vars(found).items()
            if not one.startswith("_") and getattr(value, "__module__", "") == found.__name__
        }
        listed = {one: getattr(found, one) for one in getattr(found, "__all__", here)}
        own = {one: value for one, value in listed.items() if callable(value) and _says(value)}
        head = [f"## {found.__name__}", "", *write(found)]
        return head + [
            line
            for one in sorted(own)
            for line in describe_one(f"{name}.{one}", own[one], deep=name == "sklearn")
        ]
    return describe_one(name, found, deep=True)


def describe_one(name: str, found: Any, *, deep: bool) -> list[str]:
    level = "###" if "." in name else "##"
    has_own = hasattr(found, "read_parameters") and "." not in name
    parameters = found.parameters if has_own else None
    required = [] if parameters is None else [one.name for one in parameters().values() if one.required]
    called = sign(found) if parameters is None else f"({', '.join([*required, '...'])})"
    lines = [f"{level} {name}", "", f"```python\n{name}{called}\n```", ""]
    if parameters is not None:
        lines += [*write(found, first=True), "| parameter | takes | about |", "|---|---|---|"]
        for one in parameters().values():
            text = f"{one.parameter.about}{'' if one.required else f' (default `{one.default!r}`)'}"
            cells = (f"`{one.name}`", one.takes, text)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    else:
        lines += write(found)
    if not inspect.isclass(found) or not deep:
        return lines
    own = {one for one in vars(found) if not one.startswith("_")} - INTERNAL - set(OF_EVERY_METHOD)
    return lines + describe_members(found, sorted(own))


def describe_shared() -> list[str]:
    """What all methods have, once."""
    from concilium.models.method import Method

    return ["## Every method", "", "Fitted, it is the model.", "", *describe_members(Method, OF_EVERY_METHOD)]


def describe_members(cls: Any, names: Iterable[str]) -> list[str]:
    lines = []
    for one in names:
        value = inspect.getattr_static(cls, one)
        if _says(value):
            inner = value.fget if isinstance(value, property) else inspect.unwrap(getattr(cls, one))
            called = one if isinstance(value, property) else f"{one}{sign(inner)}"
            lines += [f"**`{called}`**", "", *write(inner)]
    return lines


def _says(value: Any) -> bool:
    value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    return (callable(value) or isinstance(value, property)) and bool(getattr(value, "__doc__", None))


def sign(found: Any) -> str:
    """How it is called: names and defaults, without types."""
    try:
        given = inspect.signature(found).parameters.values()
    except (TypeError, ValueError, NameError):
        return ""
    parts = [
        re.sub(r" object at 0x\w+", "", str(one.replace(annotation=inspect.Parameter.empty))) for one in given
    ]
    return f"({', '.join(part for part in parts if part not in ('self', 'cls'))})"


def write(found: Any, *, first: bool = False) -> list[str]:
    """A docstring as Markdown: what is set in columns or indented stays as it is."""
    lines = []
    for part in (inspect.getdoc(found) or "").split("\n\n")[: 1 if first else None]:
        set_apart = re.search(r"^(\s{4}|\S+ {2,}\S|[├└│])", part, flags=re.MULTILINE)
        lines += ["```text", part.strip("\n"), "```", ""] if set_apart else [escape(part), ""]
    return lines


def escape(text: str) -> str:
    """Prose in which nothing but code in backticks is markup."""
    pieces = re.split(r"(`[^`]+`)", text)
    return "".join(
        one if number % 2 else re.sub(r"([*_<\[\]])", r"\\\1", one) for number, one in enumerate(pieces)
    )


def look(folder: Path) -> None:
    """End where a page fetches from elsewhere."""
    pages = list(folder.rglob("*.html"))
    if not pages:
        raise SystemExit(f"{folder}: there are no pages")
    for page in pages:
        if found := FETCHED.search(page.read_text(encoding="utf-8")):
            raise SystemExit(f"{page} fetches from elsewhere: {found[0]}")
    for sheet in folder.rglob("*.css"):
        if found := re.search(
            r"url\([\"']?(https?:|//)[^)]*|@import[^;]*", sheet.read_text(encoding="utf-8")
        ):
            raise SystemExit(f"{sheet} fetches from elsewhere: {found[0]}")
    print(f"{folder}: {len(pages)} pages; nothing is fetched from elsewhere")


if __name__ == "__main__":
    if sys.argv[1] == "--look":
        look(Path(sys.argv[2]))
    else:
        lay_out(Path(sys.argv[1]))
