"""How fast the console is: every page with 100 studies and 100,000 ledger rows, a consultation on the page, and the
start of the command.

Server time: from a request to the last byte of its page, in this process, without network. The first time of each page
once the console has looked at the folder (some seconds after its start), and the median of the rest. Beside them a page
of FastAPI alone that says one word: what no console could go below.
"""

from __future__ import annotations

import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from starlette.testclient import TestClient

import concilium as cc
from concilium.console.serving import make_console

STUDIES, ROWS, TIMES = 100, 100_000, 15
STUDY = """[study]
name = "ward {number}"
method = "tree"
target = "death"
[privacy]
release = "exact"
[evaluate]
holdout = 0.3
[[site]]
name = "north"
records = "../north.csv"
ledger = "north.ledger"
[[site]]
name = "south"
records = "../south.csv"
"""


def write_table(path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    lines = ["age,sex,creatinine,death"]
    for _ in range(400):
        age, creatinine = draw.integers(20, 95), draw.gamma(2.0, 0.6)
        risk = 0.05 + 0.4 * (age > 70) + 0.2 * (creatinine > 1.8)
        lines.append(f"{age},{draw.choice(['f', 'm'])},{creatinine:.2f},{int(draw.random() < risk)}")
    path.write_text("\n".join(lines) + "\n")


def fill(folder: Path) -> None:
    """A folder with 100 studies and their results, 100 ledgers, and one ledger of 100,000 rows."""
    for seed, name in enumerate(("north", "south")):
        write_table(folder / f"{name}.csv", seed)
    for number in range(STUDIES):
        ward = folder / f"ward-{number}"
        ward.mkdir()
        (ward / "study.toml").write_text(STUDY.format(number=number))
        cc.Study.read(ward / "study.toml").run(ward / "results", warn=lambda _: None)
    answer = bytes(100)
    with cc.Ledger(folder / "long.ledger", budget=Fraction(10**6)) as ledger:
        for number in range(ROWS):
            ledger.charge(
                f"study/question/{number}",
                "0" * 64,
                study=f"study {number % STUDIES}",
                kind="counts",
                mode="private",
                cost=Fraction(1, 1000),
                numbers=100,
                seal=lambda head: answer,
            )


class Visitor:
    """A browser of the one person of this machine, with a watch."""

    def __init__(self, folder: Path) -> None:
        app, access = make_console(folder, host="127.0.0.1", warm=True)
        self.client = TestClient(app, base_url="http://127.0.0.1")
        self.client.get(f"/login?token={access.token}")

    def wait(self) -> None:
        """Until the console has looked at the whole folder."""
        while any(one.name == "looking ahead" for one in threading.enumerate()):
            time.sleep(0.1)

    def time(self, ask: Callable[[], Any]) -> tuple[float, float]:
        """Milliseconds of the first time, and of the median of the rest."""
        seconds = []
        for _ in range(TIMES):
            start = time.perf_counter()
            reply = ask()
            seconds.append(time.perf_counter() - start)
            if reply.status_code != 200:
                raise SystemExit(f"{reply.url}: {reply.status_code}")
        return seconds[0] * 1000, statistics.median(seconds[1:]) * 1000


def time_bare() -> float:
    """A page of FastAPI that says one word."""
    app = FastAPI()
    app.get("/")(lambda: PlainTextResponse("pong"))
    client, seconds = TestClient(app), []
    for _ in range(TIMES):
        start = time.perf_counter()
        client.get("/")
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:]) * 1000


def time_start(folder: Path) -> tuple[float, float]:
    """Seconds from the command to the line with the address, and seconds of processor until its end."""
    command = [sys.executable, "-c", "from concilium.cli.main import app; app()"]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with subprocess.Popen(
        [*command, "console", str(folder), "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        took = time.perf_counter() - start
        process.kill()
    if "is open at" not in line:
        raise SystemExit(f"it did not start: {line}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        folder = Path(name)
        fill(folder)
        visitor = Visitor(folder)
        visitor.wait()
        places = {
            "models": "/",
            "a model": "/models/ward-7/results",
            "results side by side": "/compare?sort=auc",
            "studies of hospitals": "/steward",
            "the long ledger": "/steward/ledger/long.ledger",
            "its older entries": f"/steward/ledger/long.ledger?before={ROWS // 2}",
            "study files": "/scientist",
            "a study file": "/scientist/study/ward-7/study.toml",
        }
        page = visitor.client.get("/models/ward-7/results").text
        token = re.search(r'name="csrf" value="([^"]+)"', page)
        assert token is not None
        patient = {"csrf": token[1]} | {name: "71" for name in ("v.age",) if f'name="{name}"' in page}
        asks = {name: partial(visitor.client.get, place) for name, place in places.items()}
        asks["a consultation"] = partial(visitor.client.post, "/answer/ward-7/results", data=patient)
        print(f"{STUDIES} studies, {STUDIES + 1} ledgers, {ROWS:,} rows in one; milliseconds of server time")
        print(f"{'':24}{'first':>8}{'median':>8}")
        for name, ask in asks.items():
            first, median = visitor.time(ask)
            print(f"{name:24}{first:8.1f}{median:8.1f}", flush=True)
        print(f"{'FastAPI alone, a word':24}{'':8}{time_bare():8.1f}")
        took, work = min(time_start(folder) for _ in range(5))
        print(f"start, the best of five: {took:.2f} s, of which {work:.2f} s of processor")


if __name__ == "__main__":
    main()
