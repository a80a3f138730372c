"""Donor models: the thesis' own table, and the rules where it is silent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import concilium as cc
from concilium.errors import StudyError
from concilium.evaluation.alone import fit_alone
from concilium.evaluation.donors import Candidate, Donors, describe, rank_donors, weigh
from concilium.evaluation.leave_out import Predictions

TABLE_6_9 = [
    Candidate("12323", 0.9643, 549, 0.67),
    Candidate("36194", 0.9763, 385, 0.66),
    Candidate("6558", 0.9512, 312, 0.76),
    Candidate("6577", 0.9548, 238, 0.69),
]


def test_table_6_9_of_the_thesis():
    ranked = rank_donors(TABLE_6_9)
    assert {donor.site: donor.weight for donor in ranked} == pytest.approx(
        {"12323": 0.9, "36194": 0.8, "6558": 0.9, "6577": 0.8}
    )
    # The thesis leaves ties open; the one with more positive patients is taken.
    assert [donor.site for donor in ranked] == ["12323", "6558", "36194", "6577"]


def test_only_above_the_threshold():
    at_it = Candidate("at", 0.95, 9999, 1.0)
    assert [donor.site for donor in rank_donors([*TABLE_6_9, at_it])] == [
        d.site for d in rank_donors(TABLE_6_9)
    ]
    assert rank_donors(TABLE_6_9, threshold=0.97)[0].site == "36194"
    assert rank_donors([]) == []


def test_beyond_the_fifth_rank_nothing_counts_and_equals_rank_alike():
    assert weigh([60, 50, 40, 30, 20, 10]) == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.0])
    assert weigh([5, 7, 7, 1]) == pytest.approx([0.8, 1.0, 1.0, 0.7])


@given(
    st.lists(
        st.builds(
            Candidate,
            st.text("abc", min_size=1, max_size=4),
            st.floats(0, 1),
            st.integers(0, 30),
            st.floats(0, 1),
        ),
        max_size=12,
    )
)
def test_the_winner_has_the_best_mean_of_two_ranks(candidates):
    ranked = rank_donors(candidates)
    able = [c for c in candidates if c.accuracy > 0.95]
    assert len(ranked) == len(able)
    for donor in ranked:
        first = 1 + sum(c.positives > donor.positives for c in able)
        second = 1 + sum(c.auc > donor.auc for c in able)
        points = [11 - place if place <= 5 else 0 for place in (first, second)]
        assert donor.weight == pytest.approx(sum(points) / 20)
        assert donor.weight <= ranked[0].weight + 1e-9


def hospital(count, noise=0):
    """Patients whose outcome follows from x, except for some."""
    return cc.Records.from_rows(
        [
            {"x": "ab"[i % 4 == 0], "z": i % 3, "y": int((i % 4 == 0) != (i % 20 < noise))}
            for i in range(count)
        ]
    )


TABLES = {"large": hospital(200), "small": hospital(40), "noisy": hospital(200, noise=5), "tiny": hospital(6)}


def make():
    return cc.DecisionTree("y", max_depth=2)


def test_the_best_other_hospital_is_borrowed_from():
    donors = Donors(make, positive=1).fit(TABLES)
    assert [donor.site for donor in donors.donors_] == ["large", "small"]
    assert donors.donor_for() == donors.donor_for("tiny") == "large"
    assert donors.donor_for("large") == "small"
    own = fit_alone(make, "large", TABLES["large"])
    assert donors.model_for().body == own.body
    assert donors.model_for() is donors.model_for("tiny")
    assert (
        list(donors.predict(TABLES["tiny"]))
        == list(own.predict(TABLES["tiny"]))
        == TABLES["tiny"].values("y")
    )
    assert donors.predict_proba(TABLES["tiny"]).shape == (6, 2)
    assert donors.classes_ == [0, 1]


def test_without_a_donor_the_best_is_named():
    tables = {"noisy": TABLES["noisy"], "tiny": TABLES["tiny"]}
    donors = Donors(make, positive=1).fit(tables)
    with pytest.raises(StudyError, match=r"more than 95% of its patients \(the best, noisy, reaches 75.0%\)"):
        donors.donor_for("tiny")
    assert Donors(make, positive=1, threshold=0.7).fit(tables).donor_for("tiny") == "noisy"
    with pytest.raises(StudyError, match="none has a model of its own"):
        Donors(make, positive=1).fit({"tiny": TABLES["tiny"]}).donor_for()


def test_the_only_donor_has_nobody_to_borrow_from():
    donors = Donors(make, positive=1).fit({"large": TABLES["large"], "tiny": TABLES["tiny"]})
    assert donors.others("large") == []
    with pytest.raises(StudyError, match="no other hospital"):
        donors.model_for("large")


def test_what_cross_validation_said_already_is_not_done_again():
    own = {
        "large": Predictions("large", (0, 1), [0, 1, 1], [0, 1, 1], [[1, 0], [0, 1], [0, 1]]),
        "tiny": None,
    }
    donors = Donors(make, positive=1).fit(TABLES, own)
    assert [(d.site, d.positives, d.accuracy, d.auc) for d in donors.donors_] == [("large", 2, 1.0, 1.0)]


def test_a_hospital_without_positives_has_no_auc_to_show():
    said = describe(Predictions("n", (0, 1), [0, 0], [0, 1], [[1, 0], [0, 1]]), 1)
    assert said == Candidate("n", 0.5, 0, 0.0)


@pytest.mark.parametrize("threshold", [-0.1, 1.0, 95])
def test_a_threshold_is_a_share(threshold):
    with pytest.raises(StudyError, match="'threshold'"):
        Donors(make, positive=1, threshold=threshold)
