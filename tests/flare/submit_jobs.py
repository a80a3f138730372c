"""Submits job folders as they are, by FLARE's own interface: KIT FOLDER ...; prints how each ended, or why it was
refused."""

from __future__ import annotations

import json
import sys
import time

from concilium.transports.flare.kit import Kit
from concilium.transports.flare.session import open_session

PATIENCE = 120.0


def main(kit, folders):
    ended = {}
    with open_session(Kit.open(kit, "person")) as session:
        numbers = {}
        for folder in folders:
            try:
                numbers[folder] = session.submit_job(folder)
            except Exception as error:
                ended[folder] = f"refused: {error}"
        end = time.monotonic() + PATIENCE
        while len(ended) < len(folders) and time.monotonic() < end:
            for folder, number in numbers.items():
                status = str(session.get_job_meta(number)["status"])
                if status.startswith("FINISHED"):
                    ended[folder] = status
            time.sleep(0.2)
    return ended


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2:])))
