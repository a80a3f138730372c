"""Whoever gets shared codes recovers what was recorded: prevalence, odds ratios, frequencies, features."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import concilium as cc
from concilium.codes.recipient import Stays, _find_weights
from concilium.errors import RecordsError, StudyError
from concilium.privacy import randomness
from concilium.study.code_sharing import SharingStudy

SENSITIVE = ["042", "303", "304", "305"]


def make_histories(count, seed=3):
    """303 and 571 come together, 250 is alone; one to four days apart or months."""
    rng = np.random.default_rng(seed)
    histories = []
    for _ in range(count):
        codes = [c for c, share in (("250", 0.4), ("401", 0.3), ("304", 0.1)) if rng.random() < share]
        codes += ["303"] if rng.random() < 0.2 else []
        codes += ["571"] if rng.random() < (0.6 if "303" in codes else 0.05) else []
        days = np.sort(rng.integers(0, 200, len(codes)))
        histories.append(list(zip(days.astype(float).tolist(), codes, strict=True)))
    return histories


def share(histories, **options):
    sharing = cc.CodeSharing(
        sensitive=SENSITIVE, **{"epsilon": 2, "max_events": 5, "block_size": 1, **options}
    ).fit()
    return cc.SharedCodes(sharing.share(histories), sharing.propose().design)


@pytest.mark.parametrize("options", [{}, {"show_hidden": False}, {"block_size": 2}, {"mechanism": "umaxrr"}])
def test_weights_have_the_expectation_that_they_promise(options):
    """By the channel itself, for every input: 0 for the codes asked about, 1 for all others."""
    sharing = cc.CodeSharing(sensitive=SENSITIVE, epsilon=1, **{"block_size": 1, **options}).fit()
    channel, codes = sharing.mechanism_, sharing.taxonomy.number_of
    inputs, outputs, matrix = sharing.channel([*SENSITIVE, "571", "250", "401"])
    for asked in (("250",), ("303",), ("303", "250"), tuple(sharing.protected_)):
        chosen = np.array(sorted(codes[code] for code in asked))
        weights = _find_weights(channel, chosen)
        if weights is None:
            assert options in ({"block_size": 2}, {"show_hidden": False}), asked
            continue
        expected = matrix @ weights[[codes[code] for code in outputs]]
        assert expected == pytest.approx([0.0 if code in asked else 1.0 for code in inputs], abs=1e-6)


BOTH = 0.2 * 0.6  # of make_histories: patients with 303 and 571
ODDS = (0.6 / 0.4) / (0.05 / 0.95)
DRAWS = 200


def draw_estimates(patients, epsilon):
    """Of 200 hospitals, with fixed seeds: for each question the estimates beside what is true."""
    sharing = cc.CodeSharing(sensitive=SENSITIVE, epsilon=epsilon, max_events=5, block_size=1).fit()
    design, found = sharing.propose().design, {name: [] for name in ("250", "303", "both", "odds", "entries")}
    with randomness.seeded(7):
        for seed in range(DRAWS):
            histories = make_histories(patients, seed)
            shared = cc.SharedCodes(sharing.share(histories), design)
            pair = shared.together("303", "571")
            found["250"].append((*shared.prevalence("250"), 0.4))
            found["303"].append((*shared.prevalence("303"), 0.2))
            found["both"].append((pair.both, BOTH))
            found["odds"].append((pair.odds_ratio, ODDS))
            if seed < 50:  # these take longer
                counted = next(one for one in shared.frequencies() if one.code == "303")
                found["entries"].append((counted, sum(code == "303" for one in histories for _, code in one)))
    return found


@pytest.mark.parametrize(
    ("patients", "epsilon", "noisy"),
    [
        (100, "0.1", {"250", "303", "both", "odds", "entries"}),
        (300, "1", {"303", "both", "odds"}),
        (500, "3", set()),
    ],
)
def test_intervals_cover_the_truth_and_what_says_nothing_is_flagged(patients, epsilon, noisy, monkeypatch):
    """Of 200 draws about 190 intervals hold the truth, and what is flagged is worse than a guess."""
    monkeypatch.setenv("CONCILIUM_FIX_NOISE", "tests-only")
    for name, estimates in draw_estimates(patients, epsilon).items():
        told = [(one, true) for one, true in estimates if one is not None]
        flagged = sum(one is None or one.too_noisy for one, _ in estimates)
        assert flagged == len(estimates) if name in noisy else flagged <= 0.1 * len(estimates), (
            name,
            flagged,
        )
        covered = sum(one.low <= true <= one.high for one, true in told)
        assert covered >= 0.9 * len(told), (name, covered)
        if name in noisy and told and name != "entries":
            # Half of all values is 0.5 wide, so the standard error of what is flagged is above 0.5 / 3.92.
            error = np.sqrt(np.mean([(one.value - true) ** 2 for one, true in told]))
            assert error > 0.125, (name, error)


def test_a_code_that_nobody_is_seen_with_may_still_be_there():
    """Of 100 patients with 250, at epsilon 0.1 most copies show few or none: 0 seen is not 0 recorded."""
    histories = [[(0.0, "250")]] * 3 + [[(0.0, "401")]] * 97
    shared = share(histories, epsilon="0.1")
    (estimate,) = shared.prevalence("998")
    assert estimate.value == 0 == estimate.low
    assert estimate.high > 0.3
    exact = share(histories, epsilon=40)
    assert exact.prevalence("998")[0].high == pytest.approx(0.0384, abs=0.001)  # the rule of three, or nearly


def test_an_estimate_that_says_nothing_says_so_and_what_would_help():
    shared = share(make_histories(200), epsilon="0.1")
    (estimate,) = shared.prevalence("303")
    assert estimate.too_noisy
    assert f"{estimate.value:.4g} (" not in str(estimate)
    for said in (str(estimate), str(shared.together("303", "571")).splitlines()[1]):
        assert "too noisy to tell" in said
        assert "concilium share --counts" in said
    assert shared.together("303", "571").odds_ratio is None
    clear = share(make_histories(4000), epsilon=4)
    assert "too noisy" not in str(clear.together("303", "571"))
    assert "too noisy" not in str(clear.prevalence("303")[0])


@pytest.mark.parametrize(
    ("epsilon", "said"), [("1e-30", "cannot be told apart"), ("1e-10", "too noisy to tell")]
)
def test_almost_no_epsilon_says_that_nothing_can_be_told(epsilon, said):
    with pytest.raises(StudyError, match=said):
        share(make_histories(50), epsilon=epsilon).prevalence("303")


def test_prevalence_by_group_and_headings_and_naive_reading_is_wrong():
    histories = make_histories(4000)
    shared = share(histories)
    group = ["even" if place % 2 == 0 else "odd" for place in range(len(histories))]
    for estimate in shared.prevalence("303", by=group):
        chosen = [h for h, g in zip(histories, group, strict=True) if g == estimate.group]
        true = np.mean([any(code == "303" for _, code in history) for history in chosen])
        assert estimate.value == pytest.approx(true, abs=4 * (estimate.high - estimate.low) / 3.92)
    read = np.mean([any(code == "303" for _, code in history) for history in shared.sequences])
    true = np.mean([any(code == "303" for _, code in history) for history in histories])
    assert abs(shared.prevalence("303")[0].value - true) < abs(read - true)
    assert shared.prevalence(["303", "304"])[0].code == "303, 304"
    with pytest.raises(StudyError, match="4000 patients and 1 labels"):
        shared.prevalence("303", by=["x"])
    with pytest.raises(StudyError, match="are the same code here"):
        shared.together("303", "303.9")


def test_codes_that_cannot_be_told_apart_are_named():
    shared = share(make_histories(200), block_size=2, hidden=[])
    one = next(group for group in shared.confounded if "303" in group)
    with pytest.raises(StudyError, match="cannot be told apart from"):
        shared.prevalence(one[0])
    assert shared.prevalence(one)[0].code == ", ".join(one)


def test_features_are_worth_more_than_entries_as_they_stand():
    """The probability that a code was recorded is closer to the truth than reading the entry."""
    histories = make_histories(4000)
    shared = share(histories, epsilon=1)
    codes = ["250", "303", "571"]
    truth = np.array([[any(c == code for _, c in history) for code in codes] for history in histories])
    read = np.array([[any(c == code for _, c in history) for code in codes] for history in shared.sequences])
    features = shared.features(codes)
    assert features.shape == (4000, 3)
    errors = ((features - truth) ** 2).mean(axis=0), ((read - truth.astype(float)) ** 2).mean(axis=0)
    assert (errors[0] <= errors[1] + 1e-9).all()
    assert errors[0][1] < 0.7 * errors[1][1]
    assert features.mean(axis=0) == pytest.approx(truth.mean(axis=0), abs=0.1)
    assert shared.features(codes, of="stay").shape[0] == len(shared.stays().day)


def test_stays_are_moments_and_readmission_is_in_the_times():
    sequences = cc.Sequences([[(0.0, "250"), (0.0, "401"), (20.0, "428"), (90.0, "428")], [], [(5.0, "250")]])
    stays = Stays.find(sequences)
    assert stays.patient.tolist() == [0, 0, 0, 2]
    assert stays.day.tolist() == [0.0, 20.0, 90.0, 5.0]
    assert stays.readmitted.tolist() == [True, False, False, False]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("sharing")
    rows = [
        f"p{place},2020-{1 + int(day) // 28:02}-{1 + int(day) % 28:02},{code}"
        for place, history in enumerate(make_histories(200))
        for day, code in history
    ]
    (tmp_path / "codes.csv").write_text("\n".join(["patient,date,code", *rows]) + "\n")
    study = SharingStudy(
        codes=str(tmp_path / "codes.csv"),
        parameters={"sensitive": SENSITIVE, "epsilon": "0.2", "max_events": 4, "lengths": [1, 2, 4]},
    )
    study.run(tmp_path / "shared.csv")
    return tmp_path


@pytest.fixture
def copy(folder, tmp_path):
    for name in ("shared.csv", "shared.json"):
        shutil.copy(folder / name, tmp_path / name)
    return tmp_path / "shared.csv"


def test_a_copy_is_read_with_its_probabilities(copy):
    shared = cc.SharedCodes.read(copy)
    assert set(shared.sequences.counts.tolist()) <= {0, 1, 2, 4}
    assert shared.design.epsilon == "1/5"
    assert len(shared.frequencies()) > 3
    assert "SharedCodes(" in repr(shared)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda file: file.write_text(file.read_text() + "1,0,250,not for care\n"), "was edited since"),
        (lambda file: file.with_suffix(".json").unlink(), "cannot be read"),
        (lambda file: file.with_suffix(".json").write_text("{}"), "does not say how codes were drawn"),
        (
            lambda file: file.with_suffix(".json").write_text(
                file.with_suffix(".json").read_text().replace('"1/5"', '"5"')
            ),
            "does not say how codes were drawn, or was edited since",
        ),
        (lambda file: file.unlink(), "cannot be read"),
    ],
)
def test_an_edited_copy_is_refused_in_one_sentence(copy, spoil, said):
    spoil(copy)
    with pytest.raises(RecordsError, match=said):
        cc.SharedCodes.read(copy)


def test_how_a_copy_was_drawn_names_the_copy(copy):
    drawn = json.loads(copy.with_suffix(".json").read_text())
    assert drawn["file"]["name"] == "shared.csv"
    assert drawn["file"]["patients"] == len(cc.SharedCodes.read(Path(copy)))
