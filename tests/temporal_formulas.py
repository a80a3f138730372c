"""Random formulas, templates and series, and what a formula means, written down as the definition says it."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from concilium.records.series import Series
from concilium.temporal import stl

NAMES = ["HR", "Temp", "heart rate", "G", "not", "Sepsis"]
NUMBERS = st.one_of(
    st.sampled_from([0.0, 1.0, 2.0, 0.5, -1.0]),
    st.floats(-1e6, 1e6, allow_nan=False, width=32),
)
RELATIONS = ["<", "<=", ">", ">=", "=", "!="]


def windows(most=5, hours=False):
    steps = st.tuples(st.integers(0, most), st.integers(0, most)).map(lambda pair: (min(pair), max(pair)))
    if not hours:
        return st.one_of(st.none(), steps)
    times = steps.map(lambda pair: tuple(stl.Duration(bound * 30) if bound else 0 for bound in pair))
    return st.one_of(st.none(), steps, times)


def formulas(names=NAMES, numbers=NUMBERS, window=None, most=12, propositions=True, constants=True):
    """Formulas with up to about `most` leaves."""
    window = windows() if window is None else window
    limits = st.builds(stl.Limit, st.sampled_from(names), st.sampled_from(RELATIONS), numbers)
    leaves = [limits, limits, limits]
    if propositions:
        leaves.append(st.sampled_from(names).map(stl.Proposition))
    if constants:
        leaves.append(st.booleans().map(stl.Constant))

    def grow(inner):
        several = st.lists(inner, min_size=2, max_size=3)
        return st.one_of(
            st.builds(stl.Negation, inner),
            st.builds(stl.Conjunction, several),
            st.builds(stl.Disjunction, several),
            st.builds(stl.Implication, inner, inner),
            st.builds(stl.Always, window, inner),
            st.builds(stl.Eventually, window, inner),
            st.builds(stl.Until, inner, window, inner),
        )

    return st.recursive(st.one_of(leaves), grow, max_leaves=most)


@st.composite
def all_series(draw, names=("HR", "Temp"), fewest_points=6, most_points=9, missing=True, whole=False):
    """Small series with few different values, so that limits are met exactly, and with gaps."""
    points = draw(st.integers(fewest_points, most_points))
    patients = draw(st.integers(1, 4))
    cell = st.sampled_from([0.0, 1.0, 2.0, 0.5, -1.0, *([math.nan] * 2 if missing else [])])
    grids = {}
    for name in names:
        cells = draw(st.lists(cell, min_size=points * patients, max_size=points * patients))
        grids[name] = np.array(cells, dtype=np.float32).reshape(points, patients)
    lengths = (
        [points] * patients
        if whole
        else draw(st.lists(st.integers(1, points), min_size=patients, max_size=patients))
    )
    return Series(grids, lengths=np.array(lengths))


def reference_bounds(formula, series, patient, t, robust=True, memo=None):
    """The least and the greatest value (robust), or -1 and 1 for false and true, that the formula can have."""
    memo = {} if memo is None else memo
    key = (formula, t)
    if key not in memo:
        memo[key] = _reference(formula, series, patient, t, robust, memo)
    return memo[key]


def _reference(formula, series, patient, t, robust, memo):
    length = int(series.lengths[patient])
    anything = (-math.inf, math.inf) if robust else (-1, 1)
    if t >= length:
        return anything

    def value(part, time):
        return reference_bounds(part, series, patient, time, robust, memo)

    def least(pairs):
        pairs = list(pairs)
        return min(low for low, _ in pairs), min(high for _, high in pairs)

    def greatest(pairs):
        pairs = list(pairs)
        return max(low for low, _ in pairs), max(high for _, high in pairs)

    def times(window):
        if window is None:
            return range(t, length)
        step = round(series.step_hours * 60)
        low, high = (int(b.minutes / step) if isinstance(b, stl.Duration) else b for b in window[:2])
        return range(t + low, t + high + 1)

    match formula:
        case stl.Constant(truth):
            size = math.inf if robust else 1
            return (size, size) if truth else (-size, -size)
        case stl.Proposition(name):
            return value(stl.Limit(name, ">=", 0.5), t)
        case stl.Limit(name, relation, number):
            x, c = series.variables[name][t, patient], np.float32(number)
            if np.isnan(x):
                return anything
            with np.errstate(all="ignore"):
                distance = {
                    ">": x - c,
                    ">=": x - c,
                    "<": c - x,
                    "<=": c - x,
                    "=": -abs(x - c),
                    "!=": abs(x - c),
                }[relation]
            holds = {">": x > c, ">=": x >= c, "<": x < c, "<=": x <= c, "=": x == c, "!=": x != c}[relation]
            single = float(distance) if robust else (1 if holds else -1)
            return single, single
        case stl.Negation(inner):
            low, high = value(inner, t)
            return -high, -low
        case stl.Conjunction(parts):
            return least(value(part, t) for part in parts)
        case stl.Disjunction(parts):
            return greatest(value(part, t) for part in parts)
        case stl.Implication(premise, result):
            low, high = value(premise, t)
            return greatest([(-high, -low), value(result, t)])
        case stl.Always(window, inner):
            return least(value(inner, k) for k in times(window))
        case stl.Eventually(window, inner):
            return greatest(value(inner, k) for k in times(window))
        case stl.Until(left, window, right):
            return greatest(
                least([value(right, k), *(value(left, j) for j in range(t, k))]) for k in times(window)
            )
    raise AssertionError(formula)


def reference_grid(formula, series, robust=True):
    """`reference_bounds` for all times and patients: two arrays [time, patient]."""
    points = len(series["HR"])
    low, high = np.empty((2, points, len(series)))
    for patient in range(len(series)):
        memo = {}
        for t in range(points):
            low[t, patient], high[t, patient] = reference_bounds(formula, series, patient, t, robust, memo)
    return low, high
