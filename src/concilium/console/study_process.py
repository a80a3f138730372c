"""Runs one study in a process of its own, for the console: a line of JSON for each round, and one for how it ended.

A process, so that learning slows no page, and may be ended like a command: what hospitals answered is kept, and a run
that goes on asks for none of it again. It ends itself when the console that began it is gone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from concilium.errors import CannotResume, ConciliumError, RunStopped, StudyPending


def main(arguments: list[str] | None = None) -> None:
    """Run the study of a file to a folder, as `concilium run` or `concilium flare submit` does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("study", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kit", type=Path)
    given = parser.parse_args(arguments)
    # A console that was begun in the background ignores it, and what it starts would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_console, daemon=True).start()
    try:
        _run(given.study, given.out, given.resume, given.kit)
    except StudyPending as pending:
        waiting = [{"study": one.study, "sites": list(one.sites)} for one in (pending, *pending.others)]
        _say(ended="waiting", waiting=waiting)
    except RunStopped as error:
        _say(ended="stopped", said=error.reason, outside=error.reason)
    except CannotResume as error:
        _say(ended="failed", said=error.reason, outside=error.reason)
    except ConciliumError as error:
        _say(ended="failed", said=str(error), outside=error.outside)
    except KeyboardInterrupt:
        _say(ended="stopped", said="it was ended", outside="it was ended")
    else:
        _say(ended="finished")


def _run(path: Path, out: Path, resume: bool, kit: Path | None) -> None:
    from concilium.study.study import Study

    tell, warn = partial(_say_line, "line"), partial(_say_line, "warning")
    if kit is None:
        Study.read(path).run(out, resume=resume, wait=0, on_progress=tell, warn=warn)
        return
    from concilium.transports.flare.kit import Kit
    from concilium.transports.flare.submitting import submit_study

    own = Kit.open(kit, "person")
    submit_study(Study.read(path, elsewhere=True), own, out, resume=resume, tell=tell, warn=warn)


def _end_with_console() -> None:
    """End as by Ctrl-C once nobody holds the other end of standard input."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def _say_line(kind: str, text: str) -> None:
    _say(**{kind: text})


def _say(**what: Any) -> None:
    try:
        sys.stdout.write(json.dumps(what, ensure_ascii=True) + "\n")
        sys.stdout.flush()
    except OSError:
        os._exit(1)  # the console is gone: what was answered is on disk


if __name__ == "__main__":
    main()
