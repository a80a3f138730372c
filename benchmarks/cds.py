"""CDS services under load: a call with 20 observations and a condition, over HTTP on this machine.

python benchmarks/cds.py [calls]      default 10,000 calls, at 200 a second

`concilium cds` is a process of its own, with a tree and a RuleFit of 20 attributes. Calls are sent on a schedule from 8
connections, and the time of each counts from the moment it was due. Beside it, as the peer: the same server answering
/health, which is the network and the client alone. Before it, answers without HTTP by processor time, which says more
on a busy machine. Targets: the 99th percentile under 20 ms, memory that stays.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path

import msgspec
import numpy as np

import concilium as cc
from concilium.consult.cds_hooks import HookCall, make_services
from concilium.consult.fhir_values import find_mapping

CALLS, RATE, CONNECTIONS = 10_000, 200.0, 8
ATTRIBUTES, PATIENTS = 20, 2000
MIB = 1 << 20


def write_models(folder: Path) -> None:
    """A tree and a RuleFit of three hospitals, with a mapping to LOINC."""
    dice = np.random.default_rng(1)
    names = [f"lab{number}" for number in range(ATTRIBUTES)]
    sections = {
        name: {
            "range": [0, 100],
            "bins": [20, 40, 60, 80],
            "unit": "mmol/l",
            "codes": {"loinc": f"{place}-0"},
        }
        for place, name in enumerate(names)
    }
    dictionary = cc.Dictionary.parse(
        {**sections, "age": {"range": [0, 120], "bins": [40, 60, 80]}}, "benchmark"
    )
    sites = []
    for site in ("north", "south", "west"):
        table = dice.uniform(0, 100, (PATIENTS, ATTRIBUTES))
        age = dice.integers(20, 90, PATIENTS)
        risk = table[:, 0] / 40 + table[:, 1] / 60 + age / 50 + dice.normal(size=PATIENTS)
        columns = {name: table[:, place].round(1).tolist() for place, name in enumerate(names)}
        columns |= {"age": age.tolist(), "died": ["yes" if one > np.median(risk) else "no" for one in risk]}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        sites.append(cc.Site(site, cc.Records.from_rows(rows)))
    house = cc.House(sites, dictionary=dictionary)
    cc.DecisionTree("died", positive="yes", max_depth=5).fit(house).save(folder / "tree.json")
    cc.RuleFit("died", positive="yes", trees=100, release="exact").fit(house).save(folder / "rules.json")


def write_call() -> bytes:
    """A patient with every laboratory value."""
    observations = {
        f"lab{place}": {
            "resourceType": "Bundle",
            "type": "searchset",
            "entry": [
                {
                    "resource": {
                        "resourceType": "Observation",
                        "status": "final",
                        "code": {"coding": [{"system": "http://loinc.org", "code": f"{place}-0"}]},
                        "subject": {"reference": "Patient/1"},
                        "effectiveDateTime": time.strftime("%Y-%m-%d"),
                        "valueQuantity": {
                            "value": 4.0 * place + 1,
                            "unit": "mmol/l",
                            "system": "http://unitsofmeasure.org",
                            "code": "mmol/L",
                        },
                    }
                }
            ],
        }
        for place in range(ATTRIBUTES)
    }
    patient = {"resourceType": "Patient", "id": "1", "gender": "female", "birthDate": "1950-02-01"}
    return json.dumps(
        {
            "hook": "patient-view",
            "hookInstance": "d1577c69-dfbe-44ad-ba6d-3e05e953b2ea",
            "context": {"userId": "Practitioner/1", "patientId": "1"},
            "prefetch": {"patient": patient, **observations},
        }
    ).encode()


def send(port: int, method: str, path: str, body: bytes, calls: int) -> list[float]:
    """The time of each call in ms, from the moment it was due."""
    due: queue.SimpleQueue[float | None] = queue.SimpleQueue()
    taken: list[float] = []

    def work() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while (moment := due.get()) is not None:
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            taken.append(1000 * (time.perf_counter() - moment))
            assert answer.status == 200, content
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    start = time.perf_counter()
    for number in range(calls):
        moment = start + number / RATE
        time.sleep(max(0.0, moment - time.perf_counter()))
        due.put(max(moment, time.perf_counter() - 0.001))
    for _ in threads:
        due.put(None)
    for thread in threads:
        thread.join()
    return taken


def read_memory(pid: int) -> float:
    """What a process holds, in MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024 / MIB


def read_work(pid: int) -> float:
    """The processor time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def measure_work(folder: Path, body: bytes, calls: int) -> None:
    """The processor time of each answer, whoever else works on the machine: all but HTTP."""
    models = {name: cc.load(folder / f"{name}.json") for name in ("tree", "rules")}
    services = make_services({name: (model, find_mapping(model, None)) for name, model in models.items()})
    read, own = msgspec.json.Decoder(HookCall), os.getpid()
    for name in models:
        times = []
        for number in range(calls + 400):
            if number == 400:
                before = read_memory(own)
            start = time.thread_time()
            msgspec.json.encode(services[name].answer(read.decode(body), date.today()))
            times.append(1000 * (time.thread_time() - start))
        middle, high = np.percentile(times[400:], [50, 99])
        print(
            f"  {name:18} median {middle:5.1f} ms   99th percentile {high:5.1f} ms   memory {before:.0f} -> "
            f"{read_memory(own):.0f} MiB after {calls:,}",
            flush=True,
        )


def main(calls: int) -> None:
    body = write_call()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder)
        print("An answer without HTTP, in processor time:", flush=True)
        measure_work(folder, body, calls)
        command = [
            sys.executable,
            "-m",
            "concilium.cli.main",
            "cds",
            "tree=tree.json",
            "rules=rules.json",
            "--port",
            "0",
        ]
        with (
            (folder / "log").open("w") as log,
            subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True) as server,
        ):
            try:
                assert server.stdout is not None
                port = int(server.stdout.readline().rpartition(":")[2].partition("/")[0])
                print(f"{RATE:.0f} calls a second of {len(body) / 1024:.0f} KB, {CONNECTIONS} connections")
                for model, method, path, sent in (
                    ("nothing (/health)", "GET", "/health", b""),
                    ("tree", "POST", "/cds-services/tree", body),
                    ("rules", "POST", "/cds-services/rules", body),
                ):
                    send(port, method, path, sent, 400)
                    before, work = read_memory(server.pid), read_work(server.pid)
                    times = np.array(send(port, method, path, sent, calls))
                    spent = 1000 * (read_work(server.pid) - work) / calls
                    low, high = np.percentile(times, [50, 99])
                    print(
                        f"  {model:18} median {low:5.1f} ms   99th percentile {high:5.1f} ms   {spent:4.1f} ms of "
                        f"processor   memory {before:.0f} -> {read_memory(server.pid):.0f} MiB after {calls:,}"
                    )
            finally:
                server.terminate()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else CALLS)
