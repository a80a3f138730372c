"""The report says what was shared: measured again by hand, with curves that a picture can draw."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from concilium.codes.agreed_sharing import NOT_FOR_CARE
from concilium.codes.block_response import BlockResponse
from concilium.codes.sharing import CodeSharing
from concilium.codes.sharing_report import (
    BLOT,
    OURS,
    PLAIN,
    SAME,
    SharingTest,
    draw_curves,
    find_expected_loss,
    report_sharing,
)

SENSITIVE = ["042", "303", "304", "305"]


def make_patients(count, seed):
    rng = np.random.default_rng(seed)
    patients = []
    for _ in range(count):
        codes = rng.choice(["250", "401", "428", "486", "427"], rng.integers(1, 4)).tolist()
        if rng.random() < 0.3:
            codes += ["303", "571"]
        patients.append([(float(day), code) for day, code in enumerate(codes)])
    return patients


@pytest.fixture(scope="module")
def fitted():
    auxiliary = make_patients(1000, 1)
    return CodeSharing(sensitive=SENSITIVE, gamma=None, gamma_max=None, epsilon=2, max_events=4).fit(
        auxiliary
    )


def test_a_report_measures_a_draw_of_these_patients(fitted, monkeypatch):
    patients = make_patients(400, 2)
    shared = fitted.share(patients)
    draws, draw = [], BlockResponse.randomize
    monkeypatch.setattr(BlockResponse, "randomize", lambda *args: draws.append(draw(*args)) or draws[-1])
    report = report_sharing(fitted, patients, epsilons=["1"], shared=shared)
    latest = [code for history in patients for _, code in history[-4:]]
    pairs = [(one, fitted.taxonomy.codes[other]) for one, other in zip(latest, draws[0], strict=True)]
    assert [b for _, b in pairs] != [code for history in shared for _, code in history]
    loss = report.measured.loss
    assert report.events == len(pairs)
    assert report.cut == sum(map(len, patients)) - len(pairs) > 0
    assert loss.changed == pytest.approx(np.mean([a != b for a, b in pairs]))
    assert loss.false_sensitive == pytest.approx(
        np.mean([b in SENSITIVE and a not in SENSITIVE for a, b in pairs])
    )
    names = sorted({code for pair in pairs for code in pair})
    distances = fitted.taxonomy.distances(names)
    far = [distances[names.index(a), names.index(b)] for a, b in pairs if a in SENSITIVE]
    assert loss.sensitive == pytest.approx(np.mean(far))
    assert report.kept_clear == float(1 - fitted.mechanism_.replaced)
    assert report.expected_loss == pytest.approx(fitted.blocking_.loss)


def test_the_report_says_it_in_words(fitted):
    text = str(report_sharing(fitted, make_patients(400, 2), epsilons=[]))
    assert "epsilon = 2 for each event, 8 for each patient" in text
    assert text.endswith(NOT_FOR_CARE)
    suppressed = fitted.refit(mechanism="suppression")
    assert "no differential privacy" in str(report_sharing(suppressed, make_patients(50, 2), epsilons=[]))


def test_the_attack_finds_what_suppression_hides_and_randomising_hides_it(fitted):
    """303 always comes with 571, which is in the clear."""
    test = SharingTest(fitted, make_patients(1500, 3))
    blotted = test.measure(fitted.refit(mechanism="suppression"), histories=True)
    assert blotted.largest == 1.0
    assert blotted.largest_by_history == 1.0
    hidden = fitted.refit(gamma=0.05, gamma_max=0.2, epsilon="0.1")
    assert "571" in hidden.protected_
    found = test.measure(hidden, histories=True)
    assert (found.largest or 0) < 0.6
    assert (found.largest_by_history or 0) < 0.6


def test_with_much_epsilon_little_is_lost_and_all_is_found(fitted):
    found = SharingTest(fitted, make_patients(500, 4)).measure(fitted.refit(epsilon=20, block_size=1))
    assert found.loss.everything < 0.01
    assert found.largest == 1.0
    assert found.divergence < 0.01


def test_curves_have_each_mechanism_at_each_epsilon_and_become_a_picture(fitted):
    report = report_sharing(fitted, make_patients(300, 5), epsilons=["0.5", "3"])
    assert {(point.series, float(point.epsilon)) for point in report.curves} >= {
        (series, epsilon) for series in (OURS, SAME, PLAIN, BLOT) for epsilon in (0.5, 3.0)
    }
    losses = {(point.series, float(point.epsilon)): point.expected_loss for point in report.curves}
    for epsilon in (0.5, 3.0):
        assert losses[OURS, epsilon] <= losses[SAME, epsilon]
    assert losses[OURS, 3.0] < losses[OURS, 0.5]
    picture = draw_curves(report.curves, lambda point: point.measured.loss.sensitive, "loss <sensitive>")
    root = ElementTree.fromstring(picture)
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == len({point.series for point in report.curves})
    assert "loss &lt;sensitive&gt;" in picture


def test_points_without_a_value_are_left_out_of_a_picture(fitted):
    report = report_sharing(fitted, make_patients(50, 6), epsilons=["1"])
    assert "polyline" not in draw_curves(report.curves, lambda point: None, "nothing")


def test_the_loss_expected_is_the_mean_of_many_draws(fitted):
    sharing = fitted.refit(epsilon=1)
    draws = 5000
    histories = [[(0.0, code)] for code in SENSITIVE] * draws
    found = SharingTest(sharing, histories).measure()
    # Distances are between 0 and 1, so the mean of 20,000 has a standard deviation of at most 0.0036.
    assert found.loss.sensitive == pytest.approx(find_expected_loss(sharing), abs=7 * 0.0036)
