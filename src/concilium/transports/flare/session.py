"""A person's session with the house of a network: what every command of theirs opens, and who is connected.

It loads nothing of studies, so that a look at the network takes no longer than FLARE itself.
"""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from concilium.errors import HouseError, KitError, RunStopped
from concilium.transports.flare.kit import Kit

LOGGED_IN_WITHIN = 20.0
LOST = "the house ended, or its connection broke, before the study was done"


@dataclass(frozen=True)
class _NetworkStatus:
    """Who is connected to the house (and how many seconds ago it was last heard), and its jobs, the latest first."""

    house: str
    started: float
    sites: dict[str, float]
    jobs: list[dict[str, Any]]


def look_at_network(kit: Kit) -> _NetworkStatus:
    """Who is connected, and which jobs there are."""
    with open_session(kit) as session:
        info = session.get_system_info()
        jobs = session.list_jobs(limit=20, reverse=True)
    now = time.time()
    sites = {one.name: max(0.0, now - float(one.last_connect_time)) for one in info.client_info}
    return _NetworkStatus(str(info.server_info.status), float(info.server_info.start_time), sites, jobs)


def end_job(kit: Kit, beginning: str) -> str:
    """End the job whose id begins so, and return its id; HouseError where it has ended, or is another person's.

    The house decides whose it is (`manage_job` of its rules): nobody can end the study of somebody else.
    """
    from nvflare.fuel.flare_api.api_spec import InternalError

    if not re.fullmatch("[0-9a-f-]{4,36}", beginning):
        raise HouseError(f"{beginning!r} is no job; concilium flare status lists them by their ids")
    with open_session(kit) as session:
        found = [str(job["job_id"]) for job in session.list_jobs(id_prefix=beginning)]
        if len(found) != 1:
            many = "no job has" if not found else f"{len(found)} jobs have"
            raise HouseError(f"{many} an id that begins with {beginning}; concilium flare status lists them")
        status = str(session.get_job_meta(found[0]).get("status", ""))
        if status.startswith(("FINISHED", "ABANDONED")):
            raise HouseError(f"job {found[0]} has ended already ({status})")
        try:
            session.abort_job(found[0])
        except InternalError as error:
            raise HouseError(f"job {found[0]} could not be ended ({error})") from None
        return found[0]


@contextlib.contextmanager
def open_session(kit: Kit) -> Iterator[Any]:
    """A session with the house, as the person whose kit it is; KitError or HouseError where there is none."""
    from nvflare.fuel.flare_api.api_spec import AuthenticationError, AuthorizationError, NoConnection
    from nvflare.fuel.flare_api.flare_api import new_secure_session
    from nvflare.fuel.utils.config_service import ConfigService

    kit.check_dates()
    # Or FLARE looks for its settings in the folder of whoever runs the command, and in all below it.
    ConfigService.initialize({}, [str(kit.folder / "startup")])
    kit.check_house()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.ExitStack() as stack,
    ):  # FLARE talks to its own shell
        try:
            session = new_secure_session(kit.name, str(kit.folder), timeout=LOGGED_IN_WITHIN)
            stack.callback(_close_session, session)
            yield session
        except AuthenticationError as error:
            raise KitError(f"{kit.name}: the house does not let this kit in ({error})") from None
        except AuthorizationError as error:
            raise KitError(f"{kit.name}: the house does not allow this ({error})") from None
        except NoConnection as error:
            raise RunStopped(f"{LOST} ({error})") from None


def _close_session(session: Any) -> None:
    with contextlib.suppress(Exception):
        session.close()


def list_connected(session: Any) -> list[str]:
    return sorted(one.name for one in session.get_system_info().client_info)
