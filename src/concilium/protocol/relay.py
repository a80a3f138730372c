"""Hospitals behind regions, reached through them: what a house says to each is passed on as it is, and so is the reply.

Under masks nobody is trusted with a sum of a few hospitals, and a region neither: it is a piece of wire. Who is
protected, from whom: each hospital's numbers, from a region as from the house. What passes is what passes between house
and hospital without it: questions proven by the house and answers signed by the hospital, so that nothing can be put in
their place; vectors under masks that the region has no more part in than the house has; what is gathered in plain
(values, rules), which it can read as the house can. A region and the house together know what the house knows. What
a region can do is what any wire can: be silent, which is a lost hospital.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from concilium.errors import HouseError, MessageError
from concilium.privacy.manifest import MAX_NAME
from concilium.protocol.messages import VERSION, Envelope, Silence, Transport, decode, encode
from concilium.protocol.questions import UNDER_MASKS, Step

MOST_TIERS = 8
MOST_HOSPITALS = 10_000
SILENT = "the region {region} had no answer of it: {why}"

Route = tuple[str, ...]
"""The regions on the way to a hospital, the outermost first."""


class Relay(Step, frozen=True, kw_only=True):
    """Pass these messages on, each to the hospital (or region) of that name, and send back what they reply."""

    kind: ClassVar[str] = "region.relay"
    before_study: ClassVar[bool] = True
    releases: ClassVar[frozenset[str]] = UNDER_MASKS

    messages: dict[str, bytes]


class _Relayed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What they replied, and why some did not."""

    replies: dict[str, bytes]
    silent: dict[str, str]


def pass_on(relay: Relay, transport: Transport, timeout: float) -> bytes:
    """A region's half: ask its own hospitals, whoever asks; they know by themselves whom they answer."""
    known = {name: message for name, message in relay.messages.items() if name in transport.names}
    asked = transport.ask(known, timeout) if known else {}
    silent = {name: "there is no such hospital in the region" for name in relay.messages if name not in known}
    silent |= {name: "no answer" for name, reply in asked.items() if isinstance(reply, Silence)}
    replies = {name: reply for name, reply in asked.items() if not isinstance(reply, Silence)}
    return encode(_Relayed(replies, silent))


def ask_through(
    transport: Transport,
    messages: Mapping[str, bytes],
    routes: Mapping[str, Route],
    release: str,
    timeout: float,
) -> dict[str, bytes | Silence]:
    """The house's half: one message to each hospital, by its route; what each replied, or why nothing came."""
    if not routes:
        return transport.ask(messages, timeout)
    ways = {name: (*routes.get(name, ()), name) for name in messages}
    outgoing = {first: _pack(first, inside, messages, release) for first, inside in _branch(ways).items()}
    replies: dict[str, bytes | Silence] = {}
    for first, reply in transport.ask(outgoing, timeout).items():
        _unpack(first, reply, _branch(ways)[first], replies)
    return replies


def _branch(ways: Mapping[str, Route]) -> dict[str, dict[str, Route]]:
    """Hospitals and the rest of their ways, by the first step."""
    branches: dict[str, dict[str, Route]] = {}
    for name, (first, *rest) in ways.items():
        branches.setdefault(first, {})[name] = tuple(rest)
    return branches


def _pack(first: str, inside: Mapping[str, Route], messages: Mapping[str, bytes], release: str) -> bytes:
    if not inside.get(first, ("",)):  # it is the hospital itself
        return messages[first]
    parts = {step: _pack(step, below, messages, release) for step, below in _branch(inside).items()}
    body = encode(Relay(messages=parts))
    return encode(
        Envelope(version=VERSION, id="to-a-region", study="", kind=Relay.kind, release=release, body=body)
    )


def _unpack(
    first: str, reply: bytes | Silence, inside: Mapping[str, Route], replies: dict[str, bytes | Silence]
) -> None:
    """Spread what came back over the hospitals that were asked this way."""
    if not inside.get(first, ("",)):
        replies[first] = reply
        return
    try:
        relayed = _Relayed({}, {}) if isinstance(reply, Silence) else decode(reply, _Relayed)
    except MessageError:  # as a region refuses, or says what is none of this
        relayed = _Relayed({}, {})
    for step, below in _branch(inside).items():
        if step in relayed.replies:
            _unpack(step, relayed.replies[step], below, replies)
            continue
        why = relayed.silent.get(step, str(reply) if isinstance(reply, Silence) else "no answer")
        why = why if why.isprintable() else "no answer"  # it ends up on cards and terminals
        for name in below:
            replies[name] = Silence(SILENT.format(region=first, why=why[:200]))


def find_twice(names: Sequence[str]) -> str | None:
    """A name that two hospitals have."""
    met: set[str] = set()
    for name in names:
        if name in met:
            return name
        met.add(name)
    return None


def check_below(route: Route, names: Sequence[str], others: Sequence[str]) -> None:
    """HouseError where whom a region names cannot be asked: a region that goes on naming more of them, or hospitals
    that no manifest could name, would keep the house busy for ever."""
    if len(route) > MOST_TIERS:
        raise HouseError(
            f"{route[0]} leads through more than {MOST_TIERS} regions, one behind the other; it is left alone"
        )
    if len(names) + len(others) > MOST_HOSPITALS:
        raise HouseError(f"{route[-1]} names {len(names)} hospitals; a study has at most {MOST_HOSPITALS}")
    for name in names:
        if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
            raise HouseError(
                f"{route[-1]} names a hospital {name[:MAX_NAME]!r}; a name has 1 to {MAX_NAME} printable characters"
            )
