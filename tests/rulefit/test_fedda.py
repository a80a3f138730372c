"""Dual averaging, corrected: near the optimum, never away from it, whichever way the sums are added up."""

from __future__ import annotations

import numpy as np
import pytest
from pooled_lasso import answer, end, find_optimum, objective
from rule_patients import draw, open_house, records_of, small_rulefit

from concilium.errors import StudyError
from concilium.rulefit import fedda
from concilium.rulefit.fedda import _recover


class Sites:
    """Sites of different size that take local steps, as plain arrays."""

    def __init__(self, design, outcome, penalty, *, binary=True, cut=(0.2, 0.5)):
        ends = [int(share * len(outcome)) for share in cut]
        self.parts = list(zip(np.split(design, ends), np.split(outcome, ends), strict=True))
        self.penalty, self.binary, self.steps = penalty, binary, []

    def __call__(self, dual, before, step, local):
        self.steps.append(step)
        total = np.zeros(len(dual) + 2)
        with np.errstate(over="ignore", invalid="ignore"):
            for design, outcome in self.parts:
                total += self.move(design, outcome, dual, before, step, local)
        return answer(np.nan_to_num(total, nan=2.0**30, posinf=2.0**30, neginf=-(2.0**30)))

    def move(self, design, outcome, dual, before, step, local):
        wide, moved = np.column_stack([np.ones(len(outcome)), design]), dual
        for number in range(local):
            w = _recover(moved, (before + step * (number + 1)) * self.penalty)
            if number == 0:
                loss = objective(design, outcome, w[0], w[1:], 0.0, binary=self.binary)
            predictor = wide @ w
            residual = (1 / (1 + np.exp(-predictor)) if self.binary else predictor) - outcome
            moved = moved - step * wide.T @ residual / len(outcome)
        return len(outcome) * np.concatenate([[1, loss], moved - dual])


def problem(seed=0, patients=300, columns=12):
    draws = np.random.default_rng(seed)
    design = (draws.random((patients, columns)) < 0.4).astype(float)
    chance = 1 / (1 + np.exp(0.5 - 2 * design[:, 0] + 1.5 * design[:, 1]))
    return design, (draws.random(patients) < chance).astype(float)


def test_it_approaches_the_pooled_optimum_with_more_rounds():
    design, y = problem()
    best = find_optimum(design, y, 0.01)
    above = []
    for rounds in (5, 50, 500):
        found = end(fedda.fit(Sites(design, y, 0.01), 12, 0.01, rounds=rounds, step=0.05))
        above.append(objective(design, y, found.w[0], found.w[1:], 0.01) - best)
        assert (found.questions, found.step) == (rounds, 0.05)
    assert above[0] > above[1] > above[2] > -1e-9
    assert above[2] < 1e-3


def test_a_site_weighs_as_much_as_it_has_patients():
    """All patients at one site, or the same ones at sites of very different size: one step is the same."""
    design, y = problem()
    whole = end(fedda.fit(Sites(design, y, 0.01, cut=()), 12, 0.01, rounds=30, local=1, step=0.3))
    apart = end(fedda.fit(Sites(design, y, 0.01, cut=(0.02, 0.1)), 12, 0.01, rounds=30, local=1, step=0.3))
    assert apart.w == pytest.approx(whole.w, abs=1e-12)


def test_the_intercept_is_not_penalised():
    draws = np.random.default_rng(1)
    y = (draws.random(400) < 0.9).astype(float)
    found = end(fedda.fit(Sites(draws.random((400, 3)), y, 5.0), 3, 5.0, rounds=600, step=0.1))
    assert found.w == pytest.approx([np.log(y.mean() / (1 - y.mean())), 0, 0, 0], abs=1e-3)


@pytest.mark.parametrize("binary", [True, False])
def test_where_steps_are_too_long_they_are_halved_until_it_descends(binary):
    """Sixty columns that are all alike: the curvature is sixty times that of one, and 0.5 is far too long a step."""
    draws = np.random.default_rng(2)
    design = np.repeat((draws.random((200, 1)) < 0.5).astype(float), 60, axis=1) * 3
    y = (draws.random(200) < 0.2 + 0.6 * (design[:, 0] > 0)).astype(float)
    sites = Sites(design, y, 0.001, binary=binary)
    found = end(fedda.fit(sites, 60, 0.001, rounds=100, step=0.5))
    assert found.step < 0.5
    assert 0.5 / found.step == 2 ** round(np.log2(0.5 / found.step))
    assert found.questions == len(sites.steps) > 100
    assert sites.steps == sorted(sites.steps, reverse=True)
    reached = objective(design, y, found.w[0], found.w[1:], 0.001, binary=binary)
    assert reached < objective(design, y, 0.0, np.zeros(60), 0.001, binary=binary)


def test_through_a_house_exact_and_masked_are_one_model(monkeypatch):
    monkeypatch.setattr(fedda, "ROUNDS", 40)
    monkeypatch.setattr(fedda.fit, "__kwdefaults__", {**fedda.fit.__kwdefaults__, "rounds": 40, "step": 0.05})
    table, y = draw(240, 3)
    options = {"trees": 6, "penalty": 0.01, "solver": "fedda", "epsilon": None}
    exact = small_rulefit(**options).fit(open_house(table, y, 3))
    masked = small_rulefit(**options, release="masked").fit(open_house(table, y, 3))
    assert exact.body == masked.body
    (said,) = [warning for warning in exact.card.warnings if warning.startswith("dual averaging")]
    assert "dual averaging took 40 questions, in steps of 0.05" in said
    design = exact.design(records_of(table, y))
    best = find_optimum(design, y.astype(float), 0.01)
    above = objective(design, y, exact.intercept_, exact.coef_, 0.01) - best
    assert above < 0.3 * (objective(design, y, 0.0, np.zeros(len(exact.coef_)), 0.01) - best)


def test_a_path_of_penalties_needs_newton():
    for penalty in ("auto", [0.1, 0.2]):
        with pytest.raises(StudyError, match="'fedda' needs one 'penalty'"):
            small_rulefit(solver="fedda", penalty=penalty)
