"""A tiny evaluator of the CQL that expressions are written in, apart from the product: recursive descent, Kleene logic.

Grammar: or > and > not > comparison | "name" is [not] null | "name" in {...} | (...) | true.
"""

from __future__ import annotations

import re

TOKEN = re.compile(
    r"""\s*(?:(?P<name>"(?:\\.|[^"\\])*")|(?P<text>'(?:\\.|[^'\\])*')|(?P<number>-?\d+(?:\.\d+)?)"""
    r"""|(?P<word>[a-z]+)|(?P<sign>>=|<=|[=<>(){},]))"""
)
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


def evaluate(text, patient):
    """True, False or None (unknown)."""
    reader = Reader(tokens(text), patient)
    value = reader.disjunction()
    assert reader.place == len(reader.tokens), reader.tokens[reader.place :]
    return value


def tokens(text):
    found, place = [], 0
    while place < len(text):
        match = TOKEN.match(text, place)
        assert match, text[place:]
        place = match.end()
        kind = match.lastgroup
        token = match.group(kind)
        if kind in ("name", "text"):
            token = re.sub(
                r"\\(.)", lambda m: ESCAPES.get(m.group(1), m.group(1)), token[1:-1], flags=re.DOTALL
            )
        found.append((kind, float(token) if kind == "number" else token))
    return found


class Reader:
    def __init__(self, tokens, patient):
        self.tokens, self.patient, self.place = tokens, patient, 0

    def peek(self):
        return self.tokens[self.place] if self.place < len(self.tokens) else (None, None)

    def take(self, *expected):
        token = self.peek()
        assert not expected or token in expected, (token, expected)
        self.place += 1
        return token

    def disjunction(self):
        values = [self.conjunction()]
        while self.peek() == ("word", "or"):
            self.take()
            values.append(self.conjunction())
        return True if True in values else None if None in values else False

    def conjunction(self):
        values = [self.negation()]
        while self.peek() == ("word", "and"):
            self.take()
            values.append(self.negation())
        return False if False in values else None if None in values else True

    def negation(self):
        if self.peek() == ("word", "not"):
            self.take()
            value = self.negation()
            return None if value is None else not value
        return self.term()

    def term(self):
        kind, token = self.take()
        if (kind, token) == ("sign", "("):
            value = self.disjunction()
            self.take(("sign", ")"))
            return value
        if (kind, token) == ("word", "true"):
            return True
        assert kind == "name", (kind, token)
        value = self.patient.get(token)
        kind, sign = self.take()
        if (kind, sign) == ("word", "is"):
            negated = self.peek() == ("word", "not")
            if negated:
                self.take()
            self.take(("word", "null"))
            return (value is None) != negated
        if (kind, sign) == ("word", "in"):
            listed = []
            self.take(("sign", "{"))
            while self.peek() != ("sign", "}"):
                listed.append(self.literal())
                if self.peek() == ("sign", ","):
                    self.take()
            self.take(("sign", "}"))
            return None if value is None else any(same(value, other) for other in listed)
        other = self.literal()
        if value is None:
            return None
        if sign == "=":
            return same(value, other)
        return value >= other if sign == ">=" else value < other

    def literal(self):
        kind, token = self.take()
        return {"true": True, "false": False}[token] if kind == "word" else token


def same(value, other):
    """Equality as CQL has it: between values of one kind."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    return isinstance(value, str) == isinstance(other, str) and value == other
