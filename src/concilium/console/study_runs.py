"""Studies that run from the console: each a process of its own, what it said so far, and how it ended."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from concilium.errors import StudyError

MOST_AT_A_TIME = 2
MOST_KEPT = 100
MOST_LINES = 5000
_ROUND = re.compile(
    r"(?:(?P<method>[\w-]+(?: \w+)?): )?round (?P<number>\d+): (?P<kind>\S+) to (?P<sites>.+)"
)
_FOLDER = re.compile(r"[\w][\w.-]{0,60}", re.ASCII)


@dataclass(frozen=True)
class RunLine:
    """Something that a run said: a round, with its question and whom it went to, or a sentence."""

    when: datetime
    text: str
    is_warning: bool = False
    method: str = ""
    number: str = ""
    kind: str = ""
    sites: str = ""


@dataclass
class StudyRun:
    """A run of a study file: `state` is running, finished, waiting (a person must agree), stopped (it can go on) or
    failed; `waiting` are studies with the hospitals that have not agreed."""

    number: int
    key: str
    path: Path
    out: Path
    user: str
    kit: Path | None
    begun: datetime
    state: str = "running"
    said: str = ""
    outside: str = ""
    ended: datetime | None = None
    waiting: Sequence[dict[str, Any]] = ()
    lines: list[RunLine] = field(default_factory=list)

    @property
    def can_go_on(self) -> bool:
        return self.state in ("waiting", "stopped")

    @property
    def rounds(self) -> list[RunLine]:
        return [one for one in self.lines if one.number]

    @property
    def seconds(self) -> float:
        return ((self.ended or datetime.now(UTC)) - self.begun).total_seconds()

    def is_answered(self, line: RunLine) -> bool:
        """Whether all hospitals that a round went to have answered or are accounted for: something came after it."""
        return self.state == "finished" or line is not self.lines[-1]


class StudyRuns:
    """`StudyRuns(folder).start(...)`: begins a run; a few at a time, and one to a folder of results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[int, StudyRun] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def find(self, number: int) -> StudyRun | None:
        return self._runs.get(number)

    def list_runs(self, key: str | None = None) -> list[StudyRun]:
        """Those of a study file, or all; the latest first."""
        return [one for one in reversed(self._runs.values()) if key in (None, one.key)]

    def start(
        self, key: str, path: Path, name: str, user: str, *, resume: bool = False, kit: Path | None = None
    ) -> StudyRun:
        """Begin a run of a study file to a folder of that name beside it; StudyError where it may not begin."""
        if not _FOLDER.fullmatch(name) or name.endswith((".toml", ".ledger", ".csv")):
            raise StudyError("a folder for results has a name of letters, digits, dots and dashes")
        out = path.parent / name
        if out.is_symlink() or (out.exists() and not _holds_results(out)):
            raise StudyError(f"{name}: there is something else of this name; choose another for the results")
        with self._lock:
            running = [one for one in self._runs.values() if one.state == "running"]
            if any(one.out == out for one in running):
                raise StudyError(f"{name}: a run to this folder is under way")
            if len(running) >= MOST_AT_A_TIME:
                raise StudyError(
                    f"{MOST_AT_A_TIME} studies run at the moment; begin this one when one has ended"
                )
            run = StudyRun(next(self._numbers), key, path, out, user, kit, datetime.now(UTC))
            self._runs[run.number] = run
            for old in [one.number for one in self._runs.values() if one.state != "running"][:-MOST_KEPT]:
                del self._runs[old]
            command = [sys.executable, "-m", "concilium.console.study_process", str(path), str(out)]
            command += ["--resume"] if resume else []
            command += [] if kit is None else ["--kit", str(kit)]
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # a traceback could quote a cell
                start_new_session=True,
            )
            self._processes[run.number] = process
        threading.Thread(target=self._listen, args=(run, process), daemon=True).start()
        return run

    def end(self, run: StudyRun) -> None:
        """End a run as by Ctrl-C; what hospitals answered is kept."""
        process = self._processes.get(run.number)
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    def _listen(self, run: StudyRun, process: subprocess.Popen[bytes]) -> None:
        with process:  # which closes its pipes, and waits for it
            for line in process.stdout or ():
                try:
                    self._take(run, json.loads(line))
                except ValueError:
                    continue
        if run.state == "running":
            run.said = run.outside = "its process ended before it was done"
            run.ended, run.state = datetime.now(UTC), "stopped"
        self._processes.pop(run.number, None)

    def _take(self, run: StudyRun, said: dict[str, Any]) -> None:
        if "ended" in said:
            run.said, run.outside = str(said.get("said", "")), str(said.get("outside", ""))
            run.waiting = said.get("waiting", ())
            run.ended, run.state = datetime.now(UTC), said["ended"]
        elif len(run.lines) < MOST_LINES:
            run.lines.append(_read_line(said))


def _read_line(said: dict[str, Any]) -> RunLine:
    text = str(said.get("line") or said.get("warning") or "")
    now = datetime.now(UTC)
    found = _ROUND.fullmatch(text)
    if found is None:
        return RunLine(now, text, "warning" in said)
    return RunLine(now, text, False, found["method"] or "", found["number"], found["kind"], found["sites"])


def _holds_results(folder: Path) -> bool:
    """Whether a folder is one that a run may put results in."""
    if not folder.is_dir():
        return False
    return (folder / "metrics.json").is_file() or not any(folder.iterdir())


def suggest_folder(path: Path) -> str:
    """A name for the results of another run of a study file, which is not taken."""
    first = "results" if len(list(path.parent.glob("*.toml"))) == 1 else f"{path.stem}-results"
    for number in itertools.count(1):
        name = first if number == 1 else f"{first}-{number}"
        if not (path.parent / name).exists():
            return name
    raise AssertionError
