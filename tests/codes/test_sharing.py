"""Sharing from end to end: what is protected, what comes out, what it costs, and what is refused."""

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import concilium as cc
from concilium.codes.sharing import CodeSharing
from concilium.codes.taxonomy import Taxonomy
from concilium.errors import ConciliumError, RecordsError, StudyError
from concilium.privacy import randomness
from taylor import bound_exponential

SENSITIVE = ["042", "303", "304", "305"]


def make_patients(count, seed=1):
    """Histories in which 571 comes with 303, and 136, which is rare, with 042."""
    rng = np.random.default_rng(seed)
    patients = []
    for _ in range(count):
        codes = rng.choice(["250", "401", "428", "486", "427"], rng.integers(1, 4)).tolist()
        if rng.random() < 0.05:
            codes += ["303", "571"] if rng.random() < 0.7 else ["571"]
        if rng.random() < 0.02:
            codes += ["042"] + (["136"] if rng.random() < 0.5 else [])
        if rng.random() < 0.05:
            codes.append(str(rng.choice(["304", "305"])))
        patients.append([(float(day), code) for day, code in enumerate(codes)])
    return patients


AUXILIARY = make_patients(2000)


@pytest.fixture(scope="module")
def fitted():
    return cc.CodeSharing(taxonomy="icd9", digits=3, sensitive=SENSITIVE, epsilon=1, gamma=0.05).fit(
        AUXILIARY
    )


def test_codes_that_give_a_sensitive_one_away_are_protected(fitted):
    assert set(SENSITIVE) | {"571", "136"} <= set(fitted.protected_)
    assert not {"250", "401", "428"} & set(fitted.protected_)
    alone = fitted.refit(gamma=None, gamma_max=None, mechanism="umaxrr")
    assert alone.protected_ == tuple(SENSITIVE)


def test_both_bounds_hold_as_counted_by_hand(fitted):
    """P(e_i | e') by plain loops over the auxiliary patients; shrunk as the docstring says."""
    events = [code for history in AUXILIARY for _, code in history]
    clear = set(events) - set(fitted.protected_)
    for sensitive in SENSITIVE:
        share = sum(any(code == sensitive for _, code in history) for history in AUXILIARY) / len(AUXILIARY)
        leakage = 0.0
        for other in clear:
            having = [{code for _, code in history} for history in AUXILIARY]
            having = [codes for codes in having if other in codes]
            conditional = (sum(sensitive in codes for codes in having) + 5 * share) / (len(having) + 5)
            assert conditional <= 0.2
            leakage += conditional * events.count(other) / len(events)
        assert leakage <= 0.05
        assert fitted.extension_.leakage_after[SENSITIVE.index(sensitive)] == pytest.approx(leakage)


def test_patients_times_and_numbers_of_events_stay(fitted):
    patients = [*make_patients(300, 2), []]
    shared = fitted.share(patients)
    assert len(shared) == 301
    assert shared[300] == []
    assert [[time for time, _ in history] for history in shared] == [
        [time for time, _ in history] for history in patients
    ]
    assert all(code in Taxonomy.icd9().codes for history in shared for _, code in history)


@pytest.mark.parametrize("changes", [{}, {"show_hidden": False}, {"mechanism": "umaxrr"}, {"block_size": 2}])
def test_what_comes_out_has_the_distribution_of_the_channel(fitted, changes):
    sharing = fitted.refit(**changes)
    inputs, outputs, matrix = sharing.channel()
    assert matrix.shape == (len(inputs), len(outputs))
    assert np.allclose(matrix.sum(axis=1), 1)
    draws, p_values = 20_000, []
    for code in ("042", "303", "571", "136", "250"):
        shared = sharing.share([[(0.0, code)]] * draws)
        seen = dict(zip(shared.labels, np.bincount(shared.codes), strict=True))
        expected = matrix[inputs.index(code)] * draws
        possible = np.flatnonzero(expected)
        assert set(seen) <= {outputs[place] for place in possible}
        observed = [seen.get(outputs[place], 0) for place in possible]
        p_values.append(stats.chisquare(observed, expected[possible]).pvalue)
    assert min(p_values) > 1e-9


@pytest.mark.parametrize("mechanism", ["blocks", "umaxrr", "k-rr"])
@pytest.mark.parametrize("show_hidden", [True, False])
def test_no_output_that_hides_tells_more_than_e_to_the_epsilon(fitted, mechanism, show_hidden):
    for epsilon in ("0.1", "1", "5"):
        sharing = fitted.refit(epsilon=epsilon, mechanism=mechanism, show_hidden=show_hidden)
        inside, elsewhere = sharing.mechanism_.inside, sharing.mechanism_.elsewhere
        assert inside <= bound_exponential(Fraction(epsilon))[0] * elsewhere
        _, outputs, matrix = sharing.channel()
        hiding = [column for column, code in enumerate(outputs) if code in sharing.protected_]
        ratios = matrix[:, hiding].max(axis=0) / matrix[:, hiding].min(axis=0)
        assert ratios.max() <= math.exp(float(epsilon)) * (1 + 1e-12)


def test_codes_that_are_never_shown_are_not_outputs_and_sensitive_ones_lose_no_more_than_by_umaxrr(fitted):
    distances = fitted.taxonomy.distances
    for epsilon in ("0.1", "1", "2.5", "5"):
        sharing = fitted.refit(epsilon=epsilon, show_hidden=False)
        plain = fitted.refit(epsilon=epsilon, mechanism="umaxrr", gamma=None, gamma_max=None)
        losses = []
        for one in (sharing, plain):
            inputs, outputs, matrix = one.channel(SENSITIVE)
            assert inputs == tuple(SENSITIVE)
            far = distances([*inputs, *outputs])[: len(inputs), len(inputs) :]
            losses.append((far * matrix).sum(axis=1).mean())
        assert losses[0] <= losses[1] + 1e-12
        assert losses[0] == pytest.approx(sharing.blocking_.loss)
        assert {"571", "136"} <= set(sharing.protected_)
        assert not {"571", "136"} & set(sharing.channel()[1])


def test_suppression_blots_out_and_has_no_price(fitted):
    sharing = fitted.refit(mechanism="suppression", gamma=None, gamma_max=None)
    assert sharing.share([[(0.0, "303"), (1.0, "250")]])[0] == [(0.0, "(root)"), (1.0, "250")]
    with pytest.raises(StudyError, match="suppression has no price"):
        _ = sharing.price


def test_everyone_is_charged_for_max_events_and_the_latest_are_shared(fitted):
    assert fitted.price == 100
    sharing = fitted.refit(max_events=2, epsilon="0.3")
    assert sharing.price == Fraction(6, 10)
    shared = sharing.share([[(1.0, "250"), (2.0, "401"), (3.0, "428")], [(5.0, "250")], []])
    assert [[time for time, _ in history] for history in shared] == [[2.0, 3.0], [5.0], []]


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.sampled_from(["250", "303", "042", "401"]), max_size=6), max_size=6),
    st.integers(1, 4),
)
def test_without_noise_the_latest_events_come_out_as_they_went_in(fitted, patients, most):
    histories = [[(float(day), code) for day, code in enumerate(codes)] for codes in patients]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(randomness.SWITCH, randomness.SWITCHED_ON)
        with randomness.zero_noise():
            shared = fitted.refit(max_events=most).share(histories)
    assert [shared[row] for row in range(len(histories))] == [history[-most:] for history in histories]


def test_two_draws_differ(fitted):
    patients = make_patients(200, 3)
    assert fitted.share(patients).digest != fitted.share(patients).digest


def test_codes_that_no_auxiliary_patient_has_are_shared_in_the_clear(fitted):
    [history] = fitted.refit(epsilon=30).share([[(0.0, "V27")]])
    assert history == [(0.0, "V27")]
    _, outputs, matrix = fitted.channel(["V27"])
    assert matrix[0, outputs.index("V27")] == float(1 - fitted.mechanism_.replaced)


def test_the_level_and_the_spelling_of_codes_do_not_matter(fitted):
    shared = fitted.refit(epsilon=30).share([[(0.0, "250.01"), (1.0, "25000"), (2.0, "4280")]])
    assert [code for _, code in shared[0]] == ["250", "250", "428"]


def test_a_single_sensitive_code_finds_company():
    sharing = CodeSharing(sensitive=["042"], gamma=None, gamma_max=None).fit(AUXILIARY)
    assert len(sharing.protected_) >= 2
    assert sharing.blocking_.size < len(sharing.protected_)


def test_k_rr_protects_every_code(fitted):
    sharing = fitted.refit(mechanism="k-rr")
    assert sharing.protected_ == Taxonomy.icd9().codes
    k = len(sharing.protected_)
    assert sharing.channel(["250"])[2].max() == pytest.approx(math.e / (k - 1 + math.e))


def test_the_default_is_the_list_of_section_7332():
    sharing = CodeSharing(digits=3)
    assert {"042", "303", "304", "305"} <= set(sharing.sensitive)
    headings = CodeSharing(digits=5, sensitive=["304"])
    assert len(headings.sensitive) > 20
    assert all(code.startswith("304.") for code in headings.sensitive)


def test_a_bound_for_each_code():
    bounds = {"042": 0.5, "303": 0.5, "304": 0.5, "305": 0.001}
    tight = CodeSharing(sensitive=SENSITIVE, gamma=bounds, gamma_max=None).fit(AUXILIARY)
    assert tight.extension_.leakage_after[3] <= 0.001 < tight.extension_.leakage_before[3]
    with pytest.raises(StudyError, match="gamma says nothing about the sensitive code '304'"):
        CodeSharing(sensitive=SENSITIVE, gamma={"042": 0.5, "303": 0.5})


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"taxonomy": "icd11"}, "icd11: "),
        ({"taxonomy": 9}, "the 'taxonomy' of a CodeSharing must be 'icd9', 'icd10', a table"),
        ({"digits": 6}, "digits must be one of 3, 4, 5"),
        ({"digits": 9}, "the 'digits' of a CodeSharing must be a whole number from 3 to 7; got 9"),
        ({"zeros": "gone"}, "the 'zeros' of a CodeSharing must be 'kept' or 'lost'; got 'gone'"),
        ({"sensitive": ["999.99x"]}, "999.99x"),
        ({"sensitive": "042"}, "'sensitive' of a CodeSharing must be a list of codes, or None; got '042'"),
        ({"sensitive": []}, "sensitive names no code"),
        (
            {"epsilon": 0},
            "'epsilon' of a CodeSharing must be a number above 0 (at least 1e-30, at most 1e6); got 0",
        ),
        ({"epsilon": float("nan")}, "'epsilon' of a CodeSharing must be a number above 0"),
        (
            {"gamma": 0},
            "'gamma' of a CodeSharing must be a number above 0 and at most 1, or one for each",
        ),
        ({"gamma": "much"}, "or one for each sensitive code, or None; got 'much'"),
        (
            {"gamma_max": 1.5},
            "'gamma_max' of a CodeSharing must be a number above 0 and at most 1, or None; got 1.5",
        ),
        ({"mechanism": "magic"}, "must be 'blocks', 'umaxrr', 'k-rr' or 'suppression'; got 'magic'"),
        (
            {"block_size": 0},
            "'block_size' of a CodeSharing must be a whole number from 1 to 2000, or None; got 0",
        ),
        (
            {"block_size": 2.0},
            "'block_size' of a CodeSharing must be a whole number from 1 to 2000, or None; got 2.0",
        ),
        ({"within": -1}, "'within' of a CodeSharing must be a number of days of at least 0; got -1"),
        ({"steps": 4}, "'steps' of a CodeSharing must be a whole number from 1 to 3; got 4"),
        ({"max_events": 0}, "'max_events' of a CodeSharing must be a whole number from 1 to 100000; got 0"),
        ({"prior": -1}, "'prior' of a CodeSharing must be a number of patients of at least 0; got -1"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters, said):
    with pytest.raises(ConciliumError) as raised:
        CodeSharing(**parameters)
    assert said in str(raised.value)


def test_a_gamma_that_cannot_be_met_says_the_smallest_that_can():
    with pytest.raises(StudyError, match="the smallest gamma that can is") as raised:
        CodeSharing(sensitive=SENSITIVE, gamma=1e-4, gamma_max=None, most_hidden=1).fit(AUXILIARY)
    smallest = float(str(raised.value).rsplit(" ", 1)[1])
    met = CodeSharing(sensitive=SENSITIVE, gamma=smallest, gamma_max=None, most_hidden=1).fit(AUXILIARY)
    assert met.extension_.leakage_after.max() <= smallest


def test_a_block_as_large_as_the_protected_set_is_refused(fitted):
    with pytest.raises(
        StudyError, match="a block must be smaller than the set of protected codes: a size of 50"
    ):
        fitted.refit(block_size=50)
    with pytest.raises(StudyError, match="needs at least two protected codes"):
        CodeSharing(sensitive=["042"], mechanism="umaxrr", gamma=None, gamma_max=None).fit(AUXILIARY)


def test_it_is_fitted_before_it_shares_and_refits_only_what_it_can(fitted):
    with pytest.raises(StudyError, match=r"call fit\(\) first"):
        CodeSharing().share([])
    with pytest.raises(StudyError, match=r"refit changes epsilon, .*, query; got sensitive"):
        fitted.refit(sensitive=["042"])


def test_what_is_no_list_of_histories_is_refused(fitted):
    for wrong in (None, 5):
        with pytest.raises(StudyError, match=r"for each patient a list of \(time, code\)"):
            fitted.share(wrong)


def test_what_is_suppressed_is_not_shared_again(fitted):
    with pytest.raises(StudyError, match="share codes as they were recorded"):
        fitted.share([[(0.0, "(root)")]])


def test_mixed_classifications_are_refused(fitted):
    with pytest.raises(RecordsError, match="mixed"):
        fitted.share([[(0.0, "250"), (1.0, "F10.2")]])


def test_so_much_epsilon_that_nothing_is_random_is_said(fitted):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted.refit(epsilon=60).share([[(0.0, "250")]])
    assert "practically no noise" in str(caught[0].message)
