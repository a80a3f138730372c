"""AUROC before onset and alarms, beside counting by hand; controls at the same time since admission."""

from __future__ import annotations

import numpy as np
import pytest

from concilium.evaluation.horizons import HORIZONS, SPANS, ScoredStays, count_alarms, measure_horizons
from concilium.models.prediction import match_controls


def draw_stays(seed, patients=60, follows=0.0):
    """Stays of which some have an onset; scores follow the time since admission, and the onset by `follows`."""
    dice = np.random.default_rng(seed)
    lengths = dice.integers(20, 90, patients)
    onsets = np.where(dice.random(patients) < 0.4, dice.integers(10, lengths), np.inf).astype(float)
    scores = []
    for length, onset in zip(lengths, onsets, strict=True):
        hours = np.arange(length)
        near = np.clip(1 - (onset - hours) / 24, 0, 1) if np.isfinite(onset) else np.zeros(length)
        scores.append(hours / 50 + follows * near + dice.normal(0, 0.3, length))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return ScoredStays(np.concatenate(scores).round(1), starts, onsets)


def measure_by_hand(stays, last, first, matched):
    """Pairs counted one by one, within the same span of hours since admission."""
    cases, others = {}, {}
    for patient, onset in enumerate(stays.onsets):
        own = stays.scores[stays.starts[patient] : stays.starts[patient + 1]]
        for hour, score in enumerate(own):
            if onset - hour < last:
                continue
            span = sum(hour >= one for one in SPANS) if matched else 0
            (cases if onset - hour <= first else others).setdefault(span, []).append(score)
    won = total = 0
    for span, own in cases.items():
        if span in others:
            pairs = [(c > o) + (c == o) / 2 for c in own for o in others[span]]
            won, total = won + len(own) * np.mean(pairs), total + len(own)
    return won / total


@pytest.mark.parametrize("matched", [True, False])
def test_auroc_before_onset_is_counted_within_the_same_time_since_admission(matched):
    stays = draw_stays(1, follows=0.5)
    found = measure_horizons(stays, matched=matched, draws=20)
    assert list(found) == ["4h", "8h", "12h", "12h-8h", "24h-12h"]
    for name, (last, first) in HORIZONS.items():
        assert found[name].value == pytest.approx(measure_by_hand(stays, last, first, matched))
        assert found[name].low <= found[name].value <= found[name].high


def test_a_score_that_only_counts_hours_is_worth_nothing_beside_matched_controls():
    stays = draw_stays(2, patients=400)
    clock = ScoredStays(stays.steps.astype(float), stays.starts, stays.onsets)
    # Onsets are late, so that a clock would look good beside hours from anywhere.
    late = ScoredStays(clock.scores, clock.starts, np.where(stays.onsets < 30, np.inf, stays.onsets))
    assert measure_horizons(late, matched=False, draws=2)["4h"].value > 0.65
    assert abs(measure_horizons(late, draws=2)["4h"].value - 0.5) < 0.08
    nobody = ScoredStays(clock.scores, clock.starts, np.full(400, np.inf))
    assert set(measure_horizons(nobody, draws=2).values()) == {None}
    assert count_alarms(nobody, 0.8) is None


def test_alarms_are_counted_as_a_ward_would():
    scores = np.array([0, 9, 9, 0, 0, 0, 9, 0, 5, 0, 0, 8], dtype=float)
    stays = ScoredStays(scores, np.array([0, 8, 12]), np.array([np.inf, 3.0]))
    found = count_alarms(stays, 1.0, silent_hours=3)
    # The second patient is found by the 5 at its first hour, three hours before; the 8 is after its onset.
    assert (found.threshold, found.sensitivity, found.lead_hours) == (5.0, 1.0, 3.0)
    # The first one has alarms at hours 1 (silent for three) and 6, in eight hours.
    assert found.per_patient_day == pytest.approx(2 / (8 / 24))
    assert found.precision == 0.5
    half_hours = ScoredStays(scores, stays.starts, stays.onsets, 0.5)
    assert count_alarms(half_hours, 1.0, silent_hours=3).lead_hours == 1.5


def test_a_lower_sensitivity_takes_fewer_alarms():
    stays = draw_stays(3, patients=300, follows=2.0)
    found = [count_alarms(stays, share) for share in (0.5, 0.8, 0.95)]
    assert [one.per_patient_day for one in found] == sorted(one.per_patient_day for one in found)
    assert all(one.sensitivity >= share for one, share in zip(found, (0.5, 0.8, 0.95), strict=True))


def test_controls_are_judged_at_times_of_cases():
    dice = np.random.default_rng(1)
    ends, positive = dice.integers(1, 100, 500), dice.random(500) < 0.2
    ends[positive] = np.minimum(ends[positive], 30)
    ends[0] = 0
    matched = match_controls(ends, positive)
    assert (matched[positive] == ends[positive]).all()
    assert (matched <= ends).all()
    times = set(ends[positive].tolist())
    reach = ~positive & (ends >= min(times))
    assert set(matched[reach].tolist()) <= times
    assert matched[0] == 0
    nobody = np.zeros(500, dtype=bool)
    assert (match_controls(ends, nobody) == ends).all()
