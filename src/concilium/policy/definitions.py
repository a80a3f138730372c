"""Functions that a hospital defines itself, in its policy (docs/methods.md, section 3.3).

    function age_band {
        when value < 18 give 'child';
        when value < 90 give /decade()/;
        otherwise give '90 or older';
    }

The first case whose condition is true says what the value becomes: a text or number, the value itself, what functions
and patterns make of it one after the other, or nothing. A definition is pure (it sees the value and no other attribute,
node or patient), total (a value that no case is about, or that a condition cannot be compared with, is eliminated)
and bounded: it may use functions that are defined above it alone, so that nothing calls itself, with at most
`MOST_STEPS` conditions and steps in all that it leads to, each of them bounded. There is no code from outside.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from concilium.errors import nearest
from concilium.policy.functions import FUNCTIONS, Call, Change, Secret
from concilium.policy.judging import Judge, Unfit, judge
from concilium.policy.patterns import LONGEST_VALUE, Pattern
from concilium.records.columns import Value, label
from concilium.records.expression import TRUE, Expression, Literal, Mistake, terms

MOST_CASES = 100
MOST_CHAINED = 5
MOST_STEPS = 1_000
MOST_FUNCTIONS = 100

VALUE = "value"


@dataclass(frozen=True)
class Named:
    """A function of the hospital's own, by its name; what it stands for is known when all of the policy is read."""

    name: str
    has_arguments: bool = False
    place: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Chain:
    """What becomes of a value: functions and patterns one after the other; none of them: the value as it is."""

    steps: tuple[Call | Pattern | Named | Definition, ...] = ()


@dataclass(frozen=True)
class Case:
    """A condition on the value (None: otherwise), and what is given then (None: nothing, it is eliminated)."""

    condition: Expression | None
    result: Literal | Chain | None
    place: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Definition:
    """A function of a hospital's own."""

    name: str
    cases: tuple[Case, ...]
    place: int = field(default=0, compare=False)

    @property
    def needs_secret(self) -> bool:
        return any(
            isinstance(step, Call | Definition) and step.needs_secret
            for case in self.cases
            for step in _steps(case)
        )

    @property
    def changes_everything(self) -> bool:
        """Whether no value can come out as it went in, unless it is as coarse already: a function is in every case."""
        return all(
            not isinstance(case.result, Chain)
            or any(
                isinstance(step, Call) or (isinstance(step, Definition) and step.changes_everything)
                for step in case.result.steps
            )
            for case in self.cases
        )

    @property
    def work(self) -> int:
        """Conditions and steps, with those of the functions that it uses."""
        return sum(
            (0 if case.condition is None else len(list(terms(case.condition))))
            + sum(step.work if isinstance(step, Definition) else 1 for step in _steps(case))
            for case in self.cases
        )

    def change(self, secret: Secret | None, patient: str | None = None) -> Change:
        """The function from value to value; None stands for "do not pass this on". It knows of no patient."""
        cases = [
            (None if case.condition is None else judge(case.condition), _outcome(case, secret))
            for case in self.cases
        ]

        def apply(value: Value) -> Value | None:
            for holds, outcome in cases:
                if _applies(holds, value):
                    changed = outcome(value)
                    return None if changed is None or len(label(changed)) > LONGEST_VALUE else changed
            return None

        def change_value(value: Value) -> Value | None:
            try:
                return apply(value)
            except Unfit:
                return None

        return change_value


def resolve(definitions: Iterable[Definition]) -> dict[str, Definition]:
    """The functions by name, each with what it uses put in its place; a Mistake where that is not defined above it."""
    known: dict[str, Definition] = {}
    for definition in definitions:
        if definition.name in FUNCTIONS:
            raise Mistake(
                f"there is a function {definition.name} already; give yours another name", definition.place
            )
        if definition.name in known:
            raise Mistake(
                f"there are two functions named {definition.name}; give each its own name", definition.place
            )
        if len(known) == MOST_FUNCTIONS:
            raise Mistake(f"a policy has at most {MOST_FUNCTIONS} functions", definition.place)
        cases = tuple(_resolve_case(case, known) for case in definition.cases)
        resolved = Definition(definition.name, cases, definition.place)
        if resolved.work > MOST_STEPS:
            raise Mistake(
                f"function {definition.name} leads to more than {MOST_STEPS:,} conditions and steps, with those of the "
                "functions that it uses",
                definition.place,
            )
        known[definition.name] = resolved
    return known


def check_cases(name: str, cases: tuple[Case, ...]) -> None:
    """A Mistake where the cases of a function cannot be meant."""
    if len(cases) > MOST_CASES:
        raise Mistake(f"a function has at most {MOST_CASES} cases", cases[MOST_CASES].place)
    for case, following in itertools.pairwise(cases):
        if case.condition is None:
            raise Mistake(f"no case after otherwise can ever hold in function {name}", following.place)


def _resolve_case(case: Case, known: dict[str, Definition]) -> Case:
    if not isinstance(case.result, Chain):
        return case
    steps = tuple(find(step, known) if isinstance(step, Named) else step for step in case.result.steps)
    return Case(case.condition, Chain(steps), case.place)


def find(named: Named, known: dict[str, Definition]) -> Definition:
    """The function of this name; a Mistake that names the nearest where there is none."""
    if named.name not in known:
        every = [*FUNCTIONS, *known]
        raise Mistake(
            f"there is no function {named.name}{nearest(named.name, every)} (there are {', '.join(every)}; your own "
            "are defined above where they are used: function NAME { when value < 5 give 'low'; })",
            named.place,
        )
    if named.has_arguments:
        raise Mistake(f"{named.name}() takes nothing between its parentheses", named.place)
    return known[named.name]


def _steps(case: Case) -> tuple[Call | Pattern | Named | Definition, ...]:
    return case.result.steps if isinstance(case.result, Chain) else ()


def _applies(holds: Judge | None, value: Value) -> bool:
    return holds is None or holds({VALUE: value}) == TRUE


def _outcome(case: Case, secret: Secret | None) -> Change:
    result = case.result
    if result is None:
        return lambda value: None
    if isinstance(result, Literal):
        given = result.value
        return lambda value: given
    changes = [step_change(step, secret) for step in result.steps]

    def run(value: Value) -> Value | None:
        changed: Value | None = value
        for change in changes:
            if changed is None:
                return None
            changed = change(changed)
        return changed

    return run


def step_change(step: Call | Pattern | Named | Definition, secret: Secret | None) -> Change:
    """What a function or a pattern does to a value."""
    assert not isinstance(step, Named), "a policy that was read has no function left to look for"
    return step.replace if isinstance(step, Pattern) else step.change(secret)
