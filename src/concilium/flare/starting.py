"""Starting a hospital's site, or the house, from its kit: checked first, so that what is wrong is a sentence and not a
traceback of a network engine; then the process is FLARE's."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence

from concilium.errors import ConciliumError, HouseError, KitError
from concilium.flare.hardening import GUARDED, harden
from concilium.flare.house_file import HouseFile
from concilium.flare.kit import HouseNotThere, Kit
from concilium.flare.own_log import start_own_log
from concilium.flare.site_file import SiteFile
from concilium.privacy.identity import Identity

Tell = Callable[[str], None]

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0


def prepare_site(kit: Kit, tell: Tell) -> None:
    """Check all that a site needs, and say who it is; an error stands in its log, too."""
    log = start_own_log(kit.folder, kit.name)
    try:
        harden(kit.folder, "site")
        for warning in filter(None, [kit.check_dates()]):
            log.warning(warning)
            tell(f"warning: {warning}")
        own = SiteFile.read(kit.folder)
        identity = Identity.at(own.identity)  # made here, and nowhere else
        tell(f"{kit.name}: {identity.fingerprint} (tell it to the house and your peers by telephone)")
        try:
            site = own.open(kit.name)
        except ConciliumError as error:
            raise KitError(f"site {kit.name}: {error}") from None
        tell(f"{kit.name}: {site!r}, ledger {own.ledger}")
        site.ledger.close()
        wait_for_house(kit, tell)
    except ConciliumError as error:
        log.error(str(error))
        raise
    log.info("starting, for the house at %s:%s", kit.host, kit.port)


def wait_for_house(kit: Kit, tell: Tell) -> None:
    """Return once the house answers; KitError at once where it is another's, or takes no such kit."""
    log = start_own_log(kit.folder, kit.name)
    pause, said = FIRST_PAUSE, ""
    while True:
        try:
            kit.check_house()
        except HouseNotThere as error:
            if str(error) != said:
                said = str(error)
                log.warning("%s; trying again", said)
                tell(f"{said}; trying again")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            tell(f"{kit.name}: the house at {kit.host}:{kit.port} is there")
            return


def prepare_house(kit: Kit, tell: Tell) -> None:
    """Check all that a house needs, and say who it is; an error stands in its log, too."""
    log = start_own_log(kit.folder, "house")
    try:
        harden(kit.folder, "house")
        for warning in filter(None, [kit.check_dates()]):
            log.warning(warning)
            tell(f"warning: {warning}")
        own = HouseFile.read(kit.folder)
        tell(f"house: {own.identity.fingerprint} (hospitals enter it under [houses] of their policies)")
        check_port(kit)
    except ConciliumError as error:
        log.error(str(error))
        raise
    log.info("starting, at port %s", kit.port)


def check_port(kit: Kit) -> None:
    """HouseError where something else listens at the house's port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", kit.port))
        except OSError as error:
            raise HouseError(
                f"house: port {kit.port} cannot be listened at ({error.strerror}): end what uses it (a house that "
                "still runs?), or provision the project with another port"
            ) from None


def become_site(kit: Kit) -> None:
    """Go on as FLARE's process of a site, which dials the house and starts a process for each job."""
    command = "nvflare.private.fed.app.client.client_train"
    run_flare(
        kit,
        [command, "-m", str(kit.folder), "-s", "fed_client.json", "--set", "secure_train=true"],
        [f"uid={kit.name}", f"org={kit.organisation}", "config_folder=config"],
    )


def become_house(kit: Kit) -> None:
    """Go on as FLARE's process of the house, at which sites arrive."""
    command = "nvflare.private.fed.app.server.server_train"
    run_flare(
        kit,
        [command, "-m", str(kit.folder), "-s", "fed_server.json", "--set", "secure_train=true"],
        [f"org={kit.organisation}", "config_folder=config"],
    )


def run_flare(kit: Kit, command: Sequence[str], settings: Sequence[str]) -> None:
    (kit.folder / "transfer").mkdir(exist_ok=True)
    environment = os.environ | {"MALLOC_ARENA_MAX": "4"}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-u", "-m", GUARDED, *command, *settings], environment)
