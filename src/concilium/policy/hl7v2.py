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
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from concilium.errors import MissingExtra, PolicyError
from concilium.policy.actions import ConstraintGraphs, Decision
from concilium.policy.functions import Change
from concilium.policy.judging import is_missing
from concilium.policy.language import Eliminate
from concilium.policy.matching import each
from concilium.policy.transaction import MOST_NODES, Transaction
from concilium.policy.v2_segments import find_parents, find_patients
from concilium.policy.v2_text import Delimiters, decode_strictly, encode_strictly, find_character_set
from concilium.records.columns import label

MOST_PARTS = 200_000
# Without its type, its control id and its version a message can be neither read nor acknowledged.
INDISPENSABLE = ("MSH.9", "MSH.10", "MSH.12")
EMPTY = '""'
"""HL7's way to say that a value is to be deleted: there is none."""

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x0c\x0e-\x1f\x7f]")
_NAME = re.compile(r"[A-Z][A-Z0-9]{2}")
_BATCH = ("FHS", "BHS", "BTS", "FTS")


@dataclass(eq=False, slots=True)
class V2Value:
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


V2Field = list[list[list[V2Value]]]
"""Repetitions of components of subcomponents."""


@dataclass(eq=False)
class V2Segment:
    """A node: its fields as they came and taken apart, and its values by path."""

    name: str
    written: list[str]
    fields: list[V2Field]
    first: int
    paths: dict[str, list[V2Value]] = field(default_factory=dict)
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
        text = decode_strictly(data, self.character_set)
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
        self.parents, self.patients = find_parents(names), find_patients(names)
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
        return encode_strictly(f"{text}\r", self.character_set)

    def _values(self, index: int, path: str | None) -> list[V2Value]:
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

    def _open(self, parsed: Any) -> V2Segment:
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
        return V2Segment(name, written, fields, first)

    def _open_field(self, content: Any) -> V2Field:
        return [
            [
                [self._open_value(str(value)) for value in _parts(component)]
                for component in _parts(repetition)
            ]
            for repetition in _parts(content)
        ]

    def _open_value(self, written: str) -> V2Value:
        if written in ("", EMPTY):
            return V2Value(written, None)
        return V2Value(
            written, self.delimiters.plain(written, lambda data: decode_strictly(data, self.character_set))
        )

    def _write(self, segment: V2Segment) -> str:
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

    def _write_value(self, value: V2Value) -> str:
        if value.gone:
            return ""
        return self.delimiters.escaped(label(value.now)) if value.changed else value.written


def _parts(content: Any) -> list[Any]:
    """What a part of a message consists of: the parser gives text alone where there is nothing to take apart."""
    return [content] if isinstance(content, str) else list(content)


def _all_values(content: V2Field) -> Iterator[V2Value]:
    return (value for components in content for values in components for value in values)
