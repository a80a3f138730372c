"""Regression and Cox regression over hospitals, beside statsmodels and lifelines on the pooled patients.

    python benchmarks/study_statistics.py [--patients 1000000] [--terms 30] [--survivors 100000] [--survival-terms 20]

Both sides are given tables in memory; ours has the gate, the ledger and the sums of ten hospitals in its time, under
`exact`. Times are of the processor, over all threads; linear algebra has one thread on both sides, since threads that
wait for each other would count as work. The largest difference of a coefficient is printed beside.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported

import numpy as np
import pandas as pd

import concilium as cc

HOSPITALS = 10


def draw(patients: int, terms: int, seed: int = 0) -> pd.DataFrame:
    """Patients with an outcome and a time, which follow from the terms."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(patients, terms))
    effect = np.linspace(-0.3, 0.3, terms)
    frame = pd.DataFrame(x, columns=[f"x{place:02d}" for place in range(terms)])
    eta = x @ effect
    frame["outcome"] = np.where(rng.random(patients) < 1 / (1 + np.exp(1 - eta)), "yes", "no")
    event, censored = rng.exponential(np.exp(-eta)), rng.exponential(1.5, patients)
    frame["time"] = np.minimum(event, censored)
    frame["event"] = np.where(event <= censored, "yes", "no")
    return frame


def open_house(frame: pd.DataFrame) -> cc.House:
    parts = np.array_split(np.arange(len(frame)), HOSPITALS)
    return cc.House(
        [cc.Site(f"hospital {n}", cc.Records.read(frame.iloc[part])) for n, part in enumerate(parts)]
    )


def clock(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = run()
    spent = time.process_time() - start
    if (card := getattr(result, "card", None)) is not None and card.dropouts:
        raise SystemExit(f"hospitals were lost, so that patients differ: {card.dropouts}")
    return spent, result


def report(name: str, ours: float, theirs: float, peer: str, apart: float) -> None:
    print(
        f"{name}: {ours:.1f} s; {peer} {theirs:.1f} s (ratio {theirs / ours:.1f}); coefficients differ by at most "
        f"{apart:.1e}",
        flush=True,
    )


def main() -> None:
    import statsmodels.api as sm
    from lifelines import CoxPHFitter

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=1_000_000)
    parser.add_argument("--terms", type=int, default=30)
    parser.add_argument("--survivors", type=int, default=100_000)
    parser.add_argument("--survival-terms", type=int, default=20)
    given = parser.parse_args()
    # Kernels are compiled once for all studies to come: not part of either.
    cc.CoxRegression("event", positive="yes", attributes=["x00"], release="exact").fit(
        open_house(draw(400, 2))
    )

    frame = draw(given.survivors, given.survival_terms)
    names = [name for name in frame if name.startswith("x")]
    house = open_house(frame)
    method = cc.CoxRegression("event", positive="yes", attributes=names, release="exact")
    ours, model = clock(lambda: method.fit(house))
    pooled = frame[[*names, "time"]].assign(
        event=frame.event == "yes", hospital=np.repeat(np.arange(HOSPITALS), given.survivors // HOSPITALS)
    )
    theirs, peer = clock(lambda: CoxPHFitter().fit(pooled, "time", "event", strata=["hospital"]))
    apart = float(np.abs(model.coef_ - peer.params_.values).max())
    report(f"Cox, {given.survivors:,} x {len(names)}", ours, theirs, "lifelines", apart)

    frame = draw(given.patients, given.terms)
    names = [name for name in frame if name.startswith("x")]
    house = open_house(frame)
    other = cc.Regression("outcome", positive="yes", attributes=names, release="exact")
    ours, model = clock(lambda: other.fit(house))
    columns, y = sm.add_constant(frame[names]), (frame.outcome == "yes").astype(float)
    theirs, peer = clock(lambda: sm.GLM(y, columns, family=sm.families.Binomial()).fit())
    apart = float(np.abs(model.coef_ - peer.params.values[1:]).max())
    report(f"logistic, {given.patients:,} x {len(names)}", ours, theirs, "statsmodels", apart)


if __name__ == "__main__":
    main()
