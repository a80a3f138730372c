"""How the text of a code is read: one function for each classification, which looks at that text alone.

Blanks around a code and the case of its letters do not count. The dot ends the category; without a dot the category
is the first three characters, of an ICD-9 E code the first four.

ICD-9-CM what is all digits and shorter than a category has lost leading zeros: `42` is 042, `8.45` is 008.45.
Behind a letter no zero is ever lost: `E11.9` is no ICD-9 code. A text of three digits or more without a dot is read
from the left: `389` is the category 389, though it may be 038.9 from a file that lost dots and zeros. Of such a
file one says `zeros="lost"`: then every reading that is a known code counts, and a text with two is refused.
ICD-10-CM as it stands, with or without the dot.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, TypeAlias

Zeros: TypeAlias = Literal["kept", "lost"]
Grammar: TypeAlias = Callable[[str], tuple[str, ...]]
"""From a text to the codes that it may be, in their own form, whether they exist or not."""

_ICD9_DOTTED = re.compile(r"([0-9]{1,3}|V[0-9]{2}|E[0-9]{3})\.([0-9]{0,2})")
_ICD9_PLAIN = re.compile(r"([0-9]{1,3}|V[0-9]{2}|E[0-9]{3})([0-9]{0,2})")
_ICD10 = re.compile(r"([A-Z][0-9A-Z][0-9A-Z])\.?([0-9A-Z]{0,4})")
_ICD9_CERTAIN = re.compile(
    r"[0-9]{3,5}|[0-9]{1,3}\.[0-9]{0,2}|[0-9]{1,2}|E[0-9]{3}\.[0-9]?|V[0-9]{2}\.[0-9]{1,2}"
)


def join_code(category: str, rest: str) -> str:
    """A code as it is written here: a dot after the category."""
    return f"{category}.{rest}" if rest else category


def read_icd9(text: str, zeros: Zeros = "kept") -> tuple[str, ...]:
    bare = text.strip().upper()
    match = _ICD9_DOTTED.fullmatch(bare) or _ICD9_PLAIN.fullmatch(bare)
    if match is None:
        return ()
    category, rest = match.groups()
    readings = [join_code(category.zfill(3), rest)]
    if zeros == "lost" and bare.isdigit() and not bare.startswith("0"):
        for lost in range(1, 5 - len(bare) + 1):
            whole = "0" * lost + bare
            if len(whole) > 3:
                readings.append(join_code(whole[:3], whole[3:]))
    return tuple(dict.fromkeys(readings))


def read_icd10(text: str) -> tuple[str, ...]:
    match = _ICD10.fullmatch(text.strip().upper())
    return (join_code(*match.groups()),) if match else ()


def looks_like_icd10(text: str) -> bool:
    """Whether a text that no ICD-9 code is has the form of an ICD-10 code: a letter, and a digit or two behind it."""
    bare = text.strip().upper()
    return _ICD10.fullmatch(bare) is not None and not bare.isdigit() and any(map(str.isdigit, bare[1:3]))


def looks_like_icd9(text: str) -> bool:
    """Whether a text that no ICD-10 code is has the form of an ICD-9 code."""
    return _ICD9_CERTAIN.fullmatch(text.strip().upper()) is not None
