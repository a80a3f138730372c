"""The log that a hospital's or the house's people read: `concilium.log` of the kit, a line for each thing that
happened.

It names studies, kinds of question, refusals and what is wrong here, with the remedy; never a patient, never an answer.
"""

from __future__ import annotations

import logging
import logging.handlers
import re
from pathlib import Path

FILE = "concilium.log"
# What FLARE says at the house when somebody who submitted a job asks how it goes, before its process is up or after.
POLLING = re.compile(
    r"no app command func for topic concilium\.|"
    r"STP=app_command.*(no connection to child server\.|cannot send to 'server\.[^']*': target_unreachable)"
)


class PollingFilter(logging.Filter):
    """Leave out FLARE's complaints about ordinary polling (named in log_config.json, hardening.py)."""

    def filter(self, record: logging.LogRecord) -> bool:
        return POLLING.search(record.getMessage()) is None


def start_own_log(kit: Path, name: str, job: str = "") -> logging.Logger:
    """Have all that concilium says written to the kit's log, by whichever of its processes."""
    logger = logging.getLogger("concilium")
    about = f"{name} job {job[:8]}" if job else name
    # Several processes append to one file: it is never renamed under them, and each writes whole lines.
    handler = logging.handlers.WatchedFileHandler(kit / FILE, encoding="utf-8")
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s [{about}] %(message)s"))
    for other in [one for one in logger.handlers if isinstance(one, logging.handlers.WatchedFileHandler)]:
        logger.removeHandler(other)
        other.close()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return logger
