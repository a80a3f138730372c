"""The parent process of a site or of the house: FLARE's own, and beside it a daily look at the certificates.

`python -m concilium.transports.flare.parent ROLE KIT MODULE ...` goes on as that module of FLARE.
"""

from __future__ import annotations

import logging
import runpy
import sys
import threading
from typing import cast

from concilium.errors import KitError
from concilium.transports.flare.hardening import Role
from concilium.transports.flare.kit import Kit, read_certificate
from concilium.transports.flare.own_log import start_own_log

DAY = 24 * 3600.0


def main() -> None:
    role, folder, module, *arguments = sys.argv[1:]
    kit = Kit.open(folder, cast(Role, role))
    log = start_own_log(kit.folder, "house" if role == "house" else kit.name)
    threading.Thread(target=_watch_dates, args=(kit, log, threading.Event()), daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _watch_dates(kit: Kit, log: logging.Logger, stop: threading.Event, every: float = DAY) -> None:
    """Log each day what is wrong with the certificates of a running process, or soon will be."""
    while not stop.wait(every):
        try:
            if warning := kit.check_dates():
                log.warning("%s%s", warning, _say_if_renewed(kit))
        except KitError as error:
            log.error("%s%s", error, _say_if_renewed(kit))


def _say_if_renewed(kit: Kit) -> str:
    """Advice where another certificate lies in the kit than the process was started with."""
    stem = "server" if kit.role == "house" else "client"
    try:
        renewed = read_certificate(kit.folder / "startup" / f"{stem}.crt") != kit.certificate
    except KitError as error:
        return f"; {error}"
    return "; a new certificate is in the kit: start again, and it is used" if renewed else ""


if __name__ == "__main__":
    main()
