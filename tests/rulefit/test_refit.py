"""The refit of selected terms: its coefficients are those of a logistic regression, and none turns its sign."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from concilium.rulefit.fitting import Sums
from concilium.rulefit.refit import refit


def answer(columns, outcome, candidates, working):
    """Losses, gradient and Hessian of a pooled table, as hospitals sum them."""

    def predict(one):
        return one.intercept + columns[:, list(one.columns)] @ np.array(one.values)

    losses = [np.sum(np.logaddexp(0, predict(one)) - outcome * predict(one)) for one in candidates]
    risk = 1 / (1 + np.exp(-predict(candidates[0])))
    design = np.column_stack([np.ones(len(columns)), columns])
    inner = design[:, [0, *(1 + one for one in working)]]
    hessian = inner.T @ (inner * (risk * (1 - risk))[:, None])
    return Sums(float(len(columns)), np.array(losses), design.T @ (risk - outcome), hessian)


def run(columns, outcome, start):
    def ask(candidates, working):
        return (yield candidates, working)

    conversation = refit(ask, np.array(start), [], [0] * columns.shape[1], 1.0, binary=True)
    reply = None
    try:
        while True:
            reply = answer(columns, outcome, *conversation.send(reply))
    except StopIteration as end:
        return end.value


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_term_turns_its_sign_and_the_others_are_a_logistic_regression(seed):
    draw = np.random.default_rng(seed)
    common = draw.random(600)
    columns = ((common[:, None] + 0.7 * draw.random((600, 6))) > 0.8).astype(float)  # rules that overlap
    outcome = (draw.random(600) < 1 / (1 + np.exp(1 - 2 * columns[:, 0]))).astype(float)
    start = np.array([-1.0, *np.full(6, 0.2)])  # the penalised fit says more for each of them
    found = run(columns, outcome, start)
    coefficients = found.w[1:][found.kept]
    assert (coefficients >= 0).all()
    assert set(np.flatnonzero(found.w[1:])) <= set(found.kept)
    pooled = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(columns[:, found.kept], outcome)
    assert np.abs(coefficients - pooled.coef_[0]).max() < 1e-3
