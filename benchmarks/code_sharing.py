"""How long sharing codes takes: the mechanism beside numpy, the fit, and 100,000 patients from end to end.

Run: python benchmarks/code_sharing.py

The peer draws from the same channel with numpy's generator, which protects nobody: for each distinct input code one
call of `Generator.choice` for all its events. Patients are synthetic: 45 sensitive among 1,000 codes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

import concilium as cc
from concilium.codes.sharing import CodeSharing
from concilium.codes.taxonomy import Taxonomy
from concilium.records.sequences import Sequences

CODES, EVENTS, PATIENTS, SENSITIVE = 1_000, 5_000_000, 100_000, 45
PEER = np.random.default_rng(0)


def measure(work: Callable[[], object], times: int = 5) -> float:
    """Seconds of one core, the best of several."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def make_patients(taxonomy: Taxonomy, patients: int, seed: int) -> Sequences:
    """Ten codes each on average, common ones often, over three years."""
    rng = np.random.default_rng(seed)
    labels = sorted(rng.permutation(taxonomy.codes)[:CODES].tolist())
    weights = 1 / np.arange(1, CODES + 1)
    counts = rng.poisson(10, patients)
    events = int(counts.sum())
    codes = rng.choice(CODES, events, p=weights / weights.sum())
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return Sequences.from_arrays(offsets, codes, np.floor(rng.random(events) * 1000), labels)


def draw_with_numpy(sharing: CodeSharing, codes: np.ndarray) -> np.ndarray:
    present, places = np.unique(codes, return_inverse=True)
    _, outputs, matrix = sharing.channel([sharing.taxonomy.codes[code] for code in present])
    drawn = np.empty(len(codes), dtype=np.int32)
    order = np.argsort(places, kind="stable")
    for row, events in enumerate(np.split(order, np.cumsum(np.bincount(places))[:-1])):
        drawn[events] = PEER.choice(len(outputs), len(events), p=matrix[row] / matrix[row].sum())
    return drawn


def measure_gate(sharing: CodeSharing, shared: Sequences) -> float:
    """Open the hospital, agree, charge, draw, store and read the answer: seconds of one core."""
    with tempfile.TemporaryDirectory() as folder:
        policy = cc.Policy(budget=cc.Budget("unlimited"))
        start = time.process_time()
        site = cc.Site("north", shared, policy, ledger=f"{folder}/north.ledger")
        sharing.share(site)
        return time.process_time() - start


def main() -> None:
    taxonomy = Taxonomy.icd9(digits=3)
    auxiliary, shared = make_patients(taxonomy, PATIENTS, 1), make_patients(taxonomy, PATIENTS, 2)
    sensitive = auxiliary.labels[200 : 200 + SENSITIVE]
    sharing = CodeSharing(taxonomy, sensitive=sensitive)
    table = Table(title="Sharing codes, on one core")
    for heading in ("what", "Concilium", "asked", "numpy, not private"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    seconds = measure(lambda: sharing.fit(auxiliary), 3)
    table.add_row(
        f"fit: {SENSITIVE} sensitive among {CODES:,} codes, {auxiliary!r}", f"{seconds:.2f} s", "5 s", ""
    )
    codes = np.random.default_rng(3).choice(sharing.number(shared), EVENTS).astype(np.int32)
    for name, other in (
        ("blocks", sharing),
        ("blocks, epsilon 5", sharing.refit(epsilon=5)),
        ("umaxrr", sharing.refit(mechanism="umaxrr")),
    ):
        ours = EVENTS / measure(lambda other=other: other.mechanism_.randomize(codes)) / 1e6
        peer = EVENTS / measure(lambda other=other: draw_with_numpy(other, codes), 2) / 1e6
        table.add_row(f"{name}: codes a second", f"{ours:.1f} M", "5 M", f"{peer:.1f} M")
    seconds = measure(lambda: CodeSharing(taxonomy, sensitive=sensitive).fit(auxiliary).share(shared), 2)
    table.add_row(
        f"end to end: {PATIENTS:,} auxiliary and {PATIENTS:,} shared", f"{seconds:.2f} s", "30 s", ""
    )
    table.add_row(
        "the same through a hospital's gate, ledger on disk",
        f"{measure_gate(sharing, shared):.2f} s",
        "30 s",
        "",
    )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
