"""What one hospital lets out: a small TOML file that its data steward owns.

    [release]
    kinds = ["tree.schema", "counts"]             # questions answered at all; a kind not listed is refused
    modes = ["exact", "masked", "private", "local", "noised", "shared"]
    minimum_patients = 4          # fewer patients matching the study's query: no answer
    differencing = true           # nor where fewer tell a question's patients from an earlier question's
    tell_fit = false              # whether a house may learn which columns do not fit its study's dictionary
    refusals_per_month = 20       # after so many refusals for too few patients: none is answered until next month
    branch_floor = 0              # fewer patients in a branch: counted as none (the tree is then inexact)
    minimum_cell = 0              # exact: tables with a smaller count in them are left out (inexact)
    dominance = 0.95              # exact: so are tables where one cell has more of its row or column (absent: never)
    support = 10                  # masked: rules hold for so many patients at least, and for all but so many
    numbers_per_patient = 2       # cap on exact numbers ever released, against patients (absent: no cap)
    withhold = ["religion"]       # attributes that do not exist for anyone outside
    identifiers = ["mrn"]         # columns that identify patients, besides those found by themselves
    allow = ["admitted"]          # columns that look like identifiers and are not

    colluders = 1                 # masked, private: how many other sites may side with the house
    other_circles = false         # masked: open sums with other circles of hospitals, which can then be subtracted

    [constraints]                 # what is done to records and messages before they leave (constraint graphs)
    text = "graph E { node x + eliminate x.dob; }"        # or file = "rules.graph", beside this file; functions too
    secret = "north.secret"       # a file of our own with 16 bytes or more, for hash and shift_dates

    [peers]                       # the hospitals we take part with, by the fingerprints they told us
    mercy = "ABCD-EFGH-..."

    [houses]                      # who may ask at all, by the fingerprints they told us; absent: houses of this process
    network = "ABCD-EFGH-..."

    [revoked]                     # keys that are never believed again, wherever else they stand (docs/keys.md)
    "network until May" = "ABCD-EFGH-..."

    [agree]                       # what is agreed to without asking a person; anything else waits for one
    releases = ["private"]        # absent: those with a bound (private, local, noised); others only by name
    methods = ["tree", "rulefit"] # absent: all that learn a model, of releases with a bound; of others none
    price_per_study = "1/20"      # what a study may cost each patient, in the budget's currency
    price_per_month = "1/4"       # what all studies agreed so in a month may cost together
    least_patients = 100          # exact, masked, shared: studies about fewer wait
    targets = ["death"]           # absent: any target; other studies wait. So do, of other scopes:
    attributes = ["age", "sex"]   # those that ask about others, or do not say about which
    grid = {age = [40, 60, 80], sex = ["f", "m"]}  # consultations whose cells are cut elsewhere, or by other attributes
    requesters = ["dr.weiss"]     # consultations that others may ask, or that do not say who
    sensitive = ["042", "303"]    # shared: sharings that do not hide all of these wait (absent: 38 U.S.C. 7332)

    [work]                        # what computing may take, at most; by what a question says, before it is computed
    operations_per_question = 1e11  # visits to a cell of the table (absent: a million for each patient, 1e10 at least)
    operations_per_day = 1e14     # of all houses and studies together
    memory = "2 GB"                 # what the site's process may hold in all (absent: no limit of its own)
    memory_per_question = "8 GB"
    patients = 500_000            # as many as the table is taken to have, and no fewer than it has (absent: see docs)

    [budget]
    currency = "rho"              # or "epsilon"
    total = "1/2"                 # exact: a fraction, an integer or a decimal in quotes; or "unlimited" (absent: 1)
    per_month = "1/20"            # what a calendar month (UTC) may cost of it (absent: all of it)
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
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from concilium.errors import LedgerError, MaskError, PolicyError, find_wrong_section, nearest
from concilium.ledger.budgets import Allowance
from concilium.policy.functions import Secret
from concilium.privacy.accounting import exact_delta, exact_positive
from concilium.privacy.identity import has_fingerprint, read_fingerprint
from concilium.records.query import Query
from concilium.registry import KINDS, METHODS, PROPOSED, RELEASES, VALIDATIONS

if TYPE_CHECKING:
    from concilium.policy.actions import ConstraintGraphs


MOST_REFUSALS = 20
# A rule about fewer patients than this leaves no site, whatever policy or study says.
LEAST_SUPPORT = 5
UNLIMITED = "unlimited"


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The hospital's privacy budget: exact numbers, one currency; without a total, the default (ledger/budgets.py)."""

    total: str | int | None = None
    currency: Literal["rho", "epsilon"] = "rho"
    delta: str = "1/1000000"
    per_month: str | int | None = None

    @property
    def allowance(self) -> Allowance:
        """What the ledger is held to."""
        unlimited = self.total == UNLIMITED
        return Allowance(
            None if unlimited or self.total is None else exact_positive(self.total, "budget's total"),
            unlimited,
            None if self.per_month is None else exact_positive(self.per_month, "budget's per_month"),
        )

    @property
    def exact_delta(self) -> Fraction:
        return exact_delta(self.delta)


class WorkLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What computing may take at a site (protocol/meter.py)."""

    operations_per_question: int | float | None = None
    operations_per_day: int | float = 10**14
    memory: str | int | None = None
    memory_per_question: str | int = "8 GB"
    patients: int | None = None

    def __post_init__(self) -> None:
        for name in ("operations_per_question", "operations_per_day", "patients"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < float("inf"):
                raise PolicyError(f"{name} must be a number from 1; got {value}")
        self.bytes_of_question, self.bytes_of_site  # noqa: B018

    @property
    def bytes_of_question(self) -> int:
        """Bytes for one question; PolicyError where the policy does not say a number of bytes."""
        return _read_bytes("memory_per_question", self.memory_per_question)

    @property
    def bytes_of_site(self) -> int | None:
        """Bytes for the whole process; None without a limit."""
        return None if self.memory is None else _read_bytes("memory", self.memory)


def _read_bytes(name: str, text: str | int) -> int:
    parts = re.fullmatch(r"(\d+(?:\.\d+)?) ?(kB|MB|GB|TB)?", str(text))
    count = 0 if parts is None else int(Fraction(parts[1]) * UNITS[parts[2]])
    if count < 1:
        raise PolicyError(f'{name} must be a number of bytes, such as 512_000_000 or "512 MB"; got {text!r}')
    return count


UNITS = {None: 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


BOUNDED = tuple(name for name, release in RELEASES.items() if release.bounded)


class Agree(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a hospital agrees to without asking a person. A key that is left out never agrees to more.

    Protects: patients, from a study without a bound that nobody at the hospital has read.
    Rule: a release without a bound needs both its own name and that of the method. A release with a bound is held to
    the limits on the price; without any, to what is left of the budget; without a budget, it waits.
    Assumes: the ledger charges what the study's terms say at most (protocol/site_context.py).
    """

    releases: tuple[str, ...] = BOUNDED
    methods: tuple[str, ...] | None = None
    price_per_study: str | int | None = None
    price_per_month: str | int | None = None
    least_patients: int = 0
    sensitive: tuple[str, ...] | None = None
    targets: tuple[str, ...] | None = None
    attributes: tuple[str, ...] | None = None
    grid: dict[str, tuple[str | int | float | bool, ...]] | None = None
    requesters: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for names, options, what in (
            (self.releases, RELEASES, "release"),
            (self.methods or (), PROPOSED, "method"),
        ):
            for name in names:
                if name not in options:
                    raise PolicyError(f"there is no {what} {name!r} to agree to{nearest(name, options)}")
        if self.least_patients < 0:
            raise PolicyError(f"least_patients must be 0 or more; got {self.least_patients}")
        for name in ("price_per_study", "price_per_month"):
            try:
                _read_price(getattr(self, name), name)
            except LedgerError as error:
                raise PolicyError(str(error)) from None

    def list_methods(self, release: str) -> tuple[str, ...]:
        """The methods that are agreed to where answers leave by this release."""
        if release not in self.releases:
            return ()
        if self.methods is not None:
            return self.methods
        return (*METHODS, *VALIDATIONS) if RELEASES[release].bounded else ()

    @property
    def most_per_study(self) -> Fraction | None:
        """In the currency of the ledger; None: no limit of its own."""
        return _read_price(self.price_per_study, "price_per_study")

    @property
    def most_per_month(self) -> Fraction | None:
        """In the currency of the ledger; None: no limit of its own."""
        return _read_price(self.price_per_month, "price_per_month")

    def find_foreign(self, asked: Mapping[str, Any]) -> str | None:
        """What a study with these parameters is about, or whom it serves, that is out of scope; None where nothing is.

        Rule: a scope is a list of what is agreed to. A study that leaves open what the list is about waits.
        """
        target = asked.get("target") or asked.get("outcome")
        if self.targets is not None and target not in self.targets:
            return f"its policy agrees to no study of {target!r} by itself"
        own = self._find_attributes(asked, target) or self._find_cells(asked)
        return own or self._find_requesters(asked)

    def _find_attributes(self, asked: Mapping[str, Any], target: Any) -> str | None:
        if self.attributes is None:
            return None
        named = asked.get("attributes")
        if named is None:
            return "the study does not list its attributes, and its policy agrees to some by itself"
        of_query = Query.parse(asked.get("query") or "").attributes
        more = sorted({*named, *of_query} - {*self.attributes, target})
        return f"its policy agrees to no study of {more[0]!r} by itself" if more else None

    def _find_cells(self, asked: Mapping[str, Any]) -> str | None:
        if self.grid is None:
            return None
        for name in asked.get("grid") or ():
            cut = (asked.get("bins") or {}).get(name) or (asked.get("values") or {}).get(name)
            if name not in self.grid or cut is None or {*cut} != {*self.grid[name]}:
                return f"its policy agrees to no cells of {name!r} like these by itself"
        if "grid" in asked and asked["grid"] is None:
            return "the study does not state its grid, and its policy agrees to one by itself"
        return None

    def _find_requesters(self, asked: Mapping[str, Any]) -> str | None:
        if self.requesters is None or "requesters" not in asked:
            return None
        if asked["requesters"] is None:
            return "the study does not say who may ask, and its policy agrees to some by itself"
        more = sorted({*asked["requesters"]} - {*self.requesters})
        return f"its policy agrees to no questions of {more[0]!r} by itself" if more else None

    def find_reservation(
        self, release: str, method: str, price: Fraction | None, of_month: Fraction, *, has_budget: bool
    ) -> str | None:
        """Why a study of this release, method and price waits for a person. Prices are in the ledger's currency;
        `of_month` is what other studies of the month cost, `has_budget` whether the ledger has a cap at all."""
        if method not in self.list_methods(release):
            return f"its policy agrees to no {method!r} released as {release!r} by itself"
        if price is None:
            return None
        alone, together = self.most_per_study, self.most_per_month
        if alone is None and together is None and not has_budget:
            return "its policy limits neither the price of a study nor the budget"
        if alone is not None and price > alone:
            return "its policy agrees to no study of that price by itself"
        if together is not None and of_month + price > together:
            return "its policy agrees to no further study of that price this month by itself"
        return None


def _read_price(text: str | int | None, name: str) -> Fraction | None:
    return None if text is None else exact_positive(text, name)


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What this hospital lets out. `Policy()` is the default; `Policy.read` takes a file."""

    kinds: tuple[str, ...] = tuple(KINDS)
    modes: tuple[str, ...] = tuple(RELEASES)
    minimum_patients: int = 4
    differencing: bool = True
    tell_fit: bool = False
    refusals_per_month: int = MOST_REFUSALS
    branch_floor: int = 0
    minimum_cell: int = 0
    dominance: float | None = None
    support: int = 10
    numbers_per_patient: float | None = None
    withhold: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    colluders: int = 1
    other_circles: bool = False
    constraints: str = ""
    secret: Secret | None = None
    peers: dict[str, str] = {}
    houses: dict[str, str] = {}
    revoked: dict[str, str] = {}
    agree: Agree | None = None
    budget: Budget | None = None
    work: WorkLimits = WorkLimits()

    def __repr__(self) -> str:
        """What differs from the default."""
        default = Policy()
        stated = [name for name in self.__struct_fields__ if getattr(self, name) != getattr(default, name)]
        return f"Policy({', '.join(f'{name}={getattr(self, name)!r}' for name in stated)})"

    def __post_init__(self) -> None:
        for name, kind in _list_types():
            try:
                msgspec.convert(getattr(self, name), kind)
            except msgspec.ValidationError as error:
                problem = str(error).replace("Expected", "expected")
                raise PolicyError(f"the policy's {name} is not what it takes: {problem}") from None
        for names, options, what in ((self.kinds, KINDS, "kind"), (self.modes, RELEASES, "mode")):
            for name in names:
                if name not in options:
                    raise PolicyError(f"there is no {what} {name!r} to allow{nearest(name, options)}")
        for name in ("minimum_patients", "branch_floor", "minimum_cell", "colluders"):
            if getattr(self, name) < 0:
                raise PolicyError(f"{name} must be 0 or more; got {getattr(self, name)}")
        if self.support < LEAST_SUPPORT:
            raise PolicyError(f"support must be {LEAST_SUPPORT} or more; got {self.support}")
        if self.refusals_per_month < 1:
            raise PolicyError(f"refusals_per_month must be 1 or more; got {self.refusals_per_month}")
        if self.dominance is not None and not 0 < self.dominance <= 1:
            raise PolicyError(f"dominance must be a share above 0 and at most 1; got {self.dominance}")
        for section in ("peers", "houses", "revoked"):
            for name, text in getattr(self, section).items():
                try:
                    read_fingerprint(text)
                except MaskError as error:
                    raise PolicyError(f"[{section}] {name}: {error}") from None
        if self.budget is not None:
            try:
                self.budget.allowance  # noqa: B018
                exact_delta(self.budget.delta)
            except LedgerError as error:
                raise PolicyError(str(error)) from None

        if self.constraints.strip():
            self.graphs()

    def revokes(self, public: bytes) -> bool:
        """Whether this key is never to be believed again, wherever else it is pinned."""
        return any(has_fingerprint(public, pin) for pin in self.revoked.values())

    @property
    def allowance(self) -> Allowance:
        """What private answers may cost, as far as the policy says."""
        return Allowance() if self.budget is None else self.budget.allowance

    @property
    def currency(self) -> str:
        """In which the budget, and the prices of [agree], are counted."""
        return "rho" if self.budget is None else self.budget.currency

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
    def read(cls, path: str | Path, *, text: str | None = None) -> Policy:
        """The policy in a TOML file; PolicyError names the file and what is wrong in it. With `text`, the policy that
        the file would be if that stood in it."""
        path = Path(path)
        try:
            document = tomllib.loads(_read_text(path) if text is None else text)
        except tomllib.TOMLDecodeError as error:
            raise PolicyError(f"{path}: is not TOML: {error}") from None
        except RecursionError:
            raise PolicyError(f"{path}: is nested too deeply to be a policy") from None
        if wrong := find_wrong_section(document, SECTIONS):
            raise PolicyError(f"{path}: {wrong}")
        for name, content in document.items():
            if isinstance(content, list):  # [[release]], which stands there once
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
        settings |= {n: document[n] for n in SECTIONS[2:] if n in document}
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
        secret = None if "secret" not in section else _read_secret(path.parent / section["secret"])
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
    if path.suffix == ".toml" or not re.match(r"(?:graph|function)\b", first, re.IGNORECASE):
        return Policy.read(path)
    try:
        return Policy(constraints=text)
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from None


def list_files(path: Path) -> tuple[str, ...]:
    """The files beside it that a policy file names; none where it cannot be read."""
    try:
        section = tomllib.loads(path.read_text(encoding="utf-8")).get("constraints", {})
    except (OSError, ValueError, RecursionError):
        return ()
    named = [section.get(key) for key in ("file", "secret")] if isinstance(section, dict) else []
    return tuple(one for one in named if isinstance(one, str))


SECTIONS = ("release", "constraints", "peers", "houses", "revoked", "agree", "budget", "work")
CONSTRAINTS = ("text", "file", "secret")


def _read_secret(path: str | Path) -> Secret:
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


@functools.cache
def _list_types() -> tuple[tuple[str, Any], ...]:
    """What each key of a policy takes; found once, since a thousand simulated hospitals have a policy each."""
    return tuple((one.name, one.type) for one in msgspec.structs.fields(Policy))


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
