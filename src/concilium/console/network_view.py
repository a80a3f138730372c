"""Who is connected to the house of a network, for the console: looked at in the background, since it takes seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from concilium.errors import ConciliumError

SECONDS_FRESH = 15.0


@dataclass(frozen=True)
class SeenNetwork:
    """The network as it was last looked at: hospitals with the seconds since they were heard, and the latest jobs as
    study, status and time; or why it could not be looked at."""

    sites: Mapping[str, float] = field(default_factory=dict)
    jobs: Sequence[tuple[str, str, str]] = ()
    problem: str = ""
    is_looked_at: bool = False


class NetworkView:
    """`NetworkView(kit).look()`: what is known by now, and never waits."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit
        self._seen = SeenNetwork()
        self._until = 0.0
        self._lock = threading.Lock()

    def look(self) -> SeenNetwork:
        with self._lock:
            due = time.monotonic() > self._until
            if due:
                self._until = time.monotonic() + SECONDS_FRESH
        if due:
            threading.Thread(target=self._refresh, daemon=True).start()
        return self._seen

    def _refresh(self) -> None:
        try:
            self._seen = _look_at(self.kit)
        except ConciliumError as error:
            self._seen = SeenNetwork(problem=str(error), is_looked_at=True)


def _look_at(folder: Path) -> SeenNetwork:
    """The network of a person's kit."""
    from concilium.transports.flare.kit import Kit
    from concilium.transports.flare.session import look_at_network

    status = look_at_network(Kit.open(folder, "person"))
    jobs = [
        (
            str(job.get("job_name") or "–"),
            str(job.get("status") or "–"),
            str(job.get("submit_time_iso") or job.get("submit_time") or "–"),
        )
        for job in status.jobs
    ]
    return SeenNetwork(dict(sorted(status.sites.items())), jobs, "", True)
