"""Every error a user can cause, in one tree.

ConciliumError
├── RecordsError      a table that cannot be read; it may quote cells
│   ├── DoesNotFit    a table that does not fit what was asked of it; it quotes the question, never a cell
│   └── UnknownCode   codes that a taxonomy does not have, or that may be read in two ways; carries them
├── QueryError        a query (or a predicate of a policy) that does not parse or names something unknown
├── FormulaError      a temporal formula that does not parse, or does not fit the series it is asked about
├── PolicyError       a policy file that is wrong
├── StudyError        a study file that is wrong, or a method's parameter out of range
│   └── CannotResume  no work in progress, or that of another study or of other records
├── ModelError        a model file that is not one, or a patient it cannot be asked about
├── LedgerError       a ledger that cannot be opened, written or trusted
│   └── BudgetError   a charge that does not fit; carries asked, spent and left
├── MessageError      bytes that are not a message we know
├── MaskError         a masked round that must not or cannot be opened
├── HouseError        a round that cannot end well: sites silent, refusing or too few
│   ├── StudyPending  a study that hospitals have not decided on yet; `sites` names them
│   └── RunStopped    a study's run that such a round ended, and that can be resumed
├── KitError          a kit for studies across machines that is wrong, or does not fit the machine it is on
└── MissingExtra      an optional part is not installed; says the command that installs it

One sentence each: what is wrong, where (file, line, column, site), what to do. The command line prints the
sentence and ends with exit code 2.

What leaves a machine is `outside`, never `str(error)`: a refusal of a hospital, the outcome of a job. Protects: cells,
paths and keys of the machine that failed, from whoever asked. Only kinds of errors that say so (`leaves`) send their
own sentence; all others send KEPT_BACK, and the machine's own log has the rest.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import ClassVar

KEPT_BACK = (
    "a file cannot be read or used; what it holds is not sent, and the log of the machine that reads it says which "
    "file and why"
)


MORE_MEMORY = (
    "allow this process more; where a site has a ledger file, large tables are read into columns on disk"
)


class ConciliumError(Exception):
    """The root of every error a user can cause."""

    leaves: ClassVar[bool] = False
    """Whether the sentence quotes nothing but what whoever asked sent or may know."""

    @property
    def outside(self) -> str:
        """The sentence that may leave this machine."""
        return str(self) if self.leaves else KEPT_BACK


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that the system gave this process no more memory: to Python, Arrow, DuckDB or a thread."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM or "Out of Memory" in str(error)
    no_thread = isinstance(error, RuntimeError) and "start new thread" in str(error)
    return isinstance(error, MemoryError) or no_thread or type(error).__name__ == "OutOfMemoryException"


class RecordsError(ConciliumError):
    """A table that cannot be read."""


class DoesNotFit(RecordsError):
    """A table that does not fit what was asked of it; the sentence quotes the question, never a cell."""

    leaves = True


class UnknownCode(RecordsError):
    """Codes that a taxonomy does not have, or that may be read in two ways; `unknown` are their texts."""

    def __init__(self, problem: str, unknown: Iterable[str]) -> None:
        self.unknown = tuple(unknown)
        super().__init__(problem)


class QueryError(ConciliumError):
    """A query that does not parse, or names an attribute or value kind that does not fit."""

    leaves = True

    def __init__(self, problem: str, text: str, line: int = 1, column: int = 1) -> None:
        self.problem, self.text, self.line, self.column = problem, text, line, column
        shown = text.splitlines()[line - 1] if text.splitlines() else ""
        super().__init__(f"{problem} (line {line}, column {column})\n  {shown}\n  {' ' * (column - 1)}^")


class FormulaError(ConciliumError):
    """A temporal formula that does not parse, or does not fit the series it is asked about."""

    leaves = True

    def __init__(self, problem: str, text: str, line: int = 1, column: int = 1) -> None:
        self.problem, self.text, self.line, self.column = problem, text, line, column
        lines = text.splitlines()
        shown, caret = lines[line - 1] if line <= len(lines) else "", column - 1
        if len(shown) > 100:  # the neighbourhood is enough to see where it is
            start = max(0, caret - 50)
            shown, caret = shown[start : start + 100], caret - start
        pointer = f" (line {line}, column {column})\n  {shown}\n  {' ' * caret}^" if shown else ""
        super().__init__(f"{problem}{pointer}")


class PolicyError(ConciliumError):
    """A policy file that is wrong."""


class StudyError(ConciliumError):
    """A study file that is wrong, or a method's parameter out of range."""

    leaves = True


class CannotResume(StudyError):
    """No work in progress, or that of another study or of other records; `reason` says so without the advice."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}; run it again without resume=True")


class ModelError(ConciliumError):
    """A model file that is not one, or a patient it cannot be asked about."""


class LedgerError(ConciliumError):
    """A ledger that cannot be opened, written or trusted."""


class BudgetError(LedgerError):
    """A charge that does not fit: asked, spent and left are exact numbers in the ledger's currency.

    Of a month's cap, spent and left are the month's, and `until` is the day from which there is more.
    """

    leaves = True

    def __init__(
        self,
        currency: str,
        asked: Fraction,
        spent: Fraction,
        left: Fraction,
        *,
        until: str | None = None,
        by_default: bool = False,
    ) -> None:
        self.currency, self.asked, self.spent, self.left, self.until = currency, asked, spent, left, until
        of_month = "" if until is None else " of this month"
        more = "" if until is None else f", and more from {until} on"
        hint = "; the hospital has set no budget, so that the default holds" if by_default else ""
        super().__init__(
            f"this would cost {currency} = {_decimal(asked)}, but {_decimal(left)} is left{of_month} "
            f"({_decimal(spent)} is spent); a question that costs at most {_decimal(left)} would fit{more}{hint}"
        )


class MessageError(ConciliumError):
    """Bytes that are not a message we know."""

    leaves = True


class MaskError(ConciliumError):
    """A masked round that must not or cannot be opened."""

    leaves = True


class HouseError(ConciliumError):
    """A round that cannot end well: sites are silent, refuse or are too few."""

    leaves = True


class StudyPending(HouseError):
    """A study that some hospitals have not decided on yet: it waits for their stewards."""

    def __init__(self, study: str, sites: Iterable[str], others: Iterable[StudyPending] = ()) -> None:
        self.study, self.sites, self.others = study, tuple(sites), tuple(others)
        super().__init__(
            f"study {study[:12]} waits for {', '.join(self.sites)}: there a person decides, with `concilium studies`; "
            "run it again, resuming, when they have"
        )


class RunStopped(HouseError):
    """A study's run that its house stopped, and that can be resumed; `reason` says why without the advice."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}; to go on from the last finished round, run it again with resume=True")


class KitError(ConciliumError):
    """A kit for studies across machines that is wrong, or does not fit the machine it is on."""


class MissingExtra(ConciliumError):
    """An optional part is not installed."""

    leaves = True

    def __init__(self, extra: str, purpose: str) -> None:
        self.extra = extra
        super().__init__(
            f"{purpose} needs an optional part; install it with: pip install 'concilium[{extra}]'"
        )


def name_some(names: Sequence[str], most: int = 3) -> str:
    """The first of these names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def nearest(name: str, known: Iterable[str]) -> str:
    """', did you mean ...?' for an error message, or nothing where no known name comes close."""
    names = list(known)
    if len(name) > 100 or len(names) > 2000:
        return ""  # whoever asks with that makes no typing mistake
    in_other_letters = [other for other in names if other.casefold() == name.casefold()]
    close = in_other_letters or difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def find_wrong_section(document: Mapping[str, object], known: Iterable[str]) -> str | None:
    """What is wrong with the sections of a TOML file: one that nobody knows, or a key that stands in none."""
    sections = tuple(known)
    listed = name_some([f"[{name}]" for name in sections], 9)
    for name, content in document.items():
        if name in sections:
            if not isinstance(content, dict | list):
                return f"{name} must be a section, written [{name}]"
        elif isinstance(content, dict | list):
            return f"there is no section [{name}]{nearest(name, sections) or f'; there are {listed}'}"
        else:
            return f"{name} stands above all sections; put it below one of {listed}"
    return None


def _decimal(number: Fraction) -> str:
    """An exact number as people read it; a long one is cut and marked as such."""
    if number.denominator == 1:
        return str(number.numerator)
    shown = f"{float(number):.6g}"
    return shown if Fraction(shown) == number else f"about {shown}"
