"""Who may speak to which process of the network: a filter on every message, at every process of FLARE.

A message names its own origin, and FLARE forwards messages between any two. FLARE checks whose connection it is, by
certificate, and whether its token is real. It does not hold the origin to the connection: the house sends its own token
out with each request, and with it any member could speak as the house.

*Protects:* hospitals and house, *from:* other hospitals and people with a kit. Nobody can greet, ask, start, stop or
fetch in another's name. *Assumes:* the house runs this filter; a house that does not can forge origins, and gains
nothing by it but what deployed_job.py leaves to the house. What is asked and answered is proven by keys of our own
besides (terms.py, messages.py).
"""

from __future__ import annotations

import logging
from typing import Any

from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import BlobSizeError
from nvflare.private.defs import CellChannel

log = logging.getLogger(__name__)

HOUSE = FQCN.ROOT_SERVER
# By which FLARE's own tools look into a process, move it to another house, or stop it.
MANAGEMENT = "_net_manager"
# A site looks for tasks, of which a study gives out none. All else that a study's process is told the house tells it:
# to end, for one, or to send what came of it.
OPEN_TO_SITES = frozenset({ServerCommandNames.GET_TASK})


def may_speak(own: str, neighbour: str, origin: str, channel: str, topic: str) -> bool:
    """Whether a process takes a message of this origin that came over the connection of a neighbour.

    The names are those of FLARE's cells: `server`, `north`, and `server.JOB`, `north.JOB` for processes of a job.
    """
    if own == HOUSE and not is_within(neighbour, origin):
        return False
    ours, theirs = (FQCN.split(name)[0] for name in (own, origin))
    if ours == theirs:
        return True
    if channel == MANAGEMENT:
        return False
    if ours == HOUSE:
        return channel != CellChannel.SERVER_COMMAND or topic in OPEN_TO_SITES
    return bool(theirs == HOUSE)


def is_within(name: str, origin: str) -> bool:
    """Whether an origin is a cell itself, or a process that it started."""
    return origin == name or bool(FQCN.is_ancestor(name, origin))


def refuse_strangers(message: Any, cell: Any) -> Any:
    """A filter of FLARE's cells: None lets a message pass, a reply drops it."""
    own = cell.get_fqcn()
    endpoint = message.get_prop(MessagePropKey.ENDPOINT)
    neighbour = endpoint.name if endpoint is not None else own
    origin = str(message.get_header(MessageHeaderKey.ORIGIN, ""))
    # A message may be part of a stream, which has a channel of its own.
    ways = [
        (str(message.get_header(channel, "")), str(message.get_header(topic, "")))
        for channel, topic in (
            (MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC),
            (StreamHeaderKey.CHANNEL, StreamHeaderKey.TOPIC),
        )
    ]
    if all(may_speak(own, neighbour, origin, *way) for way in ways) and not would_end(own, origin, message):
        return None
    log.warning("%s refused a message that %s may not send, from %s: %s", own, origin, neighbour, ways)
    return make_reply(ReturnCode.UNAUTHENTICATED)


def would_end(own: str, origin: str, message: Any) -> bool:
    """Whether this is, from elsewhere, the error at which FLARE ends the house's process of a study."""
    here = FQCN.split(own)[0] == FQCN.split(origin)[0]
    return not here and message.get_header(StreamHeaderKey.ERROR_TYPE) == BlobSizeError.__name__


def filter_origins() -> None:
    """Have every cell of this process refuse strangers, before it takes its first message."""
    build = CoreCell.__init__

    def build_with_filter(self: Any, *positions: Any, **names: Any) -> None:
        build(self, *positions, **names)
        self.add_incoming_filter("*", "*", refuse_strangers, cell=self)

    CoreCell.__init__ = build_with_filter
