"""Temporal formulas: many formulas on a whole cohort, beside rtamt on the same formulas.

python benchmarks/stl.py [formulas] [patients] [points]    default 1,000 formulas x 10,000 patients x 300 points

Random formulas of 3 to 15 parts over six vital signs, with intervals of up to 24 steps and G, F or U to the end of the
stay. One core. At the start of the stay, as a rule is asked; at all points, where rtamt also computes all; and on a
cohort with gaps and stays of different lengths. rtamt (pure Python, one patient at a time) gets as many of the same
formulas as fit in a few seconds, on one patient, its parsing not counted;
the ratio is of time for a formula and a patient.
"""

from __future__ import annotations

import random
import sys
import time

import numpy as np

import concilium as cc

stl = cc.stl
SIGNS = {
    "HR": (85, 15),
    "Temp": (37, 0.8),
    "MAP": (80, 12),
    "Resp": (18, 5),
    "SpO2": (96, 3),
    "Glucose": (130, 40),
}
CHUNK = 25
PEER_SECONDS = 10.0


def make_series(patients: int, points: int, gaps: bool) -> cc.Series:
    dice = np.random.default_rng(1)
    grids, lengths = {}, np.full(patients, points)
    for name, (mean, spread) in SIGNS.items():
        grid = dice.standard_normal((points, patients), dtype=np.float32)
        for row in range(1, points):
            grid[row] = 0.9 * grid[row - 1] + 0.436 * grid[row]
        grids[name] = mean + spread * grid
        if gaps:
            grids[name][dice.random(grid.shape, dtype=np.float32) < 0.3] = np.nan
    if gaps:
        lengths = dice.integers(points // 4, points + 1, patients)
    return cc.Series(grids, lengths=lengths)


def make_formulas(count: int) -> list[stl.Formula]:
    dice = random.Random(1)
    formulas: dict[stl.Formula, None] = {}
    while len(formulas) < count:
        formula = grow(dice, dice.randint(2, 8))
        if 3 <= formula.size <= 15 and any(hasattr(part, "window") for part in formula.walk()):
            formulas[formula] = None
    return list(formulas)


def grow(dice: random.Random, leaves: int) -> stl.Formula:
    if leaves == 1:
        name = dice.choice(list(SIGNS))
        mean, spread = SIGNS[name]
        limit = stl.Limit(name, dice.choice(["<", "<=", ">", ">="]), round(dice.gauss(mean, spread), 1))
        return stl.Negation(limit) if dice.random() < 0.1 else limit
    if dice.random() < 0.45:
        kind = dice.choice([stl.Always, stl.Eventually])
        return kind(make_window(dice), grow(dice, leaves))
    split = dice.randint(1, leaves - 1)
    one, other = grow(dice, split), grow(dice, leaves - split)
    match dice.choices(["and", "or", "->", "U"], [4, 3, 1, 1])[0]:
        case "and":
            return stl.Conjunction([one, other])
        case "or":
            return stl.Disjunction([one, other])
        case "->":
            return stl.Implication(one, other)
    return stl.Until(one, make_window(dice), other)


def make_window(dice: random.Random) -> tuple[int, int] | None:
    if dice.random() < 0.15:
        return None
    low = dice.choice([0, 0, 0, dice.randint(1, 6)])
    return low, low + dice.randint(1, 24 - low)


def timed(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def at_all_points(formulas: list[stl.Formula], series: cc.Series) -> None:
    """In parts, as the results of all at all points do not fit in memory."""
    for start in range(0, len(formulas), CHUNK):
        stl.robustness_all(formulas[start : start + CHUNK], series, "all")


def to_rtamt(formula: stl.Formula) -> str:
    match formula:
        case stl.Limit(name, relation, number):
            return f"({name} {relation} {number})"
        case stl.Negation(inner):
            return f"(not {to_rtamt(inner)})"
        case stl.Conjunction((one, other)):
            return f"({to_rtamt(one)} and {to_rtamt(other)})"
        case stl.Disjunction((one, other)):
            return f"({to_rtamt(one)} or {to_rtamt(other)})"
        case stl.Implication(one, other):
            return f"({to_rtamt(one)} -> {to_rtamt(other)})"
        case stl.Until(one, window, other):
            return f"({to_rtamt(one)} until{_bounds(window)} {to_rtamt(other)})"
        case stl.Always(window, inner):
            return f"(always{_bounds(window)} {to_rtamt(inner)})"
        case stl.Eventually(window, inner):
            return f"(eventually{_bounds(window)} {to_rtamt(inner)})"
    raise ValueError(formula)


def _bounds(window: stl.Window | None) -> str:
    return "" if window is None else f"[{window.low}:{window.high}]"


def measure_rtamt(formulas: list[stl.Formula], series: cc.Series) -> float:
    """Seconds for one formula and one patient, over a spread of the formulas."""
    import rtamt

    points = len(series["HR"])
    trace: dict[str, list[float]] = {"time": list(range(points))}
    trace |= {name: series[name][:, 0].tolist() for name in SIGNS}
    spent, done = 0.0, 0
    for formula in random.Random(2).sample(formulas, len(formulas)):
        specification = rtamt.StlDiscreteTimeSpecification()
        for name in [*SIGNS, "out"]:
            specification.declare_var(name, "float")
        specification.spec = f"out = {to_rtamt(formula)}"
        specification.parse()
        values: list[list[float]] = []
        spent += timed(lambda s=specification, into=values: into.extend(s.evaluate(trace)))
        done += 1
        low, high = formula.bounds(series.take(np.array([0])), "all")
        theirs = np.array([value for _, value in values], dtype=np.float32)
        if not ((low[:, 0] <= theirs + 1e-3) & (theirs - 1e-3 <= high[:, 0])).all():
            raise SystemExit(f"rtamt differs on {formula}")
        if spent > PEER_SECONDS:
            break
    print(
        f"rtamt: {done} of the formulas, one patient each, {spent / done * 1e3:.2f} ms; all within our bounds"
    )
    return spent / done


def main() -> None:
    counts = [int(argument.replace(",", "")) for argument in sys.argv[1:]]
    count, patients, points = counts + [1_000, 10_000, 300][len(counts) :]
    formulas = make_formulas(count)
    parts = {part for formula in formulas for part in formula.walk()}
    sizes = [formula.size for formula in formulas]
    print(f"{count:,} formulas x {patients:,} patients x {points} points, one core")
    print(
        f"{np.mean(sizes):.1f} parts a formula, {sum(sizes):,} in all, {len(parts):,} different; such as {formulas[7]}"
    )
    whole, gaps = make_series(patients, points, False), make_series(patients, points, True)
    few = whole.take(np.arange(20))
    stl.robustness_all(formulas, few)
    stl.satisfied_all(formulas, few)  # compiled, or read from the cache
    asked = timed(lambda: stl.robustness_all(formulas, whole))
    print(f"robustness at the start          {asked:7.2f} s   (target: 10)")
    print(f"truth at the start               {timed(lambda: stl.satisfied_all(formulas, whole)):7.2f} s")
    print(f"robustness at the start, gaps    {timed(lambda: stl.robustness_all(formulas, gaps)):7.2f} s")
    print(f"truth at the start, gaps         {timed(lambda: stl.satisfied_all(formulas, gaps)):7.2f} s")
    everywhere = timed(lambda: at_all_points(formulas, whole))
    print(f"robustness at all points         {everywhere:7.2f} s")
    each = measure_rtamt(formulas, few)
    print(
        f"rtamt would take {each * count * patients / 3600:.1f} hours: {each * count * patients / everywhere:,.0f} x",
        end="",
    )
    print(f" the time at all points, {each * count * patients / asked:,.0f} x at the start   (target: 1,000)")


if __name__ == "__main__":
    main()
