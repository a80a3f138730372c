"""Studies across machines against the same studies in one process, on a real FLARE with three sites on this machine.

python benchmarks/flare.py [folder]      default: a temporary folder, deleted afterwards

One house, three hospitals of 2,000 patients and one who submits, each a process of its own, over mutual TLS. The peer
is the embedded transport on the same tables: what is left is the network. Targets: a tree of depth 8 under 2 s after
its job has started, RuleFit's rounds under 5 s. Ledgers are on disk: what a question costs includes its entry.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import concilium as cc
from concilium.privacy.identity import Identity

SITES = ("coast", "north", "south")
PERSON = "ana@example.org"
CONCILIUM = [sys.executable, "-m", "concilium.cli.main", "flare"]
PORT = 18402
PATIENTS = 2000
STUDY = """
[study]
name = "{name}"
method = "{method}"
target = "death"
positive = 1
[privacy]
release = "{release}"
[bins]
age = [20, 30, 40, 50, 60, 70, 80]
bsa = [5, 10, 20, 30, 40, 50, 60, 80]
{more}
"""
SCHEMA = {"age": "number", "bsa": "number", "sex": "code", "ward": "code", "death": "code"}
AGREES = '[agree]\nreleases = ["exact", "masked"]\nmethods = ["tree", "rulefit"]\n'
SETTINGS = {
    "tree of depth 8": ("tree", '[tree]\ngrowth = "id3"\nmax_depth = 8\n'),
    "rulefit": ("rulefit", ""),
    "many questions": ("rulefit", '[rulefit]\nsolver = "fedda"\ntrees = 20\n'),
}
STUDIES = {
    (name, release): STUDY.format(name=f"{name}, {release}", method=method, release=release, more=more)
    for name, (method, more) in SETTINGS.items()
    for release in ("exact", "masked")
}


def write_network(folder: Path) -> None:
    project = folder / "network.toml"
    sites = "".join(f'[[site]]\nname = "{site}"\n' for site in SITES)
    project.write_text(
        f'[project]\nname = "bench"\npeople = ["{PERSON}"]\n[house]\nhost = "localhost"\nport = {PORT}\n{sites}'
    )
    subprocess.run(
        [*CONCILIUM, "provision", project, "--out", folder / "kits"], check=True, capture_output=True
    )
    (folder / "kits/house-state").mkdir(mode=0o700)
    house = Identity.at(folder / "kits/house-state/house.identity").fingerprint
    local = {site: folder / "kits" / site / "local" for site in SITES}
    keys = {site: Identity.at(local[site] / f"{site}.ledger.identity").fingerprint for site in SITES}
    draw = random.Random(3)
    for site in SITES:
        lines = ["age,sex,ward,bsa,death"]
        for _ in range(PATIENTS):
            age, bsa = draw.randrange(18, 90), draw.randrange(1, 95)
            death = int(age + 1.2 * bsa + draw.gauss(0, 25) > 105)
            lines.append(f"{age},{draw.choice('fm')},{draw.choice('abcdefgh')},{bsa},{death}")
        (local[site] / "records.csv").write_text("\n".join(lines) + "\n")
        peers = "".join(f'{one} = "{key}"\n' for one, key in keys.items() if one != site)
        (local[site] / "policy.toml").write_text(f'[houses]\nhouse = "{house}"\n[peers]\n{peers}{AGREES}')
        (local[site] / "concilium.toml").write_text(
            f'[site]\nrecords = "records.csv"\npolicy = "policy.toml"\nledger = "{site}.ledger"\n[schema]\n'
            + "".join(f'{column} = "{kind}"\n' for column, kind in SCHEMA.items())
        )


def start(folder: Path) -> list[subprocess.Popen[bytes]]:
    running = []
    for name in ("house", *SITES):
        role = "house" if name == "house" else "site"
        with (folder / f"{name}.out").open("wb") as out:
            running.append(
                subprocess.Popen(
                    [*CONCILIUM, role, folder / "kits" / name], stdout=out, stderr=subprocess.STDOUT
                )
            )
    end = time.monotonic() + 180
    while time.monotonic() < end:
        command = [*CONCILIUM, "status", "--kit", folder / "kits" / PERSON, "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0 and len(json.loads(done.stdout)["sites"]) == len(SITES):
            return running
        time.sleep(1)
    raise SystemExit("the sites did not connect")


def submit(folder: Path, name: str, text: str) -> dict[str, float]:
    """Rounds, milliseconds of the median one and seconds of all, as the house logged them; seconds of the command."""
    study = folder / f"{re.sub('[^a-z]', '-', name)}.toml"
    study.write_text(text)
    log = folder / "kits/house/concilium.log"
    before = log.stat().st_size
    command = [*CONCILIUM, "submit", study, "--kit", folder / "kits" / PERSON, "--out", study.with_suffix("")]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    submitted = time.perf_counter() - begun
    lines = log.read_bytes()[before:].decode()
    logged = re.search(r"(\d+) rounds, median ([\d.]+) ms, ([\d.]+) s in all", lines)
    assert logged, lines
    return {
        "rounds": int(logged[1]),
        "round": float(logged[2]),
        "seconds": float(logged[3]),
        "submitted": submitted,
    }


def fit_embedded(folder: Path, name: str, text: str) -> float:
    """Seconds of the same study in this process, with new ledgers on disk."""
    path = folder / f"{re.sub('[^a-z]', '-', name)}-embedded.toml"
    path.write_text(text)
    method = cc.Study.read(path, elsewhere=True).open_method()
    sites = [
        cc.Site(
            site,
            cc.Records.read(folder / "kits" / site / "local/records.csv", schema=SCHEMA),
            ledger=path.with_name(f"{path.stem}-{site}.ledger"),
        )
        for site in SITES
    ]
    begun = time.perf_counter()
    method.fit(cc.House(sites))
    return time.perf_counter() - begun


def main(folder: Path) -> None:
    write_network(folder)
    running = start(folder)
    try:
        for name in ("tree of depth 8", "rulefit"):  # what is compiled once is kept on disk
            submit(folder, f"warm up {name}", STUDIES[name, "exact"])
            fit_embedded(folder, f"warm up {name}", STUDIES[name, "exact"])
        print(f"{'':24} rounds  ms/question  s after start  s in one process  ratio  s submitted")
        for (name, release), text in STUDIES.items():
            got = submit(folder, f"{name}, {release}", text)
            question = got["round"] * (2 if release == "masked" else 1)  # asked, and opened
            embedded = fit_embedded(folder, f"{name}, {release}", text)
            print(
                f"{name + ', ' + release:24} {got['rounds']:6}  {question:11.1f}  {got['seconds']:13.2f}  "
                f"{embedded:16.2f}  {got['seconds'] / embedded:5.2f}  {got['submitted']:11.1f}",
                flush=True,
            )
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True)
        main(Path(sys.argv[1]).absolute())
    else:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            main(Path(temporary))
