"""Starting a hospital's site, or the house, from its kit: checked first, so that what is wrong is a sentence and not a
traceback of a network engine; then the process is FLARE's."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from concilium.errors import ConciliumError, HouseError, KitError
from concilium.privacy.identity import Identity
from concilium.transports.flare.hardening import GUARDED, harden
from concilium.transports.flare.kit import HouseNotThere, Kit
from concilium.transports.flare.own_files import HouseFile, SiteFile
from concilium.transports.flare.own_log import start_own_log

Tell = Callable[[str], None]

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
LOCK = "running.lock"


def hold_kit(kit: Kit) -> None:
    """Lock a kit for as long as this process lives, also as FLARE's; KitError where another one has it.

    Two processes of one site would answer in turns, and the house would take each for a restart of the other.
    """
    path = kit.folder / LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = path.read_text(encoding="ascii").strip()
        raise KitError(
            f"{kit.folder}: runs already, as process {holder}; end that one first, or leave it running"
        ) from None
    except OSError as error:
        raise KitError(f"{path}: cannot be written ({error.strerror})") from None
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode("ascii"))
    os.set_inheritable(lock, True)  # it stays open, and locked, when this process becomes FLARE's


def prepare_site(kit: Kit, tell: Tell, *, wait: bool = True) -> None:
    """Check all that a site needs, and say who it is; an error stands in its log, too.

    Without `wait`, a house that does not answer is an error.
    """
    log = start_own_log(kit.folder, kit.name)
    try:
        harden(kit.folder, "site")
        for warning in filter(None, [kit.check_dates()]):
            log.warning(warning)
            tell(f"warning: {warning}")
        own = SiteFile.read(kit.folder)
        with contextlib.suppress(OSError):  # whoever writes there says what is wrong
            own.ledger.parent.mkdir(mode=0o700, exist_ok=True)
        identity = Identity.at(own.identity)  # made here, and nowhere else
        tell(f"{kit.name}: {identity.fingerprint} (tell it to the house and your peers by telephone)")
        try:
            site = own.open(kit.name)
        except ConciliumError as error:
            raise KitError(f"site {kit.name}: {error}") from None
        tell(f"{kit.name}: {site!r}, ledger {own.ledger}")
        site.ledger.close()
        for place in (own.ledger, own.identity):
            _warn_of_place(kit, place, log, tell)
        if wait:
            _wait_for_house(kit, tell)
        else:
            kit.check_house()
            tell(f"{kit.name}: the house at {kit.host}:{kit.port} is there")
    except ConciliumError as error:
        log.error(str(error))
        raise
    log.info("starting, for the house at %s:%s", kit.host, kit.port)


def _warn_of_place(kit: Kit, path: Path, log: logging.Logger, tell: Tell) -> None:
    """Warn where something that must last lies in the kit, which is replaced one day."""
    if path.resolve().is_relative_to(kit.folder.resolve()):
        warning = (
            f"{path} lies in the kit and must outlive it: stop, move it out (a ledger with its .head and .identity), "
            "and name the new place in local/concilium.toml"
        )
        log.warning(warning)
        tell(f"warning: {warning}")


def _wait_for_house(kit: Kit, tell: Tell) -> None:
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
        _warn_of_place(kit, own.folder, log, tell)
        _check_port(kit)
    except ConciliumError as error:
        log.error(str(error))
        raise
    log.info("starting, at port %s", kit.port)


def _check_port(kit: Kit) -> None:
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
    _run_flare(
        kit,
        [command, "-m", str(kit.folder), "-s", "fed_client.json", "--set", "secure_train=true"],
        [f"uid={kit.name}", f"org={kit.organisation}", "config_folder=config"],
    )


def become_house(kit: Kit) -> None:
    """Go on as FLARE's process of the house, at which sites arrive."""
    command = "nvflare.private.fed.app.server.server_train"
    _run_flare(
        kit,
        [command, "-m", str(kit.folder), "-s", "fed_server.json", "--set", "secure_train=true"],
        [f"org={kit.organisation}", "config_folder=config"],
    )


def _run_flare(kit: Kit, command: Sequence[str], settings: Sequence[str]) -> None:
    (kit.folder / "transfer").mkdir(exist_ok=True)
    environment = os.environ | {"MALLOC_ARENA_MAX": "4"}
    sys.stdout.flush()
    sys.stderr.flush()
    parent = [sys.executable, "-u", "-m", "concilium.transports.flare.parent", kit.role, str(kit.folder)]
    os.execve(sys.executable, [*parent, GUARDED, *command, *settings], environment)
