"""Waits until the house has heard from sites since a moment each: KIT SITE=MOMENT ...; one session for all looks."""

from __future__ import annotations

import sys
import time

from concilium.errors import ConciliumError
from concilium.transports.flare.kit import Kit
from concilium.transports.flare.session import open_session


def main(kit, moments):
    while True:
        try:
            with open_session(Kit.open(kit, "person")) as session:
                while True:
                    heard = {
                        one.name: float(one.last_connect_time)
                        for one in session.get_system_info().client_info
                    }
                    if all(heard.get(site, 0.0) > moment for site, moment in moments.items()):
                        return
                    time.sleep(0.2)
        except ConciliumError:  # the house does not listen yet
            time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1], {site: float(moment) for site, moment in (one.split("=") for one in sys.argv[2:])})
