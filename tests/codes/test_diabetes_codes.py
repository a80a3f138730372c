"""What the experiments on shared codes read: every diagnosis of every stay, in order."""

import pandas as pd

from diabetes_codes import list_diagnoses, read_stays, split


def test_stays_become_days_and_diagnoses_keep_their_order(tmp_path):
    table = pd.DataFrame(
        {
            "encounter_id": ["30", "4", "100", "7"],
            "patient_nbr": ["b", "b", "a", "b"],
            "diag_1": ["250.01", "428", "V57", "401"],
            "diag_2": ["?", "276", "8", "401"],
            "diag_3": ["303", "?", "?", "?"],
        }
    )
    (tmp_path / "diabetes130").mkdir()
    table.to_csv(tmp_path / "diabetes130" / "diabetic_data.csv.gz", index=False)
    sequences = list_diagnoses(read_stays(tmp_path))
    assert list(sequences.patients) == ["a", "b"]
    assert sequences[0] == [(0.0, "V57"), (0.0, "8")]
    assert sequences[1] == [
        (0.0, "428"),
        (0.0, "276"),
        (1.0, "401"),
        (1.0, "401"),
        (2.0, "250.01"),
        (2.0, "303"),
    ]


def test_nobody_is_both_auxiliary_and_shared():
    stays = pd.DataFrame(
        {
            "patient_nbr": [str(number) for number in range(200)],
            "day": 0,
            "diag_1": "250",
            "diag_2": "?",
            "diag_3": "?",
        }
    )
    auxiliary, shared = split(list_diagnoses(stays), seed=3)
    assert len(auxiliary) + len(shared) == 200
    assert not set(auxiliary.patients) & set(shared.patients)
    assert 130 < len(auxiliary) < 190
