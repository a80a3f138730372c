"""The named functions of `substitute x.a =~ /function()/` (docs/methods.md, 3.3): a closed list, no code from outside.

They make values coarser or stand something else in for them. What a function cannot read it does not pass on:
it answers None, and the attribute is then eliminated. `hash` and `shift_dates` rest on the site's secret: who
lacks it cannot recompute them, who has it can (they are pseudonyms, not anonymity). `_zip3` follows 45 CFR
164.514(b)(2), the "safe harbor" method.
"""

from __future__ import annotations

import hmac
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta

from concilium.errors import nearest
from concilium.records.columns import Value, label
from concilium.records.expression import Mistake

# Three-digit areas of at most 20,000 people (2000 census), which safe harbor turns into 000.
SMALL_AREAS = frozenset(
    {"036", "059", "063", "102", "203", "556", "692", "790", "821"}
    | {"823", "830", "831", "878", "879", "884", "890", "893"}
)
LARGEST_SHIFT = 365

# Nothing but a time may follow a date: whatever else stood there would be passed on by `shift_dates`.
_TIME = r"[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
_ISO = re.compile(rf"([0-9]{{4}})(?:-([0-9]{{2}})(?:-([0-9]{{2}})(?:{_TIME})?)?)?")
# As HL7 v2 writes it: hours and minutes, seconds, parts of them, and the zone.
_CLOCK = r"[0-9]{4}(?:[0-9]{2}(?:\.[0-9]{1,4})?)?(?:[+-][0-9]{4})?"
_COMPACT = re.compile(rf"([0-9]{{4}})(0[1-9]|1[0-2])([0-2][0-9]|3[01])(?:{_CLOCK})?")
_LOCAL = re.compile(r"[0-9]{1,2}([/.-])[0-9]{1,2}\1([0-9]{4})")
_ZIP = re.compile(r"[0-9]{5}(?:-?[0-9]{4})?")
_ICD = re.compile(
    r"(?P<category>E[0-9]{3}(?=\.)|[A-Z][0-9][0-9A-Z]|[0-9]{3})(?P<dot>\.?)(?P<detail>[0-9A-Z]{0,4})",
    re.IGNORECASE,
)

Change = Callable[[Value], Value | None]


@dataclass(frozen=True)
class Secret:
    """A site's secret key; it never shows itself."""

    key: bytes

    def __post_init__(self) -> None:
        if len(self.key) < 16:
            raise ValueError("a site's secret has at least 16 bytes")

    def __repr__(self) -> str:
        return "Secret(...)"

    def digest(self, purpose: str, text: str) -> bytes:
        return hmac.digest(self.key, f"{purpose}\0{text}".encode("utf-8", "surrogatepass"), "sha256")


def _year(value: Value) -> Value | None:
    """The year of a date."""
    text = label(value)
    match = _ISO.fullmatch(text) or _COMPACT.fullmatch(text)
    if match:
        return match[1]
    local = _LOCAL.fullmatch(text)
    return local[2] if local else None


def _decade(value: Value) -> Value | None:
    """The ten years of a date, a year or an age: 1950s, 40s."""
    number = _number(_year(value) or value)
    return None if number is None or number < 0 else f"{math.floor(number / 10) * 10}s"


def _first3(value: Value) -> Value | None:
    """The first three characters."""
    return label(value)[:3]


def _zip3(value: Value) -> Value | None:
    """The first three digits of a ZIP code; 000 where fewer than 20,000 people live."""
    text = f"{value:05d}" if isinstance(value, int) and not isinstance(value, bool) else label(value)
    if not _ZIP.fullmatch(text):
        return None
    return "000" if text[:3] in SMALL_AREAS else text[:3]


def _round_to(step: float) -> Change:
    """A function that gives the nearest multiple of a step, halves upwards."""

    def round_value(value: Value) -> Value | None:
        number = _number(value)
        if number is None or not math.isfinite(number / step):
            return None
        multiple = math.floor(number / step + 0.5) * step
        # A step of 0.1 would otherwise leave the dust of binary fractions on every number.
        multiple = float(f"{multiple:.12g}")
        if not math.isfinite(multiple):
            return None
        return int(multiple) if multiple.is_integer() else multiple

    return round_value


def _generalise(value: Value) -> Value | None:
    """The parent of an ICD-9 or ICD-10 code; a category has none."""
    match = _ICD.fullmatch(label(value))
    if not match or not match["detail"]:
        return None
    detail = match["detail"][:-1]
    return match["category"] + (match["dot"] + detail if detail else "")


def _keep_characters(count: int) -> Change:
    """A function that gives the ancestor of an ICD code that has so many characters, dots not counted."""

    def ancestor(value: Value) -> Value | None:
        code: Value | None = value
        while code is not None and len(label(code).replace(".", "")) > count:
            code = _generalise(code)
        # A code that was short enough to begin with has not been made coarser, but is as coarse as asked.
        return code if code is not None and _ICD.fullmatch(label(code)) else None

    return ancestor


def _pseudonym(secret: Secret) -> Change:
    """A function that gives the same 32 hexadecimal digits for the same value, at this site only."""
    return lambda value: secret.digest("hash", label(value)).hex()[:32]


def _shift_days(secret: Secret, patient: str, largest: int) -> int:
    """By how many days this patient's dates move: from -largest to largest, never 0."""
    offset = int.from_bytes(secret.digest("shift", patient)[:8], "big") % (2 * largest)
    return offset - largest if offset < largest else offset - largest + 1


def _shift_date(value: Value, days: int) -> Value | None:
    """A date moved by some days; a time of day stays as it is. A year or month alone cannot be moved."""
    text = label(value)
    match = _ISO.fullmatch(text) or _COMPACT.fullmatch(text)
    if not match or not match[3]:
        return None
    try:
        day = date(int(match[1]), int(match[2]), int(match[3])) + timedelta(days=days)
    except (ValueError, OverflowError):
        return None
    iso = day.isoformat()
    return (iso.replace("-", "") if match.re is _COMPACT else iso) + text[match.end(3) :]


@dataclass(frozen=True)
class Call:
    """A function with its arguments, as a policy names it."""

    name: str
    arguments: tuple[str | float, ...] = ()

    @property
    def needs_secret(self) -> bool:
        return self.name in {"hash", "shift_dates"}

    @property
    def per_patient(self) -> bool:
        """Whether the outcome depends on whose value it is, not only on the value."""
        return self.name == "shift_dates"

    @property
    def patient(self) -> str | None:
        """The attribute that tells patients apart, if the policy names one."""
        return next((argument for argument in self.arguments if isinstance(argument, str)), None)

    @property
    def patient_attributes(self) -> tuple[str, ...]:
        """Where to look for whose value it is; the first that is there counts."""
        return ("patient", "id") if self.patient is None else (self.patient,)

    def change(self, secret: Secret | None, patient: str | None = None) -> Change:
        """The function from value to value; None stands for "do not pass this on"."""
        number = next((argument for argument in self.arguments if not isinstance(argument, str)), None)
        match self.name:
            case "round":
                return _round_to(1.0 if number is None else number)
            case "generalise":
                return _generalise if number is None else _keep_characters(int(number))
            case "hash" if secret is not None:
                return _pseudonym(secret)
            case "shift_dates" if secret is not None and patient is not None:
                days = _shift_days(secret, patient, LARGEST_SHIFT if number is None else int(number))
                return lambda value: _shift_date(value, days)
            case "hash" | "shift_dates":
                return lambda value: None
            case _:
                return _PLAIN[self.name]


_PLAIN: dict[str, Change] = {"year": _year, "decade": _decade, "first3": _first3, "zip3": _zip3}
_NO_ARGUMENTS = frozenset({*_PLAIN, "hash"})
FUNCTIONS = ("year", "decade", "first3", "zip3", "hash", "shift_dates", "round", "generalise")


def read_call(text: str, place: int = 0) -> Call:
    """`name(arguments)` as a Call; a Mistake at its place where there is no such function or argument."""
    name, _, rest = text.strip().partition("(")
    name, inner = name.strip(), rest.rstrip().removesuffix(")")
    if name not in FUNCTIONS:
        functions = ", ".join(FUNCTIONS)
        raise Mistake(f"there is no function {name}{nearest(name, FUNCTIONS)} (there are {functions})", place)
    arguments = tuple(_argument(item, place) for item in inner.split(",")) if inner.strip() else ()
    if name in _NO_ARGUMENTS and arguments:
        raise Mistake(f"{name}() takes nothing between its parentheses", place)
    names = [argument for argument in arguments if isinstance(argument, str)]
    numbers = [argument for argument in arguments if not isinstance(argument, str)]
    if len(numbers) > 1 or len(names) > (name == "shift_dates"):
        raise Mistake(_USAGE[name], place)
    for number in numbers:
        whole_from, up_to = {"round": (0.0, 1e9), "generalise": (3, 7), "shift_dates": (1, 36_500)}[name]
        fits = whole_from <= number <= up_to and number > 0
        if not fits or (name != "round" and not number.is_integer()):
            raise Mistake(_USAGE[name], place)
    return Call(name, arguments)


_USAGE = {
    "round": "round(step) takes one number above 0, such as round(5)",
    "generalise": "generalise(length) takes nothing, or how many characters to keep, from 3 to 7",
    "shift_dates": "shift_dates(attribute, days) takes the attribute that tells patients apart, and at most how "
    "many whole days to move; both can be left out",
}


def _argument(text: str, place: int) -> str | float:
    bare = text.strip()
    number = _number(bare)
    if number is not None:
        return number
    name = bare[1:-1] if re.fullmatch(r"`[^`]+`", bare) else bare
    if not name or (name == bare and not re.fullmatch(r"[^\W\d][\w.]*", name)):
        raise Mistake("between the parentheses stand a number or an attribute's name", place)
    return name


def _number(value: Value) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
