"""The parameters of a method, each declared once: an annotated field of the method's class.

`Annotated[int, Parameter("a whole number of at least 1", whole(1), "no branch with fewer patients than this")]` says
what it takes, how it is read, what it means and in which section of a study file it stands. The checks, the study
file's keys, what a journal is bound to, `get_params`, `repr`, docstrings and the tables of docs/studies.md follow.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from concilium.errors import StudyError

Reader = Callable[[Any], Any]
WIDE = 118
MOST_PLACES = 400  # no float has more before its first digit


@dataclass(frozen=True)
class Parameter:
    """What a parameter takes, in words ("must be ..."); how a value is read (ValueError where it is none); what it is
    about; the section of a study file where it stands ("": the one named after the method)."""

    takes: str
    read: Reader
    about: str
    section: str = ""


@dataclass(frozen=True)
class Declared:
    """A parameter of one method: `required` has no default, `optional` may be None."""

    name: str
    parameter: Parameter
    required: bool
    optional: bool
    default: Any

    @property
    def takes(self) -> str:
        return f"{self.parameter.takes}, or None" if self.optional else self.parameter.takes

    def read(self, value: Any) -> Any:
        """The value as it is kept; ValueError where it is none."""
        if value is None and self.optional:
            return None
        return self.parameter.read(unwrap(value))

    @cached_property
    def kept_default(self) -> Any:
        """The default as it is kept."""
        return None if self.required else self.read(self.default)


def declared(method: type) -> dict[str, Declared]:
    """The parameters of a method, in the order of its arguments."""
    hints = get_type_hints(method, include_extras=True)
    in_order = sorted(
        (field for field in fields(method) if field.init), key=lambda field: field.kw_only is True
    )
    return {field.name: _declare(field, hints[field.name]) for field in in_order}


def _declare(field: Any, hint: Any) -> Declared:
    if get_origin(hint) is not Annotated or not isinstance(get_args(hint)[1], Parameter):
        raise TypeError(f"{field.name} must be declared as Annotated[..., Parameter(...)]")
    kind, parameter = get_args(hint)[:2]
    required = field.default is MISSING and field.default_factory is MISSING
    default = None if required else field.default if field.default is not MISSING else field.default_factory()
    return Declared(field.name, parameter, required, type(None) in get_args(kind), default)


class Parametrised:
    """A dataclass whose fields are its parameters; `called` is how sentences name it, `aliases` are other names of
    parameters under its own section of a study file."""

    called: ClassVar[str]
    aliases: ClassVar[Mapping[str, str]] = {}
    _parameters: ClassVar[dict[str, Declared]]

    @classmethod
    def parameters(cls) -> dict[str, Declared]:
        """Its parameters, in the order of its arguments."""
        if "_parameters" not in vars(cls):
            cls._parameters = declared(cls)
        return cls._parameters

    def read_parameters(self) -> None:
        """Read every parameter as it is kept; StudyError for the first that is none."""
        for one in self.parameters().values():
            value = getattr(self, one.name)
            try:
                setattr(self, one.name, one.read(value))
            except ValueError:
                raise self.wrong(one.name, one.takes, value) from None

    def wrong(self, name: str, must: str, value: Any) -> StudyError:
        """What to say of a parameter that is none."""
        return StudyError(f"the {name!r} of {self.called} must be {must}; got {value!r}")


def describe(method: type) -> str:
    """The parameters as the lines of a docstring."""
    listed = declared(method).values()
    width = max(len(one.name) for one in listed) + 2
    return "\n".join(
        textwrap.fill(
            one.parameter.about,
            WIDE,
            initial_indent=f"    {one.name.ljust(width)}",
            subsequent_indent=" " * (4 + width),
            break_on_hyphens=False,
        )
        for one in listed
    )


def unwrap(value: Any) -> Any:
    """A plain value for a scalar of NumPy."""
    return value.item() if hasattr(value, "item") and not isinstance(value, str | bytes) else value


MOST_COUNTED = 10**9
"""The largest number of patients, or of what is counted among them, that a parameter may name."""


def whole(least: int, most: int) -> Reader:
    """Whole numbers between these. Both bounds are needed: a hospital reads parameters that a house wrote, and none may
    make it compute, or hold, without end."""

    def read(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError
        return value

    return read


def whole_number(least: int, most: int, about: str) -> Parameter:
    """A parameter that takes whole numbers between these."""
    return Parameter(f"a whole number from {least} to {most}", whole(least, most), about)


def number(fits: Callable[[float], bool]) -> Reader:
    """Numbers that fit."""

    def read(value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not fits(value):
            raise ValueError
        return float(value)

    return read


def share(value: Any) -> Fraction:
    """A number from 0 to 1 as it is written: 0.025 is 25 in a thousand, exactly."""
    if not isinstance(value, str | int | float | Fraction):
        raise ValueError
    written = str(value)
    try:
        # An exponent is looked at before it is written out: '1e-999999999' would fill the memory.
        if "/" not in written and abs(Decimal(written).adjusted()) > MOST_PLACES:
            raise ValueError
        exact = Fraction(written)
    except (ValueError, ZeroDivisionError, InvalidOperation):
        raise ValueError from None
    if not 0 <= exact <= 1:
        raise ValueError
    return exact


def choice(*options: str) -> Reader:
    """One of these."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in options:
            raise ValueError
        return value

    return read


def one_of(*options: str, about: str) -> Parameter:
    """A parameter that takes one of these."""
    *first, last = map(repr, options)
    return Parameter(f"{', '.join(first)} or {last}", choice(*options), about)


def number_between(least: float, most: float, about: str) -> Parameter:
    """A parameter that takes a number between these, and neither of them."""
    return Parameter(
        f"a number between {least:g} and {most:g}", number(lambda value: least < value < most), about
    )


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def name(value: Any) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def names(value: Any) -> list[str]:
    """A list of names."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError
    return [name(one) for one in value]


def lists_by_column(value: Any) -> dict[str, list[Any]]:
    """A list of values for each of some columns."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or any(isinstance(listed, str) for listed in value.values()):
        raise ValueError
    try:
        return {name(column): [unwrap(one) for one in listed] for column, listed in value.items()}
    except TypeError:
        raise ValueError from None
