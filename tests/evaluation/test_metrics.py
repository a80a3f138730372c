"""The figures against their definitions, patient by patient and pair by pair."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from concilium.evaluation.metrics import FIGURES, auc, measure

Case = tuple[list[str], list[str], list[list[float]], list[str]]


@st.composite
def cases(draw: st.DrawFn, classes: int | None = None) -> Case:
    """Patients with true and predicted labels and coarse probabilities, so that ties are common."""
    names = ["alive", "dead", "moved", "unknown"][: classes or draw(st.integers(2, 4))]
    rows = draw(st.integers(1, 25))
    truth = draw(st.lists(st.sampled_from(names), min_size=rows, max_size=rows))
    predicted = draw(st.lists(st.sampled_from(names), min_size=rows, max_size=rows))
    weights = draw(
        st.lists(
            st.lists(st.integers(0, 4), min_size=len(names), max_size=len(names)),
            min_size=rows,
            max_size=rows,
        )
    )
    return truth, predicted, [[w / 4 for w in row] for row in weights], names


def mean(values: list[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return sum(there) / len(there) if there else None


def share(flags: list[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


def brute_force(case: Case, positive: str | None = None) -> dict[str, float | None]:
    truth, predicted, probabilities, names = case
    pairs = list(zip(truth, predicted, strict=True))
    if positive is None and len(names) == 2:
        positive = names[1]
    chosen = names if positive is None else [positive]
    recall = {c: share([p == c for t, p in pairs if t == c]) for c in names}

    def f1(c: str) -> float | None:
        hits, wrong = pairs.count((c, c)), sum((t == c) != (p == c) for t, p in pairs)
        return 2 * hits / (2 * hits + wrong) if hits + wrong else None

    def area(c: str) -> float | None:
        scores = [row[names.index(c)] for row in probabilities]
        wins = [
            Fraction(1)
            if scores[i] > scores[j]
            else Fraction(1, 2)
            if scores[i] == scores[j]
            else Fraction(0)
            for i in range(len(truth))
            for j in range(len(truth))
            if truth[i] == c and truth[j] != c
        ]
        return float(sum(wins) / len(wins)) if wins else None

    def correlation() -> float | None:
        # Gorodkin: the covariance of indicator vectors, normalised; for two classes phi.
        def covariance(a: list[str], b: list[str]) -> Fraction:
            total = Fraction(0)
            for c in names:
                x, y = [Fraction(v == c) for v in a], [Fraction(v == c) for v in b]
                mx, my = sum(x) / len(x), sum(y) / len(y)
                total += sum((i - mx) * (j - my) for i, j in zip(x, y, strict=True))
            return total

        if covariance(truth, truth) == 0:
            return None
        if covariance(predicted, predicted) == 0:
            return 0.0
        return float(covariance(truth, predicted)) / math.sqrt(
            covariance(truth, truth) * covariance(predicted, predicted)
        )

    return {
        "accuracy": share([t == p for t, p in pairs]),
        "balanced_accuracy": mean(list(recall.values())) if len(set(truth)) > 1 else None,
        "auc": mean([area(c) for c in chosen]),
        "f1": mean([f1(c) for c in chosen]),
        "mcc": correlation(),
        "sensitivity": mean([recall[c] for c in chosen]),
        "specificity": mean([share([p != c for t, p in pairs if t != c]) for c in chosen]),
        "ppv": mean([share([t == c for t, p in pairs if p == c]) for c in chosen]),
        "npv": mean([share([t != c for t, p in pairs if p != c]) for c in chosen]),
    }


def figures(case: Case, positive: str | None = None) -> dict[str, float | None]:
    truth, predicted, probabilities, names = case
    return measure(truth, predicted, np.array(probabilities), names, positive)


@given(cases())
def test_every_figure_equals_its_definition(case: Case) -> None:
    assert figures(case) == pytest.approx(brute_force(case), abs=1e-12)


@given(cases(), st.integers(0, 1))
def test_a_named_positive_class_stands_against_the_rest(case: Case, which: int) -> None:
    positive = case[3][which]
    assert figures(case, positive) == pytest.approx(brute_force(case, positive), abs=1e-12)


@given(cases())
@example((["dead"] * 3, ["dead"] * 3, [[0.5, 0.5]] * 3, ["alive", "dead"]))
@example((["alive"], ["dead"], [[0.0, 0.0]], ["alive", "dead"]))
def test_json_never_holds_nan(case: Case) -> None:
    result = figures(case)
    assert tuple(result) == FIGURES
    json.dumps(result, allow_nan=False)
    if len(set(case[0])) == 1:
        assert result["auc"] is result["mcc"] is result["balanced_accuracy"] is None


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=2, max_size=60))
def test_auc_is_the_rank_sum_statistic(patients: list[tuple[bool, float]]) -> None:
    positive = np.array([flag for flag, _ in patients])
    scores = np.array([score for _, score in patients])
    area = auc(positive, scores)
    if area is None:
        assert positive.all() or not positive.any()
    else:
        u = stats.mannwhitneyu(scores[positive], scores[~positive], method="asymptotic").statistic
        assert area == pytest.approx(u / (positive.sum() * (~positive).sum()))


@given(cases(classes=2))
def test_naming_the_other_class_mirrors_the_figures(case: Case) -> None:
    truth, predicted, probabilities, names = case
    whole = (truth, predicted, [[1 - row[1], row[1]] for row in probabilities], names)
    ours, other = figures(whole, "dead"), figures(whole, "alive")
    assert ours["sensitivity"] == other["specificity"]
    assert ours["auc"] == pytest.approx(other["auc"])
    assert ours["mcc"] == other["mcc"]


def test_a_label_the_model_never_met_is_a_wrong_answer_not_an_error() -> None:
    result = measure(
        [0, 1, 2, 2], [0, 1, 0, 1], np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]]), [0, 1]
    )
    assert result["accuracy"] == 0.5
    assert result["sensitivity"] == pytest.approx((1 + 1 + 0) / 3)


def test_no_patients_gives_no_figures() -> None:
    assert measure([], [], np.zeros((0, 2)), [0, 1]) == dict.fromkeys(FIGURES)


def test_a_positive_class_that_nobody_has_gives_no_figures_of_it() -> None:
    result = measure([0, 0], [0, 0], np.array([[1.0], [1.0]]), [0], positive=1)
    assert result == {**dict.fromkeys(FIGURES), "accuracy": 1.0}


def test_mcc_of_many_patients_does_not_overflow() -> None:
    truth = np.arange(200_000) % 2
    guess = np.where(np.arange(200_000) % 10 == 0, 1 - truth, truth)
    result = measure(truth.tolist(), guess.tolist(), np.eye(2)[guess], [0, 1])
    assert result["mcc"] == pytest.approx(np.corrcoef(truth, guess)[0, 1])
