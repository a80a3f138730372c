"""The likelihood-ratio attack: densities by scipy, samples, models that must be found out and one that must not."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

import concilium as cc
from concilium.errors import ModelError
from concilium.evaluation.attacks import (
    PRIOR,
    _choose_samples,
    _compare_densities,
    _learn_shadow,
    _measure_attack,
    attack_with_shadows,
)
from concilium.evaluation.audited_patients import AuditedPatients


@given(st.integers(1, 60), st.integers(4, 20), st.floats(0.05, 0.95), st.integers(0, 5))
def test_everybody_is_in_the_same_number_of_samples(patients, shadows, share, seed):
    samples = _choose_samples(patients, shadows, share, seed)
    times = samples.sum(axis=0)
    assert samples.shape == (shadows, patients)
    assert set(times.tolist()) == {min(max(round(share * shadows), 2), shadows - 2)}
    assert (samples == _choose_samples(patients, shadows, share, seed)).all()


def test_too_few_shadows_are_an_error():
    with pytest.raises(ModelError, match="at least 4"):
        _choose_samples(10, 3, 0.5, 0)


@given(st.integers(0, 100))
def test_ratios_are_those_of_scipy_s_densities(seed):
    draw = np.random.default_rng(seed)
    samples = _choose_samples(7, 8, 0.5, seed)
    signals, observed = draw.normal(size=(8, 7)), draw.normal(size=7)
    ratios = _compare_densities(signals, samples, observed)
    pooled = [
        sum((signals[there[:, p], p].var() * there[:, p].sum()) for p in range(7)) / (there.sum() - 7)
        for there in (samples, ~samples)
    ]
    for patient in range(7):
        density = []
        for there, common in zip((samples, ~samples), pooled, strict=True):
            own = signals[there[:, patient], patient]
            variance = (((own - own.mean()) ** 2).sum() + PRIOR * common) / (len(own) - 1 + PRIOR)
            density.append(norm.logpdf(observed[patient], own.mean(), math.sqrt(variance)))
        assert ratios[patient] == pytest.approx(density[0] - density[1], abs=1e-8)


def test_with_many_shadows_it_is_the_best_attack_there_is():
    """What models say of a patient is N(d, 1) with and N(0, 1) without: no attack has an AUC above Phi(d / sqrt 2)."""
    draw, d, patients, shadows = np.random.default_rng(2), 1.0, 3000, 256
    samples = _choose_samples(patients, shadows, 0.5, 0)
    centres = draw.normal(0, 5, patients)  # which a threshold on the signal itself would drown in
    signals = centres + d * samples + draw.normal(size=(shadows, patients))
    member = np.arange(patients) < patients // 2
    observed = centres + d * member + draw.normal(size=patients)
    ratios = _compare_densities(signals, samples, observed)
    figures = _measure_attack(ratios[member], ratios[~member], lambda mean: 0.0, resamples=200)
    assert figures.auc.low - 0.01 < norm.cdf(d / math.sqrt(2)) < figures.auc.high + 0.01
    assert figures.advantage.low - 0.01 < 2 * norm.cdf(d / 2) - 1 < figures.advantage.high + 0.01


def make_rows(count, seed):
    """Outcomes are chance: whatever a model knows of them it has learned by heart."""
    draw = random.Random(seed)
    return [
        {
            "a": draw.randrange(40),
            "b": draw.randrange(40),
            "c": draw.choice("xyz"),
            "y": draw.choice(["no", "yes"]),
        }
        for _ in range(count)
    ]


def audited(seed, members=150, others=150, sites=3):
    table = cc.Records.from_rows(make_rows(members + others, seed), schema=dict.fromkeys("abcy", "code"))
    inside, outside = table.take(np.arange(members)), table.take(np.arange(members, members + others))
    joined = AuditedPatients.join({"": cc.Patients(table=inside)}, {"": cc.Patients(table=outside)})
    return joined.deal(sites, seed)


def fit(make, patients):
    own = patients.patients.take(patients.member)
    homes = [home for home, inside in zip(patients.homes, patients.member, strict=True) if inside]
    return _learn_shadow(make, own, homes)


def test_a_model_that_learns_by_heart_is_found_out_and_better_than_by_its_losses():
    patients = audited(1)
    make = lambda: cc.DecisionTree("y", growth="id3")  # noqa: E731
    told = []
    figures = attack_with_shadows(
        fit(make, patients), patients, make, shadows=16, resamples=100, tell=told.append
    )
    assert figures.auc.low > 0.8
    assert figures.advantage.low > 0.4
    assert (figures.members, figures.others) == (150, 150)
    assert told == [f"shadow model {number} of 16" for number in range(1, 17)]


def test_a_model_that_says_the_same_of_all_gives_nobody_away():
    patients = audited(2)
    make = lambda: cc.DecisionTree("y", max_depth=0)  # noqa: E731
    figures = attack_with_shadows(fit(make, patients), patients, make, shadows=8, resamples=100)
    assert figures.advantage.low <= 0 <= figures.advantage.high
    assert figures.auc.low <= 0.5 <= figures.auc.high


def test_a_shadow_that_cannot_be_learned_is_one_sentence():
    patients = audited(3)
    model = fit(lambda: cc.DecisionTree("y"), patients)
    with pytest.raises(
        ModelError, match=r"shadow model 1 of 4 could not be learned, from 1\d\d of the members"
    ):
        attack_with_shadows(model, patients, lambda: cc.DecisionTree("z"), shadows=4)


def test_shadows_ask_the_hospitals_they_are_told():
    patients = audited(4, sites=5)
    shadow = fit(lambda: cc.DecisionTree("y", max_depth=1), patients)
    assert sorted(site.name for site in shadow.card.sites) == [f"site {place}" for place in range(1, 6)]
    assert sum(site.patients for site in shadow.card.sites) == 150
