"""A table larger than memory: read once, opened again, a tree of depth 6 and a RuleFit of 333 trees, beside pyarrow,
LightGBM and DuckDB.

python benchmarks/large.py [rows ...]      default 1,000,000 and 5,000,000 rows x 50 columns; also 20000000 50000000
python benchmarks/large.py long [rows]     default 20,000,000 measurements, and as many dated codes

The Parquet file is generated: 30 columns of small whole numbers, 10 of text, 9 measurements with decimals and gaps, and
the outcome. Each line is a process of its own. Ours may hold 2 GB of memory that is not a file's (RssAnon, looked at 50
times a second: a process that takes more is ended), and its policy says memory = "2 GB". Pages of the mapped columns
come and go as the kernel likes, and are not counted. Pyarrow reads the same columns batch by batch, and writes as many
bytes as the store has. DuckDB counts 48 attributes by outcome and by the 64 nodes of one level, within 2 GB. LightGBM
grows one tree of the same depth on a table in memory, without a limit, up to 1,000,000 rows. Processor time is of the
whole process, with its imports, over all threads.

CONCILIUM_LARGE names the folder for the files, which are deleted at the end: some 200 bytes a row.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

LIMIT, DEPTH, BATCH = 2_000_000_000, 6, 1_000_000
WHOLE, TEXTS, MEASURED = 30, 10, 9
WARDS = np.array(["medical", "surgical", "intensive", "elsewhere"])
CUTS = [80.0, 90.0, 95.0, 100.0, 105.0, 110.0, 120.0]
LIGHTGBM_ROWS = 1_000_000
RULES_ROWS = 5_000_000  # RuleFit is fitted to no more: it takes long


def name_attributes() -> list[str]:
    return [
        *(f"score{i:02d}" for i in range(WHOLE)),
        *(f"ward{i}" for i in range(TEXTS)),
        *(f"lab{i}" for i in range(MEASURED)),
    ]


def generate(path: Path, rows: int) -> None:
    import pyarrow
    from pyarrow import parquet

    writer = None
    for start in range(0, rows, BATCH):
        here, draw = min(BATCH, rows - start), np.random.default_rng(start)
        table = {
            f"score{i:02d}": draw.integers(0, 3 + i % 10, here, dtype=np.int8).astype(np.int32)
            for i in range(WHOLE)
        }
        table |= {
            f"ward{i}": pyarrow.DictionaryArray.from_arrays(
                draw.integers(0, 4, here, dtype=np.int8), WARDS
            ).cast("string")
            for i in range(TEXTS)
        }
        labs = [np.round(draw.normal(100, 15, here), 1) for _ in range(MEASURED)]
        risk = sum(table[f"score{i:02d}"] for i in range(3, 9)) / 6 + (labs[0] - 100) / 20
        for i, lab in enumerate(labs):
            lab[draw.random(here) < 0.05] = np.nan
            table[f"lab{i}"] = pyarrow.array(lab, from_pandas=True)
        table["died"] = pyarrow.array(np.where(risk + draw.normal(0, 1, here) > 4, "yes", "no"))
        made = pyarrow.table(table)
        writer = writer or parquet.ParquetWriter(path, made.schema)
        writer.write_table(made)
    assert writer is not None
    writer.close()


def scan(path: Path, folder: Path) -> dict[str, object]:
    """Pyarrow's own scan of the file, and writing as many bytes as the store has."""
    import pyarrow
    from pyarrow import parquet

    begun, rows = time.perf_counter(), 0
    for batch in parquet.ParquetFile(path).iter_batches(1 << 17):
        rows += batch.num_rows
    scanned = time.perf_counter() - begun
    pyarrow.default_memory_pool().release_unused()
    size, block = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()), os.urandom(1 << 24)
    begun = time.perf_counter()
    with (folder / "written").open("wb") as file:
        for _ in range(size // len(block) + 1):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    (folder / "written").unlink()
    return {"scanned": scanned, "written": time.perf_counter() - begun, "bytes": size, "rows": rows}


def read(path: Path, folder: Path) -> dict[str, object]:
    import concilium as cc

    begun = time.perf_counter()
    records = cc.Records.read(path, columns=folder)
    return {"seconds": time.perf_counter() - begun, "rows": len(records)}


def open_site(path: Path, folder: Path):
    import concilium as cc
    from concilium.policy.policy import WorkLimits

    policy = cc.Policy(work=WorkLimits(memory="2 GB"))
    records = cc.Records.read(path, columns=folder)
    return cc.Site("north", records, policy, ledger=folder.with_suffix(""))


def open_again(path: Path, folder: Path) -> dict[str, object]:
    import concilium as cc

    cc.Site("small", cc.Records.from_rows([{"a": 1}, {"a": 2}]))  # the libraries
    begun = time.perf_counter()
    open_site(path, folder)
    return {"seconds": time.perf_counter() - begun}


def grow(path: Path, folder: Path) -> dict[str, object]:
    import concilium as cc

    site = open_site(path, folder)
    cutoffs = {f"lab{i}": CUTS for i in range(MEASURED)}
    begun = time.perf_counter()
    tree = cc.DecisionTree("died", bins=cutoffs, max_depth=DEPTH).fit(cc.House([site]))
    first = time.perf_counter() - begun
    begun = time.perf_counter()
    tree = cc.DecisionTree("died", bins=cutoffs, max_depth=DEPTH, query="score00 >= 0").fit(cc.House([site]))
    return {"first": first, "seconds": time.perf_counter() - begun, "leaves": tree.text().count("\n")}


def fit_rules(path: Path, folder: Path) -> dict[str, object]:
    import concilium as cc

    site = open_site(path, folder)
    begun = time.perf_counter()
    model = cc.RuleFit("died", positive="yes", release="exact", penalty=0.01, max_terms="all")
    model.fit(cc.House([site], timeout=3600))
    return {"seconds": time.perf_counter() - begun, "rules": len(model.body.taken)}


def generate_long(place: Path, rows: int) -> None:
    """Eight variables of patients with 200 measurements each, and dated codes of patients with 20 each."""
    import pyarrow
    from pyarrow import parquet

    draw = np.random.default_rng(0)
    names = np.array(["HR", "SpO2", "Temp", "MAP", "RR", "Lac", "Crea", "WBC"])
    series = {
        "patient": np.sort(draw.integers(0, max(1, rows // 200), rows)),
        "time": draw.integers(0, 72 * 4, rows) / 4,
        "variable": pyarrow.DictionaryArray.from_arrays(draw.integers(0, 8, rows, dtype=np.int8), names),
        "value": np.round(draw.normal(80, 15, rows), 1),
    }
    parquet.write_table(pyarrow.table(series), place / "series.parquet")
    listed = np.array([f"{first}.{last}" for first in range(100, 900) for last in range(10)])
    chosen = np.minimum(draw.exponential(800, rows), len(listed) - 1).astype(np.int16)
    codes = {
        "patient": np.sort(draw.integers(0, max(1, rows // 20), rows)),
        "time": draw.integers(14_600, 18_250, rows).astype("datetime64[D]"),
        "code": pyarrow.DictionaryArray.from_arrays(chosen, listed),
    }
    parquet.write_table(pyarrow.table(codes), place / "codes.parquet")


def open_series(path: Path, folder: Path) -> dict[str, object]:
    import concilium as cc

    begun = time.perf_counter()
    series = cc.Series.read(path, columns=folder)
    cc.Site("north", cc.Patients(series=series), ledger=folder.with_suffix(""))
    return {"seconds": time.perf_counter() - begun}


def open_codes(path: Path, folder: Path) -> dict[str, object]:
    import concilium as cc

    begun = time.perf_counter()
    codes = cc.Sequences.read(path, columns=folder)
    cc.Site("north", cc.Patients(codes=codes), ledger=folder.with_suffix(""))
    return {"seconds": time.perf_counter() - begun}


def measure_long(rows: int, place: Path) -> None:
    generate_long(place, rows)
    time.sleep(3)
    for step, name in {"open_series": "series", "open_codes": "codes"}.items():
        for turn in ("read and opened", "opened again"):
            found = run(step, place / f"{name}.parquet", place / f"{name}.ledger.columns")
            told = f"processor {found.get('processor', 0):.1f} s, peak {found.get('peak', 0) / 1e9:.2f} GB"
            print(f"{rows:,} rows of {name}, {turn}: {say(found)}, {told}", flush=True)


def count_in_duckdb(path: Path, folder: Path) -> dict[str, object]:
    import duckdb

    connection = duckdb.connect(config={"memory_limit": "2GB", "threads": 2, "temp_directory": str(folder)})
    node = " + ".join(f"({2**i} * (score{i + 3:02d} > 1)::INT)" for i in range(DEPTH))
    attributes = name_attributes()
    cells = [f"floor({one} / 10)::INT AS {one}" if one.startswith("lab") else one for one in attributes]
    begun = time.perf_counter()
    sets = ", ".join(f"({one}, node, died)" for one in attributes[:48])
    inner = f"SELECT {', '.join(cells)}, ({node}) AS node, died FROM read_parquet('{path}')"
    counted = connection.execute(
        f"SELECT count(*) FROM (SELECT {', '.join(attributes[:48])}, node, died, count(*) FROM ({inner}) "
        f"GROUP BY GROUPING SETS ({sets}))"
    ).fetchone()
    return {"seconds": time.perf_counter() - begun, "cells": counted[0]}


def grow_lightgbm(path: Path, folder: Path) -> dict[str, object]:
    import lightgbm
    from pyarrow import compute, parquet

    begun = time.perf_counter()
    table = parquet.read_table(path)
    columns = []
    for name in name_attributes():
        column = table[name].combine_chunks()
        if name.startswith("ward"):
            column = compute.index_in(column, value_set=compute.unique(column))
        columns.append(column.to_numpy(zero_copy_only=False).astype(np.float32))
    target = compute.equal(table["died"], "yes").to_numpy().astype(np.float32)
    del table
    data = lightgbm.Dataset(np.stack(columns, axis=1), target, params={"verbose": -1, "num_threads": 2})
    data.construct()
    read_in, begun = time.perf_counter() - begun, time.perf_counter()
    settings = {
        "objective": "binary",
        "max_depth": DEPTH,
        "num_leaves": 2**DEPTH,
        "num_threads": 2,
        "verbose": -1,
    }
    lightgbm.train(settings, data, num_boost_round=1)
    return {"read": read_in, "seconds": time.perf_counter() - begun}


STEPS = {
    one.__name__: one
    for one in (
        scan,
        read,
        open_again,
        grow,
        fit_rules,
        open_series,
        open_codes,
        count_in_duckdb,
        grow_lightgbm,
    )
}
OURS = ("read", "open_again", "grow", "fit_rules", "open_series", "open_codes")


def watch(peak: list[int], limit: float) -> None:
    """Note the most memory, and end the process that takes more than it may."""
    while True:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        held = next(line for line in status.splitlines() if line.startswith("RssAnon"))
        peak[0] = max(peak[0], int(held.split()[1]) * 1024)
        if peak[0] > limit:
            os._exit(1)
        time.sleep(0.02)


def run_here(step: str, path: Path, folder: Path) -> None:
    """One step, in this process, within its limit."""
    logging.basicConfig(level="WARNING")  # what a site could not answer, it says here
    peak = [0]
    threading.Thread(target=watch, args=(peak, LIMIT if step in OURS else math.inf), daemon=True).start()
    found = STEPS[step](path, folder)
    print(json.dumps({**found, "peak": peak[0], "processor": time.process_time()}))


def run(step: str, path: Path, folder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, step, str(path), str(folder)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        return {}
    return json.loads(ended.stdout.splitlines()[-1])


def say(found: dict[str, float], key: str = "seconds") -> str:
    return f"{found[key]:.2f} s" if found else "did not end"


def measure(rows: int, place: Path) -> None:
    path, folder = place / "north.parquet", place / "north.ledger.columns"
    generate(path, rows)
    time.sleep(3)  # a file that has just changed is taken for one that may change again, and read twice
    found = {step: run(step, path, folder) for step in ("read", "scan", "grow", "open_again")}
    again = run("grow", path, folder)
    if rows <= RULES_ROWS:
        found["fit_rules"] = run("fit_rules", path, folder)
    peers = {"count_in_duckdb": run("count_in_duckdb", path, folder)}
    if rows <= LIGHTGBM_ROWS:
        peers["grow_lightgbm"] = run("grow_lightgbm", path, folder)
    size, ledger = path.stat().st_size / 1e9, (place / "north.ledger").stat().st_size / 1e6
    scanned, written = found["scan"]["scanned"], found["scan"]["written"]
    generate(path, rows + rows // 10)  # the same rows, and more behind them
    time.sleep(3)
    found["read grown"] = run("read", path, folder)
    load = os.getloadavg()[0]
    print(f"{rows:,} rows x 50 columns, {size:.2f} GB of Parquet, at a load of {load:.0f}")
    print(f"  pyarrow             scan {scanned:.2f} s, writing {written:.2f} s")
    print(f"  reading once        {say(found['read'])}")
    print(f"  a tenth more rows   {say(found['read grown'])}")
    print(f"  opening again       {say(found['open_again'])}")
    print(f"  tree, first study   {say(found['grow'], 'first')}; another of the process {say(found['grow'])}")
    print(f"  tree, next process  {say(again, 'first')}; another {say(again)}")
    if "fit_rules" in found:
        print(f"  RuleFit             {say(found['fit_rules'])}")
    for name, one in peers.items():
        print(f"  {name:20}{say(one)}{', reading ' + say(one, 'read') if 'read' in one else ''}")
    everything = {**found, "grow again": again, **peers}
    told = [f"{name} {one.get('processor', 0):.1f}" for name, one in everything.items()]
    print(f"  processor, in s     {', '.join(told)}")
    told = [f"{name} {one.get('peak', 0) / 1e9:.2f}" for name, one in everything.items()]
    print(f"  peak memory in GB   {', '.join(told)}; ours of a limit of {LIMIT / 1e9:.0f}")
    print(
        f"  on disk             {found['scan']['bytes'] / 1e9:.2f} GB of columns, ledger {ledger:.1f} MB",
        flush=True,
    )


def main(arguments: list[str]) -> None:
    if arguments and arguments[0] in STEPS:
        run_here(arguments[0], Path(arguments[1]), Path(arguments[2]))
        return
    long = arguments[:1] == ["long"]
    for rows in [int(one) for one in arguments[long:]] or ([20_000_000] if long else [1_000_000, 5_000_000]):
        place = Path(tempfile.mkdtemp(prefix="large-", dir=os.environ.get("CONCILIUM_LARGE")))
        try:
            (measure_long if long else measure)(rows, place)
        finally:
            shutil.rmtree(place)


if __name__ == "__main__":
    main(sys.argv[1:])
