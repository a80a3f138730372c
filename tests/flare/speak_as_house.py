"""Sends a hospital FLARE's requests for a shell and to delete a folder, with a person's kit, as that person and in the
house's name: KIT SITE FOLDER. What came of it is to be seen at the hospital: answers are dropped on the way."""

from __future__ import annotations

import sys

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.private.admin_defs import Message
from nvflare.private.defs import CellChannel, RequestHeader, SysCommandTopic, TrainingTopic, new_cell_message

from concilium.transports.flare.kit import Kit
from concilium.transports.flare.session import open_session

PATIENCE = 2.0


def main(kit, site, folder):
    with open_session(Kit.open(kit, "person")) as session:
        cell, forged = session.api.cell, {}
        cell.core_cell.add_outgoing_request_filter("*", "*", lambda message: message.add_headers(forged))
        for origin in (None, "server"):
            if origin is not None:
                forged[MessageHeaderKey.ORIGIN] = origin
            for topic, body in ((SysCommandTopic.SHELL, "ls"), (TrainingTopic.DELETE_RUN, "")):
                request = Message(topic, body)
                request.set_header(RequestHeader.JOB_ID, folder)
                cell.send_request(
                    channel=CellChannel.CLIENT_MAIN,
                    topic=topic,
                    target=site,
                    request=new_cell_message({}, request),
                    timeout=PATIENCE,
                    optional=True,
                )
        forged.clear()


if __name__ == "__main__":
    main(*sys.argv[1:])
