"""ICD-10-CM as a tree, with its titles: from simple-icd-10-cm, which takes two seconds to load, once in a process."""

from __future__ import annotations

import re
import warnings
from functools import cache

from concilium.codes.code_tree import ROOT
from concilium.errors import MissingExtra

_RANGE = re.compile(r"(?P<title>.*) \((?P<range>[0-9A-Z]{3}-[0-9A-Z]{3})\)")


@cache
def read_icd10_tree() -> tuple[dict[str, str], dict[str, str]]:
    """The parent of each node of ICD-10-CM, and the titles; chapters and blocks are called by their ranges."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of how the package reads its own files
            import simple_icd_10_cm as icd
    except ModuleNotFoundError:
        raise MissingExtra("codes", "the ICD-10-CM taxonomy (simple-icd-10-cm)") from None
    parent_of: dict[str, str] = {}
    titles: dict[str, str] = {}
    name_of: dict[tuple[str, bool], str] = {}  # a block of one category is called like the category
    for code in icd.get_all_codes():
        as_block = "." not in code and (code, True) not in name_of and icd.is_chapter_or_block(code)
        parent = icd.get_parent(code, prioritize_blocks=as_block)
        title = icd.get_description(code, prioritize_blocks=as_block)
        name = _name_block(code, title) if as_block else code
        name_of[code, as_block] = name
        inside_block = (parent, True) in name_of and (
            parent == code or not icd.is_category_or_subcategory(parent)
        )
        parent_of[name] = ROOT if not parent else name_of[parent, inside_block]
        titles[name] = title if not as_block else _RANGE.sub(r"\g<title>", title)
    above = set(parent_of.values())
    for name in [name for name in parent_of if "-" in name and name not in above]:
        del parent_of[name]  # an umbrella of blocks, which the package lists without what is under it
    return parent_of, titles


def _name_block(code: str, title: str) -> str:
    """The range of a chapter, which its title ends with, or of a block, of which some have one category only."""
    match = _RANGE.fullmatch(title)
    if code.isdigit() and match:
        return match["range"]
    return code if "-" in code else f"{code}-{code}"
