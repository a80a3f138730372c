"""What to say of a study on which a person of a hospital has to decide."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concilium.errors import StudyPending
    from concilium.study import Study


def say_pending(study: Study, pending: StudyPending) -> str:
    """For whom a study waits (of several methods, each), and by which command it is decided on there. Across machines
    nobody but the hospital knows where its ledger is."""
    ledgers = {one.name: study.locate(one.ledger) for one in study.hospitals if one.ledger}
    lines = []
    for one in (pending, *pending.others):
        names = " and ".join(filter(None, [", ".join(one.sites[:-1]), one.sites[-1]]))
        short = one.study[:12]
        if study.elsewhere:
            where = "where a person decides, at the hospital:"
            commands = [
                f"concilium studies show LEDGER {short}",
                f"concilium studies agree LEDGER {short} --who NAME --why TEXT",
            ]
        else:
            where = "where a person decides:"
            commands = [shlex.join(["concilium", "studies", "show", ledgers[s], short]) for s in one.sites]
        lines.append("\n  ".join([f"{study.name}: study {short} waits for {names}, {where}", *commands]))
    return "\n".join(lines)
