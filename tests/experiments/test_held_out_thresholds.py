"""The experiment on thresholds runs, and one draw of it comes near what its page says."""

from __future__ import annotations

import pytest

import held_out_thresholds


def test_what_cards_say_of_thresholds_is_about_what_new_patients_get():
    figures = held_out_thresholds.measure(1)
    assert set(figures) == {
        (name, decision)
        for name in ("tree", "naive-bayes", "rulefit")
        for decision in ("sensitivity 0.9", "youden")
    }
    for rows in figures.values():
        assert rows.shape == (1, 4)
        assert rows[0, :2] == pytest.approx(rows[0, 2:], abs=0.25)
