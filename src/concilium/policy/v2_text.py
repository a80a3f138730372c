"""Text of HL7 v2 messages: its five delimiters, their escape sequences, and the character set that MSH-18 names.

Rules see text as its reader does (HL7 v2.5.1, 2.7): `\\F\\` is the field separator, `\\.br\\` a new line, `\\X0D\\` a
character by its number. What is written back has every delimiter escaped again, so that no value can become a field.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from concilium.errors import PolicyError

# MSH-18 (table 0211) and what Python calls the same. All keep ASCII, so that delimiters are found before decoding.
CHARACTER_SETS = {
    "ASCII": "ascii",
    **{f"8859/{part}": f"iso8859-{part}" for part in (*range(1, 10), 15)},
    "UNICODE UTF-8": "utf-8",
    "UNICODE": "utf-8",
}

_LETTERS = "FSRET"
_FORMATTING = re.compile(r"\.(?:br|sp|fi|nf|in|ti|sk|ce)[+-]?[0-9]*")
_HEXADECIMAL = re.compile(r"X((?:[0-9A-Fa-f]{2})+)")
_OTHER_SETS = re.compile(r"C[0-9A-Fa-f]{4}|M[0-9A-Fa-f]{4,6}")


@dataclass(frozen=True)
class Delimiters:
    """What parts a message: fields, components, repetitions, subcomponents; and what escapes (MSH-1, MSH-2)."""

    field: str
    component: str
    repetition: str
    escape: str
    subcomponent: str
    truncation: str = ""

    @classmethod
    def read(cls, header: str) -> Delimiters:
        """Those of a message that begins with MSH; a PolicyError where they are not told or not told apart."""
        field = header[3:4]
        signs = header[4:].split(field, 1)[0] if field and field in header[4:] else header[4:]
        fine = len(signs) in (4, 5) and all(
            sign.isascii() and sign.isprintable() and not sign.isalnum() and sign != " "
            for sign in field + signs
        )
        if not field or not fine or len({field, *signs}) != len(signs) + 1:
            raise PolicyError("MSH-1 and MSH-2 are not five different signs, such as |^~\\&")
        return cls(field, *signs)

    @property
    def written(self) -> str:
        """MSH-2."""
        return self.component + self.repetition + self.escape + self.subcomponent + self.truncation

    def escaped(self, text: str) -> str:
        """The text with every delimiter escaped and every line break as one."""
        return text.replace("\r\n", "\n").translate(self._sequences)

    @cached_property
    def _sequences(self) -> dict[int, str]:
        codes = {sign: f"X{sign:02X}" for sign in (*range(32), 127)}
        codes |= {ord(sign): ".br" for sign in "\r\n"}
        codes |= {ord(sign): letter for sign, letter in zip(self._in_order(), _LETTERS, strict=True)}
        codes |= {ord(self.truncation): "P"} if self.truncation else {}
        return {sign: f"{self.escape}{code}{self.escape}" for sign, code in codes.items()}

    def plain(self, text: str, decode: Callable[[bytes], str]) -> str:
        """The text as its reader sees it; a PolicyError where part of it is in another character set."""
        if self.escape not in text:
            return text
        letters = dict(zip(_LETTERS, self._in_order(), strict=True)) | {"H": "", "N": ""}
        if self.truncation:
            letters["P"] = self.truncation
        parts, start = [], 0
        while (first := text.find(self.escape, start)) >= 0 and (
            second := text.find(self.escape, first + 1)
        ) >= 0:
            code = text[first + 1 : second]
            parts.append(text[start:first])
            start = second + 1
            if code in letters:
                parts.append(letters[code])
            elif _FORMATTING.fullmatch(code):
                parts.append("\n")
            elif number := _HEXADECIMAL.fullmatch(code):
                parts.append(decode(bytes.fromhex(number[1])))
            elif _OTHER_SETS.fullmatch(code):
                raise PolicyError(
                    "the message changes its character set within a value, where no rule could see it"
                )
            else:  # no sequence we know: a sign like any other, as in C:\dir
                parts.append(self.escape)
                start = first + 1
        return "".join(parts) + text[start:]

    def _in_order(self) -> tuple[str, ...]:
        return self.field, self.component, self.repetition, self.escape, self.subcomponent


def find_character_set(named: str, otherwise: str) -> str:
    """Python's name of the character set that MSH-18 names, or of the one that holds where it names none."""
    if named == "":
        return otherwise
    if named not in CHARACTER_SETS:
        raise PolicyError(
            f"MSH-18 names a character set that is not read; these are: {', '.join(CHARACTER_SETS)}"
        )
    return CHARACTER_SETS[named]


def decode_strictly(data: bytes, character_set: str) -> str:
    """The text, or a PolicyError that does not repeat it."""
    try:
        return data.decode(character_set)
    except UnicodeDecodeError:
        raise PolicyError(
            f"the message is not {character_set} throughout, though MSH-18 says so or names no other character set"
        ) from None


def encode_strictly(text: str, character_set: str) -> bytes:
    """The bytes, or a PolicyError where a substitution made a character that the message's set does not have."""
    try:
        return text.encode(character_set)
    except UnicodeEncodeError:
        raise PolicyError(
            f"a substitution gives a character that {character_set}, in which the message is, does not have"
        ) from None
