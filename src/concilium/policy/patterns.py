"""Patterns for `substitute x.a =~ /pattern/replacement/` (docs/methods.md, 3.3): regular expressions in bounded time.

A pattern is read here, not by Python: letters, classes, groups, alternatives and counts, but neither
backreferences nor looking around. It is accepted only if the work it can cause on any value has a bound: an
unlimited repetition must be able to tell from the next character whether to go on, so that it never has to
give back what it took. Then Python's own engine runs it, at most `MOST_STEPS` steps for `LONGEST_VALUE`
characters, whatever the sender of the value had in mind.

`/[a-z]/[A-Z]/` goes from range to range (the thesis, 4.3.3): each character of the first is replaced by the one at its
place in the second, which has as many.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import reduce

from concilium.records.columns import Value, label
from concilium.records.expression import Mistake

LONGEST_PATTERN = 500
LONGEST_VALUE = 2_000
MOST_STEPS = 20_000_000
MOST_REPEATS = 1_000
DEEPEST_GROUP = 20

_CATEGORIES = "dDwWsS"
_CONTROL = {"n": "\n", "t": "\t", "r": "\r"}
# Characters beyond ASCII that stand for all others of their sort: a letter, a digit, a space, a sign.
_FOREIGN = "éж٣\u2003€"


@dataclass(frozen=True)
class _Chars:
    """One character out of a set."""

    written: str
    mentioned: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Edge:
    """A place between characters: the start, the end or the edge of a word."""

    written: str


@dataclass(frozen=True)
class _Sequence:
    """Parts that follow one another."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class _Choice:
    """Alternatives."""

    options: tuple[Part, ...]


@dataclass(frozen=True)
class _Group:
    """Parentheses; numbered if the replacement may use what they matched."""

    inner: Part
    numbered: bool


@dataclass(frozen=True)
class _Repeat:
    """A part repeated at least and at most so often; `most` is None where there is no limit."""

    inner: Part
    least: int
    most: int | None
    place: int = field(compare=False)


Part = _Chars | _Edge | _Sequence | _Choice | _Group | _Repeat


@dataclass(frozen=True)
class _NewRange:
    """In place of a character of one range, the character at the same place of the other."""

    old: str
    new: str


@dataclass(frozen=True)
class Pattern:
    """A pattern with its replacement, ready to be used on values of up to `LONGEST_VALUE` characters."""

    regex: re.Pattern[str]
    replacement: tuple[str | int | _NewRange, ...]

    def substitute(self, text: str) -> str | None:
        """The text with every match replaced; None for a text too long to be searched in bounded time."""
        if len(text) > LONGEST_VALUE:
            return None
        return self.regex.sub(self._fill, text)

    def replace(self, value: Value) -> Value | None:
        """The same for a value of any kind, which keeps its kind where nothing of it is replaced."""
        text = label(value)
        outcome = self.substitute(text)
        return value if outcome == text else outcome

    def _fill(self, match: re.Match[str]) -> str:
        return "".join(
            part
            if isinstance(part, str)
            else match.group(part) or ""
            if isinstance(part, int)
            else part.new[part.old.index(match[0])]
            for part in self.replacement
        )


def read_pattern(pattern: str, replacement: str, place: int = 0) -> Pattern:
    """The pattern and its replacement; a Mistake, counted from `place`, where they are not safe to use."""
    if len(pattern) > LONGEST_PATTERN or len(replacement) > LONGEST_PATTERN:
        raise Mistake(f"patterns and replacements have at most {LONGEST_PATTERN} characters", place)
    reader = _Reader(pattern, place)
    part = reader.read()
    _require_bound(part, reader.groups, place)
    regex = re.compile(_write(part))
    there = place + len(pattern) + 1
    if _is_class(pattern) and _is_class(replacement):
        return Pattern(regex, (_pair(pattern, place, replacement, there),))
    if found := _RANGES.search(replacement):
        raise Mistake(
            "a range replaces a range, as in /[a-z]/[A-Z]/, and here the pattern is none; write \\[ for the bracket "
            "itself",
            there + found.start(),
        )
    return Pattern(regex, _read_replacement(replacement, reader.groups, there))


# Ranges and nothing else in brackets, which are not escaped.
_RANGES = re.compile(r"(?<!\\)\[(?:[^\\\]]-[^\\\]])+\]")


def _is_class(text: str) -> bool:
    """Whether all of it is one class of characters, and not of all others."""
    return re.fullmatch(r"\[(?!\^)(?:[^\\\]]|\\.)+\]", text) is not None


def _pair(pattern: str, place: int, replacement: str, there: int) -> _NewRange:
    """What each character of a range becomes; a Mistake where it is not one character for each."""
    old, new = _list_class(pattern, place), _list_class(replacement, there)
    if len(set(old)) < len(old):
        raise Mistake("a character is twice in this range, so that it is not clear what becomes of it", place)
    if len(old) != len(new):
        raise Mistake(
            f"a range replaces a range of as many characters: {len(old)} are in the first and {len(new)} in this; "
            "write \\[ for the bracket itself",
            there,
        )
    return _NewRange(old, new)


def _list_class(text: str, place: int) -> str:
    """The characters of a class, in the order written."""
    reader = _Reader(text, place)
    reader.at = 1
    listed = ""
    while reader.peek() != "]":
        low = high = reader.member()
        if reader.peek() == "-" and text[reader.at + 1] != "]":
            reader.at += 1
            high = reader.member()
        if len(low) > 1 or len(high) > 1:
            raise Mistake(
                "a range from which another is made lists its characters, such as [0-9] for \\d", place
            )
        if high < low:
            raise Mistake("this range goes backwards", place)
        listed += "".join(map(chr, range(ord(low), ord(high) + 1)))
    return listed


class _Reader:
    """A recursive-descent reader; positions in mistakes are those of the policy's text."""

    def __init__(self, pattern: str, place: int) -> None:
        self.text, self.start = pattern, place
        self.at, self.groups, self.depth = 0, 0, 0

    def read(self) -> Part:
        part = self._choice()
        if self.at < len(self.text):
            raise self._mistake("this closing parenthesis has no opening one")
        return part

    def _mistake(self, problem: str, at: int | None = None) -> Mistake:
        return Mistake(problem, self.start + (self.at if at is None else at))

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _take(self) -> str:
        sign = self.peek()
        if not sign:
            raise self._mistake("the pattern ends too early")
        self.at += 1
        return sign

    def _choice(self) -> Part:
        options = [self._sequence()]
        while self.peek() == "|":
            self.at += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self) -> Part:
        parts: list[Part] = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self._repeated())
        return _Sequence(tuple(parts))

    def _repeated(self) -> Part:
        start = self.at
        atom = self._atom()
        counts = self._counts()
        if counts is None:
            return atom
        if isinstance(atom, _Edge):
            raise self._mistake("there is nothing to repeat here", start)
        if self.peek() and self.peek() in "?+*{":
            raise self._mistake("one repetition sign after another is not allowed")
        return _Repeat(atom, *counts, place=self.start + start)

    def _counts(self) -> tuple[int, int | None] | None:
        sign = self.peek()
        if sign and sign in "?*+":
            self.at += 1
            return {"?": (0, 1), "*": (0, None), "+": (1, None)}[sign]
        if sign != "{":
            return None
        match = re.compile(r"\{([0-9]{1,4})(,([0-9]{1,4})?)?\}").match(self.text, self.at)
        if not match:
            raise self._mistake(
                "expected a count, such as {3}, {1,3} or {2,}; write \\{ for the brace itself"
            )
        least = int(match[1])
        most = least if not match[2] else int(match[3]) if match[3] else None
        if max(least, most or 0) > MOST_REPEATS or (most is not None and most < least):
            raise self._mistake(
                f"this count can never hold; counts go from low to high, up to {MOST_REPEATS}"
            )
        self.at = match.end()
        return least, most

    def _atom(self) -> Part:
        start, sign = self.at, self._take()
        match sign:
            case "(":
                return self._group(start)
            case "[":
                return self._class(start)
            case ".":
                return _Chars(".")
            case "^" | "$":
                return _Edge(sign)
            case "\\":
                return self._escape()
            case "?" | "*" | "+" | "{" | "}":
                raise self._mistake(
                    f"there is nothing to repeat here; write \\{sign} for the sign itself", start
                )
            case _:
                return _one(sign)

    def _group(self, start: int) -> Part:
        numbered = self.peek() != "?"
        if not numbered and self.text[self.at : self.at + 2] != "?:":
            raise self._mistake("only plain groups ( ) and (?: ) are allowed, no looking around", start)
        self.at += 0 if numbered else 2
        self.groups += numbered
        self.depth += 1
        if self.depth > DEEPEST_GROUP:
            raise self._mistake(f"groups are nested more than {DEEPEST_GROUP} deep here", start)
        inner = self._choice()
        if self.peek() != ")":
            raise self._mistake("this parenthesis is never closed", start)
        self.at += 1
        self.depth -= 1
        return _Group(inner, numbered)

    def _escape(self) -> Part:
        sign = self._take()
        if sign in _CATEGORIES:
            return _Chars(f"\\{sign}")
        if sign == "b":
            return _Edge(r"\b")
        if sign in _CONTROL:
            return _one(_CONTROL[sign])
        if sign.isdigit():
            raise self._mistake("a pattern cannot refer back to a group; the replacement can", self.at - 2)
        if sign.isalpha():
            raise self._mistake(f"there is no \\{sign} in patterns; there are \\d \\w \\s \\b", self.at - 2)
        return _one(sign)

    def _class(self, start: int) -> Part:
        negated = self.peek() == "^"
        self.at += negated
        written, mentioned = "", set[str]()
        while self.peek() != "]":
            if not self.peek():
                raise self._mistake("this bracket is never closed", start)
            if self.text.startswith("[:", self.at):
                raise self._mistake("write \\d, \\w or \\s instead of a class by name")
            low = self.member()
            if len(low) == 1 and self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("", "]"):
                self.at += 1
                high = self.member()
                if len(high) > 1 or high < low or ord(high) - ord(low) > 512:
                    raise self._mistake("this range goes backwards or is too wide")
                written += f"{re.escape(low)}-{re.escape(high)}"
                mentioned.update(map(chr, range(ord(low), ord(high) + 1)))
            else:
                written += low if len(low) > 1 else re.escape(low)
                mentioned.update(low if len(low) == 1 else ())
        if not written:
            raise self._mistake("this class is empty", start)
        self.at += 1
        return _Chars(f"[{'^' if negated else ''}{written}]", frozenset(mentioned))

    def member(self) -> str:
        """One character of a class, or one of its categories such as \\d."""
        sign = self._take()
        if sign != "\\":
            return sign
        sign = self._take()
        if sign in _CATEGORIES:
            return f"\\{sign}"
        if sign.isalnum() and sign not in _CONTROL:
            raise self._mistake(f"there is no \\{sign} in a class", self.at - 2)
        return _CONTROL.get(sign, sign)


def _one(character: str) -> _Chars:
    return _Chars(re.escape(character), frozenset(character))


def _write(part: Part) -> str:
    match part:
        case _Chars(written=written) | _Edge(written=written):
            return written
        case _Sequence(parts):
            return "".join(map(_write, parts))
        case _Choice(options):
            return "|".join(map(_write, options))
        case _Group(inner, numbered):
            return f"({'' if numbered else '?:'}{_write(inner)})"
        case _Repeat(inner, least, most):
            return f"{_write(inner)}{{{least},{'' if most is None else most}}}"


def _read_replacement(text: str, groups: int, place: int) -> tuple[str | int, ...]:
    parts: list[str | int] = []
    for match in re.finditer(r"\\(.?)|[^\\]+", text, re.DOTALL):
        sign = match[1]
        if sign is None:
            parts.append(match[0])
        elif sign.isdigit() and sign.isascii():
            if not 1 <= int(sign) <= groups:
                raise Mistake(f"the pattern has no group {sign}", place + match.start())
            parts.append(int(sign))
        elif not sign or (sign.isalpha() and sign not in _CONTROL):
            raise Mistake("only \\1 to \\9, \\n, \\t and signs may follow \\ here", place + match.start())
        else:
            parts.append(_CONTROL.get(sign, sign))
    return tuple(parts)


class _Bound:
    """How a pattern can behave: which characters can come first, how long it can be, how often it can turn back."""

    def __init__(self, alphabet: frozenset[str], place: int) -> None:
        self.alphabet, self.place = alphabet, place
        self._sets: dict[str, frozenset[str]] = {}

    def characters(self, part: _Chars) -> frozenset[str]:
        if part.written not in self._sets:
            accept = re.compile(part.written).match
            self._sets[part.written] = frozenset(sign for sign in self.alphabet if accept(sign))
        return self._sets[part.written]

    def first(self, part: Part) -> frozenset[str]:
        """The characters that a match of the part can start with."""
        match part:
            case _Chars():
                return self.characters(part)
            case _Edge():
                return frozenset()
            case _Choice(options):
                return frozenset().union(*map(self.first, options))
            case _Group(inner, _) | _Repeat(inner, _, _):
                return self.first(inner)
            case _Sequence(parts):
                return self.first_of(parts, frozenset())

    def first_of(self, parts: tuple[Part, ...], follow: frozenset[str]) -> frozenset[str]:
        """The characters that can come next where these parts and then `follow` are to come."""
        starts = frozenset[str]()
        for part in parts:
            starts |= self.first(part)
            if not _can_be_empty(part):
                return starts
        return starts | follow

    def paths(self, part: Part, follow: frozenset[str]) -> int:
        """In how many ways at most the part can be tried at one place before it fails for good."""
        match part:
            case _Chars() | _Edge():
                return 1
            case _Group(inner, _):
                return self.paths(inner, follow)
            case _Sequence(parts):
                ways = 1
                for index, inner in enumerate(parts):
                    ways = self._limit(ways * self.paths(inner, self.first_of(parts[index + 1 :], follow)))
                return ways
            case _Choice(options):
                starts = [self.first_of((option,), follow) for option in options]
                ways_each = [self.paths(option, follow) for option in options]
                distinct = sum(map(len, starts)) == len(frozenset().union(*starts))
                return max(ways_each) if distinct else self._limit(sum(ways_each))
            case _Repeat(inner, least, most, place):
                return self._repeat_paths(inner, least, most, place, follow)

    def _repeat_paths(
        self, inner: Part, least: int, most: int | None, place: int, follow: frozenset[str]
    ) -> int:
        if _can_be_empty(inner):
            raise Mistake("what is repeated here can be empty, so the search might never end", place)
        again = self.first(inner)
        ways = self.paths(inner, again | follow)
        clear = least == most or not again & follow
        if most is None:
            if not clear or ways > 1:
                common = "".join(sorted(again & follow))[:1]
                hint = f" (such as {common!r})" if not clear else ""
                raise Mistake(
                    "this unlimited repetition cannot tell where to stop, which could take for ever: what is "
                    f"repeated and what follows can start with the same character{hint}; write a class that "
                    "leaves it out, such as [^@]*@ instead of .*@, or a count such as {1,5}",
                    place,
                )
            return 1
        if ways > 1 and most > 64:
            raise self.too_costly()
        return self._limit(ways**most * (1 if clear else most - least + 1))

    def _limit(self, ways: int) -> int:
        if ways * LONGEST_VALUE > MOST_STEPS:
            raise self.too_costly()
        return ways

    def too_costly(self) -> Mistake:
        return Mistake(
            "this pattern can be tried in too many ways; make its parts easier to tell apart", self.place
        )


def _can_be_empty(part: Part) -> bool:
    """Whether the part can match no character at all."""
    match part:
        case _Chars():
            return False
        case _Edge():
            return True
        case _Sequence(parts):
            return all(map(_can_be_empty, parts))
        case _Choice(options):
            return any(map(_can_be_empty, options))
        case _Group(inner, _):
            return _can_be_empty(inner)
        case _Repeat(inner, least, _):
            return least == 0 or _can_be_empty(inner)


def _longest(part: Part) -> int:
    """The length of the longest match, at most `LONGEST_VALUE`."""
    match part:
        case _Chars():
            length = 1
        case _Edge():
            length = 0
        case _Sequence(parts):
            length = sum(map(_longest, parts))
        case _Choice(options):
            length = max(map(_longest, options))
        case _Group(inner, _):
            length = _longest(inner)
        case _Repeat(inner, _, most):
            length = _longest(inner) * (LONGEST_VALUE if most is None else most)
    return min(length, LONGEST_VALUE)


def _mentioned(part: Part) -> frozenset[str]:
    match part:
        case _Chars(mentioned=mentioned):
            return mentioned
        case _Edge():
            return frozenset()
        case _Sequence(parts) | _Choice(parts):
            return reduce(frozenset.union, map(_mentioned, parts), frozenset[str]())
        case _Group(inner, _) | _Repeat(inner, _, _):
            return _mentioned(inner)


def _require_bound(part: Part, groups: int, place: int) -> None:
    """Refuse a pattern that matches nothing at all, or whose work has no acceptable bound."""
    if groups > 9:
        raise Mistake(
            "a pattern has at most nine groups; write (?: ) for those the replacement does not use", place
        )
    if _can_be_empty(part):
        raise Mistake("this pattern matches even where there is nothing to replace", place)
    alphabet = frozenset(map(chr, range(128))) | frozenset(_FOREIGN) | _mentioned(part)
    bound = _Bound(alphabet, place)
    if bound.paths(part, frozenset()) * (_longest(part) + 1) * LONGEST_VALUE > MOST_STEPS:
        raise bound.too_costly()
