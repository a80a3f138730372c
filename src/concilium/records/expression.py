"""Conditions on attributes: the syntax tree, its printer and its reader, for queries and constraint graphs.

Queries are the "attributes of interest" of distributed trees (docs/methods.md, section 1.1); the same
conditions are the predicates of a constraint graph (section 3.1). The grammar is `expression.lark`, for both.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from concilium.errors import QueryError
from concilium.records.columns import EXACT, Value, label
from concilium.records.grammar import all_labels

if TYPE_CHECKING:
    from lark import Lark, Token, UnexpectedInput

# Kleene's three values as numbers, so that "and" is the minimum, "or" the maximum and "not" the mirror image.
FALSE, UNKNOWN, TRUE = 0, 1, 2

LONGEST_TEXT = 64 * 1024
DEEPEST_NESTING = 100

_RESERVED = frozenset({"and", "or", "not", "in", "between", "is", "missing", "true", "false"})
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
_PLAIN_PART = re.compile(r"[0-9]{1,9}")
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Mistake(Exception):
    """What is wrong, and at which character of the text; each language turns it into its own error."""

    def __init__(self, problem: str, place: int) -> None:
        self.problem, self.place = problem, place
        super().__init__(problem)


@dataclass(frozen=True)
class Name:
    """An attribute; in a constraint graph, of the node that carries the tag."""

    attribute: str
    tag: str | None = None
    place: int = field(default=0, compare=False)

    def __str__(self) -> str:
        plain = all(
            (_PLAIN_NAME.fullmatch(part) and part.lower() not in _RESERVED)
            or (position > 0 and _PLAIN_PART.fullmatch(part))
            for position, part in enumerate(self.attribute.split("."))
        )
        text = self.attribute if plain else _quote(self.attribute, "`")
        return text if self.tag is None else f"{Name(self.tag)}.{text}"


@dataclass(frozen=True)
class Literal:
    """A value as written. Its kind keeps `true` and `1` apart, which Python holds to be equal."""

    kind: str
    value: Value
    place: int = field(default=0, compare=False)

    def __str__(self) -> str:
        match self.kind:
            case "text":
                return _quote(str(self.value), "'")
            case "truth":
                return label(self.value)
            case _:
                return repr(self.value)


@dataclass(frozen=True)
class Comparison:
    """An attribute compared with one value; the operator is one of = != < <= > >=."""

    name: Name
    operator: str
    literal: Literal

    def __str__(self) -> str:
        return f"{self.name} {self.operator} {self.literal}"


@dataclass(frozen=True)
class ListMembership:
    """An attribute that has one of the listed values (in order, each once)."""

    name: Name
    literals: tuple[Literal, ...]

    def __str__(self) -> str:
        return f"{self.name} in {{{', '.join(map(str, self.literals))}}}"


@dataclass(frozen=True)
class Range:
    """An attribute between two values, both included."""

    name: Name
    low: Literal
    high: Literal

    def __str__(self) -> str:
        return f"{self.name} between {self.low} and {self.high}"


@dataclass(frozen=True)
class Missing:
    """An attribute without a value; the one predicate that is never unknown."""

    name: Name

    def __str__(self) -> str:
        return f"{self.name} is missing"


@dataclass(frozen=True)
class AttributeComparison:
    """Two attributes compared with each other; in constraint graphs alone, where they may be of two tags."""

    left: Name
    operator: str
    right: Name

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


@dataclass(frozen=True)
class Not:
    """The opposite of a condition; unknown where the condition is."""

    inner: Expression

    def __str__(self) -> str:
        match self.inner:
            case ListMembership(name, literals):
                return f"{name} not in {{{', '.join(map(str, literals))}}}"
            case Range(name, low, high):
                return f"{name} not between {low} and {high}"
            case Missing(name):
                return f"{name} is not missing"
            case And() | Or():
                return f"not ({self.inner})"
            case _:
                return f"not {self.inner}"


@dataclass(frozen=True)
class And:
    """Conditions that must all hold."""

    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return " and ".join(f"({part})" if isinstance(part, And | Or) else str(part) for part in self.parts)


@dataclass(frozen=True)
class Or:
    """Conditions of which one must hold."""

    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return " or ".join(f"({part})" if isinstance(part, Or) else str(part) for part in self.parts)


Predicate = Comparison | ListMembership | Range | Missing
Expression = Predicate | AttributeComparison | Not | And | Or


def _quote(text: str, mark: str) -> str:
    """Text between quotes; a quote inside is doubled."""
    return mark + text.replace(mark, mark * 2) + mark


def terms(expression: Expression) -> Iterator[Predicate | AttributeComparison]:
    """The conditions without `and`, `or` and `not`, in the order written."""
    match expression:
        case Not(inner):
            yield from terms(inner)
        case And(parts) | Or(parts):
            for part in parts:
                yield from terms(part)
        case _:
            yield expression


def predicates(expression: Expression) -> Iterator[Predicate]:
    """The conditions on single attributes, in the order written."""
    return (term for term in terms(expression) if not isinstance(term, AttributeComparison))


def names(expression: Expression) -> Iterator[Name]:
    """Every attribute that is mentioned, in the order written."""
    for term in terms(expression):
        yield from ((term.left, term.right) if isinstance(term, AttributeComparison) else (term.name,))


def tester(predicate: Comparison | ListMembership | Range) -> Callable[[Any], bool]:
    """A function that tells whether one present value fulfils the predicate.

    Equality is equality of labels, so 5, '5' and '5.0' all find a category that reads 5. Ordering compares the values
    as they are: the caller makes sure that they are of the literal's kind.
    """
    match predicate:
        case Comparison(operator="=", literal=literal):
            meant = all_labels([literal.value])
            return lambda value: label(value) in meant
        case Comparison(operator="!=", literal=literal):
            meant = all_labels([literal.value])
            return lambda value: label(value) not in meant
        case Comparison(operator=sign, literal=literal):
            compare, bound = ORDERINGS[sign], literal.value
            return lambda value: compare(value, bound)
        case ListMembership(literals=literals):
            listed = all_labels(literal.value for literal in literals)
            return lambda value: label(value) in listed
        case Range(low=low, high=high):
            lowest: Any = low.value
            highest: Any = high.value
            return lambda value: bool(lowest <= value <= highest)


def bounds(predicate: Predicate) -> tuple[Literal, ...]:
    """The literals that a predicate compares by size; empty where it asks for equality only."""
    match predicate:
        case Comparison(operator=sign, literal=literal) if sign in ORDERINGS:
            return (literal,)
        case Range(low=low, high=high):
            return (low, high)
        case _:
            return ()


def literals(predicate: Predicate) -> tuple[Literal, ...]:
    """The values that a predicate mentions."""
    match predicate:
        case Comparison(literal=literal):
            return (literal,)
        case ListMembership(literals=members):
            return members
        case Range(low=low, high=high):
            return (low, high)
        case Missing():
            return ()


class Nested(NamedTuple):
    """A part of the tree with how deep its text was nested; the tree itself has no parentheses to count."""

    node: Expression
    depth: int


class Builder:
    """Makes the syntax tree while the text is read; one method per rule of `expression.lark`.

    Called by the parser as it goes and never by walking a parse tree, so nesting cannot exhaust the stack.
    """

    def query(self, children: list[Nested]) -> Expression | None:
        return children[0].node if children else None

    def expression(self, children: list[Nested]) -> Nested:
        return _join(Or, children)

    def conjunction(self, children: list[Nested]) -> Nested:
        return _join(And, children)

    def denial(self, children: list[Nested]) -> Nested:
        return self._nest(Not(children[0].node), children[0].depth)

    def group(self, children: list[Nested]) -> Nested:
        return self._nest(children[0].node, children[0].depth)

    def comparison(self, children: list[Any]) -> Nested:
        left, sign, right = children
        sign = {"==": "=", "<>": "!="}.get(str(sign), str(sign))
        if isinstance(left, Literal) and isinstance(right, Name):
            return Nested(Comparison(right, _MIRRORED.get(sign, sign), left), 1)
        if isinstance(left, Literal):
            raise Mistake(
                f"{left} {sign} {right} compares two values; one side must name an attribute", left.place
            )
        return Nested(Comparison(left, sign, _value(right)), 1)

    def membership(self, children: list[Any]) -> Nested:
        return Nested(ListMembership(*children), 1)

    def membership_denied(self, children: list[Any]) -> Nested:
        return Nested(Not(ListMembership(*children)), 2)

    def between(self, children: list[Any]) -> Nested:
        name, low, high = children
        return Nested(Range(name, _value(low), _value(high)), 1)

    def between_denied(self, children: list[Any]) -> Nested:
        return Nested(Not(self.between(children).node), 2)

    def missing(self, children: list[Name]) -> Nested:
        return Nested(Missing(children[0]), 1)

    def missing_denied(self, children: list[Name]) -> Nested:
        return Nested(Not(Missing(children[0])), 2)

    def side(self, children: list[Name | Literal]) -> Name | Literal:
        return children[0]

    def listed(self, children: list[Name | Literal]) -> tuple[Literal, ...]:
        distinct = {_value(child): None for child in children}
        return tuple(sorted(distinct, key=lambda literal: (literal.kind, literal.value)))

    def operand(self, children: list[Name]) -> Name:
        return Name(".".join(child.attribute for child in children), place=children[0].place)

    def name(self, children: list[Token]) -> Name:
        token = children[0]
        text = str(token)[1:-1].replace("``", "`") if token.type == "BACKQUOTED" else str(token)
        return Name(text, place=_start(token))

    def part(self, children: list[Token]) -> Name:
        return Name(str(children[0]), place=_start(children[0]))

    def literal(self, children: list[Token]) -> Literal:
        token = children[0]
        text, place = str(token), _start(token)
        if token.type == "TRUTH":
            return Literal("truth", text.lower() == "true", place)
        if token.type == "TEXT":
            return Literal("text", text[1:-1].replace(text[-1] * 2, text[-1]), place)
        number = float(text)
        if not math.isfinite(number):
            raise Mistake("this number is too large", place)
        if text.lstrip("+-").isdigit():
            return Literal("number", int(text), place)
        return Literal(
            "number", int(number) if number.is_integer() and abs(number) < EXACT else number, place
        )

    def _nest(self, node: Expression, depth: int) -> Nested:
        if depth >= DEEPEST_NESTING:
            first = next(names(node))
            raise Mistake(f"conditions are nested more than {DEEPEST_NESTING} deep here", first.place)
        return Nested(node, depth + 1)


class _Expected(NamedTuple):
    """Words for what may come next, said where all its terminals may; what it covers needs no other words."""

    terminals: frozenset[str]
    covers: frozenset[str]
    words: str


def expected(terminals: str, words: str, covers: str = "") -> _Expected:
    """Words for terminals, written as text with spaces."""
    return _Expected(frozenset(terminals.split()), frozenset(f"{terminals} {covers}".split()), words)


# From the most telling to the least: the first entries swallow what later ones would list one by one.
EXPECTED = (
    expected("BARE NUMBER _NOT", "a condition, such as age > 20", "BACKQUOTED TEXT TRUTH LPAR $END"),
    expected(
        "COMPARISON _IS",
        "a comparison, such as = 5, in {1, 2}, between 1 and 5 or is missing",
        "_NOT _IN _BETWEEN DOT",
    ),
    expected("COMPARISON", "a comparison, such as < or ="),
    expected("NUMBER", "a value, such as 5 or 'yes'", "TEXT TRUTH BARE BACKQUOTED"),
    expected("BARE", "a name (in backquotes if it has spaces or signs in it)", "BACKQUOTED PART"),
    expected("LBRACE", "values in braces, such as {1, 2}"),
    expected("_IN _BETWEEN", "'in' or 'between'"),
    expected("_MISSING _NOT", "'missing' or 'not missing'"),
    expected("_MISSING", "'missing'"),
    expected("_AND", "'and'"),
    expected("_OR", "'or'"),
    expected("COMMA", "a comma"),
    expected("RBRACE", "a closing brace"),
    expected("RPAR", "a closing parenthesis"),
    expected("$END", "the end"),
)


def make_parser(builder: Builder, start: str, *further: str) -> Lark:
    """A parser for `expression.lark` and, where a language uses its rules, that language's grammar text."""
    from lark import Lark

    grammar = resources.files("concilium.records").joinpath("expression.lark").read_text(encoding="utf-8")
    # Lark types the transformer as its own class, but only ever looks up the methods by name.
    transformer: Any = builder
    return Lark("\n".join((grammar, *further)), start=start, parser="lalr", transformer=transformer)


def read(parser: Lark, text: str, vocabulary: Sequence[_Expected] = EXPECTED) -> Any:
    """What the parser's builder makes of the text; a Mistake with its place where that is nothing."""
    from lark import UnexpectedInput

    if len(text) > LONGEST_TEXT:
        raise Mistake(f"the text is {len(text):,} characters long; at most {LONGEST_TEXT:,} are read", 0)
    try:
        return parser.parse(text)
    except UnexpectedInput as error:
        mistake = _explain(error, text, vocabulary)
    raise mistake


def point_at(mistake: Mistake, text: str) -> QueryError:
    """The mistake with its line and column; a text too long to be read is also too long to be shown under it."""
    excerpt = text if len(text) <= LONGEST_TEXT else ""
    lines = (excerpt[: mistake.place] + ".").splitlines()
    return QueryError(mistake.problem, excerpt, len(lines), len(lines[-1]))


def _explain(error: UnexpectedInput, text: str, vocabulary: Sequence[_Expected]) -> Mistake:
    from lark import UnexpectedToken

    parser: Any = getattr(error, "interactive_parser", None)
    terminals = frozenset(parser.accepts()) if parser is not None else frozenset()
    if isinstance(error, UnexpectedToken):
        token = error.token
        at_end = token.type == "$END"
        place = (token.end_pos or 0) if at_end else _start(token)
        word, kind = str(token), token.type
    else:
        place, at_end = error.pos_in_stream or 0, False
        match = re.compile(r"\w+|.", re.DOTALL).match(text, place)
        word, kind = match.group() if match else "", ""
    if word[:1] in {"'", '"', "`", "‘", "“"} and not kind:
        return Mistake("this quote is never closed", place)
    if kind == "COMPARISON" and "_AND" in terminals:
        return Mistake("comparisons are joined by and: write 20 < age and age < 41, not 20 < age < 41", place)
    if kind == "RPAR" and "$END" in terminals:
        return Mistake("this closing parenthesis has no opening one", place)
    *others, last = list(_words(terminals, vocabulary)) or ["something else"]
    problem = f"expected {', '.join(others)} or {last}" if others else f"expected {last}"
    problem += ", but the text ends here" if at_end else f", but found {_shorten(word)!r}"
    if word.lower() in _RESERVED and "BARE" in terminals:
        problem += f" (an attribute of that name is written `{word}`, in backquotes)"
    elif kind in {"BARE", "NUMBER"} and "_AND" in terminals:
        problem += " (text and dates are written in quotes, such as 'yes')"
    return Mistake(problem, place)


def _words(terminals: Collection[str], vocabulary: Sequence[_Expected]) -> Iterator[str]:
    rest = set(terminals)
    for entry in vocabulary:
        if entry.terminals <= rest:
            rest -= entry.covers
            yield entry.words


def _shorten(text: str) -> str:
    return text if len(text) <= 20 else text[:19] + "…"


def _join(kind: type[And] | type[Or], children: list[Nested]) -> Nested:
    if len(children) == 1:
        return children[0]
    parts: list[Expression] = []
    for child in children:
        parts.extend(child.node.parts if isinstance(child.node, kind) else (child.node,))
    return Nested(kind(tuple(parts)), 1 + max(child.depth for child in children))


def _value(side: Name | Literal) -> Literal:
    if isinstance(side, Name):
        suggestion = _quote(side.attribute, "'")
        raise Mistake(
            f"{side} is not a value; if it is a text value, write it in quotes: {suggestion}", side.place
        )
    return side


def _start(token: Token) -> int:
    return token.start_pos or 0
