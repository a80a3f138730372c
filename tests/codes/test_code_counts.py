"""Noisy counts of codes: what is counted, how far one patient moves it, what it costs, and what it is good for."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import concilium as cc
from concilium.codes.code_counts import CodeCounts, _count_codes
from concilium.errors import RecordsError, StudyError
from concilium.privacy.accounting import rho_from_pure
from concilium.privacy.randomness import SWITCH, SWITCHED_ON, zero_noise
from concilium.study.code_sharing import SharingStudy

SIZE, TARGETS = 6, np.array([0, 2])
histories = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, SIZE - 1)), max_size=7), min_size=1, max_size=5
)


def count(patients, most_codes, most_pairs):
    sequences = cc.Sequences([[(float(day), str(code)) for day, code in one] for one in patients])
    codes = np.array([int(label) for label in sequences.labels], dtype=np.int32)[sequences.codes]
    codes = codes if len(sequences.codes) else np.zeros(0, dtype=np.int32)
    return _count_codes(sequences, codes, SIZE, TARGETS, most_codes, most_pairs)


@given(histories)
@settings(max_examples=60)
def test_codes_and_pairs_are_counted_once_for_each_patient(patients):
    counted = count(patients, 100, 100)
    sets = [{code for _, code in one} for one in patients]
    singles = Counter(itertools.chain.from_iterable(sets))
    pairs = [[sum(t in s and c in s for s in sets) * (t != c) for c in range(SIZE)] for t in TARGETS]
    assert counted[0] == len(patients)
    assert counted[1 : 1 + SIZE].tolist() == [singles[code] for code in range(SIZE)]
    assert counted[1 + SIZE :].reshape(2, SIZE).tolist() == pairs


@given(histories, st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=60)
def test_one_patient_moves_them_by_what_is_charged(patients, most_codes, most_pairs):
    whole, without = count(patients, most_codes, most_pairs), count(patients[1:], most_codes, most_pairs)
    moved = np.abs(whole - without)
    assert moved[0] == 1
    assert moved[1 : 1 + SIZE].sum() <= most_codes
    assert moved[1 + SIZE :].sum() <= most_pairs
    asked = CodeCounts(epsilon=1, pairs_with=["042"], most_codes=most_codes, most_pairs=most_pairs).question
    assert asked.l1 == 1 + most_codes + most_pairs


def test_through_the_gate_one_patient_moves_no_charge_no_shape_and_no_refusal(monkeypatch):
    """Whoever comes or goes, however long the history and whether its texts are codes."""
    monkeypatch.setenv(SWITCH, SWITCHED_ON)
    patients = make_patients(40)
    seen = []
    for more in ([], [[(0.0, "303"), (1.0, "571"), (2.0, "no code")] * 9], [[]]):
        site = cc.Site("north", cc.Sequences([*patients, *more]))
        asked = CodeCounts(epsilon="0.5", pairs_with=["303"], most_codes=2, most_pairs=1)
        with zero_noise():
            counts = np.array(asked.fit(cc.House([site])).body.counts)
        seen.append((counts, site.ledger.spent(), len(site.ledger.entries())))
    for counts, spent, entries in seen[1:]:
        assert (spent, entries, counts.shape) == (*seen[0][1:], seen[0][0].shape)
        assert np.abs(counts - seen[0][0]).sum() <= asked.question.l1 == 4


def make_patients(number, seed=4):
    rng = np.random.default_rng(seed)
    patients = []
    for _ in range(number):
        codes = ["250"] * (rng.random() < 0.4) + ["303", "571", "577"] * (rng.random() < 0.15)
        patients.append([(float(day), code) for day, code in enumerate(codes)])
    return patients


@pytest.fixture(scope="module")
def counted():
    site = cc.Site("north", cc.Sequences(make_patients(3000)))
    counts = CodeCounts(epsilon=1, pairs_with=["303"], most_codes=5, most_pairs=4).fit(cc.House([site]))
    return counts, site


def test_they_are_charged_at_pure_epsilon_and_close_to_the_truth(counted):
    counts, site = counted
    assert site.ledger.spent() == rho_from_pure(Fraction(1))
    sets = [{code for _, code in one} for one in make_patients(3000)]
    assert counts.deviation == pytest.approx(np.sqrt(2) * 10)
    for found, true in (
        (counts.prevalence("303.9"), np.mean(["303" in one for one in sets])),
        (counts.together("571", "303"), np.mean(["303" in one and "571" in one for one in sets])),
    ):
        assert abs(found.value - true) < 10 * counts.deviation / 3000
        assert found.low < found.value < found.high
    with pytest.raises(StudyError, match="pairs were counted with 303"):
        counts.together("250", "571")


def test_what_they_say_is_hidden_and_costs_nothing_more(counted, tmp_path):
    """577 is in no public list: the counts, which were paid for, tell that it gives 303 away."""
    counts, _ = counted
    counts.save(tmp_path / "counts.json")
    again = CodeCounts.load(tmp_path / "counts.json")
    assert again.prevalence("303") == counts.prevalence("303")
    learned = cc.CodeSharing(sensitive=["303", "304"]).fit(again)
    public = cc.CodeSharing(sensitive=["303", "304"]).fit()
    assert "577" in learned.protected_
    assert "577" not in public.protected_
    assert "250" not in learned.propose().hidden
    with pytest.raises(StudyError, match="these counts are of icd9 at 3 digits"):
        cc.CodeSharing("icd10", sensitive=["F10", "F11"]).fit(again)
    (tmp_path / "none.json").write_text('{"format": "concilium/code-counts@1"}')
    with pytest.raises(RecordsError, match="no counts of codes that a hospital released"):
        CodeCounts.load(tmp_path / "none.json")


def test_from_a_file_to_the_hidden_set_of_a_plan(tmp_path):
    rows = [
        f"p{place},{int(day)},{code}" for place, one in enumerate(make_patients(2500)) for day, code in one
    ]
    (tmp_path / "codes.csv").write_text("\n".join(["patient,day,code", *rows]) + "\n")
    parameters = {"sensitive": ["303", "304"], "epsilon": "0.05", "max_events": 4}
    study = SharingStudy(codes=str(tmp_path / "codes.csv"), parameters=parameters)
    first = study.count(tmp_path / "counts.json", "1")
    assert study.count(tmp_path / "counts.json", "1").body == first.body  # the same again, free
    with cc.Ledger.open_readonly(tmp_path / "codes.csv.ledger") as book:
        assert book.spent() == rho_from_pure(Fraction(1))
    taught = SharingStudy(
        codes=study.codes, auxiliary=str(tmp_path / "counts.json"), parameters=parameters
    ).plan()
    assert "577" in taught.agreed.hidden
    assert taught.source == "the public list, and noisy counts that were charged"


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"pairs_with": ["303.9"]}, "is not a code of"),
        ({"digits": 5}, "counted at three digits"),
        ({"most_codes": 0}, "'most_codes' of a count of codes must be a whole number"),
    ],
)
def test_a_count_that_cannot_be_is_refused(parameters, said):
    with pytest.raises(StudyError, match=said):
        CodeCounts(epsilon=1, **parameters)
