"""What one hospital lets out: a small TOML file that its data steward owns.

    [release]
    kinds = ["tree.schema", "tree.crosstables"]   # questions answered at all; a kind not listed is refused
    modes = ["exact", "masked", "private"]
    minimum_patients = 4          # fewer patients matching the study's query: no answer
    differencing = true           # nor where fewer tell a question's patients from an earlier question's
    refusals_per_month = 20       # after so many refusals for too few patients: none is answered until next month
    branch_floor = 0              # fewer patients in a branch: counted as none (the tree is then inexact)
    minimum_cell = 0              # exact: tables with a smaller count in them are left out (inexact)
    dominance = 0.95              # exact: so are tables where one cell has more of its row or column (absent: never)
    numbers_per_patient = 2       # cap on exact numbers ever released, against patients (absent: no cap)
    withhold = ["religion"]       # attributes that do not exist for anyone outside
    identifiers = ["mrn"]         # columns that identify patients, besides those found by themselves
    allow = ["admitted"]          # columns that look like identifiers and are not

    colluders = 1                 # masked, private: how many other sites may side with the house
    other_circles = false         # masked: open sums with other circles of hospitals, which can then be subtracted

    [constraints]                 # what is done to records and messages before they leave (constraint graphs)
    text = "graph E { node x + eliminate x.dob; }"        # or file = "rules.graph", beside this file
    secret = "north.secret"       # a file of our own with 16 bytes or more, for hash and shift_dates

    [peers]                       # the hospitals we take part with, by the fingerprints they told us
    mercy = "ABCD-EFGH-..."

    [budget]
    currency = "rho"              # or "epsilon"
    total = "1/2"                 # exact: a fraction, an integer or a decimal in quotes
    delta = "1e-6"

These rules are a guard, not a guarantee: only `private` releases come with a bound. What each does and does not
stop is in docs/policies.md.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import tomllib
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from concilium.closed_lists import KINDS, RELEASES
from concilium.errors import LedgerError, PolicyError, nearest
from concilium.policy.functions import Secret
from concilium.privacy.accounting import exact_delta, exact_positive

if TYPE_CHECKING:
    from concilium.policy.actions import ConstraintGraphs


MOST_REFUSALS = 20


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The hospital's privacy budget: exact numbers, one currency."""

    total: str | int
    currency: Literal["rho", "epsilon"] = "rho"
    delta: str = "1/1000000"

    @property
    def amount(self) -> Fraction:
        return exact_positive(self.total, "budget's total")

    @property
    def exact_delta(self) -> Fraction:
        return exact_delta(self.delta)


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What this hospital lets out. `Policy()` is the default; `Policy.read` takes a file."""

    kinds: tuple[str, ...] = tuple(KINDS)
    modes: tuple[str, ...] = tuple(RELEASES)
    minimum_patients: int = 4
    differencing: bool = True
    refusals_per_month: int = MOST_REFUSALS
    branch_floor: int = 0
    minimum_cell: int = 0
    dominance: float | None = None
    numbers_per_patient: float | None = None
    withhold: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    colluders: int = 1
    other_circles: bool = False
    constraints: str = ""
    secret: Secret | None = None
    peers: dict[str, str] = {}
    budget: Budget | None = None

    def __post_init__(self) -> None:
        for names, options, what in ((self.kinds, KINDS, "kind"), (self.modes, RELEASES, "mode")):
            for name in names:
                if name not in options:
                    raise PolicyError(f"there is no {what} {name!r} to allow{nearest(name, options)}")
        for name in ("minimum_patients", "branch_floor", "minimum_cell", "colluders"):
            if getattr(self, name) < 0:
                raise PolicyError(f"{name} must be 0 or more; got {getattr(self, name)}")
        if self.refusals_per_month < 1:
            raise PolicyError(f"refusals_per_month must be 1 or more; got {self.refusals_per_month}")
        if self.dominance is not None and not 0 < self.dominance <= 1:
            raise PolicyError(f"dominance must be a share above 0 and at most 1; got {self.dominance}")
        if self.budget is not None:
            try:
                exact_positive(self.budget.total, "budget's total")
                exact_delta(self.budget.delta)
            except LedgerError as error:
                raise PolicyError(str(error)) from None

        if self.constraints.strip():
            self.graphs()

    def graphs(self, secret: bytes | None = None) -> ConstraintGraphs | None:
        """The constraint graphs, if there are any; `secret` stands in where the policy names none of its own."""
        if not self.constraints.strip():
            return None
        return _read_graphs(self.constraints, secret if self.secret is None else self.secret.key)

    def check(self, attributes: Iterable[str]) -> None:
        """Refuse a policy about attributes that the site's table does not have: a misspelt one would get out."""
        names = frozenset(attributes)
        for key in ("withhold", "identifiers", "allow"):
            for name in getattr(self, key):
                if name not in names:
                    raise PolicyError(
                        f"the policy's {key} names {name!r}, an attribute this site does not have"
                        f"{nearest(name, names)}"
                    )
        if (graphs := self.graphs()) is not None:
            graphs.check(names)

    @classmethod
    def read(cls, path: str | Path) -> Policy:
        """The policy in a TOML file; PolicyError names the file and what is wrong in it."""
        path = Path(path)
        try:
            document = tomllib.loads(_read_text(path))
        except tomllib.TOMLDecodeError as error:
            raise PolicyError(f"{path}: is not TOML: {error}") from None
        except RecursionError:
            raise PolicyError(f"{path}: is nested too deeply to be a policy") from None
        for name in document:
            if name not in SECTIONS:
                raise PolicyError(f"{path}: there is no section [{name}]{nearest(name, SECTIONS)}")
            if not isinstance(document[name], dict):
                raise PolicyError(f"{path}: {name} must be a section, written [{name}]")
        keys = [field for field in cls.__struct_fields__ if field not in (*SECTIONS, "secret")]
        settings: dict[str, Any] = dict(document.get("release", {}))
        for name in settings:
            if name == "reveal_on_dropout":
                raise PolicyError(
                    f"{path}: [release] has no key 'reveal_on_dropout' any more: a lost site halts a masked study "
                    "until it is back, so take the line out"
                )
            if name not in keys:
                raise PolicyError(f"{path}: [release] has no key {name!r}{nearest(name, keys)}")
        settings |= {name: document[name] for name in ("peers", "budget") if name in document}
        try:
            policy = msgspec.convert(settings, cls)
        except (msgspec.ValidationError, PolicyError) as error:
            raise PolicyError(f"{path}: {error}") from None
        return policy._with_constraints(path, document.get("constraints", {}))

    def _with_constraints(self, path: Path, section: dict[str, Any]) -> Policy:
        """This policy with the constraint graphs and the secret that the section names."""
        for name, value in section.items():
            if name not in CONSTRAINTS:
                raise PolicyError(f"{path}: [constraints] has no key {name!r}{nearest(name, CONSTRAINTS)}")
            if not isinstance(value, str):
                raise PolicyError(f"{path}: [constraints] {name} must be text in quotes")
        if section and ("text" in section) == ("file" in section):
            raise PolicyError(f"{path}: [constraints] needs either text or file, and not both")
        where, text = path, section.get("text", "")
        if "file" in section:
            where = path.parent / section["file"]
            text = _read_text(where)
        if section and not text.strip():
            raise PolicyError(f"{where}: there is no constraint graph in it")
        secret = None if "secret" not in section else read_secret(path.parent / section["secret"])
        try:
            return msgspec.structs.replace(self, constraints=text, secret=secret)
        except PolicyError as error:
            raise PolicyError(f"{where}: {error}") from None


def read_rules(path: str | Path) -> Policy:
    """A policy file, or a file of constraint graphs alone."""
    path = Path(path)
    text = _read_text(path)
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    if path.suffix == ".toml" or not re.match(r"graph\b", first, re.IGNORECASE):
        return Policy.read(path)
    try:
        return Policy(constraints=text)
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from None


SECTIONS = ("release", "constraints", "peers", "budget")
CONSTRAINTS = ("text", "file", "secret")


def read_secret(path: str | Path) -> Secret:
    """The secret in a file that only its owner can read; PolicyError otherwise."""
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
                raise PolicyError(
                    f"{path}: others can read this secret (mode {stat.S_IMODE(mode):04o}); chmod it to 600, or "
                    "make a new one if it may have been copied"
                )
            return Secret(file.read(4097))
    except OSError as error:
        raise PolicyError(f"{path}: the secret cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise PolicyError(f"{path}: {error}") from None


@functools.lru_cache(maxsize=32)
def _read_graphs(text: str, secret: bytes | None) -> ConstraintGraphs:
    from concilium.policy.actions import parse

    return parse(text, secret)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise PolicyError(f"{path}: is not UTF-8 text (byte {error.start})") from None
