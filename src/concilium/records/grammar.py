"""What one cell of text stands for, by itself: the one grammar of tables, study files, queries and consultations.

    missing      a text that the table names as missing, blanks around it not counted
    true, false  `true`, `True`, `TRUE`, and the same for false
    a number     as commonly written: `5`, `-5`, `1.0`, `5.`, `.5`, `1e3`; `1`, `1.0` and `1.` are one number
    a moment     a date with a time, written as ISO text; midnight is its date
    text         all else, as it is: also `0389` and `01` (leading zeros), `+5` (a grade), whole numbers of 2**53 and
                 more, and `inf`, which a number would lose or change

So a code's label is that of the value: `true` for TRUE, `1` for 1.0, `0.5` for .5, `1000` for 1e3. A column that is
stated as a number takes more (`read_number`): `+5`, `007` and `inf` are numbers there; true, false and text are not.
Nothing here looks at a second cell: under `private` one patient must not change how another one's cell is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta

from concilium.records.columns import EXACT, Value, label

BLANKS = " \t"
DEFAULT_MISSING = ("", "NA", "NaN", "nan", "NULL", "null")
TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}

BEGINNINGS = BLANKS + "-.0123456789tTfF"
"""With what a text begins that stands for something else than itself, blanks before it among them."""

WHOLE = r"-?(?:0|[1-9][0-9]*)"
NUMBER = r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
INFINITE = r"[iI][nN][fF](?:[iI][nN][iI][tT][yY])?"
LOSING = r"(?:\+|-?0[0-9]).*"
"""A number of a column that is stated as one, of which the number keeps too little to tell the text."""
STATED_NUMBER = rf"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|{INFINITE})"
MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
CLOCK = r"(?:[01][0-9]|2[0-3]):[0-9]{2}(?::[0-9]{2}(?:\.(?:[0-9]{3}|[0-9]{6}))?)?"
PLAIN_MOMENT = rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[ T]{CLOCK})?"
"""A date, or a moment without a zone, that all that read moments read alike."""

is_whole = re.compile(WHOLE).fullmatch
is_number = re.compile(NUMBER).fullmatch
is_moment = re.compile(MOMENT).fullmatch
is_plain_moment = re.compile(PLAIN_MOMENT).fullmatch
is_infinite = re.compile(f"-?{INFINITE}").fullmatch
is_losing = re.compile(LOSING).fullmatch
_is_stated_number = re.compile(STATED_NUMBER).fullmatch


def read_cell(text: str, missing: frozenset[str]) -> Value | None:
    """The value of one cell, None where it is one of these texts, which stand for missing."""
    return None if text.strip(BLANKS) in missing else read_text(text)


def read_text(text: str) -> Value:
    """The value that a text stands for: true, false, a number (whole ones as int), or text."""
    if text[:1] not in BEGINNINGS:
        return text
    bare = text.strip(BLANKS)
    if bare in TRUTH:
        return TRUTH[bare]
    if is_whole(bare):
        whole = int(bare) if len(bare) < 20 else EXACT
        return whole if abs(whole) < EXACT else bare
    if is_number(bare):
        number = float(bare)
        if not math.isfinite(number):
            return bare
        return int(number) if number.is_integer() and abs(number) < EXACT else number
    return tidy_moment(bare) if is_moment(bare) else text


def read_number(text: str) -> float | None:
    """The number of one cell of a column that is stated as a number; None where it is none."""
    bare = text.strip(BLANKS)
    return float(bare) if _is_stated_number(bare) else None


def canonical(value: Value) -> str:
    """The label of a value, or of what its text stands for: `1` for 1, 1.0, '1' and '1.0'."""
    return label(read_text(value) if isinstance(value, str) else value)


def all_labels(values: Iterable[Value]) -> frozenset[str]:
    """What a text in a query or rule may find: a value of just this label, or of what the text stands for."""
    return frozenset(name for value in values for name in (label(value), canonical(value)))


def measure(value: Value) -> float:
    """The number that a value is or is read as where a number is stated, NaN if none."""
    number = read_number(value) if isinstance(value, str) else value
    return math.nan if number is None or isinstance(number, bool) else float(number)


def read_day(value: Value) -> float:
    """The day of a date or moment written as ISO text, counted from the year 1; NaN if it is none."""
    if not isinstance(value, str) or not (is_plain_moment(value) or is_moment(value)):
        return math.nan
    try:
        return float(date.fromisoformat(value[:10]).toordinal())
    except ValueError:
        return math.nan


def measure_or_day(value: Value) -> float:
    """The number of a cell, or its day where it is a date."""
    number = measure(value)
    return read_day(value) if math.isnan(number) else number


def iso_text(moment: date | time | timedelta) -> str:
    """A date or time as ISO text, in UTC where it has a zone; midnight is written as its date.

    So dates agree, whether a source stores them as dates or as moments.
    """
    if not isinstance(moment, datetime):
        return str(moment)
    zoned = moment.tzinfo is not None
    text = (moment.astimezone(UTC) if zoned else moment).isoformat(sep=" ")
    whole, dot, fraction = text.removesuffix("+00:00").partition(".")
    fraction = fraction.rstrip("0")
    text = whole + dot + fraction if fraction else whole
    return f"{text}+00:00" if zoned else text.removesuffix(" 00:00:00")


def tidy_moment(text: str) -> str:
    """A moment as a file or a database writes it, as `iso_text` does; text that is none stays as it is."""
    if not is_moment(text):
        return text
    try:
        return iso_text(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return text
