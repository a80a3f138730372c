"""HL7 v2 messages as transactions (docs/methods.md, section 3.5): segments become nodes, joined to what they belong to.

A node's attributes are its `segment` (`PID`) and its fields by position: `PID.5`, its first component `PID.5.1`, of
that the second subcomponent `PID.5.1.2`, in all repetitions. A field without components is its first component as
well, so that a rule about `PID.3.1` reaches a number that stands in PID-3 alone, and what is done to `PID.5` is done to
all that is beneath it.

Who is protected: the people in a message, from its recipient, as far as rules name what identifies them. It is a
filter, not a guarantee. What a rule takes out is empty between its separators, so that all else keeps its place; a
segment goes with what belongs to it. What no rule touches is passed on as it came, byte for byte but for line ends.
Nothing is guessed: what the parser does not read back exactly as it came, what is no single message, and what is in a
character set that is not known is an error that does not repeat the data, and nothing is let out.

Text has five delimiters, their escape sequences, and the character set that MSH-18 names. Rules see text as its
reader does (HL7 v2.5.1, 2.7): `\\F\\` is the field separator, `\\.br\\` a new line, `\\X0D\\` a character by its
number. What is written back has every delimiter escaped again, so that no value can become a field.

Which segment belongs to which, messages tell by their order alone. The groups of the message structures (HL7 v2.5.1,
chapters 3, 4 and 7) as far as an order of segments tells them: a segment belongs to the latest one that it can belong
to of the same patient, or else to the patient (PID), or else to the header (MSH). What is taken out takes along what
belongs to it, which would otherwise be read as another's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from concilium.errors import MissingExtra, PolicyError
from concilium.policy.actions import MOST_NODES, ConstraintGraphs, Decision, Transaction
from concilium.policy.functions import Change
from concilium.policy.judging import is_missing
from concilium.policy.language import Eliminate
from concilium.policy.matching import each
from concilium.records.columns import label

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


def _decode_strictly(data: bytes, character_set: str) -> str:
    """The text, or a PolicyError that does not repeat it."""
    try:
        return data.decode(character_set)
    except UnicodeDecodeError:
        raise PolicyError(
            f"the message is not {character_set} throughout, though MSH-18 says so or names no other character set"
        ) from None


def _encode_strictly(text: str, character_set: str) -> bytes:
    """The bytes, or a PolicyError where a substitution made a character that the message's set does not have."""
    try:
        return text.encode(character_set)
    except UnicodeEncodeError:
        raise PolicyError(
            f"a substitution gives a character that {character_set}, in which the message is, does not have"
        ) from None


_ORDERS = ("OBR", "RXO", "RXE", "RXD", "RXG", "RXA", "ODS", "FT1")
_BELONGS_TO: dict[str, tuple[str, ...]] = {
    "PID": (),
    "PV2": ("PV1",),
    "IN2": ("IN1",),
    "IN3": ("IN1",),
    "OBX": _ORDERS,
    "RXR": _ORDERS,
    "RXC": _ORDERS,
    "SPM": ("OBR",),
    "SAC": ("SPM",),
    "TQ1": (*_ORDERS, "ORC"),
    "TQ2": ("TQ1",),
    "CTD": _ORDERS,
    "CTI": _ORDERS,
    **{name: ("ORC",) for name in _ORDERS if name != "FT1"},
    **dict.fromkeys(("AIS", "AIG", "AIL", "AIP"), ("RGS",)),
}


def _find_parents(names: Sequence[str]) -> list[int | None]:
    """For each segment the one that it belongs to, by position; the first, MSH, belongs to none."""
    parents: list[int | None] = []
    patient, noted, latest = 0, 0, {"MSH": 0}
    for position, name in enumerate(names):
        if position == 0:
            parents.append(None)
            continue
        if name == "NTE":
            about = noted
        elif name == "PID":
            about, patient, latest = 0, position, {}
        else:
            places = [latest[other] for other in _BELONGS_TO.get(name, ()) if other in latest]
            about = max(places, default=patient)
            if name in _ORDERS and any(latest.get(other, -1) > about for other in _ORDERS):
                about = patient  # an order of its own: the one before has been filled
        parents.append(about)
        latest[name] = position
        noted = noted if name == "NTE" else position
    return parents


def _find_patients(names: Sequence[str]) -> list[int | None]:
    """For each segment the PID of the patient it is about; those before a message's only PID are about it too."""
    patient = names.index("PID") if list(names).count("PID") == 1 else None
    patients: list[int | None] = []
    for position, name in enumerate(names):
        patient = position if name == "PID" else patient
        patients.append(patient)
    return patients


MOST_PARTS = 200_000
# Without its type, its control id and its version a message can be neither read nor acknowledged.
INDISPENSABLE = ("MSH.9", "MSH.10", "MSH.12")
EMPTY = '""'
"""HL7's way to say that a value is to be deleted: there is none."""

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x0c\x0e-\x1f\x7f]")
_NAME = re.compile(r"[A-Z][A-Z0-9]{2}")
_BATCH = ("FHS", "BHS", "BTS", "FTS")


@dataclass(eq=False, slots=True)
class _V2Value:
    """One value of a message: how it was written, what it says, and what it has become."""

    written: str
    before: str | None
    now: Any = None
    gone: bool = False

    def __post_init__(self) -> None:
        self.now = self.before

    @property
    def changed(self) -> bool:
        return self.gone or self.now != self.before


V2Field = list[list[list[_V2Value]]]
"""Repetitions of components of subcomponents."""


@dataclass(eq=False)
class _V2Segment:
    """A node: its fields as they came and taken apart, and its values by path."""

    name: str
    written: list[str]
    fields: list[V2Field]
    first: int
    paths: dict[str, list[_V2Value]] = field(default_factory=dict)
    gone: bool = False

    def __post_init__(self) -> None:
        for number, content in enumerate(self.fields, start=self.first):
            for components in content:
                for component, values in enumerate(components, start=1):
                    for subcomponent, value in enumerate(values, start=1):
                        path = self.name
                        for place in (number, component, subcomponent):
                            path = f"{path}.{place}"
                            self.paths.setdefault(path, []).append(value)

    @property
    def attributes(self) -> dict[str, Any]:
        """Each path with all that is beneath it."""
        by_path: dict[str, Any] = {"segment": self.name}
        for path, values in self.paths.items():
            texts = [value.before for value in values if value.before is not None]
            if texts:
                by_path[path] = texts[0] if len(texts) == 1 else texts
        return by_path


def is_v2(data: bytes) -> bool:
    """Whether a message is meant as HL7 v2."""
    return data[:3] == b"MSH"


def require_parser() -> Callable[[str], Any]:
    """The parser of python-hl7; MissingExtra where it is not installed."""
    try:
        import hl7
    except ImportError:
        raise MissingExtra("hl7", "reading HL7 v2 messages") from None
    parse: Callable[[str], Any] = hl7.parse
    return parse


def decide_v2(graphs: ConstraintGraphs, data: bytes, character_set: str = "ascii") -> Decision:
    """What becomes of an HL7 v2 message, and by which rules; the `graph` of the decision is the filtered message.

    `character_set` is that of messages that do not name one (MSH-18).
    """
    graphs.require_secret()
    message = V2Message(data, character_set)
    nodes = tuple(segment.attributes for segment in message.segments)
    edges = tuple((position, parent) for position, parent in enumerate(message.parents) if parent is not None)
    plan = graphs.plan(Transaction(nodes, edges, tuple({} for _ in edges)))
    if plan.refused_by is not None:
        return Decision(None, plan.refused_by, plan.rules)
    for deed, items in plan.deeds:
        if deed.change_for is None and not isinstance(deed.action, Eliminate):
            continue
        for index in each(items):
            if deed.to_edges:
                # Its place is all that joins a segment to another: it cannot stay without.
                message.take_out(edges[index][0])
            elif deed.change_for is not None:
                change = deed.change_for(message.original(index, nodes[index]))
                message.substitute(index, deed.action.attribute, change)
    for deed, items in plan.deeds:
        if isinstance(deed.action, Eliminate) and not deed.to_edges:
            for index in each(items):
                message.eliminate(index, deed.action.attribute)
    return Decision(message.write(), None, plan.rules)


class V2Message:
    """A message, taken apart so that rules can reach every value in it."""

    def __init__(self, data: bytes, character_set: str = "ascii") -> None:
        if not is_v2(data):
            raise PolicyError("an HL7 v2 message begins with its header, MSH")
        data = re.sub(rb"\r\n|\n", b"\r", data)
        header = data.split(b"\r", 1)[0].decode("latin-1")
        self.delimiters = Delimiters.read(header)
        self.character_set = find_character_set(self._named_set(header), character_set)
        text = _decode_strictly(data, self.character_set)
        if _CONTROL.search(text):
            raise PolicyError("the message has control characters in it, which no field of HL7 has")
        text = "\r".join(filter(None, text.split("\r"))).strip()
        self.segments = [self._open(segment) for segment in self._parse(text)]
        names = [segment.name for segment in self.segments]
        if names.count("MSH") > 1 or not {*names}.isdisjoint(_BATCH):
            raise PolicyError("this is more than one message, or a batch; send each message on its own")
        for path in INDISPENSABLE:
            if all(value.before is None for value in self._values(0, path)):
                raise PolicyError(f"the message has no {path.replace('.', '-')}, which every message has")
        self.parents, self.patients = _find_parents(names), _find_patients(names)
        self.children: list[list[int]] = [[] for _ in names]
        for position, parent in enumerate(self.parents):
            if parent is not None:
                self.children[parent].append(position)

    def substitute(self, index: int, path: str | None, change: Change) -> None:
        """Change the values of a path, or of all of them; what cannot be changed is taken out."""
        if path == "segment":
            self.take_out(index)
        for value in self._values(index, path):
            if not value.gone and value.before is not None:
                value.now = change(value.now)
                value.gone = is_missing(value.now)

    def eliminate(self, index: int, path: str | None) -> None:
        """Take out a path with everything beneath it, or the whole segment with all that belongs to it."""
        if path is None or path == "segment":
            self.take_out(index)
            return
        for value in self._values(index, path):
            value.gone = True

    def take_out(self, index: int) -> None:
        """A segment, and what belongs to it: what stood after it would be read as another's."""
        if index == 0:
            raise PolicyError("the rules take out the header, MSH, without which there is no message")
        if not self.segments[index].gone:
            self.segments[index].gone = True
            for position in self.children[index]:
                self.take_out(position)

    def original(self, index: int, attributes: dict[str, Any]) -> dict[str, Any]:
        """What a segment had, with the patient it is about (PID-3): dates of one patient move together."""
        patient = self.patients[index]
        if patient is None:
            return attributes
        numbers = (value.before for value in self._values(patient, "PID.3") if value.before is not None)
        number = next(numbers, None)
        return attributes if number is None else {**attributes, "patient": number}

    def write(self) -> bytes:
        """The message as it may go out."""
        header = self.segments[0]
        for path in INDISPENSABLE:
            if all(value.gone or value.before is None for value in header.paths[path]):
                raise PolicyError(
                    f"the rules leave nothing of {path.replace('.', '-')}, without which no message can go on"
                )
        text = "\r".join(self._write(segment) for segment in self.segments if not segment.gone)
        return _encode_strictly(f"{text}\r", self.character_set)

    def _values(self, index: int, path: str | None) -> list[_V2Value]:
        segment = self.segments[index]
        if path is None:
            return [value for content in segment.fields for value in _all_values(content)]
        return segment.paths.get(path, [])

    def _named_set(self, header: str) -> str:
        fields = header.split(self.delimiters.field)
        named = fields[17].strip() if len(fields) > 17 else ""
        sets = [one.strip() for one in named.split(self.delimiters.repetition) if one.strip()]
        if len(sets) > 1:
            raise PolicyError("MSH-18 names several character sets; messages in one are read")
        return sets[0] if sets else ""

    def _parse(self, text: str) -> Any:
        """The message as python-hl7 reads it, where that is all of it."""
        parse = require_parser()
        signs = self.delimiters
        if sum(map(text.count, {"\r", signs.field, *signs.written[:2], signs.subcomponent})) > MOST_PARTS:
            raise PolicyError(f"a message may have at most {MOST_PARTS:,} parts")
        if text.count("\r") >= MOST_NODES:
            raise PolicyError(f"a message may have at most {MOST_NODES:,} segments")
        try:
            parsed = parse(text)
        except Exception:
            # Whatever its text says may be a value.
            raise PolicyError("the message cannot be read as HL7 v2") from None
        if str(parsed).removesuffix("\r") != text:
            raise PolicyError(
                "the message is not HL7 v2 throughout: it cannot be read and written again alike"
            )
        return parsed

    def _open(self, parsed: Any) -> _V2Segment:
        name = str(parsed[0])
        if not _NAME.fullmatch(name):
            raise PolicyError("a segment has no name of three letters, so that no rule could see what it is")
        # The parser counts the separator and the signs of MSH as fields, as HL7 does.
        first = 3 if name == "MSH" else 1
        written = [str(content) for content in parsed[first:]]
        fields = [
            self._open_field(content) if text else []
            for content, text in zip(parsed[first:], written, strict=True)
        ]
        return _V2Segment(name, written, fields, first)

    def _open_field(self, content: Any) -> V2Field:
        return [
            [
                [self._open_value(str(value)) for value in _parts(component)]
                for component in _parts(repetition)
            ]
            for repetition in _parts(content)
        ]

    def _open_value(self, written: str) -> _V2Value:
        if written in ("", EMPTY):
            return _V2Value(written, None)
        return _V2Value(
            written, self.delimiters.plain(written, lambda data: _decode_strictly(data, self.character_set))
        )

    def _write(self, segment: _V2Segment) -> str:
        signs = self.delimiters
        start = [segment.name, signs.written] if segment.name == "MSH" else [segment.name]
        fields = [
            self._write_field(content) if any(value.changed for value in _all_values(content)) else written
            for content, written in zip(segment.fields, segment.written, strict=True)
        ]
        return signs.field.join([*start, *fields])

    def _write_field(self, content: V2Field) -> str:
        """A field that was changed, without what is empty at its end: how much there was is not told."""
        signs = self.delimiters

        def join(sign: str, texts: list[str]) -> str:
            return sign.join(texts).rstrip(sign)

        return join(
            signs.repetition,
            [
                join(
                    signs.component,
                    [join(signs.subcomponent, list(map(self._write_value, values))) for values in components],
                )
                for components in content
            ],
        )

    def _write_value(self, value: _V2Value) -> str:
        if value.gone:
            return ""
        return self.delimiters.escaped(label(value.now)) if value.changed else value.written


def _parts(content: Any) -> list[Any]:
    """What a part of a message consists of: the parser gives text alone where there is nothing to take apart."""
    return [content] if isinstance(content, str) else list(content)


def _all_values(content: V2Field) -> Iterator[_V2Value]:
    return (value for components in content for values in components for value in values)
