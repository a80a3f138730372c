"""The clearing house: which sites it reaches, how long it waits, what it remembers of them; never a record.

A method opens a `Run` (run.py) and asks its questions through that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from concilium.errors import HouseError, StudyError
from concilium.federation.embedded import Answering, Embedded, Transport
from concilium.federation.messages import LedgerHead, Release
from concilium.federation.run import Run


class House:
    """`House([site, ...])` is embedded: no server, no network. `transport` reaches sites elsewhere.

    timeout   seconds to wait for the answers of one round
    on_loss   "continue": go on with the sites that stayed; "stop": stop, naming the lost site. A masked study
              always stops: its sum with a site and without it would differ by that site's whole answer
    journal   a file for finished rounds, so that an interrupted run can be resumed
    on_round  called with a line of text at each round
    """

    def __init__(
        self,
        sites: Sequence[Answering] = (),
        *,
        transport: Transport | None = None,
        timeout: float = 60.0,
        on_loss: Literal["continue", "stop"] = "continue",
        journal: str | Path | None = None,
        on_round: Callable[[str], None] | None = None,
    ) -> None:
        if transport is None:
            by_name: dict[str, Answering] = {}
            for site in sites:
                if site.name in by_name:
                    raise HouseError(f"two sites are named {site.name!r}; give each site a name of its own")
                by_name[site.name] = site
            transport = Embedded(by_name)
        if not transport.names:
            raise HouseError("a house needs at least one site")
        if on_loss not in ("continue", "stop"):
            raise StudyError(f"on_loss must be 'continue' or 'stop'; got {on_loss!r}")
        if not timeout > 0:
            raise StudyError(f"timeout must be a number of seconds above 0; got {timeout!r}")
        self.transport = transport
        self.timeout = timeout
        self.on_loss = on_loss
        self.journal = journal
        self.on_round = on_round
        # The last ledger head each site told (echoed to it, so that a rolled-back ledger is noticed), and the
        # identity it first signed with (no other is believed later).
        self.heads: dict[str, LedgerHead] = {}
        self.identities: dict[str, bytes] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return self.transport.names

    def open(self, method: str, release: Release, parameters: Mapping[str, Any]) -> Run:
        """A run of a method over all sites of this house."""
        return Run(self, method, release, parameters)
