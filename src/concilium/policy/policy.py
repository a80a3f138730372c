"""What one hospital lets out: a small TOML file that its data steward owns.

    [release]
    kinds = ["tree.schema", "tree.crosstables"]   # questions answered at all; a kind not listed is refused
    modes = ["exact", "masked", "private"]
    minimum_patients = 4          # fewer patients matching the study's query: no answer
    branch_floor = 0              # fewer patients in a branch: counted as none (the tree is then inexact)
    numbers_per_patient = 2       # cap on exact numbers ever released, against patients (absent: no cap)
    withhold = ["religion"]       # attributes that do not exist for anyone outside
    identifiers = ["mrn"]         # columns that identify patients, besides those found by themselves
    allow = ["admitted"]          # columns that look like identifiers and are not

    colluders = 1                 # masked, private: how many other sites may side with the house
    reveal_on_dropout = false     # masked, private: the others may go on without us when we are lost

    [peers]                       # the hospitals we take part with, by the fingerprints they told us
    mercy = "ABCD-EFGH-..."

    [budget]
    currency = "rho"              # or "epsilon"
    total = "1/2"                 # exact: a fraction, an integer or a decimal in quotes
    delta = "1e-6"

These rules are a guard, not a guarantee: only `private` releases come with a bound.
"""

from __future__ import annotations

import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Literal

import msgspec

from concilium.errors import PolicyError, nearest

ALL_KINDS = (
    "mask.hello",
    "mask.join",
    "mask.meet",
    "mask.open",
    "mask.end",
    "tree.schema",
    "tree.crosstables",
)
ALL_MODES = ("exact", "masked", "private")


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The hospital's privacy budget: exact numbers, one currency."""

    total: str | int
    currency: Literal["rho", "epsilon"] = "rho"
    delta: str = "1/1000000"

    @property
    def amount(self) -> Fraction:
        return Fraction(self.total)

    @property
    def exact_delta(self) -> Fraction:
        return Fraction(self.delta)


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What this hospital lets out. `Policy()` is the default; `Policy.read` takes a file."""

    kinds: tuple[str, ...] = ALL_KINDS
    modes: tuple[str, ...] = ALL_MODES
    minimum_patients: int = 4
    branch_floor: int = 0
    numbers_per_patient: float | None = None
    withhold: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    colluders: int = 1
    reveal_on_dropout: bool = False
    peers: dict[str, str] = {}
    budget: Budget | None = None

    def __post_init__(self) -> None:
        for listed, known, what in ((self.kinds, ALL_KINDS, "kind"), (self.modes, ALL_MODES, "mode")):
            for name in listed:
                if name not in known:
                    raise PolicyError(f"there is no {what} {name!r} to allow{nearest(name, known)}")
        for name in ("minimum_patients", "branch_floor", "colluders"):
            if getattr(self, name) < 0:
                raise PolicyError(f"{name} must be 0 or more; got {getattr(self, name)}")
        if self.budget is not None:
            for what in ("total", "delta"):
                value = getattr(self.budget, what)
                try:
                    fine = Fraction(value) > 0
                except (ValueError, ZeroDivisionError):
                    fine = False
                if not fine:
                    raise PolicyError(
                        f'the budget\'s {what} must be a positive number such as "1/2"; got {value!r}'
                    )

    @classmethod
    def read(cls, path: str | Path) -> Policy:
        """The policy in a TOML file; PolicyError names the file and what is wrong in it."""
        try:
            document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise PolicyError(f"{path}: cannot be read ({error.strerror})") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise PolicyError(f"{path}: is not TOML: {error}") from None
        sections = {"release", "peers", "budget"}
        for name in document:
            if name not in sections:
                raise PolicyError(f"{path}: there is no section [{name}]{nearest(name, sections)}")
        release = dict(document.get("release", {}))
        for name in release:
            if name in sections or name not in cls.__struct_fields__:
                raise PolicyError(
                    f"{path}: [release] has no key {name!r}{nearest(name, cls.__struct_fields__)}"
                )
        release |= {name: document[name] for name in ("peers", "budget") if name in document}
        try:
            return msgspec.convert(release, cls)
        except (msgspec.ValidationError, PolicyError) as error:
            raise PolicyError(f"{path}: {error}") from None
